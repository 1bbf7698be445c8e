"""Two workers train by `fit` with an option of the strategy; each writes what it saw.

options.py OUTPUT_FOLDER MAX_STALENESS ("None" or a number) OPTIONS (of StromStrategy, JSON)
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys

import keras
import numpy as np

import keras_strom
from tests.scripts.lifecycle import TAU, HashEveryStep, data


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


def main() -> None:
    """Two fits, so that the second starts from what the first has left."""
    output, staleness = pathlib.Path(sys.argv[1]), sys.argv[2]
    strategy = keras_strom.StromStrategy(
        threshold=keras_strom.FixedThreshold(TAU),
        warmup_steps=0,
        max_staleness=None if staleness == "None" else int(staleness),
        **json.loads(sys.argv[3]),
    )
    rank = keras_strom.rank()
    keras.utils.set_random_seed(100 + rank)
    with strategy.scope():
        model = build()
    x, y = data(96, seed=1)
    steps = HashEveryStep()
    reports, losses = [], []
    for epochs in (2, 1):
        history = model.fit(x, y, batch_size=8, epochs=epochs, verbose=0, callbacks=[steps])
        reports.append(dataclasses.asdict(strategy.last_report))
        losses += history.history["loss"]
    result = {"reports": reports, "losses": losses, "hashes": steps.hashes}
    np.savez(output / f"{rank}.npz", *model.get_weights())
    (output / f"{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
