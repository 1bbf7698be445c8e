"""Columns of bytes and strings that `transformation_fn` parses, which it cannot do with zeros."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import cloudpickle
import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from keras_strom import errors
from keras_strom.spark import ParameterAveraging, StromEstimator, StromModel
from keras_strom.spark.data import decode_images
from keras_strom.spark.data.columns import Columns, ColumnSpec, inspect
from keras_strom.spark.data.parquet import from_parquet
from keras_strom.spark.inference.dry_run import dry_run
from keras_strom.spark.inference.serialization import pack

# Executors cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SIDE = 4


def decoded(x: Any, y: Any) -> tuple[Any, Any]:
    return decode_images(x, SIDE, SIDE) / 255.0, decode_images(y, SIDE, SIDE, 1) / 255.0


def numbers(x: Any, y: Any) -> tuple[Any, Any]:
    import tensorflow as tf

    def parsed(strings: Any) -> Any:
        return tf.strings.to_number(tf.strings.split(strings, ",").to_tensor())

    return parsed(x), parsed(y) if y.dtype == tf.string else y


def options(**others: Any) -> dict[str, Any]:
    return {"optimizer": "sgd", "loss": "mse", "num_proc": 1, "verbose": 0, **others}


def dense() -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def masking() -> keras.Model:
    model = keras.Sequential([keras.Input((SIDE, SIDE, 3)), keras.layers.Conv2D(1, 1)])
    model.compile("sgd", "mse")
    return model


@pytest.fixture(scope="module")
def pictures(spark: Any) -> Any:
    """PNG files of pictures, and of a mask of each."""
    import tensorflow as tf

    def png(channels: int) -> bytearray:
        drawn = pixels.integers(0, 256, (SIDE, SIDE, channels), np.uint8)
        return bytearray(tf.io.encode_png(drawn).numpy())

    pixels = np.random.default_rng(1)
    rows = [(png(3), png(1)) for _ in range(8)]
    return spark.createDataFrame(rows, "png binary, mask_png binary").repartition(2).cache()


@pytest.fixture(scope="module")
def lines(spark: Any) -> Any:
    rows = [(f"{i},1,2.5", float(i), f"{i}") for i in range(8)]
    return spark.createDataFrame(rows, "s string, y double, t string").repartition(2).cache()


def expected(model: StromModel, df: Any) -> list[float]:
    import tensorflow as tf

    encoded = tf.constant([bytes(row.png) for row in df.collect()])
    x = decode_images(encoded, SIDE, SIDE) / 255.0
    found: list[float] = np.asarray(model.keras.predict(x, verbose=0)).ravel().tolist()
    return found


def test_bytes_as_labels_need_not_be_there_to_predict(pictures: Any, tmp_path: Path) -> None:
    given = options(feature_cols=["png"], label_cols=["mask_png"], output_cols=["mask"])
    fitted = StromEstimator(model=masking(), transformation_fn=decoded, **given).fit(pictures)
    fitted.save(str(tmp_path / "model"))
    for model in (fitted, StromModel.load(str(tmp_path / "model"))):
        for df in (pictures, pictures.drop("mask_png")):
            found = np.ravel([row.mask for row in model.transform(df).collect()])
            assert found.tolist() == pytest.approx(expected(fitted, df), rel=1e-3, abs=1e-4)
        assert model.evaluate(pictures)["loss"] > 0.0
    with pytest.raises(errors.InvalidData, match="no rows to evaluate on"):
        fitted.evaluate(pictures.limit(0))


def test_the_model_travels_once_whatever_bytes_dataframes_begin_with(pictures: Any) -> None:
    given = {"feature_cols": ["png"], "label_cols": ["mask_png"], "prediction_col": None}
    model = StromModel(model=masking(), transformation_fn=decoded, output_cols=["mask"], **given)
    model._specs = inspect(pictures, Columns(("png",), ("mask_png",)))
    keys = set()
    for df in (pictures, pictures.orderBy("png"), pictures.orderBy("mask_png")):
        columns, specs = model._examined(df, with_labels=False)
        keys.add(model._broadcast(df, columns, specs).key)
    assert len(keys) == 1


def test_a_model_from_elsewhere_takes_the_bytes_of_labels_that_are_there(pictures: Any) -> None:
    given = {"feature_cols": ["png"], "label_cols": ["mask_png"], "output_cols": ["mask"]}
    model = StromModel(model=masking(), transformation_fn=decoded, **given)
    assert len(model.transform(pictures).select("mask").collect()) == 8


@pytest.mark.parametrize("label", ["y", "t"])
def test_strings_are_parsed(lines: Any, tmp_path: Path, label: str) -> None:
    given = options(feature_cols=["s"], label_cols=[label], transformation_fn=numbers)
    fitted = StromEstimator(model=dense(), **given).fit(lines)
    fitted.save(str(tmp_path / "model"))
    for model in (fitted, StromModel.load(str(tmp_path / "model"))):
        assert len(model.transform(lines).collect()) == 8
        assert len(model.transform(lines.drop("y", "t")).collect()) == 8
        assert model.evaluate(lines)["loss"] > 0.0
        assert len(model.score(lines).collect()) == 8


def test_strings_of_files_are_parsed_by_workers_that_average(lines: Any, tmp_path: Path) -> None:
    lines.write.parquet(str(tmp_path / "rows"))
    given = options(feature_cols=["s"], label_cols=["y"], transformation_fn=numbers)
    estimator = StromEstimator(model=dense(), training=ParameterAveraging(), **given)
    assert len(estimator.fit_on_parquet(str(tmp_path / "rows")).history["loss"]) == 1


def test_a_model_from_elsewhere_parses_strings(lines: Any) -> None:
    given: dict[str, Any] = {"feature_cols": ["s"], "transformation_fn": numbers}
    model = StromModel(model=dense(), label_cols=["y"], **given)
    assert len(model.transform(lines).collect()) == 8


def test_a_string_is_looked_at_where_something_parses_it(lines: Any, tmp_path: Path) -> None:
    columns = Columns(("s",), ("y",))
    assert inspect(lines, columns)["s"].example == b""
    found = inspect(lines, columns, with_strings=True)["s"]
    assert (found.kind, len(found.example.split(b","))) == ("string", 3)
    # Rows without a string are counted where the rows are read.
    assert inspect(lines.limit(0), columns, with_strings=True)["s"].example == b""
    pq.write_table(pa.table({"s": ["1,2,ä"], "y": [1.0]}), tmp_path / "rows.parquet")
    assert from_parquet(tmp_path / "rows.parquet", columns).specs["s"].example == b""
    found = from_parquet(tmp_path / "rows.parquet", columns, with_strings=True).specs["s"]
    assert found.example == "1,2,ä".encode()


@pytest.mark.parametrize(
    ("example", "words"),
    [
        (b"one,two,three", "fails on zeros and the first row's 's': .*StringToNumber"),
        (b"", "fails on zeros, with an empty string for 's': .*StringToNumber"),
    ],
)
def test_strings_that_cannot_be_parsed_are_named(example: bytes, words: str) -> None:
    specs = {"s": ColumnSpec("string", "string", (), example), "y": ColumnSpec("scalar", "float32")}
    with pytest.raises(errors.InvalidOption, match=words):
        dry_run(pack(dense()), Columns(("s",), ("y",)), specs, numbers)


def test_strings_of_which_none_is_known_yet_are_not_scored_beforehand() -> None:
    given: dict[str, Any] = {"feature_cols": ["s"], "label_cols": ["y"]}
    model = StromModel(model=dense(), transformation_fn=numbers, **given)
    columns, label = Columns(("s",), ("y",)), ColumnSpec("scalar", "float32")
    known = {"s": ColumnSpec("string", "string", (), b"1,2,3"), "y": label}
    model._outputs = dry_run(pack(dense()), columns, known, numbers).outputs
    model._try_to_score(columns, known)
    model._try_to_score(columns, {**known, "s": ColumnSpec("string", "string")})
