"""Trains a small network on a few hundred pictures, for several seeds, with one or several workers.

small_data.py OUTPUT_FOLDER PICTURES SEED..., where PICTURES is "digits" (scikit-learn's 1797 of
8 by 8 pixels) or "clothes" (as many of Fashion-MNIST, made as small). Writes RANK.json: the test
accuracy of each seed.
"""

from __future__ import annotations

import json
import pathlib
import runpy
import sys

import keras
import numpy as np

import keras_strom

ROOT = pathlib.Path(__file__).resolve().parents[3]
ROWS, TRAINED_ON = 1797, 1437
EPOCHS = 12


def digits() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    found = load_digits()
    return found.data / 16, found.target


def clothes() -> tuple[np.ndarray, np.ndarray]:
    load = runpy.run_path(str(ROOT / "examples" / "fashion_mnist_data.py"))["load_fashion_mnist"]
    pictures, kinds = load()[0]
    small = pictures[:ROWS, 2:26, 2:26].reshape(ROWS, 8, 3, 8, 3).mean(axis=(2, 4))
    return small.reshape(ROWS, 64) / 255, kinds[:ROWS].astype("int32")


def accuracy(strategy: keras_strom.StromStrategy, x: np.ndarray, y: np.ndarray, seed: int) -> float:
    """Of a network of its own, on the rows that it has not seen."""
    order = np.random.default_rng(seed).permutation(ROWS)
    x, y = x[order].astype("float32"), y[order]
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])
    model.fit(x[:TRAINED_ON], y[:TRAINED_ON], batch_size=32, epochs=EPOCHS, verbose=0)
    return float(model.evaluate(x[TRAINED_ON:], y[TRAINED_ON:], verbose=0)[1])


def main(folder: str, pictures: str, *seeds: str) -> None:
    """Trains for each seed in turn."""
    strategy = keras_strom.StromStrategy(max_staleness=0)  # Reproducible.
    x, y = {"digits": digits, "clothes": clothes}[pictures]()
    found = [accuracy(strategy, x, y, int(seed)) for seed in seeds]
    pathlib.Path(folder, f"{keras_strom.rank()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
