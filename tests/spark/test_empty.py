"""DataFrames without a row: nothing is predicted, in the right columns, and nothing is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest

pytest.importorskip("pyspark")

from pyspark.ml.linalg import Vectors

from keras_strom import errors
from keras_strom.spark import StromEstimator, StromModel


@pytest.fixture(scope="module")
def rows(spark: Any) -> Any:
    made = [(Vectors.dense([float(i), 1.0]), [1.0, 2.0, 3.0], b"b", 0.5 * i) for i in range(8)]
    names = ["point", "list", "bytes", "y"]
    return spark.createDataFrame(made, names).repartition(2).cache()


def regression(size: int) -> keras.Model:
    model = keras.Sequential([keras.Input((size,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def estimator(**others: Any) -> StromEstimator:
    given = {"model": regression(2), "feature_cols": ["point"], "label_cols": ["y"]}
    return StromEstimator(**{**given, "num_proc": 1, "verbose": 0, **others})


def test_a_fitted_model_adds_its_columns_to_no_rows(rows: Any, tmp_path: Path) -> None:
    fitted = estimator().fit(rows)
    fitted.save(str(tmp_path / "model"))
    for model in (fitted, StromModel.load(str(tmp_path / "model"))):
        for none in (rows.limit(0), rows.where("y < 0")):
            found = model.transform(none)
            assert found.schema == model.transform(rows).schema
            assert found.collect() == []
            scored = model.score(none)
            assert scored.columns == [*rows.columns, "score"]
            assert scored.collect() == []
            with pytest.raises(errors.InvalidData, match="no rows to evaluate on"):
                model.evaluate(none)


@pytest.mark.parametrize(("feature", "size"), [("point", 2), ("list", 3)])
def test_a_model_from_elsewhere_does_too(rows: Any, feature: str, size: int) -> None:
    model = StromModel(model=regression(size), feature_cols=[feature])
    assert model.transform(rows.limit(0)).collect() == []
    assert len(model.transform(rows).collect()) == 8


def test_what_is_made_of_bytes_is_not_guessed(rows: Any) -> None:
    def numbers(x: Any) -> Any:
        import tensorflow as tf

        return tf.reshape(tf.cast(tf.strings.length(x), "float32"), (-1, 1))

    model = StromModel(model=regression(1), feature_cols=["bytes"], transformation_fn=numbers)
    with pytest.raises(errors.InvalidData, match="the DataFrame has no rows"):
        model.transform(rows.limit(0))
    assert len(model.transform(rows).collect()) == 8


@pytest.mark.parametrize("feature", ["point", "y"])
def test_a_training_on_no_rows_says_so(rows: Any, feature: str) -> None:
    others = {"model": regression(1), "label_cols": ["z"]} if feature == "y" else {}
    none = rows.withColumn("z", rows["y"]).limit(0)
    with pytest.raises(errors.InvalidData, match="no rows"):
        estimator(feature_cols=[feature], **others).fit(none)


def test_a_column_without_a_value_is_named(spark: Any) -> None:
    df = spark.createDataFrame([(None, 1.0)], "point array<double>, y double")
    with pytest.raises(errors.InvalidData, match="column 'point' has no row with a value"):
        estimator().fit(df)


@pytest.mark.parametrize(
    ("value", "words"), [([None, [1.0]], "a null within the array"), ([[]], "an empty array")]
)
def test_a_first_row_without_a_shape_says_why(spark: Any, value: Any, words: str) -> None:
    df = spark.createDataFrame([(value, 1.0)], "point array<array<double>>, y double")
    with pytest.raises(errors.InvalidData, match=f"column 'point' has {words} in its first row"):
        estimator().fit(df)
