"""How a `fit` of two workers ends: one that succeeds, fails or meets a NaN, and the next one.

Run by tests/test_fit_endings.py: fit_endings.py OUTPUT_FOLDER MAX_STALENESS ("None" or a number).
All cases go through one strategy, one after the other, so each also is the next fit of the one
before. A case returns what its test looks at.
"""

from __future__ import annotations

import json
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import keras_strom

CASES: dict[str, Callable[[Place], dict[str, Any]]] = {}


def case(function: Callable[[Place], dict[str, Any]]) -> Callable[[Place], dict[str, Any]]:
    """Registers a case under its name."""
    CASES[function.__name__] = function
    return function


class Place:
    """What a case has."""

    def __init__(self, folder: pathlib.Path, strategy: keras_strom.StromStrategy) -> None:
        self.folder = folder
        self.strategy = strategy
        self.rank = keras_strom.rank()
        self.is_chief = keras_strom.is_chief()

    def model(self, *, metrics: list[Any] | None = None, **dense: Any) -> keras.Model:
        """A small classifier, from the same start on all workers or not."""
        with self.strategy.scope():
            model = keras.Sequential(
                [
                    keras.Input((6,)),
                    keras.layers.Dense(16, activation="tanh", **dense),
                    keras.layers.BatchNormalization(),
                    keras.layers.Dense(3),
                ]
            )
            loss = keras.losses.CategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.Adam(0.01), loss, metrics=metrics)
        return model


def data(rows: int = 96, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """The same on every worker; labels are one-hot."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 6)).astype("float32")
    return x, np.eye(3, dtype="float32")[random.integers(0, 3, rows)]


def await_file(path: pathlib.Path) -> None:
    """Waits until another worker has left it; the test's own deadline is the bound."""
    while not path.exists():
        time.sleep(0.01)


class SavesAfterTheOther(keras.callbacks.Callback):
    """On the chief: writes the model's file when the other worker's callbacks are through."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place = place

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if not self._place.is_chief:
            (self._place.folder / "through").touch()
            return
        await_file(self._place.folder / "through")
        self.model.save(self._place.folder / "best.keras")


@case
def the_chief_writes_what_all_read(place: Place) -> dict[str, Any]:
    model = place.model()
    model.fit(*data(), batch_size=8, verbose=0, callbacks=[SavesAfterTheOther(place)])
    loaded = keras.models.load_model(place.folder / "best.keras")
    same = zip(loaded.get_weights(), model.get_weights(), strict=True)
    return {"equal": all(np.array_equal(a, b) for a, b in same)}


@case
def a_metric_has_several_values(place: Place) -> dict[str, Any]:
    model = place.model(metrics=[keras.metrics.F1Score(name="f1")])
    history = model.fit(
        *data(), batch_size=8, verbose=0, validation_data=data(seed=2), epochs=2
    ).history
    return {name: np.shape(history[name]) for name in ("loss", "f1", "val_f1")}


def main(folder: pathlib.Path, max_staleness: str) -> None:
    """Goes through all cases."""
    staleness = None if max_staleness == "None" else int(max_staleness)
    place = Place(folder, keras_strom.StromStrategy(max_staleness=staleness))
    results = {name: run(place) for name, run in CASES.items()}
    (folder / f"{place.rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2])
