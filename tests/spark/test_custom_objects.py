"""Classes that a model and what compiles it are made of, in processes that cannot import them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
from keras.src.saving import object_registration

pytest.importorskip("pyspark")

from keras_strom import errors
from keras_strom.spark import StromEstimator
from keras_strom.spark.data.columns import Columns
from keras_strom.spark.estimator.estimator import _prepare
from keras_strom.spark.inference.serialization import known_to_keras, pack, save


@keras.saving.register_keras_serializable(package="tests")
class Doubles(keras.layers.Layer):  # type: ignore[misc]
    def call(self, x: Any) -> Any:
        return 2.0 * x


@keras.saving.register_keras_serializable(package="tests")
class Constant(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, step: Any) -> Any:
        return self.rate

    def get_config(self) -> dict[str, Any]:
        return {"rate": self.rate}


class NotRegistered(Constant):
    pass


def shifted_loss(y: Any, predicted: Any) -> Any:
    return keras.ops.square(y - predicted) + 1.0


keras.saving.register_keras_serializable(package="tests")(shifted_loss)


@contextlib.contextmanager
def elsewhere() -> Iterator[None]:
    """As in a process that has not run this file."""
    registries = (
        object_registration.GLOBAL_CUSTOM_OBJECTS,
        object_registration.GLOBAL_CUSTOM_NAMES,
    )
    before = [dict(one) for one in registries]
    try:
        for one in registries:
            one.clear()
        yield
    finally:
        for one, content in zip(registries, before, strict=True):
            one.clear()
            one.update(content)


def doubling() -> keras.Model:
    return keras.Sequential([keras.Input((2,)), Doubles(), keras.layers.Dense(1)])


def test_a_model_of_registered_classes_is_saved_elsewhere_under_their_names() -> None:
    model = doubling()
    model.compile(keras.optimizers.SGD(Constant(0.25)), shifted_loss)
    packed = pack(model)
    with elsewhere():
        file, suffix = save(packed.load())
    assert suffix == ".keras"
    loaded = packed.trained(file, suffix).load()
    assert type(loaded.layers[0]) is Doubles
    assert loaded.loss is shifted_loss


def test_what_compiles_a_model_is_found_elsewhere_too() -> None:
    compiling = {"optimizer": keras.optimizers.SGD(Constant(0.25)), "loss": shifted_loss}
    packed = pack(doubling(), compiling=compiling)
    with elsewhere():
        model = packed.load()
        assert float(model.optimizer.learning_rate) == 0.25
        assert save(model)[1] == ".keras"
        assert object_registration.get_registered_name(model.loss) == "tests>shifted_loss"


def test_the_last_class_of_a_name_counts_but_for_one_that_was_registered_here() -> None:
    objects = object_registration.GLOBAL_CUSTOM_OBJECTS
    first, second, own = (type("Doubles", (Doubles,), {}) for _ in range(3))
    with elsewhere():
        for one in (first, second):
            known_to_keras({"tests>Redefined": one})
            assert objects["tests>Redefined"] is one
        keras.saving.register_keras_serializable("tests", "Redefined")(own)
        known_to_keras({"tests>Redefined": first})
        assert objects["tests>Redefined"] is own


@pytest.mark.parametrize("schedule", [Constant, NotRegistered])
def test_an_estimator_comes_back_elsewhere_with_its_schedule(schedule: Any) -> None:
    estimator = StromEstimator(
        model_fn=doubling,
        optimizer=keras.optimizers.SGD(schedule(0.25)),
        loss="mse",
        custom_objects={"NotRegistered": NotRegistered},
    )
    _, files = estimator._contents()
    with elsewhere():
        loaded = StromEstimator._restored({}, files.__getitem__)
    assert float(np.asarray(loaded.getOrDefault("optimizer").learning_rate)) == 0.25


def sparing(**what: Any) -> keras.Optimizer:
    optimizer = keras.optimizers.SGD(0.5, weight_decay=1.0)
    optimizer.exclude_from_weight_decay(**what)
    return optimizer


def compiled(optimizer: keras.Optimizer) -> keras.Model:
    model = doubling()
    model.compile(optimizer, "mse")
    return model


def test_what_wraps_a_lambda_or_a_function_within_one_is_made_again_elsewhere() -> None:
    def within(y: Any, predicted: Any, factor: float) -> Any:
        return factor * keras.ops.abs(y - predicted)

    wrapped = keras.metrics.MeanMetricWrapper(lambda y, p: 3 * keras.ops.abs(y - p), name="three")
    metrics = [wrapped, keras.metrics.MeanMetricWrapper(within, name="five", factor=5.0)]
    packed = pack(doubling(), compiling={"loss": "mse", "metrics": metrics})
    with elsewhere():
        found = packed.load()
        x = np.ones((4, 2), np.float32)
        measured = found.evaluate(x, found.predict(x, verbose=0) + 1, return_dict=True, verbose=0)
    assert measured == pytest.approx({"loss": 1.0, "three": 3.0, "five": 5.0})


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: pack(compiled(optimizer)),
        lambda optimizer: pack(doubling(), compiling={"optimizer": optimizer, "loss": "mse"}),
        lambda optimizer: pack(pack(compiled(optimizer)).load()),
        lambda optimizer: pack(compiled(keras.optimizers.LossScaleOptimizer(optimizer))),
    ],
)
def test_weight_decay_spares_elsewhere_what_it_spares_here(make: Any) -> None:
    model = make(sparing(var_names=["kernel"])).load()
    model.layers[-1].bias.assign([2.0])
    kernel = np.array(model.layers[-1].kernel)
    model.train_on_batch(np.zeros((1, 2)), np.asarray(model(np.zeros((1, 2)))))
    np.testing.assert_array_equal(model.layers[-1].kernel, kernel)
    np.testing.assert_array_equal(model.layers[-1].bias, [1.0])


@pytest.mark.parametrize("by_param", [True, False])
def test_an_optimizer_that_spares_variables_of_this_process_is_refused(by_param: bool) -> None:
    model = doubling()
    optimizer = sparing(var_list=[model.layers[-1].kernel])
    columns: dict[str, Any] = {"feature_cols": ["x"], "label_cols": ["y"]}
    if by_param:
        columns |= {"optimizer": optimizer, "loss": "mse"}
    else:
        model.compile(optimizer, "mse")
    params = StromEstimator(model=model, **columns).check_params()
    with pytest.raises(errors.InvalidOption, match="var_names="):
        _prepare(params, Columns(("x",), ("y",)), {}, None, rows="")  # type: ignore[arg-type]
