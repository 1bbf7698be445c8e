"""A StromModel of a Keras model that no estimator has trained: it knows no rows beforehand."""

from __future__ import annotations

import keras
import pytest

pytest.importorskip("pyspark")

from keras_strom.spark import StromModel
from keras_strom.spark.data.columns import Columns, ColumnSpec


def test_outputs_are_as_long_as_the_rows_of_each_dataframe() -> None:
    network = keras.Sequential([keras.Input((None, 1)), keras.layers.Dense(2)])
    model = StromModel(model=network, feature_cols=["x"])
    for length in (5, 7):
        specs = {"x": ColumnSpec("array", "float32", (length, 1))}
        made = model._output_columns(Columns(("x",), ()), specs)
        assert made.outputs.tensors[0].shape == (length, 2)
