"""StromStrategy with one worker: what it leaves alone, what it shares, and what it refuses."""

from __future__ import annotations

import contextlib
import functools
import logging
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_strom import errors
from keras_strom.job.network import NetworkConfig
from keras_strom.sharing.flat_space import Entry
from keras_strom.sharing.threshold import FixedThreshold
from keras_strom.strategy.generation import Generation
from keras_strom.strategy.strategy import StromStrategy
from tests.support.two_devices import TWO_DEVICES

TAU = 1e-3


def _encoding(**options: Any) -> StromStrategy:
    return StromStrategy(
        **{
            "threshold": FixedThreshold(TAU),
            "residual_clipping": None,
            "always_encode": True,
            **options,
        }
    )


Encoding = Callable[..., StromStrategy]


@pytest.fixture(
    params=[None, pytest.param(TWO_DEVICES, marks=pytest.mark.jobs)],
    ids=["one device", "two devices"],
)
def encoding(request: pytest.FixtureRequest) -> Encoding:
    """Makes strategies on one device and on two, for what must hold on both."""
    return functools.partial(_encoding, devices=request.param)


def _model(strategy: Any, optimizer: Any = "adam", **compile_options: Any) -> keras.Model:
    keras.utils.set_random_seed(5)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)]
        )
        model.compile(optimizer() if callable(optimizer) else optimizer, "mse", **compile_options)
    return model


