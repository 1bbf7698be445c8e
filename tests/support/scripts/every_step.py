"""Two workers take the mean of their models after every step; each writes its weights.

Run by tests/strategy/test_joint_model.py: every_step.py OUTPUT_FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import keras
import numpy as np

import keras_strom

BATCH = 16
WORKERS = 2


def train(batch_size: int) -> keras.Model:
    """SGD with momentum on random points, in their order."""
    random = np.random.default_rng(1)
    x = random.normal(size=(640, 12)).astype(np.float32)
    y = np.argmax(x @ random.normal(size=(12, 4)), axis=1)
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((12,)),
            keras.layers.Dense(24, activation="relu"),
            keras.layers.Dense(4),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss)
    model.fit(x, y, batch_size=batch_size, epochs=2, shuffle=False, verbose=0)
    return model


def main(folder: str) -> None:
    """Trains, and leaves the weights."""
    strategy = keras_strom.StromStrategy(method=keras_strom.SparkNet(steps=1))
    with strategy.scope():
        model = train(BATCH)
    np.savez(Path(folder, f"{keras_strom.rank()}.npz"), *model.get_weights())


if __name__ == "__main__":
    main(*sys.argv[1:])
