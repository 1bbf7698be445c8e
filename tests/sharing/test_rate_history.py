"""Learning rates and the highest ones so far, in `fit` and in loops of a program's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import op_callbacks

from keras_strom.sharing.rate_history import RateHistory, _after
from keras_strom.sharing.threshold import AdaptiveThreshold
from keras_strom.strategy.strategy import StromStrategy

SGD = keras.optimizers.SGD

# The density has next to no say in it.
_GOING_BY_THE_RATE = AdaptiveThreshold(initial=0.1, max_density=1.0, factor=1 - 1e-7)


def test_what_is_left_is_of_the_highest_so_far() -> None:
    optimizer, rates = SGD(0.1), RateHistory()
    left = []
    for rate in (0.1, 0.2, 0.05, 0.2, 0.4, 0.1):
        optimizer.learning_rate = rate
        left.append(float(rates.change([optimizer]).left))
    assert left == pytest.approx([1, 1, 0.25, 1, 1, 0.25])
    assert float(rates.change([]).left) == pytest.approx(0.25)  # Of the step before.


def test_a_schedule_tells_its_rate_of_now() -> None:
    schedule = keras.optimizers.schedules.CosineDecay(0.1, decay_steps=100)
    optimizer, rates = SGD(schedule), RateHistory()
    assert float(rates.change([optimizer]).left) == 1
    optimizer.iterations.assign(51)  # Steps, the one that has just been made with them.
    assert float(rates.change([optimizer]).left) == pytest.approx(0.5, rel=1e-5)


def test_a_rate_rises_from_the_first_above_nothing() -> None:
    optimizer, rates = SGD(0.0), RateHistory()
    risen = []
    for rate in (0.0, 0.1, 0.2, 0.1, 0.3):
        optimizer.learning_rate = rate
        risen.append(float(rates.change([optimizer]).risen))
    assert risen == pytest.approx([1, 1, 2, 2, 3])
    assert float(rates.change([optimizer, SGD(0.1)]).risen) == 1  # The least of several.


def test_of_several_optimizers_the_one_counts_that_has_most_left() -> None:
    generator, discriminator, rates = SGD(1e-4), SGD(4e-4), RateHistory()
    for both in ([generator], [discriminator], [generator, discriminator]):
        assert float(rates.change(both).left) == 1
    discriminator.learning_rate = 1e-4
    assert float(rates.change([generator, discriminator]).left) == 1
    assert float(rates.change([discriminator]).left) == pytest.approx(0.25)


@pytest.mark.parametrize("rate", [0.0, float("nan"), lambda: 0.1])
def test_where_nothing_is_known_all_is_left(rate: float | Callable[[], float]) -> None:
    assert RateHistory().change([SGD(rate)]) == (1, 1)
    assert RateHistory().change([]) == (1, 1)


@pytest.mark.parametrize("first", [0.0, 0.3, float("inf")])
def test_a_graph_tells_what_is_told_outside_of_it(first: float) -> None:
    def all_told(*, traced: bool) -> list[float]:
        optimizer, rates = SGD(0.1), RateHistory()

        def step() -> Any:
            return tuple(rates.change([optimizer]))

        run, told = tf.function(step) if traced else step, []
        for rate in (first, 0.1, 0.03, 0.7, 0.0, -0.1, float("nan"), 1e-30, 0.3):
            optimizer.learning_rate = rate
            told.extend(map(float, run()))
        return [*told, *rates.of([optimizer]).ravel().tolist()]

    assert all_told(traced=True) == all_told(traced=False)
    assert len(set(all_told(traced=True))) > 3


def test_a_graph_holds_no_infinity() -> None:
    """Which `tf.debugging.enable_check_numerics` would refuse."""
    graph = tf.function(lambda rate: _after(tf, *2 * [tf.constant(0.1)], rate)[1].left)
    concrete = graph.get_concrete_function(tf.TensorSpec((), tf.float32))
    constants = [
        tf.make_ndarray(one.get_attr("value"))
        for one in concrete.graph.get_operations()
        if one.type == "Const"
    ]
    assert constants
    assert all(np.isfinite(one).all() for one in constants)
    assert graph(np.inf).numpy() == 1
    assert graph(np.float32(0.05)).numpy() == np.float32(0.5)


def test_outside_of_a_graph_a_step_reads_the_rate_and_computes_nothing() -> None:
    optimizer, rates = SGD(0.1), RateHistory()
    rates.change([optimizer])
    ran: list[str] = []

    def note(kind: Any, *_: Any, **__: Any) -> None:
        ran.append(kind.decode() if isinstance(kind, bytes) else kind)

    op_callbacks.add_op_callback(note)
    try:
        rates.change([optimizer])
    finally:
        op_callbacks.remove_op_callback(note)
    assert "ReadVariableOp" in ran
    assert set(ran) <= {"ReadVariableOp", "Identity"}


def test_a_rate_that_falls_to_nothing_leaves_nothing() -> None:
    optimizer, rates = SGD(0.1), RateHistory()
    rates.change([optimizer])
    optimizer.learning_rate = 0.0
    assert float(rates.change([optimizer]).left) == 0


def test_rate_history_go_by_the_places_of_a_models_optimizers() -> None:
    optimizer = keras.optimizers.LossScaleOptimizer(SGD(0.1))
    rates = RateHistory()
    rates.change([optimizer])
    both = [SGD(0.3), optimizer]
    found = rates.of(both)
    np.testing.assert_allclose(found, [[0.0, 0.0], [0.1, 0.1]])
    other = RateHistory()
    found[0] = (0.2, 0.6)
    other.take_over(both, found)
    assert float(other.change(both[:1]).left) == pytest.approx(0.5)


@pytest.mark.parametrize("schedule", ["variable", "object"])
def test_in_fit_a_threshold_follows_the_learning_rate(schedule: str) -> None:
    generator = np.random.default_rng(1)
    x, y = generator.normal(size=(2, 640, 1)).astype(np.float32)
    decay = keras.optimizers.schedules.PiecewiseConstantDecay([40], [0.01, 0.0025])
    strategy = StromStrategy(threshold=_GOING_BY_THE_RATE, always_encode=True)
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(SGD(decay if schedule == "object" else 0.01), "mse")
    callbacks: list[Any] = []
    if schedule == "variable":
        callbacks = [
            keras.callbacks.LearningRateScheduler(lambda epoch, _: 0.01 if epoch < 2 else 0.0025)
        ]
    model.fit(x, y, batch_size=32, epochs=2, verbose=0, callbacks=callbacks)
    assert strategy._sharing is not None
    step = strategy._sharing.step
    assert step.last.threshold == pytest.approx(0.1, rel=1e-4)
    model.fit(x, y, batch_size=32, initial_epoch=2, epochs=6, verbose=0, callbacks=callbacks)
    assert step.last.threshold == pytest.approx(0.05, rel=1e-3)


def test_a_step_that_was_traced_before_follows_too() -> None:
    strategy = StromStrategy(threshold=_GOING_BY_THE_RATE, always_encode=True)
    with strategy.scope():
        variable = tf.Variable(tf.zeros(10))
        optimizer = SGD(0.4)
        optimizer.build([variable])
    step = tf.function(lambda: optimizer.apply_gradients([(tf.fill([10], 1e-3), variable)]))
    for rate in (0.4, 0.4, 0.1, 0.1, 0.1):
        optimizer.learning_rate = rate
        strategy.run(step)
    assert strategy._sharing is not None
    assert strategy._sharing.step.last.threshold == pytest.approx(0.05, rel=1e-3)
