"""Two workers take the mean of gradients; each writes the bits of its state after every batch.

Run by tests/strategy/test_exact_mode.py: one_state.py OUTPUT_FOLDER. Trainings in which one of them
meets what could part them: an overflow, another learning rate, fewer batches, and a NaN.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import keras_strom
from keras_strom import errors
from keras_strom.sharing import pulled_step
from tests.support.digest import digest

BATCH = 16
#: In batches from the first: where a value of worker 1 is far too large, or no number.
BAD = 5
#: ... and after which the chief halves the learning rate.
HALVED = 8
BATCHES = 20


def state_of(model: keras.Model) -> str:
    """The bits of all that is trained, and of the optimizer."""
    variables = [*model.trainable_variables, *model.optimizer.variables]
    return digest(variables)


class States(keras.callbacks.Callback):  # type: ignore[misc]
    """Notes the state after every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.states: list[str] = []
        self.scales: list[float] = []
        self.rates: list[float] = []
        self.steps: list[int] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        optimizer = self.model.optimizer
        self.states.append(state_of(self.model))
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            self.scales.append(float(optimizer.dynamic_scale.numpy()))
            optimizer = optimizer.inner_optimizer
        self.rates.append(float(optimizer.learning_rate.numpy()))
        self.steps.append(int(optimizer.iterations.numpy()))


class Halves(keras.callbacks.Callback):  # type: ignore[misc]
    """Halves the learning rate on the chief, in the middle of an epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == HALVED and keras_strom.rank() == 0:
            optimizer = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)
            optimizer.learning_rate.assign(optimizer.learning_rate / 2)


def data(batches: int, bad: float | None = None) -> tf.data.Dataset:
    """This worker's own batches; `bad` stands in one of worker 1's targets."""
    random = np.random.default_rng(keras_strom.rank())
    x = random.normal(size=(batches * BATCH, 8)).astype(np.float32)
    y = x[:, :1].copy()
    if bad is not None and keras_strom.rank() == 1:
        y[BAD * BATCH] = bad
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH).with_options(options)


def build(optimizer: keras.optimizers.Optimizer) -> keras.Model:
    """Has a layer whose state is averaged."""
    layers = [
        keras.layers.Dense(8, "tanh"),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile(optimizer, "mse")
    return model


def main(folder: str) -> None:
    """Trains four times, of which the third is from optimizers that differ."""
    # Of this small model, too, gradients leave while others are being computed.
    pulled_step._BUCKET_ELEMENTS = 8
    strategy = keras_strom.StromStrategy(threshold=None)
    keras.utils.set_random_seed(keras_strom.rank())
    result: dict[str, Any] = {}
    with strategy.scope():
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01, clipnorm=1.0))
        model = build(scaled)
        other = build(keras.optimizers.RMSprop(0.01))

    def fit(name: str, model: keras.Model, dataset: tf.data.Dataset) -> None:
        states = States()
        said = ""
        try:
            model.fit(dataset, epochs=1, verbose=0, callbacks=[states, Halves()])
        except errors.StromError as error:
            said = f"{type(error).__name__}: {error}"
        report = strategy.last_report
        result[name] = {
            "states": states.states,
            "scales": states.scales,
            "rates": states.rates,
            "steps": states.steps,
            "said": said,
            "difference": None if report is None else report.max_replica_difference,
            "finite": all(np.isfinite(w).all() for w in model.get_weights()),
        }

    fit("overflow", model, data(BATCHES, bad=1e38))
    fit("uneven", model, data(BATCHES + 3 * keras_strom.rank()))
    fit("after it", model, data(BATCHES))
    fit("nan", other, data(BATCHES, bad=float("nan")))
    np.savez(Path(folder, f"{keras_strom.rank()}.npz"), *model.get_weights(), *other.get_weights())
    Path(folder, f"{keras_strom.rank()}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])
