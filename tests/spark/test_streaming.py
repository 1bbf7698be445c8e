"""A StromModel predicts on streaming DataFrames, whose rows nobody can look at beforehand."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

pytest.importorskip("pyspark")

from keras_strom import errors
from keras_strom.spark import StromEstimator, StromModel
from keras_strom.spark.data.columns import ColumnSpec


def regression() -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


@pytest.fixture(scope="module")
def stream(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The rows of a folder of Parquet files."""
    folder = str(tmp_path_factory.mktemp("stream") / "rows")
    values = [([float(i), 1.0, 2.0, 3.0], float(i), i) for i in range(20)]
    table = spark.createDataFrame(values, ["x", "y", "id"])
    table.coalesce(1).write.parquet(folder)
    return spark.readStream.schema(table.schema).parquet(folder)


def all_of(stream: Any, name: str, column: str) -> dict[int, float]:
    """What a stream gives for the rows that are there now."""
    query = (
        stream.select("id", column)
        .writeStream.format("memory")
        .queryName(name)
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(250)
    finally:
        query.stop()
    return {row["id"]: row[column] for row in stream.sparkSession.table(name).collect()}


def test_a_stream_gets_predictions_and_scores(stream: Any) -> None:
    model = StromModel(model=regression(), feature_cols=["x"], label_cols=["y"])
    x = np.array([[i, 1.0, 2.0, 3.0] for i in range(20)], "float32")
    expected = model.keras.predict(x, verbose=0)[:, 0]
    found = all_of(model.transform(stream), "predicted", "prediction")
    np.testing.assert_allclose([found[i] for i in range(20)], expected, rtol=1e-4, atol=1e-5)
    found = all_of(model.score(stream), "scored", "score")
    losses = (expected - np.arange(20)) ** 2
    np.testing.assert_allclose([found[i] for i in range(20)], losses, rtol=1e-3, atol=1e-4)
    # A model that an Estimator has trained knows its columns' shapes.
    model._specs = {"x": ColumnSpec("array", "float32", (4,))}
    assert "prediction" in model.transform(stream).columns
    with pytest.raises(errors.InvalidData, match=r"use score\(\), or evaluate\(\) on each batch"):
        model.evaluate(stream)
    with pytest.raises(errors.InvalidData, match="no epoch of it"):
        StromEstimator(
            model=regression(), optimizer="sgd", loss="mse", feature_cols=["x"], label_cols=["y"]
        ).fit(stream)


def test_a_shape_that_neither_the_schema_nor_the_model_tells_is_named(
    stream: Any,
) -> None:
    model = StromModel(model=regression(), feature_cols=["x"])
    model._specs = {"x": ColumnSpec("scalar", "float32")}
    with pytest.raises(errors.InvalidData, match="does not tell the shape of column 'x'"):
        model.transform(stream)
