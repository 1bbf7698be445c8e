"""The models that several benchmarks train."""

from __future__ import annotations

from typing import Any


def mlp(keras: Any, hidden: tuple[int, int] = (1024, 256)) -> Any:
    """784-1024-256-10, 1068810 parameters, uncompiled; in either Keras.

    Args:
        keras: Keras 3 or tf_keras.
        hidden: units of the hidden layers.
    """
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Flatten(),
            *(layers.Dense(units, activation="relu") for units in hidden),
            layers.Dense(10),
        ]
    )


def wide_mlp(keras: Any) -> Any:
    """784-5120-4224-10, 25692554 parameters (98 MiB), uncompiled; in either Keras."""
    return mlp(keras, (5120, 4224))


def cnn(keras: Any, units: int = 128) -> Any:
    """The CNN of examples/fashion_mnist.py, 225034 parameters, uncompiled.

    Args:
        keras: Keras 3 or tf_keras.
        units: of the hidden dense layer, which has most parameters; 1280 of them make 2080906.
    """
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(units, activation="relu"),
            layers.Dense(10),
        ]
    )
