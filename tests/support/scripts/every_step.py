"""Workers take the mean of all in every step; each writes its weights.

Run by tests/strategy/test_exact_mode.py: every_step.py OUTPUT_FOLDER OPTIONS [OPTIMIZER], the
options those of the strategy, such as "threshold=None".
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np

import keras_strom
from tests.support.digest import digest

BATCH = 16
#: A whole number of batches for two workers and for three.
ROWS = 960


def with_rate_in_float64() -> keras.optimizers.Optimizer:
    """As where `keras.config.set_floatx("float64")` comes after the layers."""
    keras.config.set_floatx("float64")
    try:
        return keras.optimizers.Adam(0.01)
    finally:
        keras.config.set_floatx("float32")


#: By name. Clipping and a scale of the loss act on the gradient that an optimizer gets.
OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adam, accumulating": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "adam, rate in float64": with_rate_in_float64,
    "rmsprop, clipped": lambda: keras.optimizers.RMSprop(0.005, global_clipnorm=0.1),
    "adamw, clipped": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, clipnorm=0.05),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01, clipnorm=1)),
    # Of which other modes refuse both.
    "ftrl": lambda: keras.optimizers.Ftrl(0.05),
    "adam, overwritten": lambda: keras.optimizers.Adam(
        0.01, use_ema=True, ema_overwrite_frequency=3
    ),
}
if hasattr(keras.optimizers, "ScheduleFreeAdamW"):  # Not in every Keras that is supported.
    OPTIMIZERS["schedule-free"] = lambda: keras.optimizers.ScheduleFreeAdamW(0.01)


def of_parts() -> keras.optimizers.Optimizer:
    """Each with a learning rate of its own."""
    adam, sgd = keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.1, momentum=0.9)
    return keras.optimizers.MultiOptimizer(lambda v: adam if len(v.shape) > 1 else sgd)


if hasattr(keras.optimizers, "MultiOptimizer"):
    OPTIMIZERS["parts"] = of_parts
    OPTIMIZERS["parts, scaled"] = lambda: keras.optimizers.LossScaleOptimizer(of_parts())


def train(batch_size: int, optimizer: str = "momentum") -> tuple[list[np.ndarray], list[str]]:
    """Trains on random points, in their order: weights, and their bits by step."""
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
    model.compile(OPTIMIZERS[optimizer](), loss)
    # Where a step builds it, Keras 3.15 copies the weights to schedule-free's state in every step.
    model.optimizer.build(model.trainable_variables)
    bits: list[str] = []

    def note(batch: int, logs: object) -> None:
        bits.append(digest(model.get_weights()))

    noting = keras.callbacks.LambdaCallback(on_train_batch_end=note)
    model.fit(x, y, batch_size=batch_size, epochs=2, shuffle=False, verbose=0, callbacks=[noting])
    return model.get_weights(), bits


def main(folder: str, options: str, optimizer: str = "momentum") -> None:
    """Trains, and leaves the weights."""
    strategy = eval(f"keras_strom.StromStrategy({options})")
    with strategy.scope():
        weights, bits = train(BATCH, optimizer)
    np.savez(Path(folder, f"{keras_strom.rank()}.npz"), *weights)
    Path(folder, f"{keras_strom.rank()}.txt").write_text("\n".join(bits))


if __name__ == "__main__":
    main(*sys.argv[1:])