def _data(rows: int = 64) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(2)
    x = random.normal(size=(rows, 4)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def _steps(strategy: StromStrategy) -> int:
    assert strategy._sharing is not None
    return int(strategy._sharing.step.totals.stepped)


# ------------------------------------------------------------------ one worker, nothing to share


def test_a_lone_worker_trains_exactly_as_plain_keras_does() -> None:
    x, y = _data()
    plain = _model(tf.distribute.OneDeviceStrategy("/cpu:0"))
    strom = _model(StromStrategy())
    for model in (plain, strom):
        model.fit(x, y, epochs=2, batch_size=16, shuffle=False, verbose=0)
    for want, got in zip(plain.get_weights(), strom.get_weights(), strict=True):
        np.testing.assert_array_equal(want, got)


class _Moments(keras.Model):
    """Has a `train_step` and cannot be called, as a GAN; it and its optimizer are built late."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.layers.Dense(4)

    def train_step(self, data: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.generator(data[1]) - data[0]))
        weights = self.generator.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


def test_a_lone_worker_builds_by_the_first_step_as_plain_keras_does() -> None:
    """What cannot be called is trained, and a dataset that shuffles comes in the same order."""

    def train(scope: Any) -> list[np.ndarray]:
        keras.utils.set_random_seed(5)
        with scope:
            model = _Moments()
            model.compile("adam")
        data = tf.data.Dataset.from_tensor_slices(_data()).shuffle(64, seed=1).batch(16)
        model.fit(data, epochs=2, verbose=0)
        # A loop of one's own goes on with what the step has created.
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model.generator(_data()[1]))
        weights = model.generator.trainable_variables
        model.optimizer.apply(tape.gradient(loss, weights), weights)
        return list(model.get_weights())

    plain = train(contextlib.nullcontext())
    for want, got in zip(plain, train(StromStrategy().scope()), strict=True):
        np.testing.assert_array_equal(want, got)


def test_a_lone_worker_goes_on_from_what_backup_and_restore_has_kept(tmp_path: Path) -> None:
    def train(scope: Any, folder: Path, *, power: bool) -> list[np.ndarray]:
        keras.utils.set_random_seed(3)
        with scope:
            model = _model(tf.distribute.get_strategy())
        callbacks: list[Any] = [keras.callbacks.BackupAndRestore(folder)]
        if not power:
            callbacks.append(keras.callbacks.LambdaCallback(on_epoch_begin=_fail_in_the_third))
        with contextlib.suppress(RuntimeError):
            model.fit(*_data(), epochs=4, shuffle=False, verbose=0, callbacks=callbacks)
        return list(model.get_weights())

    for name, scope in (
        ("plain", contextlib.nullcontext),
        ("lone", lambda: StromStrategy().scope()),
    ):
        train(scope(), tmp_path / name, power=False)
    plain = train(contextlib.nullcontext(), tmp_path / "plain", power=True)
    lone = train(StromStrategy().scope(), tmp_path / "lone", power=True)
    for want, got in zip(plain, lone, strict=True):
        np.testing.assert_array_equal(want, got)


def _fail_in_the_third(epoch: int, logs: Any = None) -> None:
    if epoch == 2:
        raise RuntimeError("the power fails")


def test_a_lone_worker_refuses_nothing_that_plain_keras_accepts() -> None:
    strategy = StromStrategy()
    model = _model(strategy, lambda: keras.optimizers.Ftrl(0.01))
    model.fit(*_data(), epochs=1, verbose=0)
    assert strategy.num_workers == 1
    assert strategy.last_report is None
    assert strategy.counters() is None
    assert strategy.synchronize() is None


# ------------------------------------------------------------------ what is shared, and when


@pytest.mark.parametrize("always_encode", [False, True])
def test_a_model_may_be_compiled_outside_the_scope_that_it_was_created_in(
    always_encode: bool,
) -> None:
    strategy = StromStrategy(always_encode=always_encode)
    model = _model(strategy)
    start = model.get_weights()[0]
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1))
    for optimizer in ("adam", scaled, keras.optimizers.SGD(0.1)):
        model.compile(optimizer, "mse")
        if optimizer is not scaled:
            model.evaluate(*_data(), verbose=0)
        model.fit(*_data(), verbose=0)
    assert (model.get_weights()[0] != start).any()


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_model_that_is_built_outside_the_scope_is_refused(optimizer: str) -> None:
    with StromStrategy(always_encode=True).scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(optimizer, "mse")
    model(_data()[0])
    with pytest.raises(errors.UnsupportedModel, match=r"kernel.*created outside strategy\.scope"):
        model.fit(*_data(), verbose=0)


def test_evaluate_and_predict_share_nothing(encoding: Encoding) -> None:
    x, y = _data()
    strategy = encoding()
    model = _model(strategy)
    model.evaluate(x, y, verbose=0)
    model.train_on_batch(x, y)
    assert _steps(strategy) == 1
    residual = strategy._sharing.replica.read_residual(0, 8)
    model.evaluate(x, y, verbose=0)
    model.predict(x, verbose=0)
    assert _steps(strategy) == 1
    np.testing.assert_array_equal(residual, strategy._sharing.replica.read_residual(0, 8))


def test_a_function_traced_before_still_shares_when_it_is_called_again(encoding: Encoding) -> None:
    strategy = encoding()
    model = _model(strategy)
    x, y = (tf.constant(a) for a in _data())

    @tf.function
    def train(x: tf.Tensor, y: tf.Tensor) -> Any:
        return model.train_step((x, y))

    @tf.function
    def outer(x: tf.Tensor, y: tf.Tensor) -> None:
        strategy.run(train, args=(x, y))

    outer(x, y)
    outer(x[:32], y[:32])  # traces outer anew, and so run
    outer(x, y)
    assert _steps(strategy) == 3


def test_eager_steps_give_the_same_bits_as_traced_ones(encoding: Encoding) -> None:
    x, y = _data()
    weights = []
    for eagerly in (True, False):
        model = _model(encoding(), "sgd", run_eagerly=eagerly)
        for start in range(0, 64, 16):
            model.train_on_batch(x[start : start + 16], y[start : start + 16])
        weights.append(model.get_weights())
    for eager, traced in zip(*weights, strict=True):
        np.testing.assert_array_equal(eager, traced)


def test_several_steps_per_execution_give_the_same_bits_as_single_ones(encoding: Encoding) -> None:
    weights = []
    for steps in (1, 4):
        strategy = encoding()
        model = _model(strategy, "sgd", steps_per_execution=steps)
        model.fit(*_data(), epochs=2, batch_size=8, shuffle=False, verbose=0)
        assert strategy.last_report.steps == 16
        weights.append(model.get_weights())
    for single, several in zip(*weights, strict=True):
        np.testing.assert_array_equal(single, several)


def test_a_fault_of_the_native_side_is_raised_with_its_own_type_and_words() -> None:
    strategy = _encoding()
    model = _model(strategy)
    model.fit(*_data(), epochs=1, verbose=0)
    strategy._sharing.replica.close()
    with pytest.raises(errors.ConnectionClosed, match="replica"):
        model.fit(*_data(), epochs=1, verbose=0)


def test_an_update_that_is_not_finite_ends_the_training_with_a_reason(encoding: Encoding) -> None:
    strategy = encoding()
    model = _model(strategy)
    x, y = _data()
    y[0] = np.inf
    layer = model.layers[0].name
    with pytest.raises(errors.NotFinite, match=rf"{layer}/kernel' is NaN or infinite in \d+ of"):
        model.fit(x, y, epochs=1, verbose=0)
    for variable in model.variables:
        for value in strategy.experimental_local_results(variable.value):
            assert np.isfinite(value.numpy()).all()


def test_frozen_layers_have_a_place_but_are_not_shared(encoding: Encoding) -> None:
    strategy = encoding()
    model = _model(strategy)
    model.layers[0].trainable = False
    with strategy.scope():
        model.compile("adam", "mse")
    before = model.layers[0].get_weights()
    model.fit(*_data(), epochs=1, verbose=0)
    for want, got in zip(before, model.layers[0].get_weights(), strict=True):
        np.testing.assert_array_equal(want, got)
    assert len(strategy._sharing.space) == 4
    assert len(strategy._sharing.space.participants) == 2


def test_two_models_in_turn_share_their_own_variables(encoding: Encoding) -> None:
    strategy = encoding()
    first, second = _model(strategy), _model(strategy)
    x, y = _data()
    first.train_on_batch(x, y)
    untouched = second.get_weights()
    second.train_on_batch(x, y)
    first_weights = first.get_weights()
    second.train_on_batch(x, y)
    for want, got in zip(first_weights, first.get_weights(), strict=True):
        np.testing.assert_array_equal(want, got)
    assert any((a != b).any() for a, b in zip(untouched, second.get_weights(), strict=True))
    assert _steps(strategy) == 3


def test_a_variable_assigned_between_steps_is_noticed_and_not_sent(encoding: Encoding) -> None:
    strategy = encoding()
    model = _model(strategy)
    x, y = _data()
    model.train_on_batch(x, y)
    model.train_on_batch(x, y)
    assert strategy._sharing.step.totals.assigned_outside == 0
    model.layers[0].kernel.assign(tf.ones_like(model.layers[0].kernel))
    residual = strategy._sharing.replica.read_residual(0, 32)
    model.train_on_batch(x, y)
    assert strategy._sharing.step.totals.assigned_outside == 1
    assert np.abs(strategy._sharing.replica.read_residual(0, 32) - residual).max() < 0.1


# ------------------------------------------------------------------ fit and its report


def test_fit_reports_what_it_did_and_what_the_residual_still_holds(encoding: Encoding) -> None:
    strategy = encoding()
    model = _model(strategy)
    model.fit(*_data(), epochs=3, batch_size=16, verbose=0)
    size = strategy._sharing.space.size
    report = strategy.last_report
    assert report is not None
    residual = strategy._sharing.replica.read_residual(0, size)
    assert report.residual_mass > 0
    assert report.residual_mass == pytest.approx(float(np.abs(residual).sum()), rel=1e-5)
    assert (report.steps, report.workers, report.parameters) == (12, 1, size)
    assert 0 < report.density < 1
    assert report.threshold == np.float32(TAU)
    assert report.message_bytes > 0
    assert report.max_replica_difference == 0


def test_a_report_s_seconds_begin_with_the_common_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while a worker waits for the others."""
    clock = [0.0]

    def wait(generation: Generation) -> list[Entry]:
        clock[0] += 100.0
        return trained(generation)

    trained = Generation._trained_entries
    monkeypatch.setattr(Generation, "_trained_entries", wait)
    times = types.SimpleNamespace(monotonic=lambda: clock[0])
    monkeypatch.setattr("keras_strom.strategy.generation.time", times)
    strategy = _encoding()
    lasts = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: clock.__setitem__(0, clock[0] + 7.0)
    )
    _model(strategy).fit(*_data(), verbose=0, callbacks=[lasts])
    assert strategy.last_report is not None
    assert strategy.last_report.seconds == 7.0


