"""StromStrategy(jit_compile=True): steps that XLA compiles share what uncompiled ones share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_strom import errors
from keras_strom.sharing.threshold import FixedThreshold
from keras_strom.strategy.strategy import StromStrategy
from tests.support.optimizer_oracle import EncodedTraining
from tests.support.scripts import options as script
from tests.support.two_workers import results, run_two_workers, weights

pytestmark = pytest.mark.jobs

TAU = 2e-3
STEPS = 8


def _encoding(**options: Any) -> StromStrategy:
    return StromStrategy(
        threshold=FixedThreshold(TAU),
        residual_clipping=None,
        local_apply="encoded",
        # What differs by rounding may be sent a step later, and then is masked a step later.
        momentum_masking=False,
        always_encode=True,
        jit_compile=True,
        **options,
    )


def _model(optimizer: Callable[[], keras.Optimizer] | str = "adam", **options: Any) -> keras.Model:
    """With dropout and state that no optimizer trains."""
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(16, activation="tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.25, seed=4),
            keras.layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = optimizer() if callable(optimizer) else optimizer
    model.compile(optimizer, loss, metrics=["accuracy"], **options)
    return model


def _seeded_model(strategy: StromStrategy, *arguments: Any, **options: Any) -> keras.Model:
    keras.utils.set_random_seed(5)
    with strategy.scope():
        return _model(*arguments, **options)


def _data(rows: int = 16 * STEPS) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(2)
    return random.normal(size=(rows, 6)).astype("float32"), random.integers(0, 3, rows)


def _totals(strategy: StromStrategy) -> Any:
    assert strategy._sharing is not None
    return strategy._sharing.step.totals


OPTIMIZERS: dict[str, Callable[[], keras.Optimizer]] = {
    "SGD": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "Adam": lambda: keras.optimizers.Adam(0.01),
    "gradient accumulation": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "LossScaleOptimizer": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01), initial_scale=8.0, dynamic_growth_steps=2
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_compiled_steps_share_what_the_oracle_says(name: str) -> None:
    """The oracle's steps are plain Keras, which XLA compiles too; its rounding is its own."""
    keras.utils.set_random_seed(5)
    oracle = EncodedTraining(_model(OPTIMIZERS[name], jit_compile=True), TAU, masked="")
    strategy = _encoding()
    model = _seeded_model(strategy, OPTIMIZERS[name])
    x, y = _data()
    for start in range(0, len(x), 16):
        batch = x[start : start + 16], y[start : start + 16]
        oracle.train_on_batch(*batch)
        model.train_on_batch(*batch)

    assert oracle.sent > 100
    assert _totals(strategy).count == pytest.approx(oracle.sent, rel=0.01)
    assert _totals(strategy).assigned_outside == 0
    expected = STEPS / 2 if "accumulation" in name else STEPS
    assert _totals(strategy).stepped == expected
    assert len(strategy._sharing.space.participants) == len(model.trainable_variables)
    for entry, want, waits in zip(
        strategy._sharing.space.participants,
        oracle.model.trainable_variables,
        oracle.residuals,
        strict=True,
    ):
        residual = strategy._sharing.replica.read_residual(entry.offset, entry.size)
        np.testing.assert_allclose(
            entry.variable.numpy().ravel() + residual,
            (want.numpy() + waits).ravel(),
            rtol=1e-4,
            atol=1e-5,
        )


def test_several_compiled_steps_per_execution_give_the_same_bits_as_single_ones() -> None:
    weights = []
    for steps in (1, 4):
        strategy = _encoding()
        model = _seeded_model(strategy, steps_per_execution=steps)
        model.fit(*_data(), epochs=2, batch_size=16, shuffle=False, verbose=0)
        assert strategy.last_report.steps == 2 * STEPS
        weights.append(model.get_weights())
    for single, several in zip(*weights, strict=True):
        np.testing.assert_array_equal(single, several)


