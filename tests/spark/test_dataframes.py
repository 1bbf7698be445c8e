"""Which DataFrames a `fit` and a StromModel take: names of columns, and what is no DataFrame."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PythonException, SparkRuntimeException
from pyspark.sql import functions as F  # noqa: N812

from keras_strom import errors
from keras_strom.spark import StromEstimator, StromModel
from keras_strom.spark.data.checked import marks
from keras_strom.spark.data.columns import Columns, ColumnSpec, inspect
from keras_strom.spark.estimator import estimator as estimator_module


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


@pytest.fixture
def _no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a `fit` refuses, it refuses before it looks for slots."""

    def begun(*_: Any) -> None:
        raise AssertionError("the cluster was asked")

    monkeypatch.setattr(estimator_module, "check_executors", begun)


@pytest.mark.usefixtures("_no_training")
def test_a_column_of_the_prediction_s_name_is_refused_before_the_training(
    numbers: Any, tmp_path: Path
) -> None:
    for name, params in (
        ("prediction", {}),
        ("PREDICTION", {}),
        ("y_hat", {"prediction_col": "y_hat"}),
        ("raw", {"output_cols": ["raw"], "prediction_col": None}),
    ):
        fits = estimator(store=str(tmp_path / "store"), **params)
        with pytest.raises(errors.InvalidData, match=r"has a column '\w+' already: drop it"):
            fits.fit(numbers.withColumn(name, F.lit(1.0)))
    assert not (tmp_path / "store").exists()
    with pytest.raises(AssertionError, match="the cluster was asked"):
        estimator(prediction_col="y_hat").fit(numbers.withColumn("prediction", F.lit(1.0)))


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
    with pytest.raises(errors.InvalidData, match="several columns 'X': rename them"):
        marks(twice, "X")
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


@pytest.mark.parametrize("work", ["fit", "transform", "evaluate", "score"])
def test_what_is_no_dataframe_of_spark_is_told_how_it_becomes_one(work: str) -> None:
    method = getattr(estimator() if work == "fit" else stage(), work)
    rows = pd.DataFrame({"x": [1.0], "y": [2.0]})
    with pytest.raises(errors.InvalidData, match=r"pandas\..*DataFrame is no .*createDataFrame"):
        method(rows)
    with pytest.raises(errors.InvalidData, match=r"a builtins\.list is no DataFrame of Spark"):
        method([1.0])
    on_spark = type("DataFrame", (), {"__module__": "pyspark.pandas.frame"})()
    with pytest.raises(errors.InvalidData, match=r"its to_spark\(\) gives one"):
        method(on_spark)


def test_a_model_that_has_predicted_can_be_pickled_and_copied(numbers: Any) -> None:
    model = stage(prediction_col="found")
    expected = [row.found for row in model.transform(numbers).collect()]
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert again.uid == model.uid
        assert again.extractParamMap() == model.extractParamMap()
        found = [row.found for row in again.transform(numbers).collect()]
        np.testing.assert_array_equal(found, expected)
    # For Params of one call Spark copies a stage, with which the model does not travel again.
    assert model.copy()._payload is model._payload


def test_a_column_that_spark_does_not_give_to_python_is_named(numbers: Any) -> None:
    rows = numbers.withColumns({"month": F.expr("interval '1' month"), "z": F.lit("a")})
    with pytest.raises(errors.InvalidData, match=r"to Python: 'month' \(interval month\); drop it"):
        stage().transform(rows)


def test_a_null_ends_a_query_before_any_python_worker_with_column_and_remedy(spark: Any) -> None:
    rows = spark.createDataFrame(
        [(1.0, 2.0, [1.0]), (None, 1.0, [2.0]), (3.0, None, [None])],
        "`x.1` double, y double, v array<double>",
    )
    model = stage(feature_cols=["x.1"])
    words = r"column '{}' has rows with nulls: drop or repair these rows \(df\.dropna\(\)"
    with pytest.raises(SparkRuntimeException, match=words.format(r"x\.1")):
        model.transform(rows).collect()
    whole = rows.filter("`x.1` is not null")
    with pytest.raises(SparkRuntimeException, match=words.format("y")):
        model.score(whole).collect()
    assert model.transform(whole).count() == 2  # No label is asked for.
    with pytest.raises(PythonException, match=r"'v' has 1 row with nulls: drop or repair these"):
        stage(feature_cols=["v"]).transform(rows).collect()