def test_parameters_and_residual_together_are_the_whole_training() -> None:
    """With SGD and gradients that do not depend on the parameters, nothing is lost or added."""
    strategy = _encoding()
    with strategy.scope():
        variable = tf.Variable(tf.zeros(100))
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build([variable])
    random = np.random.default_rng(0)
    gradients = random.normal(scale=1e-3, size=(20, 100)).astype("float32")

    @tf.function
    def step(gradient: tf.Tensor) -> None:
        strategy.run(lambda g: optimizer.apply_gradients([(g, variable)]), args=(gradient,))

    strategy.begin()
    for gradient in gradients:
        step(tf.constant(gradient))
    report = strategy.synchronize()
    assert report is not None
    assert report.steps == 20
    residual = strategy._sharing.replica.read_residual(0, 100)
    np.testing.assert_allclose(variable.numpy() + residual, -gradients.sum(axis=0), atol=1e-7)
    assert np.abs(residual).sum() == pytest.approx(report.residual_mass)


def test_a_loop_of_the_programs_own_may_train_a_model_that_is_not_compiled() -> None:
    strategy = _encoding()
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)

    @tf.function
    def step() -> None:
        ones = [tf.ones_like(variable) for variable in model.trainable_variables]
        strategy.run(lambda: optimizer.apply(ones))

    for _ in range(2):
        strategy.begin(model)
        step()
        report = strategy.synchronize()
        assert report is not None
        assert (report.steps, report.parameters) == (1, 4)


