"""Which DataFrames a `fit` and a StromModel take: names of columns, and what is no DataFrame."""

from __future__ import annotations

from typing import Any

import keras
import pytest

pytest.importorskip("pyspark")

from keras_strom import errors
from keras_strom.spark import StromEstimator, StromModel
from keras_strom.spark.data.columns import Columns, ColumnSpec, inspect


@pytest.fixture(scope="module")
def numbers(spark: Any) -> Any:
    return spark.createDataFrame([(1.0, 2.0), (3.0, 1.0), (0.0, 5.0)], ["x", "y"])


def regression() -> keras.Model:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def estimator(**params: Any) -> StromEstimator:
    given = {"feature_cols": ["x"], "label_cols": ["y"], "num_proc": 2, **params}
    return StromEstimator(model=regression(), **given)


def stage(**params: Any) -> StromModel:
    given = {"feature_cols": ["x"], "label_cols": ["y"], **params}
    return StromModel(model=regression(), **given)


def test_a_column_is_found_in_any_case_as_spark_finds_it(numbers: Any, spark: Any) -> None:
    columns = Columns(("X",), ("y",))
    number = ColumnSpec("scalar", "float32")
    assert inspect(numbers, columns) == {"X": number, "y": number}
    capital = numbers.withColumnsRenamed({"x": "X", "y": "Y"})
    model = stage()
    assert model.evaluate(capital) == model.evaluate(numbers)
    assert stage(feature_cols=["X"]).transform(numbers).columns == ["x", "y", "prediction"]
    twice, columns = numbers.toDF("x", "X"), Columns(("X",), ())
    with pytest.raises(errors.InvalidData, match="several columns 'X': rename them"):
        inspect(twice, columns)
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        assert inspect(twice, columns) == {"X": number}
        with pytest.raises(errors.InvalidData, match="no column 'X' in the DataFrame; it has 'x'"):
            inspect(numbers, columns)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_validation_rows_are_marked_by_a_column_in_any_case(numbers: Any) -> None:
    marked = numbers.withColumn("held_out", numbers["x"] > 2.0)
    assert estimator(validation="HELD_OUT", verbose=0).fit(marked).history["val_loss"]
