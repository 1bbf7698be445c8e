"""Every Keras optimizer trains under StromStrategy as the oracle says, to the last bit."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_strom.sharing.threshold import FixedThreshold
from keras_strom.strategy.strategy import StromStrategy
from tests.support.optimizer_oracle import compare, encode

pytestmark = pytest.mark.jobs

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
    "LossScaleOptimizer": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01), initial_scale=8.0, dynamic_growth_steps=2
    ),
}


def _multi_optimizer() -> keras.Optimizer:
    adam, sgd = keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.05)
    return keras.optimizers.MultiOptimizer(lambda v: adam if len(v.shape) > 1 else sgd)


if hasattr(keras.optimizers, "MultiOptimizer"):
    CONFIGURATIONS["MultiOptimizer"] = _multi_optimizer


def _lone(tau: float = TAU) -> StromStrategy:
    return StromStrategy(
        threshold=FixedThreshold(tau),
        residual_clipping=None,
        local_apply="encoded",
        always_encode=True,
    )


def test_the_list_names_all_optimizers_of_keras() -> None:
    assert {"SGD", "Adam", "AdamW", "RMSprop", "Nadam", "Lion", "Lamb"} <= set(CONFIGURATIONS)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_trains_as_the_oracle_says_in_every_bit(name: str) -> None:
    if name == "Muon" and keras.__version__.startswith("3.12."):
        pytest.skip("Keras 3.12's Muon fails under every tf.distribute strategy")
    strategy = _lone()
    wrong, compared, sent = compare(
        lambda: _model(CONFIGURATIONS[name]()), strategy.scope, _batches(6), TAU
    )
    assert compared > 0
    assert sent > 0, "the oracle sent nothing, so nothing was tested"
    assert wrong == 0


# Even what was clipped reaches this one within a few steps.
SMALL_TAU = 1e-4
# What every optimizer of Keras can be told besides its own rule.
OPTIONS: dict[str, dict[str, Any]] = {
    "weight_decay": {"weight_decay": 0.1},
    "clipnorm": {"clipnorm": 0.1},
    "clipvalue": {"clipvalue": 0.01},
    "global_clipnorm": {"global_clipnorm": 0.1},
    "use_ema": {"use_ema": True, "ema_momentum": 0.9},
    "gradient_accumulation": {"gradient_accumulation_steps": 2},
    "loss_scale_factor": {"loss_scale_factor": 4.0},
    "schedule": {},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_every_optimizer_shares_with_every_option(option: str) -> None:
    """Without a model, whose tracing would take most of the time; in a model, see above."""
    for name in _by_name():
        if name == "Muon" and keras.__version__.startswith("3.12."):
            continue
        sent, want = _steps_of_variables(name, option, None)
        strategy = _lone(SMALL_TAU)
        _, got = _steps_of_variables(name, option, strategy)
        assert sent > 0, name
        for plain, shared in zip(want, got, strict=True):
            np.testing.assert_array_equal(shared, plain, err_msg=name)


def _steps_of_variables(
    name: str, option: str, strategy: StromStrategy | None
) -> tuple[int, list[np.ndarray]]:
    """Six steps from the same gradients; the entries sent and the variables after them."""
    random = np.random.default_rng(6)
    gradients = random.normal(size=(6, 24)).astype("float32")
    rate: Any = RATES.get(name, 0.01)
    if option == "schedule":
        rate = keras.optimizers.schedules.CosineDecay(rate, 6, alpha=0.3)
    with strategy.scope() if strategy else contextlib.nullcontext():
        variables = [keras.Variable(random.normal(size=s), dtype="float32") for s in ((5, 4), (4,))]
        optimizer = getattr(keras.optimizers, name)(learning_rate=rate, **OPTIONS[option])
        optimizer.build(variables)
    residuals = [np.zeros(v.shape, np.float32) for v in variables]
    sent = 0
    for gradient in gradients:
        parts = [gradient[:20].reshape(5, 4), gradient[20:]]

        def apply(parts: list[np.ndarray] = parts) -> None:
            optimizer.apply([tf.constant(part) for part in parts])

        if strategy:
            strategy.run(apply)
            continue
        before = [v.numpy().copy() for v in variables]
        apply()
        for variable, residual, old in zip(variables, residuals, before, strict=True):
            new = variable.numpy()
            message = encode(residual, new, old, SMALL_TAU)
            variable.assign(old + message)
            sent += int(np.count_nonzero(message))
    return sent, [v.numpy() for v in variables]


def test_an_overflow_under_loss_scaling_sends_nothing() -> None:
    strategy = _lone()
    with strategy.scope():
        variable = keras.Variable(np.zeros(4), dtype="float32")
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(1.0), initial_scale=8.0
        )
        optimizer.build([variable])
    step = tf.function(lambda g: strategy.run(lambda: optimizer.apply([g], [variable])))
    for gradient, steps, scale in (([8.0, 0, 0, -8], 1, 8), ([np.inf, 8, 8, 8], 1, 4)):
        step(tf.constant(gradient, tf.float32))
        assert strategy._sharing is not None
        assert int(strategy._sharing.step.totals.stepped) == steps
        assert float(optimizer.dynamic_scale) == scale
        moved = np.float32(TAU) * np.array([-1, 0, 0, 1], np.float32)
        np.testing.assert_array_equal(variable.numpy(), moved)
    # What waits in the residual is still there: the update was ±1.
    residual = strategy._sharing.replica.read_residual(0, 4)
    np.testing.assert_allclose(residual, [TAU - 1, 0, 0, 1 - TAU])


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_trains_as_the_oracle_says(policy: str) -> None:
    """In float16 Keras scales the loss by itself, at first so much that steps overflow."""
    keras.config.set_dtype_policy(policy)
    try:
        wrong, compared, sent = compare(
            lambda: _model(keras.optimizers.Adam(0.01)), _lone().scope, _batches(6), TAU
        )
    finally:
        keras.config.set_dtype_policy("float32")
    assert (wrong, compared > 0, sent > 0) == (0, True, True)


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
