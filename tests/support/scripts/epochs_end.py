"""Workers train by a method with rounds; each writes what every epoch has ended with.

Run by tests/strategy/test_epochs_end.py: epochs_end.py OUTPUT_FOLDER OPTIONS BATCHES SLOW. The
options are those of the strategy, BATCHES how many each worker has in an epoch, by rank ("20,23"),
and worker SLOW comes late to every epoch's end, and out of it.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import keras_strom
from tests.support.digest import digest

BATCH = 8
EPOCHS = 6
#: The chief ends the training after so many.
STOPPED_AFTER = 4
LATE_SECONDS = 0.15


class Slow(keras.callbacks.Callback):  # type: ignore[misc]
    """Stands still before an epoch's end, and after it."""

    def __init__(self, batches: int) -> None:
        super().__init__()
        self.batches = batches

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == self.batches - 1:
            time.sleep(LATE_SECONDS)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        time.sleep(LATE_SECONDS)


class Ends(keras.callbacks.Callback):  # type: ignore[misc]
    """Notes what an epoch has ended with: metrics, and the bits of what is averaged there."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[dict[str, Any]] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        metrics = {name: float(logs[name]) for name in ("loss", "mean_absolute_error")}
        statistics = digest(self.model.non_trainable_variables)
        rate = float(self.model.optimizer.learning_rate.numpy())
        self.noted.append({**metrics, "statistics": statistics, "rate": rate})


def data(batches: int) -> tf.data.Dataset:
    """This worker's own batches."""
    random = np.random.default_rng(keras_strom.rank())
    x = random.normal(1.0 + keras_strom.rank(), size=(batches * BATCH, 6)).astype(np.float32)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(BATCH).with_options(options)


def main(folder: str, options: str, batches: str, slow: str) -> None:
    """Trains until the chief ends it."""
    strategy = eval(f"keras_strom.StromStrategy({options})")
    rank = keras_strom.rank()
    own = [int(number) for number in batches.split(",")][rank]
    keras.utils.set_random_seed(7)
    with strategy.scope():
        layers = [
            keras.layers.Dense(8),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(1),
        ]
        model = keras.Sequential([keras.Input((6,)), *layers])
        model.compile(keras.optimizers.SGD(0.01), "mse", metrics=["mean_absolute_error"])
    ends = Ends()
    callbacks: list[keras.callbacks.Callback] = [ends]
    if rank == int(slow):
        callbacks.append(Slow(own))
    if rank == 0:
        # No loss is as high as the first, and of the learning rate the others hear.
        patience = STOPPED_AFTER - 1
        callbacks.append(keras.callbacks.EarlyStopping("loss", mode="max", patience=patience))
        callbacks.append(keras.callbacks.ReduceLROnPlateau("loss", mode="max", patience=1))
    model.fit(data(own), epochs=EPOCHS, verbose=0, callbacks=callbacks)
    result = {"ends": ends.noted, "package": keras_strom.__file__}
    Path(folder, f"{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
