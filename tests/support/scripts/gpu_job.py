"""A worker of a job, on a GPU or on the CPU; writes its weights and what it has seen.

gpu_job.py OUTPUT_FOLDER CASE GPU_RANKS: "1" = only worker 1 has a GPU, "" = none has
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
from typing import Any

import numpy as np

import keras_strom
from tests.support import emulated_gpu, gpu

OUTPUT, CASE, GPU_RANKS = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
RANK = keras_strom.rank()
HAS_GPU = str(RANK) in GPU_RANKS
KERNELS = CASE.startswith("kernels")
if HAS_GPU:
    gpu.load(delay=200, kernels=KERNELS)
else:
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import keras  # noqa: E402

TAU = 2e-3
CASES: dict[str, dict[str, Any]] = {
    "sync": {"max_staleness": 0},
    "async": {},
    "kernels": {},
    "kernels_sync": {"max_staleness": 0},
    "kernels_bounded": {"max_staleness": 2},
    "lost": {},
    "SparkNet": {"method": keras_strom.SparkNet(steps=3)},
    "MPCA": {"method": keras_strom.MPCA(phases=2)},
}


class Fail(keras.callbacks.Callback):
    """Worker 1 loses its GPU in the middle."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == 3 and RANK == 1 and CASE == "lost":
            emulated_gpu.lose()


def layers() -> list[Any]:
    """Of the model; rows of an embedding, which no kernel takes, where none is to run."""
    if KERNELS:
        first = [keras.Input((2,)), keras.layers.Dense(256, activation="relu")]
    else:
        embedding = [keras.layers.Embedding(40, 4), keras.layers.Flatten()]
        dense = keras.layers.Dense(16, activation="relu")
        first = [keras.Input((2,), dtype="int32"), *embedding, dense]
    return [*first, keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dense(3)]


def main() -> None:
    options = CASES[CASE]
    if "method" not in options:
        options = {"threshold": keras_strom.FixedThreshold(TAU), **options}
    strategy = keras_strom.StromStrategy(**options)
    keras.utils.set_random_seed(100 + RANK)
    with strategy.scope():
        model = keras.Sequential(layers())
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"], jit_compile=False)
    random = np.random.default_rng(1)
    x, y = random.integers(0, 40, (192, 2)), random.integers(0, 3, 192)
    model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[Fail()])
    devices = sorted({weight.value.device.rpartition("device:")[2] for weight in model.weights})
    assert devices == ["GPU:0" if HAS_GPU else "CPU:0"], devices
    np.savez(OUTPUT / f"{RANK}.npz", *model.get_weights())
    report = strategy.last_report
    result = {"steps": report.steps, "difference": report.max_replica_difference}
    if HAS_GPU and not gpu.is_card():
        result["launches"] = emulated_gpu.counts().launches
    (OUTPUT / f"{RANK}.json").write_text(json.dumps(result))


main()
