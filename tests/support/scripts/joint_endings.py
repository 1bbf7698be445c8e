"""Two workers train beside a joint model in ways that end early, or are refused; each writes how.

joint_endings.py OUTPUT_FOLDER METHOD (an expression, such as "MPCA(phases=2)")
"""

from __future__ import annotations

import json
import logging
import math
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import keras_strom
from tests.support.scripts.joint_model import NAMES

BATCH = 8


class Boom(keras.callbacks.Callback):
    """Fails on one worker in the middle of a training."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if keras_strom.rank() == 1 and epoch == 0:
            raise ValueError("boom")


class Scales(keras.callbacks.Callback):
    """Notes whether an epoch ends with the scales of float8 layers that its last step has made."""

    def __init__(self) -> None:
        super().__init__()
        self.stay: list[bool] = []
        self._after: list[np.ndarray] = []

    def _now(self) -> list[np.ndarray]:
        variables = self.model.trainable_variables
        return [v.numpy() for v in variables if v.overwrite_with_gradient]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._after = self._now()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.stay += map(np.array_equal, self._after, self._now())


class Place:
    """A worker's strategy and model, and what it notes."""

    def __init__(self, method: str) -> None:
        self.strategy = keras_strom.StromStrategy(method=eval(method, NAMES))
        keras.utils.set_random_seed(100 + keras_strom.rank())
        with self.strategy.scope():
            layers = [keras.Input((8,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(6)]
            self.model = keras.Sequential([*layers, keras.layers.Dense(1)])
            self.compile()
        self.x = np.random.default_rng(0).normal(size=(256, 8)).astype(np.float32)
        self.y = self.x[:, :1] * 2
        self.weights: dict[str, np.ndarray] = {}
        self.said: dict[str, str] = {}
        self.losses: dict[str, list[float]] = {}

    def compile(self) -> None:
        self.model.compile(keras.optimizers.Adam(0.01), "mse")

    def fit(self, name: str, y: np.ndarray | None = None, **others: Any) -> None:
        """Trains, and notes how it has ended."""
        options: dict[str, Any] = {"epochs": 2, "verbose": 0, **others}
        try:
            history = self.model.fit(
                self.x, self.y if y is None else y, batch_size=BATCH, **options
            )
            self.losses[name] = history.history["loss"]
        except keras_strom.StromError as error:
            self.said[name] = f"{type(error).__name__}: {error}"
        except ValueError as error:
            self.said[name] = f"ValueError: {error}"
        self.note(name)

    def note(self, name: str) -> None:
        """The weights as they are now."""
        self.weights[name] = np.concatenate([w.ravel() for w in self.model.get_weights()])

    def with_nan(self) -> np.ndarray:
        """Labels that on one worker hold a NaN from the first batches on."""
        y = self.y.copy()
        y[33::2] = math.nan  # Worker 1 has every second row.
        return y

    def loop(self, *models: Any) -> None:
        """A custom loop of a few steps."""
        optimizer = self.model.optimizer

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.model(x, training=True) - y) ** 2)
            variables = self.model.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
            return loss

        train: Callable[..., Any] = tf.function(
            lambda x, y: self.strategy.run(step, args=(x, y)), autograph=False
        )
        self.strategy.begin(*models)
        losses = []
        for start in range(0, len(self.x), BATCH):
            part = slice(start, start + BATCH)
            losses.append(float(train(self.x[part], self.y[part])))
        report = self.strategy.synchronize()
        name = f"loop of {len(models)} models"
        self.losses[name] = [losses[0], losses[-1], float(report.steps)]
        self.note(name)

    def float8(self) -> list[bool]:
        """Trains a layer of which each step replaces the scales; what `Scales` has noted."""
        with self.strategy.scope():
            layer = keras.layers.Dense(16, "relu", dtype="float8_from_float32")
            self.model = keras.Sequential([keras.Input((8,)), layer, keras.layers.Dense(1)])
            self.compile()
        look = Scales()
        self.fit("float8", epochs=3, callbacks=[look])
        return look.stay

    def step_outside(self) -> str:
        """What a step says that was traced in a loop and is made once that is over."""
        batch = self.x[:BATCH], self.y[:BATCH]
        step = tf.function(
            lambda: self.strategy.run(self.model.train_step, args=(batch,)), autograph=False
        )
        self.strategy.begin(self.model)
        step()
        self.strategy.synchronize()
        try:
            step()
        except tf.errors.OpError as error:
            return str(error)
        return ""


def main() -> None:
    """One training after another; none may disturb the next."""
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    output, method = pathlib.Path(sys.argv[1]), sys.argv[2]
    place = Place(method)
    terminate = keras.callbacks.TerminateOnNaN()
    best = keras.callbacks.EarlyStopping(monitor="loss", restore_best_weights=True)
    place.fit("well")
    place.fit("terminated", place.with_nan(), epochs=3, callbacks=[terminate])
    place.fit("after the NaN")
    place.fit("boom", epochs=3, callbacks=[Boom()])
    place.fit("best weights", callbacks=[best])
    place.model.layers[0].trainable = False
    place.fit("frozen without compile")
    place.compile()
    place.fit("frozen")
    place.model.layers[0].trainable = True
    place.compile()
    place.loop(place.model)
    place.loop()
    outside = place.step_outside()
    scales = place.float8()
    rank = keras_strom.rank()
    np.savez(output / f"{rank}.npz", **place.weights)
    result = {"losses": place.losses, "outside": outside, "float8": scales, "said": place.said}
    (output / f"{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
