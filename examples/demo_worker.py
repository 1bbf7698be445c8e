"""What every worker of `demo.py` runs: one training, its test accuracy told after each epoch."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import Any

import keras
from fashion_mnist import build_model, compile_model, load

import keras_strom
from keras_strom import StromStrategy


@dataclasses.dataclass(frozen=True)
class Task:
    """What all workers of one training do.

    Attributes:
        epochs: passes over the training images.
        batch_size: images a step and worker.
        images: how many training images all workers have together.
        communicate: whether they train one model, or each its own on its share of the images.
    """

    epochs: int
    batch_size: int
    images: int
    communicate: bool


class EpochRecord(keras.callbacks.Callback):
    """Keeps what each epoch came to.

    Attributes:
        accuracy: on the test images, after each epoch.
        wire_bytes: what this worker had sent and received by then, since it joined.
        seconds: of training; the evaluations are left out.
    """

    def __init__(self, strategy: StromStrategy | None, *, tells: bool) -> None:
        super().__init__()
        self.accuracy: list[float] = []
        self.wire_bytes: list[int] = []
        self.seconds = 0.0
        self._strategy = strategy
        self._tells = tells
        self._begin = 0.0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Starts the clock."""
        self._begin = time.monotonic()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Stops the clock: here the model holds what all workers share, and is evaluated next."""
        self.seconds += time.monotonic() - self._begin

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Takes notes, and tells the driver by a line on the screen."""
        # As it is told, or a half would be rounded now up, now down.
        self.accuracy.append(round(float((logs or {})["val_accuracy"]), 6))
        traffic = self._strategy.counters() if self._strategy is not None else None
        self.wire_bytes.append(traffic.bytes_sent + traffic.bytes_received if traffic else 0)
        if self._tells:
            print(f"epoch {epoch + 1}: test accuracy {self.accuracy[-1]:.6f}", flush=True)


def train(task: Task) -> dict[str, Any]:
    """Trains as `task` says; returns plain values only."""
    keras.utils.set_random_seed(1)
    (x_train, y_train), test = load()
    x_train, y_train = x_train[: task.images], y_train[: task.images]
    strategy = None
    if task.communicate:
        strategy = StromStrategy()  # Its `fit` gives each worker its share.
    else:
        share = slice(keras_strom.rank(), None, keras_strom.size())
        x_train, y_train = x_train[share], y_train[share]
    with strategy.scope() if strategy is not None else contextlib.nullcontext():
        model = build_model()
        compile_model(model)
    # At the end of an epoch that all have trained, the chief's model is everybody's.
    record = EpochRecord(strategy, tells=strategy is None or keras_strom.is_chief())
    model.fit(
        x_train,
        y_train,
        batch_size=task.batch_size,
        epochs=task.epochs,
        validation_data=test,
        validation_batch_size=1000,
        callbacks=[record],
        verbose=0,
    )
    report = strategy.last_report if strategy is not None else None
    return {
        "accuracy": record.accuracy,
        "wire_bytes": record.wire_bytes,
        "seconds": record.seconds,
        "report": None if report is None else dataclasses.asdict(report),
    }