def test_a_second_fit_counts_anew(encoding: Encoding) -> None:
    strategy = encoding()
    model = _model(strategy)
    for epochs in (2, 1):
        model.fit(*_data(), epochs=epochs, batch_size=16, verbose=0)
        assert strategy.last_report.steps == 4 * epochs


def test_early_stopping_ends_the_training_with_a_report(encoding: Encoding) -> None:
    strategy = encoding()
    model = _model(strategy)
    stop = keras.callbacks.EarlyStopping("loss", patience=0, min_delta=1e9)
    history = model.fit(*_data(), epochs=9, batch_size=16, verbose=0, callbacks=[stop])
    assert len(history.epoch) == 2
    assert strategy.last_report.steps == 8


@pytest.mark.parametrize("params", [{}, {"epochs": 1}])
def test_callbacks_may_come_as_keras_own_list(encoding: Encoding, params: dict[str, int]) -> None:
    strategy = encoding()
    model = _model(strategy)
    stops = keras.callbacks.EarlyStopping(monitor="loss", patience=9)
    callbacks = keras.callbacks.CallbackList([stops], add_history=True, model=model, **params)
    before = list(callbacks.callbacks)
    history = model.fit(*_data(), epochs=3, batch_size=16, verbose=0, callbacks=callbacks)
    assert history.epoch == [0, 1, 2]
    assert callbacks.callbacks == before
    assert strategy.last_report.steps == 3 * 4


def test_an_error_in_fit_leaves_the_strategy_usable(encoding: Encoding) -> None:
    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            raise RuntimeError("on purpose")

    strategy = encoding()
    model = _model(strategy)
    with pytest.raises(RuntimeError, match="on purpose"):
        model.fit(*_data(), epochs=1, verbose=0, callbacks=[Fails()])
    model.fit(*_data(), epochs=1, batch_size=32, verbose=0)
    assert strategy.last_report.steps == 2


def test_wind_up_of_the_residual_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    model = _model(_encoding(threshold=FixedThreshold(1e-6)), lambda: keras.optimizers.SGD(0.1))
    with caplog.at_level(logging.WARNING, "keras_strom"):
        model.fit(*_data(), epochs=1, batch_size=8, verbose=0)
    assert "Raise the threshold" in caplog.text


