"""`momentum_masking`: which optimizers forget the momentum of what they have sent, and how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_strom import errors
from keras_strom.sharing.threshold import FixedThreshold
from keras_strom.strategy.strategy import StromStrategy
from tests.support.optimizer_oracle import compare
from tests.support.two_devices import TWO_DEVICES

TAU = 2e-3


def _strategy(masking: Any = "auto", **options: Any) -> StromStrategy:
    return StromStrategy(
        threshold=FixedThreshold(TAU),
        residual_clipping=None,
        local_apply="encoded",
        always_encode=True,
        momentum_masking=masking,
        **options,
    )


def _model(optimizer: keras.Optimizer) -> keras.Model:
    keras.utils.set_random_seed(3)
    layers = [keras.Input((5,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(2)]
    model = keras.Sequential(layers)
    model.compile(optimizer, "mse", jit_compile=False)
    return model


def _batches(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(3)
    return [(random.normal(size=(8, 5)), random.normal(size=(8, 2))) for _ in range(count)]


def _momentum() -> keras.Optimizer:
    return keras.optimizers.SGD(0.02, momentum=0.9)


# (optimizer, option, the attribute that the oracle masks: the keras attribute's own name)
CASES: dict[str, tuple[Callable[[], keras.Optimizer], Any, str]] = {
    "SGD, auto": (_momentum, "auto", "momentums"),
    "SGD, True": (_momentum, True, "momentums"),
    "SGD, False": (_momentum, False, ""),
    "Nesterov, auto": (
        lambda: keras.optimizers.SGD(0.02, momentum=0.9, nesterov=True),
        "auto",
        "momentums",
    ),
    "scaled SGD, auto": (
        lambda: keras.optimizers.LossScaleOptimizer(_momentum(), initial_scale=8.0),
        "auto",
        "inner_optimizer.momentums",
    ),
    "Adam, auto": (lambda: keras.optimizers.Adam(0.01), "auto", ""),
    "Adam, True": (lambda: keras.optimizers.Adam(0.01), True, "_momentums"),
    "RMSprop, auto": (lambda: keras.optimizers.RMSprop(0.01, momentum=0.9), "auto", ""),
    "RMSprop, True": (lambda: keras.optimizers.RMSprop(0.01, momentum=0.9), True, "_momentums"),
    "Adamax, True": (lambda: keras.optimizers.Adamax(0.01), True, "_m"),
    "Nadam, True": (lambda: keras.optimizers.Nadam(0.01), True, "_momentums"),
    "Lion, True": (lambda: keras.optimizers.Lion(0.01), True, "_momentums"),
}


@pytest.mark.parametrize("name", CASES)
def test_trains_as_the_oracle_says_in_every_bit(name: str) -> None:
    make, masking, masked = CASES[name]
    wrong, _, sent = compare(
        lambda: _model(make()), _strategy(masking).scope, _batches(6), TAU, masked
    )
    assert sent > 100
    assert wrong == 0


@pytest.mark.parametrize("eagerly", [False, True])
def test_momentum_is_cleared_where_something_was_sent_and_nowhere_else(eagerly: bool) -> None:
    strategy = _strategy()
    with strategy.scope():
        variable = keras.Variable(np.zeros(4), dtype="float32")
        optimizer = keras.optimizers.SGD(1.0, momentum=0.5)
        optimizer.build([variable])

    def step(gradient: Any) -> None:
        strategy.run(lambda: optimizer.apply([gradient], [variable]))

    gradient = tf.constant([TAU, -TAU, TAU / 2, 0])
    (step if eagerly else tf.function(step))(gradient)
    np.testing.assert_allclose(optimizer.momentums[0].numpy(), [0, 0, -TAU / 2, 0])
    np.testing.assert_allclose(variable.numpy(), [-TAU, TAU, 0, 0])


def test_masking_is_the_same_on_all_devices_of_a_worker() -> None:
    strategy = _strategy(devices=TWO_DEVICES)
    with strategy.scope():
        model = _model(_momentum())
    for x, y in _batches(4):
        model.train_on_batch(x, y)
    cleared = 0
    for momentum in model.optimizer.momentums:
        first, second = strategy.experimental_local_results(momentum.value)
        np.testing.assert_array_equal(first.numpy(), second.numpy())
        cleared += int((first.numpy() == 0).sum())
    assert cleared > 0


def test_compiled_steps_are_masked_too() -> None:
    strategy = _strategy(jit_compile=True)
    with strategy.scope():
        model = _model(_momentum())
    model.train_on_batch(*_batches(1)[0])
    assert strategy._sharing is not None
    residual = strategy._sharing.replica.read_residual(0, strategy._sharing.space.size)
    momentum = np.concatenate([m.numpy().ravel() for m in model.optimizer.momentums])
    sent = int(strategy._sharing.step.last.count)
    assert sent > 0
    # What was not sent waits in the residual, which after one step is the momentum itself.
    assert (momentum == 0).sum() == sent
    np.testing.assert_allclose(momentum[momentum != 0], residual[momentum != 0], rtol=1e-3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.SGD(0.1),
        lambda: keras.optimizers.Adagrad(0.1),
        lambda: keras.optimizers.RMSprop(0.1),
    ],
)
def test_an_optimizer_without_momentum_is_refused_where_masking_is_asked_for(
    make: Callable[[], keras.Optimizer],
) -> None:
    with _strategy(True).scope():
        model = _model(make())
    with pytest.raises(errors.UnsupportedOptimizer, match=r"momentum_masking=True.*kernel.*auto"):
        model.fit(*_batches(1)[0], verbose=0)


@pytest.mark.parametrize("masking", [None, 1, "on"])
def test_another_value_is_refused(masking: Any) -> None:
    with pytest.raises(errors.InvalidOption, match="momentum_masking"):
        _strategy(masking)
