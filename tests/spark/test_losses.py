"""Losses: Keras's own are known by more than their names, and the user's are left alone."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

pytest.importorskip("pyspark")

from keras_strom import errors
from keras_strom.spark.data.columns import Columns, ColumnSpec
from keras_strom.spark.inference.compiling import check_names
from keras_strom.spark.inference.dry_run import Trial, dry_run
from keras_strom.spark.inference.outputs import Output, meaning_of
from keras_strom.spark.inference.prediction import losses
from keras_strom.spark.inference.serialization import pack

STEPS = 5
CLASS, NUMBER = ColumnSpec("scalar", "int64"), ColumnSpec("scalar", "float32")
OF_STEPS = ColumnSpec("array", "float32", (STEPS,))


def masked_sparse_categorical_crossentropy(y: Any, predicted: Any) -> Any:
    return keras.losses.sparse_categorical_crossentropy(keras.ops.maximum(y, 0), predicted)


def weighted_binary_crossentropy(y: Any, predicted: Any) -> Any:
    return y[:, 1] * keras.losses.binary_crossentropy(y[:, :1], predicted)


class FocalSparseCategoricalCrossentropy(keras.losses.Loss):  # type: ignore[misc]
    def call(self, y: Any, predicted: Any) -> Any:
        return masked_sparse_categorical_crossentropy(y, predicted)


def compiled(loss: Any, units: int, **others: Any) -> keras.Model:
    activation = "sigmoid" if units == 1 else "softmax"
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units, activation)])
    model.compile("sgd", loss, **others)
    return model


def over_steps(loss: Any, units: int = 1) -> keras.Model:
    recurrent = keras.layers.LSTM(3, return_sequences=True)
    model = keras.Sequential(
        [keras.Input((STEPS, 2)), recurrent, keras.layers.Dense(units, "sigmoid")]
    )
    model.compile("sgd", loss)
    return model


def tried(model: keras.Model, label: ColumnSpec) -> Trial:
    x = ColumnSpec("array", "float32", model.input_shape[1:])
    own = (masked_sparse_categorical_crossentropy, weighted_binary_crossentropy)
    objects = {one.__name__: one for one in (*own, FocalSparseCategoricalCrossentropy)}
    packed = pack(model, custom_objects=objects)
    return dry_run(packed, Columns(("x",), ("y",)), {"x": x, "y": label})


@pytest.mark.parametrize(
    ("loss", "units", "label"),
    [
        (masked_sparse_categorical_crossentropy, 10, CLASS),
        (FocalSparseCategoricalCrossentropy(), 10, CLASS),
        (weighted_binary_crossentropy, 1, ColumnSpec("array", "float32", (2,))),
    ],
)
def test_labels_of_the_users_own_losses_have_the_shape_that_these_take(
    loss: Any, units: int, label: ColumnSpec
) -> None:
    assert tried(compiled(loss, units), label).allowed == {}


def test_a_loss_of_the_users_with_a_name_of_keras_may_take_any_label() -> None:
    class SparseCategoricalCrossentropy(keras.losses.Loss):  # type: ignore[misc]
        def call(self, y: Any, predicted: Any) -> Any:
            return masked_sparse_categorical_crossentropy(y, predicted)

    model = compiled(None, 3)
    packed = pack(model, compiling={"optimizer": "sgd", "loss": SparseCategoricalCrossentropy()})
    specs = {"x": ColumnSpec("array", "float32", (4,)), "y": CLASS}
    trial = dry_run(packed, Columns(("x",), ("y",)), specs)
    assert trial.allowed == {}
    assert trial.outputs.kind == "class"


@pytest.mark.parametrize("loss", ["mse", keras.losses.Huber(), "binary_crossentropy"])
@pytest.mark.parametrize("shape", [(STEPS,), (STEPS, 1)])
def test_a_label_for_each_step_needs_no_dimension_of_1(loss: Any, shape: tuple[int, ...]) -> None:
    assert tried(over_steps(loss), ColumnSpec("array", "float32", shape)).outputs.names


@pytest.mark.parametrize("shape", [(), (STEPS + 1,), (STEPS, 2), (1, STEPS)])
def test_labels_that_keras_would_broadcast_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(errors.InvalidData, match=r"'mse' needs an array of shape \(5, 1\)"):
        tried(over_steps("mse"), ColumnSpec("array", "float32", shape))


def test_classes_of_steps_are_as_many_as_the_steps() -> None:
    sparse = keras.losses.SparseCategoricalCrossentropy()
    for shape in ((STEPS,), (STEPS, 1)):
        assert tried(over_steps(sparse, 7), ColumnSpec("array", "int64", shape)).allowed["y"]
    with pytest.raises(errors.InvalidData, match=r"needs an array of shape \(5,\)"):
        tried(over_steps(sparse, 7), ColumnSpec("array", "int64", (STEPS, 7)))


def test_the_generalized_crossentropy_takes_classes() -> None:
    allowed = tried(compiled(keras.losses.CategoricalGeneralizedCrossEntropy(), 3), CLASS).allowed
    assert (allowed["y"].least, allowed["y"].most, allowed["y"].whole) == (0, 2, True)


@pytest.mark.parametrize("loss", ["mse", "kl_divergence", keras.losses.KLDivergence()])
def test_a_rows_loss_over_steps_is_that_of_evaluate(loss: Any) -> None:
    random = np.random.default_rng(1)
    x, y = random.random((6, STEPS, 2), "float32"), random.random((6, STEPS), "float32")
    model = over_steps(loss)
    of_rows = losses(model, tried(model, OF_STEPS).outputs, x, y)
    assert np.mean(of_rows) == pytest.approx(model.evaluate(x, y, verbose=0), rel=1e-5)


@pytest.mark.parametrize("loss", ["crossentropy", "CE"])
@pytest.mark.parametrize(
    ("units", "label", "kind", "most", "whole"),
    [
        (3, CLASS, "class", 2, True),
        (3, ColumnSpec("array", "float32", (3,)), "class", 1, False),
        (1, NUMBER, "binary", 1, False),
    ],
)
def test_crossentropy_is_the_one_that_keras_chooses(
    loss: str, units: int, label: ColumnSpec, kind: str, most: int, whole: bool
) -> None:
    model = compiled(loss, units)
    check_names({"loss": loss})
    trial = tried(model, label)
    assert trial.outputs.kind == kind
    assert (trial.allowed["y"].most, trial.allowed["y"].whole) == (most, whole)
    x = np.random.default_rng(2).random((6, 4), "float32")
    y = np.eye(3, dtype="float32")[[0, 1, 2, 2, 1, 0]] if label.shape else np.arange(6) % units
    of_rows = losses(model, trial.outputs, x, y)
    assert np.mean(of_rows) == pytest.approx(model.evaluate(x, y, verbose=0), rel=1e-5)


def test_crossentropy_refuses_labels_of_neither_shape() -> None:
    with pytest.raises(errors.InvalidData, match=r"loss 'ce' needs an array of shape \(3,\)"):
        tried(compiled("ce", 3), ColumnSpec("array", "float32", (2,)))


def test_a_model_that_is_not_trained_here_may_have_any_crossentropy() -> None:
    assert meaning_of([Output("scores", (3,))], ["ce"]).kind == "class"
    assert meaning_of([Output("score", ())], {"score": "crossentropy"}).kind == "binary"


@pytest.mark.parametrize("name", ["ce", "crossentropy"])
def test_there_is_no_metric_of_that_name_as_in_keras(name: str) -> None:
    with pytest.raises(ValueError, match="Could not interpret metric"):
        compiled("mse", 3, metrics=[name]).fit(np.ones((2, 4)), np.ones((2, 3)), verbose=0)
    with pytest.raises(errors.InvalidOption, match="Keras has no metric of this name"):
        check_names({"metrics": {"a": [name, "acc"]}})