def test_a_saved_model_is_plain_keras(encoding: Encoding, tmp_path: Path) -> None:
    model = _model(encoding())
    model.fit(*_data(), epochs=1, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for want, got in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(want, got)


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    "options",
    [
        {"threshold": 1e-3},
        {"threshold": FixedThreshold},
        {"residual_clipping": 5},
        {"update_scale": "max"},
        {"update_scale": 0.0},
        {"warmup_steps": -1},
        {"warmup_steps": 1.5},
        {"max_staleness": -1},
        {"max_staleness": True},
        {"always_encode": 1},
        {"jit_compile": "auto"},
        {"network": {"port": 0}},
        {"devices": "/gpu:0"},
        {"devices": 0},
        {"devices": []},
        {"devices": [0]},
        {"devices": "no device"},
        {"devices": ["/cpu:0", "/gpu:0"]},
        {"devices": ["/cpu:0", "/device:CPU:0"]},
        {"devices": ["/cpu:0", "/cpu:99"]},
    ],
    ids=str,
)
def test_an_option_out_of_range_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidOption):
        StromStrategy(**options)


def test_another_backend_of_keras_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    with pytest.raises(errors.EnvironmentInvalid, match=r"on jax, .*set KERAS_BACKEND=tensorflow"):
        StromStrategy()


def test_unknown_and_positional_options_are_refused() -> None:
    with pytest.raises(TypeError):
        StromStrategy(treshold=FixedThreshold(1e-3))  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        StromStrategy(FixedThreshold(1e-3))  # type: ignore[misc]


def test_a_network_config_is_accepted() -> None:
    assert StromStrategy(network=NetworkConfig(failure_timeout=3)).num_workers == 1


UNSUPPORTED_OPTIMIZERS: dict[str, Callable[[], keras.Optimizer]] = {
    "Ftrl": lambda: keras.optimizers.Ftrl(0.01),
    "ema_overwrite_frequency": lambda: keras.optimizers.Adam(
        0.01, use_ema=True, ema_overwrite_frequency=2
    ),
    "wrapped": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Ftrl(0.01)),
}
if hasattr(keras.optimizers, "MultiOptimizer"):
    UNSUPPORTED_OPTIMIZERS["a part"] = lambda: keras.optimizers.MultiOptimizer(
        lambda _: keras.optimizers.Ftrl(0.01)
    )
if hasattr(keras.optimizers, "ScheduleFreeAdamW"):
    UNSUPPORTED_OPTIMIZERS["ScheduleFreeAdamW"] = lambda: keras.optimizers.ScheduleFreeAdamW(0.01)


@pytest.mark.parametrize("name", UNSUPPORTED_OPTIMIZERS)
@pytest.mark.parametrize("how", ["fit", "train_on_batch"])
def test_an_optimizer_that_undoes_others_updates_is_refused(name: str, how: str) -> None:
    model = _model(_encoding(), UNSUPPORTED_OPTIMIZERS[name])
    with pytest.raises(errors.UnsupportedOptimizer, match=r"instead|leave"):
        getattr(model, how)(*_data())


def test_half_precision_variables_are_refused_and_mixed_precision_is_not() -> None:
    for policy, supported in (("float16", False), ("bfloat16", False), ("mixed_bfloat16", True)):
        keras.config.set_dtype_policy(policy)
        try:
            model = _model(_encoding())
        finally:
            keras.config.set_dtype_policy("float32")
        if supported:
            model.fit(*_data(), epochs=1, verbose=0)
        else:
            with pytest.raises(errors.UnsupportedModel, match="mixed_"):
                model.fit(*_data(), epochs=1, verbose=0)


def test_keras_own_choice_of_compilation_is_no_obstacle() -> None:
    _model(_encoding(), jit_compile="auto").fit(*_data(), epochs=1, verbose=0)


def test_a_model_that_is_not_compiled_is_keras_own_error() -> None:
    strategy = _encoding()
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with pytest.raises(ValueError, match=r"compile\(\)"):
        model.fit(np.ones((4, 2)), np.ones((4, 1)))


def test_a_callback_that_runs_out_of_something_is_not_taken_for_data_that_do() -> None:
    model = _model(_encoding())
    runs_out = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: next(iter([])))
    with pytest.raises(StopIteration):
        model.fit(*_data(), verbose=0, callbacks=[runs_out])


def test_data_without_elements_is_a_clear_error() -> None:
    model = _model(_encoding())
    x, y = (part[:0] for part in _data())
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    for arguments in ((x, y), (dataset,)):
        with pytest.raises(errors.UnsupportedModel, match="training data is empty"):
            model.fit(*arguments, verbose=0)


