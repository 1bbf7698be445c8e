"""What each worker of `benchmarks.dashboard` runs: SECONDS of training, and RESULT of worker 0."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import keras_strom

WARM_UP_SECONDS = 2.0


class Clock(keras.callbacks.Callback):  # type: ignore[misc]
    """Times the steps after the first seconds, and ends the training."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.begin: float | None = None
        self.first: float | None = None
        self.steps = 0
        self.cpu = 0.0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts."""
        now = time.perf_counter()
        if self.first is None:
            self.first = now
        if self.begin is None:
            if now - self.first > WARM_UP_SECONDS:
                self.begin, self.cpu = now, reports_cpu()
            return
        self.steps += 1
        if now - self.begin > self.seconds:
            self.model.stop_training = True

    def result(self) -> dict[str, float]:
        """Once the training has ended."""
        assert self.begin is not None
        elapsed = time.perf_counter() - self.begin
        return {
            "step_seconds": elapsed / max(1, self.steps),
            "reports_cpu_share": (reports_cpu() - self.cpu) / elapsed,
        }


def reports_cpu() -> float:
    """Processor seconds of the thread that reports; 0 = there is none."""
    for thread in threading.enumerate():
        if thread.name == "strom-status":
            text = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
            user, system = text.rpartition(")")[2].split()[11:13]
            return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return 0.0


def main(seconds: float, result: str) -> None:
    """Trains."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    with keras_strom.StromStrategy().scope():
        model = keras.Sequential(
            [
                keras.Input((784,)),
                keras.layers.Dense(1024, activation="relu"),
                keras.layers.Dense(512, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = np.random.default_rng(0).random((2048, 784), dtype=np.float32)
    data = tf.data.Dataset.from_tensor_slices((x, np.arange(2048) % 10)).repeat().batch(32)
    clock = Clock(seconds)

    class Result(keras.callbacks.Callback):  # type: ignore[misc]
        """Takes the clock's figures before the workers wait for each other."""

        def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
            """Chief's alone."""
            if keras_strom.is_chief():
                Path(result).write_text(json.dumps(clock.result()), encoding="utf-8")

    model.fit(data, steps_per_epoch=10**9, epochs=1, verbose=0, callbacks=[clock, Result()])


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2])
