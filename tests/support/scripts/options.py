"""Two workers train by `fit` with an option of the strategy; each writes what it saw.

options.py OUTPUT_FOLDER MAX_STALENESS ("None" or a number) OPTIONS (of StromStrategy, JSON)
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import pathlib
import sys
from typing import Any

import keras
import numpy as np

import keras_strom
from tests.support.scripts.lifecycle import TAU, HashEveryStep, data


def build() -> keras.Model:
    """Has layers with state of every kind: trained, averaged, and of random numbers."""
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.BatchNormalization(momentum=0.5),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


class CompareDevices(keras.callbacks.Callback):
    """Counts the elements in which a variable differs from its copies on other devices."""

    def __init__(self, strategy: keras_strom.StromStrategy) -> None:
        super().__init__()
        self._strategy = strategy
        self.different = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        for variable in self.model.trainable_variables:
            first, *copies = self._strategy.experimental_local_results(variable.value)
            for copy in copies:
                self.different += int((first.numpy() != copy.numpy()).sum())


def main() -> None:
    """Two fits, so that the second starts from what the first has left."""
    output, staleness, options = pathlib.Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    if "devices" in options:
        importlib.import_module("tests.support.two_devices")
    if "update_clipping" in options:
        options["update_clipping"] = keras_strom.UpdateClipping(**options["update_clipping"])
    strategy = keras_strom.StromStrategy(
        threshold=keras_strom.FixedThreshold(TAU),
        warmup_steps=0,
        max_staleness=None if staleness == "None" else int(staleness),
        **options,
    )
    rank = keras_strom.rank()
    keras.utils.set_random_seed(100 + rank)
    with strategy.scope():
        model = build()
    x, y = data(96, seed=1)
    steps, compared = HashEveryStep(), CompareDevices(strategy)
    reports, losses = [], []
    for epochs in (2, 1):
        history = model.fit(
            x, y, batch_size=8, epochs=epochs, verbose=0, callbacks=[steps, compared]
        )
        reports.append(dataclasses.asdict(strategy.last_report))
        losses += history.history["loss"]
    result = {
        "reports": reports,
        "losses": losses,
        "hashes": steps.hashes,
        "shared": steps.shared,
        "different": compared.different,
    }
    np.savez(output / f"{rank}.npz", *model.get_weights())
    (output / f"{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