@pytest.mark.parametrize("traced", [True, False])
def test_an_optimizer_step_outside_run_is_refused(encoding: Encoding, traced: bool) -> None:
    strategy = encoding()
    with strategy.scope():
        variable = tf.Variable([1.0])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build([variable])

    def step() -> None:
        optimizer.apply_gradients([(tf.constant([1.0]), variable)])

    for scope in (strategy.scope(), contextlib.nullcontext()):
        with scope, pytest.raises(errors.UnsupportedModel, match=r"call strategy\.run"):
            (tf.function(step) if traced else step)()


def test_a_model_that_is_not_built_before_a_custom_loop_is_refused(encoding: Encoding) -> None:
    strategy = encoding()
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)

    def step(x: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    with pytest.raises(errors.UnsupportedModel, match=r"model\.build"):
        strategy.run(step, args=(tf.ones((2, 3)),))


def test_variables_created_outside_the_scope_are_refused() -> None:
    strategy = _encoding()
    variable = tf.Variable([1.0])
    with strategy.scope():
        optimizer = keras.optimizers.SGD(0.1)

    def step() -> None:
        optimizer.apply_gradients([(tf.constant([1.0]), variable)])

    with pytest.raises((errors.UnsupportedModel, ValueError), match="scope"):
        strategy.run(step)


def test_ending_a_loop_that_has_not_begun_is_refused() -> None:
    strategy = _encoding()
    with pytest.raises(errors.StromError, match="begin"):
        strategy.synchronize()
    strategy.begin()
    with pytest.raises(errors.StromError, match="synchronize"):
        strategy.begin()


# ------------------------------------------------------------------ what ends in words, or does not


@pytest.mark.parametrize("in_scope", [True, False])
def test_an_optimizer_that_a_lone_worker_applies_itself_trains_as_plain_keras(
    in_scope: bool,
) -> None:
    x, y = _data()

    def train(strategy: Any, around: contextlib.AbstractContextManager[Any]) -> list[np.ndarray]:
        model = _model(strategy, lambda: keras.optimizers.Adam(0.1))
        with around:
            for _ in range(2):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(model(x) - y))
                gradients = tape.gradient(loss, model.trainable_variables)
                model.optimizer.apply_gradients(
                    zip(gradients, model.trainable_variables, strict=True)
                )
        return model.get_weights()

    plain = tf.distribute.get_strategy()
    strategy = StromStrategy()
    trained = train(strategy, strategy.scope() if in_scope else contextlib.nullcontext())
    for want, got in zip(train(plain, contextlib.nullcontext()), trained, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_an_optimizer_that_a_worker_of_several_devices_applies_itself_is_refused() -> None:
    strategy = StromStrategy(devices=TWO_DEVICES)
    model = _model(strategy)
    gradients = [tf.ones_like(variable) for variable in model.trainable_variables]
    with strategy.scope(), pytest.raises(errors.UnsupportedModel, match=r"outside strategy\.run"):
        model.optimizer.apply(gradients, model.trainable_variables)


def test_a_scope_that_clear_session_has_ended_is_named() -> None:
    strategy = StromStrategy()

    def cleared(then: Callable[[], object]) -> None:
        with strategy.scope():
            keras.backend.clear_session()
            then()

    def fails() -> None:
        raise KeyError("the user's own")

    words = r"clear_session\(\) .* has ended the scope"
    with pytest.raises(errors.UnsupportedModel, match=words):
        cleared(lambda: None)
    with pytest.raises(errors.UnsupportedModel, match=words):
        cleared(lambda: _model(tf.distribute.get_strategy()).fit(*_data(), verbose=0))
    with pytest.raises(KeyError, match="the user's own"):
        cleared(fails)
    _model(strategy).fit(*_data(), verbose=0)  # The next scope stands.


def test_lora_that_was_enabled_outside_the_scope_says_where_to_call_it() -> None:
    strategy = _encoding()
    model = _model(strategy)
    model.layers[0].enable_lora(2)
    with strategy.scope():
        model.compile("sgd", "mse")
    with pytest.raises(errors.UnsupportedModel, match="call enable_lora inside of it"):
        model.fit(*_data(), verbose=0)