def test_a_lone_worker_trains_as_compiled_keras_does() -> None:
    x, y = _data(100)  # The last batch is smaller.
    results = []
    for strategy, options in (
        (tf.distribute.OneDeviceStrategy("/cpu:0"), {"jit_compile": True}),
        (StromStrategy(jit_compile=True), {}),
    ):
        model = _seeded_model(strategy, **options)
        model.fit(x, y, epochs=2, batch_size=16, shuffle=False, verbose=0)
        results.append(
            [*model.get_weights(), model.evaluate(x, y, verbose=0), model.predict(x, verbose=0)]
        )
    for want, got in zip(*results, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("encode", [True, False])
def test_the_step_is_indeed_compiled(encode: bool) -> None:
    """XLA has no strings, TensorFlow has."""

    class Strings(keras.layers.Layer):
        def call(self, x: tf.Tensor) -> tf.Tensor:
            return tf.strings.to_number(tf.strings.as_string(x))

    for compiled in (False, True):
        strategy = StromStrategy(always_encode=encode, jit_compile=compiled)
        with strategy.scope():
            model = keras.Sequential([keras.Input((6,)), Strings(), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        if not compiled:
            model.fit(*_data(), verbose=0)
            continue
        with pytest.raises(tf.errors.InvalidArgumentError, match="unsupported operations"):
            model.fit(*_data(), verbose=0)


def test_an_eager_loop_compiles_its_step_once() -> None:
    strategy = _encoding()
    model = _seeded_model(strategy)
    traced = []

    def step(x: tf.Tensor, y: tf.Tensor) -> Any:
        traced.append(1)
        return model.train_step((x, y))

    tracings = []
    for _ in range(3):
        logs = strategy.run(step, args=tuple(map(tf.constant, _data(16))))
        tracings.append(len(traced))
    assert tracings == tracings[:1] * 3
    assert _totals(strategy).stepped == 3
    assert logs["loss"] > 0


def test_a_step_that_autograph_must_convert_is_converted() -> None:
    strategy = _encoding()
    with strategy.scope():
        variable = tf.Variable(1.0)
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build([variable])

    def step(gradient: tf.Tensor) -> None:
        if gradient > 0:  # AutoGraph makes this a tf.cond.
            gradient = 2 * gradient
        optimizer.apply_gradients([(gradient, variable)])

    train = tf.function(lambda gradient: strategy.run(step, args=(gradient,)))
    for gradient in (1.0, -1.0):
        train(tf.constant(gradient))
    residual = strategy._sharing.replica.read_residual(0, 1)
    np.testing.assert_allclose(variable.numpy() + residual, 1 - 0.1 * (2 - 1), rtol=1e-6)


def test_a_model_that_asks_for_eager_steps_is_refused() -> None:
    model = _seeded_model(StromStrategy(jit_compile=True), run_eagerly=True)
    with pytest.raises(errors.UnsupportedModel, match="run_eagerly"):
        model.fit(*_data(), verbose=0)


@pytest.mark.parametrize("how", ["fit", "train_on_batch"])
def test_keras_own_option_is_refused_with_the_name_of_ours(how: str) -> None:
    for options in ({}, {"jit_compile": True}):
        strategy = StromStrategy(always_encode=True, **options)
        model = _seeded_model(strategy, jit_compile=True)
        with pytest.raises(errors.UnsupportedModel, match=r"StromStrategy\(jit_compile=True\)"):
            getattr(model, how)(*_data())


def test_two_workers_that_compile_agree_in_every_bit_of_every_step(tmp_path: Path) -> None:
    options = json.dumps({"jit_compile": True, "local_apply": "encoded"})
    run_two_workers(Path(script.__file__), str(tmp_path), "0", options)
    workers = results(tmp_path)
    assert workers[0]["hashes"] == workers[1]["hashes"]
    assert len(set(workers[0]["hashes"])) == 3 * 96 / 8 / 2
    assert [r["reports"][0]["steps"] for r in workers] == [12, 12]
    first, second = weights(tmp_path)
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
