"""Every Keras optimizer trains under StromStrategy as the oracle says, to the last bit."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

import keras
import numpy as np
import pytest

from keras_strom.strategy import StromStrategy
from keras_strom.threshold import FixedThreshold
from tests.optimizer_oracle import compare

TAU = 2e-3
REFUSED = {"Ftrl", "ScheduleFreeAdamW"}
# Bases, wrappers that need arguments (tested below), and other names of the same class.
NOT_BY_NAME = {"Optimizer", "LossScaleOptimizer", "MultiOptimizer"}
# Where 0.01 would send nothing within a few steps.
RATES = {"Adadelta": 10.0}


def _by_name() -> dict[str, Callable[[], keras.Optimizer]]:
    return {
        name: functools.partial(kind, learning_rate=RATES.get(name, 0.01))
        for name, kind in vars(keras.optimizers).items()
        if inspect.isclass(kind)
        and issubclass(kind, keras.Optimizer)
        and name not in REFUSED | NOT_BY_NAME
    }


CONFIGURATIONS: dict[str, Callable[[], keras.Optimizer]] = _by_name() | {
    "SGD momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "SGD nesterov": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "RMSprop centered momentum": lambda: keras.optimizers.RMSprop(
        0.01, momentum=0.9, centered=True
    ),
    "Adam amsgrad": lambda: keras.optimizers.Adam(0.01, amsgrad=True),
    "Adam weight_decay": lambda: keras.optimizers.Adam(0.01, weight_decay=0.01),
    "SGD weight_decay": lambda: keras.optimizers.SGD(0.05, weight_decay=0.01),
    "clipnorm": lambda: keras.optimizers.Adam(0.01, clipnorm=0.1),
    "clipvalue": lambda: keras.optimizers.SGD(0.5, clipvalue=0.01),
    "global_clipnorm": lambda: keras.optimizers.SGD(0.5, global_clipnorm=0.1),
    "use_ema": lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9),
    "gradient accumulation": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "learning-rate schedule": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.5)
    ),
    "LossScaleOptimizer": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01), initial_scale=8.0, dynamic_growth_steps=2
    ),
}


def _multi_optimizer() -> keras.Optimizer:
    adam, sgd = keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.05)
    return keras.optimizers.MultiOptimizer(lambda v: adam if len(v.shape) > 1 else sgd)


if hasattr(keras.optimizers, "MultiOptimizer"):
    CONFIGURATIONS["MultiOptimizer"] = _multi_optimizer


def test_the_list_names_all_optimizers_of_keras() -> None:
    assert {"SGD", "Adam", "AdamW", "RMSprop", "Nadam", "Lion", "Lamb"} <= set(CONFIGURATIONS)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_trains_as_the_oracle_says_in_every_bit(name: str) -> None:
    if name == "Muon" and keras.__version__.startswith("3.12."):
        pytest.skip("Keras 3.12's Muon fails under every tf.distribute strategy")
    strategy = StromStrategy(
        threshold=FixedThreshold(TAU), residual_clipping=None, always_encode=True
    )
    wrong, compared, sent = compare(
        lambda: _model(CONFIGURATIONS[name]()), strategy.scope, _batches(6), TAU
    )
    assert compared > 0
    assert sent > 0, "the oracle sent nothing, so nothing was tested"
    assert wrong == 0


def _model(optimizer: keras.Optimizer) -> keras.Model:
    """Dense and sparse gradients, a constraint, and state that is not trained."""
    words = keras.Input((3,), dtype="int32")
    hidden = keras.layers.Embedding(20, 6)(words)
    hidden = keras.layers.Flatten()(hidden)
    hidden = keras.layers.Dense(8, activation="tanh", kernel_constraint="max_norm")(hidden)
    hidden = keras.layers.BatchNormalization()(hidden)
    model = keras.Model(words, keras.layers.Dense(5)(hidden))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False)
    return model


def _batches(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(3)
    return [
        (random.integers(0, 20, (16, 3)).astype("int32"), random.integers(0, 5, 16))
        for _ in range(count)
    ]
