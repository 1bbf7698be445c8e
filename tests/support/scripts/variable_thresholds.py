"""A worker with a threshold for each variable: writes what it ended with to OUTPUT/rank.json."""

from __future__ import annotations

import json
import pathlib
import sys

import keras
import numpy as np

import keras_strom
from keras_strom import AdaptiveThreshold, StromStrategy

output, staleness = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
strategy = StromStrategy(
    threshold=AdaptiveThreshold(per_variable=True), max_staleness=staleness, warmup_steps=0
)
keras.utils.set_random_seed(keras_strom.rank())
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((12,)),
            keras.layers.Embedding(20, 4),
            keras.layers.Flatten(),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dense(3),
        ]
    )
    model.compile(
        "adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
random = np.random.default_rng(0)
x = random.integers(0, 20, (1200, 12))
y = (x[:, :2] > 9).sum(axis=1)
history = model.fit(x, y, epochs=4, batch_size=20, verbose=0).history
report = strategy.last_report
rows = strategy._sharing.step.last_by_variable
values = np.concatenate([w.ravel() for w in model.get_weights()])
(output / f"{keras_strom.rank()}.json").write_text(
    json.dumps(
        {
            "values": values.view(np.uint32).tolist(),
            "applied": report.updates_applied,
            "difference": report.max_replica_difference,
            "thresholds": [row["threshold"] for row in rows.values()],
            "loss": history["loss"],
        }
    )
)
