"""A StromModel of a Keras model that no estimator has trained: it knows no rows beforehand."""

from __future__ import annotations

import sys
from typing import Any

import cloudpickle
import keras
import numpy as np
import pytest

pytest.importorskip("pyspark")

from keras_strom import errors
from keras_strom.spark import StromModel
from keras_strom.spark.data.columns import Columns, ColumnSpec
from keras_strom.spark.inference.outputs import Output, Outputs
from keras_strom.spark.inference.prediction import losses

# Executors cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def of_a_kind(x: Any, kind: Any, weight: Any) -> tuple[Any, Any, Any]:
    return x / 2.0, keras.ops.one_hot(kind, 3), weight


def test_it_transforms_as_in_training_whether_labels_are_there_or_not(spark: Any) -> None:
    df = spark.createDataFrame([([1.0, 2.0], 2, 0.5)], ["x", "kind", "weight"])
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.CategoricalCrossentropy(from_logits=True))
    stage = StromModel(
        model=model,
        feature_cols=["x"],
        label_cols=["kind"],
        sample_weight_col="weight",
        transformation_fn=of_a_kind,
        output_cols=["logits"],
    )
    expected = model.predict(np.array([[0.5, 1.0]]), verbose=0)[0]
    for rows in (df, df.drop("weight")):
        found = stage.transform(rows).first()["logits"]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert stage.evaluate(df)["loss"] > 0.0


def test_outputs_are_as_long_as_the_rows_of_each_dataframe() -> None:
    network = keras.Sequential([keras.Input((None, 1)), keras.layers.Dense(2)])
    model = StromModel(model=network, feature_cols=["x"])
    for length in (5, 7):
        specs = {"x": ColumnSpec("array", "float32", (length, 1))}
        made = model._output_columns(Columns(("x",), ()), specs)
        assert made.outputs.tensors[0].shape == (length, 2)


class Scaled(keras.losses.Loss):  # type: ignore[misc]
    """Neither registered with Keras nor made again of its configuration alone."""

    factor = 1.0

    def call(self, y: Any, predicted: Any) -> Any:
        return self.factor * keras.ops.mean(keras.ops.square(y - predicted), axis=-1)


def mean_of_all(y: Any, predicted: Any) -> Any:
    return keras.ops.mean(keras.ops.square(y - predicted))


def without_labels(x: Any, *_: Any) -> tuple[Any]:
    return (x,)


def regression(loss: Any, **params: Any) -> StromModel:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", loss)
    objects = {"Scaled": Scaled, "mean_of_all": mean_of_all}
    given = {"feature_cols": ["x"], "label_cols": ["y"], "custom_objects": objects}
    return StromModel(model=model, **given, **params)


def test_rows_are_scored_by_a_loss_that_keras_does_not_know(spark: Any) -> None:
    df = spark.createDataFrame([([1.0, 2.0], 2.0), ([3.0, 1.0], 4.0)], ["x", "y"])
    model = regression(Scaled())
    assert model.score(df).agg({"score": "avg"}).first()[0] == pytest.approx(
        model.evaluate(df)["loss"], rel=1e-5
    )


def test_an_attribute_of_a_loss_counts_in_its_scores() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    scaled = Scaled()
    scaled.factor = 3.0
    x, y = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")
    found = []
    for loss in (Scaled(), scaled):
        model.compile("sgd", loss)
        found.append(losses(model, Outputs((Output("y", ()),)), x, y))
    np.testing.assert_allclose(found[1], 3.0 * found[0], rtol=1e-6)


@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 3), (4, 3, 1)])
def test_scores_are_weighed_as_keras_weighs_losses(shape: tuple[int, ...]) -> None:
    model = keras.Sequential([keras.Input((3, 2)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    random = np.random.default_rng(5)
    x, y = random.random((4, 3, 2), "float32"), random.random((4, 3, 1), "float32")
    weight = random.random(shape, "float32")
    found = losses(model, Outputs((Output("y", (3, 1)),)), x, y, weight)
    assert found.shape == (4,)
    model.compile("sgd", "mse")
    if weight.ndim == 1:  # Which Keras does not spread over what a row has.
        weight = weight[:, None]
    np.testing.assert_allclose(found.mean(), model.test_on_batch(x, y, weight), rtol=1e-5)


def test_what_a_layer_masks_counts_in_no_score() -> None:
    layers = [keras.layers.Embedding(5, 3, mask_zero=True), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,), dtype="int32"), *layers])
    model.compile("sgd", "mse")
    x = np.asarray([[1, 2, 0, 0], [3, 0, 0, 0], [0, 0, 0, 0], [1, 2, 3, 4]])
    y = np.random.default_rng(5).normal(size=(4, 4, 1)).astype("float32")
    found = losses(model, Outputs((Output("y", (4, 1)),)), x, y)
    alone = [model.test_on_batch(x[row : row + 1], y[row : row + 1]) for row in range(4)]
    np.testing.assert_allclose(found, np.asarray(alone), rtol=1e-5)
    assert found[2] == 0.0


def test_a_loss_of_all_rows_together_scores_none(spark: Any) -> None:
    df = spark.createDataFrame([([1.0, 2.0], 2.0)], ["x", "y"])
    model = regression(mean_of_all)
    assert model.evaluate(df)["loss"] >= 0.0
    with pytest.raises(errors.UnsupportedModel, match=r"mean_of_all.* one number for all rows"):
        model.score(df)


def test_rows_whose_labels_are_left_out_are_not_measured(spark: Any) -> None:
    df = spark.createDataFrame([([1.0, 2.0], 2.0)], ["x", "y"])
    model = regression("mse", transformation_fn=without_labels)
    assert model.transform(df).count() == 1
    with pytest.raises(errors.InvalidData, match="no output has both a label and a loss"):
        model.score(df)
    with pytest.raises(errors.InvalidData, match="does not take the labels"):
        model.evaluate(df)


def test_a_new_column_is_not_one_that_spark_takes_for_it(spark: Any) -> None:
    df = spark.createDataFrame([([1.0, 2.0], 2.0)], ["x", "Prediction"])
    model = regression("mse")
    with pytest.raises(errors.InvalidData, match="a column 'prediction' already"):
        model.transform(df)
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        assert model.transform(df).select("prediction").count() == 1
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
