"""Trains a small CNN on Fashion-MNIST: on one machine, on many processes, or on Spark, unchanged.

python examples/fashion_mnist.py                         # one worker, nothing is encoded
keras-strom run -np 2 examples/fashion_mnist.py          # two workers on this machine
make demo                                                # two Spark executors, with a report
"""

from __future__ import annotations

import argparse
import logging
from typing import Any

import keras
import numpy as np
from fashion_mnist_data import load_fashion_mnist

import keras_strom
from keras_strom import StromStrategy


def build_model() -> keras.Model:
    """A CNN of 225034 parameters, uncompiled: [28, 28, 1] float32 in, 10 logits out."""
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def compile_model(model: keras.Model) -> None:
    """Adam, cross-entropy on logits, accuracy."""
    model.compile(
        optimizer="adam",
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )


def load() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Images as float32 [n, 28, 28, 1] in 0 to 1, labels as uint8 [n]."""
    (x_train, y_train), (x_test, y_test) = load_fashion_mnist()
    return (_scaled(x_train), y_train), (_scaled(x_test), y_test)


def train(epochs: int = 3, batch_size: int = 64, seed: int = 1) -> dict[str, Any]:
    """What every worker runs. With several workers, `fit` gives each its share of the images.

    Args:
        epochs: passes over all 60000 images, whatever the number of workers.
        batch_size: images a step and worker.
        seed: of initial weights and shuffling.

    Returns:
        Test accuracy, and the strategy's report when several workers trained.
    """
    keras.utils.set_random_seed(seed)
    (x_train, y_train), (x_test, y_test) = load()
    strategy = StromStrategy()
    with strategy.scope():
        model = build_model()
        compile_model(model)
    model.fit(x_train, y_train, batch_size=batch_size, epochs=epochs)
    _, accuracy = model.evaluate(x_test, y_test, batch_size=1000, verbose=0)
    return {"accuracy": float(accuracy), "report": strategy.last_report}


def _scaled(images: np.ndarray) -> np.ndarray:
    return images[..., np.newaxis].astype("float32") / 255.0


def main() -> None:
    """Reads the flags, trains, and lets the chief say how it went."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    outcome = train(arguments.epochs, arguments.batch_size, arguments.seed)
    if keras_strom.is_chief():
        print(f"test accuracy {outcome['accuracy']:.4f} with {keras_strom.size()} worker(s)")


if __name__ == "__main__":
    main()
