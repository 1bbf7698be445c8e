"""Workers take the mean of their models after every step; each writes its weights.

Run by tests/strategy/test_exact_mode.py: every_step.py OUTPUT_FOLDER OPTIONS, the latter those of
the strategy, such as "threshold=None".
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import keras
import numpy as np

import keras_strom

BATCH = 16
#: A whole number of batches for two workers and for three.
ROWS = 960


def train(batch_size: int) -> tuple[list[np.ndarray], list[str]]:
    """SGD with momentum on random points, in their order: weights, and their bits by step."""
    random = np.random.default_rng(1)
    x = random.normal(size=(ROWS, 12)).astype(np.float32)
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
    bits: list[str] = []

    def note(batch: int, logs: object) -> None:
        weights = b"".join(values.tobytes() for values in model.get_weights())
        bits.append(hashlib.sha256(weights).hexdigest())

    noting = keras.callbacks.LambdaCallback(on_train_batch_end=note)
    model.fit(x, y, batch_size=batch_size, epochs=2, shuffle=False, verbose=0, callbacks=[noting])
    return model.get_weights(), bits


def main(folder: str, options: str) -> None:
    """Trains, and leaves the weights."""
    strategy = eval(f"keras_strom.StromStrategy({options})")
    with strategy.scope():
        weights, bits = train(BATCH)
    np.savez(Path(folder, f"{keras_strom.rank()}.npz"), *weights)
    Path(folder, f"{keras_strom.rank()}.txt").write_text("\n".join(bits))


if __name__ == "__main__":
    main(*sys.argv[1:])
