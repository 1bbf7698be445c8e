"""A worker trains a small model, and may fail on purpose; it writes what it has at the end.

Run by tests/test_elastic.py: elastic.py OUTPUT_FOLDER JOB
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_strom
from tests import faults

CLASSES = 4
TEST_ROWS = 512


@dataclasses.dataclass(frozen=True)
class Job:
    """What each worker does.

    Attributes:
        rows: of the training data, of all workers.
        batch: rows of a batch.
        epochs: of each fit.
        fits: one after the other.
        pause: seconds after each batch.
    """

    rows: int = 1920
    batch: int = 16
    epochs: int = 4
    fits: int = 1
    pause: float = 0.0


class Record(keras.callbacks.Callback):  # type: ignore[misc]
    """The epochs and batches of this process, in order."""

    def __init__(self, pause: float) -> None:
        super().__init__()
        self.batches: dict[int, int] = {}
        self.iterations: list[int] = []
        self._epoch = 0
        self._pause = pause

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        self.batches[epoch] = 0
        self.iterations.append(int(self.model.optimizer.iterations.numpy()))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches[self._epoch] += 1


def data(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points around CLASSES centres."""
    centres = np.random.default_rng(0).normal(size=(CLASSES, 8))
    random = np.random.default_rng(seed)
    y = random.integers(0, CLASSES, rows)
    x = centres[y] + 0.7 * random.normal(size=(rows, 8))
    return x.astype("float32"), y


def build() -> keras.Model:
    """A small classifier whose optimizer has state."""
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(CLASSES)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])
    return model


def train(job: Job) -> dict[str, Any]:
    """Trains and says how it went."""
    keras.utils.set_random_seed(keras_strom.rank())
    with keras_strom.StromStrategy().scope():
        model = build()
    x, y = data(job.rows, seed=1)
    fits = []
    for _ in range(job.fits):
        record = Record(job.pause)
        history = model.fit(
            x,
            y,
            batch_size=job.batch,
            epochs=job.epochs,
            verbose=0,
            callbacks=[record, *faults.callbacks()],
        )
        fits.append(
            {
                "epochs": history.epoch,
                "batches": list(record.batches.items()),
                "iterations": record.iterations,
            }
        )
    _, accuracy = model.evaluate(*data(TEST_ROWS, seed=2), verbose=0)
    return {
        "attempt": int(os.environ["KERAS_STROM_ATTEMPT"]),
        "fits": fits,
        "steps": int(model.optimizer.iterations.numpy()),
        "accuracy": accuracy,
        "weights": [v.numpy() for v in model.trainable_variables],
    }


def main(folder: str, job: str) -> None:
    """Trains as a script does and leaves the result in a file."""
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    result = train(Job(**json.loads(job)))
    rank = keras_strom.rank()
    np.savez(Path(folder, f"{rank}.npz"), *result.pop("weights"))
    Path(folder, f"{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
