"""A StromModel of a Keras model that no estimator has trained: it knows no rows beforehand."""

from __future__ import annotations

import sys
from typing import Any

import cloudpickle
import keras
import numpy as np
import pytest

pytest.importorskip("pyspark")

from keras_strom.spark import StromModel
from keras_strom.spark.data.columns import Columns, ColumnSpec

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
