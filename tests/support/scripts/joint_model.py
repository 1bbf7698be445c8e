"""Two workers train beside a joint model; each writes what it saw.

joint_model.py OUTPUT_FOLDER METHOD (an expression, such as "MPCA(phases=2)") [EPOCHS]
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys
from typing import Any

import keras
import numpy as np

import keras_strom
from keras_strom import EASGD, MPCA, AllReduce, PullStart, SparkNet

#: What METHOD may be made of.
NAMES = {kind.__name__: kind for kind in (AllReduce, EASGD, MPCA, PullStart, SparkNet)}


def data(rows: int = 512) -> tuple[np.ndarray, np.ndarray]:
    """What a linear teacher says of random points: its class of three."""
    random = np.random.default_rng(5)
    x = random.normal(size=(rows, 8)).astype(np.float32)
    y = np.argmax(x @ random.normal(size=(8, 3)), axis=1)
    return x, y.astype(np.int32)


def build() -> keras.Model:
    """Has layers with state of every kind: trained, averaged, frozen and of random numbers."""
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(8, trainable=False, kernel_initializer="identity"),
            keras.layers.Dense(24, activation="relu"),
            keras.layers.BatchNormalization(momentum=0.8),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.02), loss, metrics=["accuracy"])
    return model


class Look(keras.callbacks.Callback):
    """Notes the weights that callbacks see at the end of each epoch, and that training goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.at_ends: list[list[list[float]]] = []
        self.goes_on: list[bool] = []
        self._after: np.ndarray | None = None

    def _flat(self) -> np.ndarray:
        return np.concatenate([np.ravel(v.numpy()) for v in self.model.trainable_variables])

    def on_train_begin(self, logs: Any = None) -> None:
        self._after = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._after = self._flat()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.at_ends.append(self._flat().tolist())

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == 0 and self._after is not None:
            # After the end of an epoch every worker goes on from its own weights.
            self.goes_on.append(bool((self._flat() == self._after).all()))


def main() -> None:
    """Two fits, the second shorter."""
    output, method = pathlib.Path(sys.argv[1]), eval(sys.argv[2], NAMES)
    epochs = int(sys.argv[3]) if len(sys.argv) > 3 else 4
    strategy = keras_strom.StromStrategy(method=method)
    rank = keras_strom.rank()
    keras.utils.set_random_seed(100 + rank)
    with strategy.scope():
        model = build()
    x, y = data()
    look = Look()
    best = output / "best.keras"
    callbacks = [look, keras.callbacks.ModelCheckpoint(best)]
    logs, reports = [], []
    for of_fit in (epochs, 1):
        history = model.fit(
            x,
            y,
            batch_size=8,
            epochs=of_fit,
            verbose=0,
            validation_data=(x[:64], y[:64]),
            callbacks=callbacks,
        )
        logs.append(history.history)
        report = dataclasses.asdict(dataclasses.replace(strategy.last_report, network=None))
        reports.append(report)
    loaded = keras.models.load_model(best)
    same = all(map(np.array_equal, loaded.get_weights(), model.get_weights()))
    evaluated = model.evaluate(x, y, verbose=0, return_dict=True)
    result = {
        "logs": logs,
        "reports": reports,
        "at_ends": look.at_ends,
        "goes_on": look.goes_on,
        "loaded_is_last": same,
        "evaluated": evaluated,
        "report_words": str(strategy.last_report),
    }
    np.savez(output / f"{rank}.npz", *model.get_weights())
    (output / f"{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
