"""Values that a training cannot take are refused before a worker starts, in words."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from keras_strom import errors
from keras_strom.spark import StromEstimator
from keras_strom.spark.data.checked import ValueChecks, check_faults
from keras_strom.spark.data.columns import Columns, ColumnSpec
from keras_strom.spark.data.parquet import from_parquet, refuse_labels
from keras_strom.spark.data.tensors import Allowed, odd_values
from keras_strom.spark.inference.compiling import check_names
from keras_strom.spark.inference.dry_run import dry_run
from keras_strom.spark.inference.serialization import pack
from keras_strom.spark.inference.values import Probe

COLUMNS = Columns(("x",), ("y",))
SPECS = {"x": ColumnSpec("array", "float32", (4,)), "y": ColumnSpec("scalar", "int64")}
SPARSE = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class ZeroForNan(keras.layers.Layer):  # type: ignore[misc]
    def call(self, x: Any) -> Any:
        return keras.ops.where(keras.ops.isnan(x), 0.0, x)


def model(loss: Any, units: int = 3, *, masks: bool = False) -> keras.Model:
    layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(units)]
    made = keras.Sequential([keras.Input((4,)), *([ZeroForNan()] if masks else []), *layers])
    made.compile("adam", loss)
    return made


def masked_loss(y: Any, predicted: Any) -> Any:
    known = ~keras.ops.isnan(y)
    return keras.ops.where(known, (keras.ops.where(known, y, 0.0) - predicted) ** 2, 0.0)


def filled_up(x: Any, y: Any) -> tuple[Any, Any]:
    return keras.ops.where(keras.ops.isnan(x), 0.0, x), y


@pytest.mark.parametrize(
    ("loss", "units", "wrong", "right"),
    [
        (SPARSE, 3, [-1, 3, 1.5], [0, 1, 2]),
        ("sparse_categorical_crossentropy", 3, [3], [2]),
        (keras.losses.SparseCategoricalCrossentropy(ignore_class=-1), 3, [-2, 3], [-1, 2]),
        ("binary_crossentropy", 1, [-1, 2], [0, 0.25, 1]),
        ("poisson", 1, [-0.5], [0, 1000]),
    ],
)
def test_the_loss_says_which_labels_it_takes(
    loss: Any, units: int, wrong: list[float], right: list[float]
) -> None:
    allowed = dry_run(pack(model(loss, units)), COLUMNS, SPECS).allowed["y"]
    assert odd_values(np.array(wrong, "float32"), allowed).refused == len(wrong)
    assert not odd_values(np.array(right, "float32"), allowed)


def test_a_loss_of_any_number_takes_all_labels() -> None:
    assert dry_run(pack(model("mse", 1)), COLUMNS, SPECS).allowed == {}


def test_the_footers_of_parquet_files_tell_of_labels(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    rows = {"x": [[0.0, 1.0, 2.0, 3.0]] * 3, "y": [0, 7, 2]}
    pq.write_table(pa.table(rows), file)
    data = from_parquet(file, COLUMNS)
    allowed = dry_run(pack(model(SPARSE)), COLUMNS, data.specs).allowed
    with pytest.raises(errors.InvalidData, match=r"rows.parquet: label column 'y' .*from 0 to 7,"):
        refuse_labels(data, allowed)
    pq.write_table(pa.table({**rows, "y": [0, 1, 2]}), file)
    refuse_labels(from_parquet(file, COLUMNS), allowed)


def test_odd_values_are_counted_by_row() -> None:
    rows = np.array([[0, np.nan], [np.inf, 1], [np.nan, -np.inf], [1, 2]], "float32")
    found = odd_values(rows, Allowed(0, 1, True, "the loss"))
    assert (found.nans, found.infinities, found.refused, found.label) == (2, 2, 3, "inf")
    assert not odd_values(np.array([0, 1], "int64"), Allowed(0, 1, True, "the loss"))


def test_a_model_says_by_itself_whether_nan_harms_it() -> None:
    specs = {**SPECS, "y": ColumnSpec("scalar", "float32")}
    harms = Probe(pack(model("mse", 1)), COLUMNS, specs)
    assert harms("x", np.nan)
    assert harms("x", np.inf)
    assert harms("y", np.nan)
    # It is no class: TensorFlow refuses it with an exception.
    assert Probe(pack(model(SPARSE, 3)), COLUMNS, specs)("y", np.nan)
    objects = {"masked_loss": masked_loss, "ZeroForNan": ZeroForNan}
    packed = pack(model(masked_loss, 1, masks=True), custom_objects=objects)
    masks = Probe(packed, COLUMNS, specs)
    assert not masks("x", np.nan)
    assert masks("x", np.inf)
    assert not masks("y", np.nan)
    filled = Probe(pack(model("mse", 1)), COLUMNS, specs, filled_up)
    assert not filled("x", np.nan)


@pytest.mark.parametrize(
    ("compiling", "words"),
    [
        ({"loss": "mean_square_error"}, "Keras has no loss of this name.*'mean_squared_error'"),
        ({"loss": {"out": ["mse", "hing"]}}, "loss='hing'.*'hinge'"),
        ({"metrics": ["acc", "acuracy"]}, "metrics='acuracy'.* no metric .*'accuracy'"),
        ({"metrics": ["sparse_categorical_acc"]}, "did you mean 'sparse_categorical_accuracy'"),
        ({"optimizer": "adamm"}, "optimizer='adamm'.*'adam'"),
        ({"optimizer": "qqq"}, r"no optimizer of this name \(keras.optimizers\)"),
    ],
)
def test_a_misspelt_name_is_named_with_the_nearest(compiling: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.InvalidOption, match=words):
        check_names(compiling)


def test_a_misspelt_name_in_what_a_function_compiles_is_named_as_well() -> None:
    def misspelt() -> keras.Model:
        made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        made.compile("sgd", "mean_square_error")
        return made

    specs = {"x": ColumnSpec("array", "float32", (2,)), "y": ColumnSpec("scalar", "float32")}
    with pytest.raises(errors.InvalidOption, match=r"loss='mean_square_error'.*'mean_sq"):
        dry_run(pack(model_fn=misspelt), COLUMNS, specs)


def test_what_a_function_compiles_with_need_have_no_configuration() -> None:
    def compiled() -> keras.Model:
        made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        loss = functools.partial(lambda y, predicted, by: (y - predicted) ** by, by=2)
        made.compile("sgd", loss)
        return made

    specs = {"x": ColumnSpec("array", "float32", (2,)), "y": ColumnSpec("scalar", "float32")}
    assert dry_run(pack(model_fn=compiled), COLUMNS, specs).identity


def test_strings_where_the_model_takes_numbers_are_indexed_or_cast() -> None:
    specs = {"x": ColumnSpec("string", "string"), "y": ColumnSpec("scalar", "float32")}
    made = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    made.compile("sgd", "mse")
    cast = r"StringIndexer\(.*a cast alone: df\.withColumn\('x', df\['x'\]\.cast\('double'\)\)"
    with pytest.raises(errors.InvalidData, match=cast):
        dry_run(pack(made), COLUMNS, specs)


def test_names_that_keras_knows_pass() -> None:
    given = {"optimizer": "sgd", "loss": ["mse", SPARSE, None], "metrics": {"a": ["acc", "auc"]}}
    check_names(given)
    check_names({"loss": masked_loss})
    compiled = model(SPARSE)
    compiled.compile(keras.optimizers.Adam(), SPARSE, metrics=["accuracy"])
    check_names(compiled.get_compile_config())


@pytest.fixture(scope="module")
def points(spark: Any) -> Any:
    rows = [([float(i), 1.0, 2.0, 3.0], i % 3, float(i % 3), f"kind {i % 3}") for i in range(40)]
    return spark.createDataFrame(rows, ["x", "y", "z", "name"]).repartition(2).cache()


def estimator(**others: Any) -> StromEstimator:
    return StromEstimator(
        **{
            "model": keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]),
            "optimizer": "adam",
            "loss": SPARSE,
            "feature_cols": ["x"],
            "label_cols": ["y"],
            "num_proc": 1,
            "verbose": 0,
            **others,
        }
    )


def test_bad_values_of_a_dataframe_are_refused_with_column_and_count(
    points: Any, tmp_path: Path
) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    nan = F.when(points["y"] == 1, F.array(*[F.lit(float("nan"))] * 4)).otherwise(points["x"])
    no_class = F.when(points["y"] == 1, F.lit(float("nan"))).otherwise(points["z"])
    infinite = F.when(points["y"] == 1, F.lit(float("inf"))).otherwise(points["z"])
    cases: tuple[tuple[Any, dict[str, Any], str], ...] = (
        (points.withColumn("y", points["y"] - 1), {}, "'y' has 14 rows such as -1, where the loss"),
        (
            points.withColumn("y", points["y"] * 2),
            {},
            "Crossentropy' for the 3 classes of output",
        ),
        (points.withColumn("x", nan), {}, "column 'x' has 13 rows with NaN"),
        (
            points.withColumn("z", no_class),
            {"label_cols": ["z"]},
            "column 'z' has 13 rows with NaN",
        ),
        (
            points.withColumn("z", infinite),
            {"label_cols": ["z"], "loss": "mse", "model": model("mse", 1)},
            "column 'z' has 13 rows with infinity: drop or repair these rows",
        ),
        (points.withColumn("z", points["z"] / 2), {"label_cols": ["z"]}, "rows such as 0.5, where"),
        (points, {"label_cols": ["name"]}, r"StringIndexer\(inputCol='name', outputCol='name_ind"),
    )
    for number, (changed, options, words) in enumerate(cases):
        store = str(tmp_path / "store") if number % 2 else None  # Both ways out of Spark.
        with pytest.raises(errors.InvalidData, match=words):
            estimator(store=store, **options).fit(changed)
    assert not list((tmp_path / "store").iterdir())  # Nobody knows of the runs.
    kept = estimator(store=str(tmp_path / "store"), run_id="mine", label_cols=["z"])
    with pytest.raises(errors.InvalidData, match=r"rows such as 0\.5, where"):
        kept.fit(points.withColumn("z", points["z"] / 2))
    assert [one.name for one in (tmp_path / "store").iterdir()] == ["mine"]
    with pytest.raises(errors.InvalidOption, match="did you mean 'mean_squared_error'"):
        estimator(loss="mean_squarederror").fit(points)
    compiled = model("mze", 1)
    with pytest.raises(errors.InvalidOption, match="loss='mze'"):
        estimator(model=compiled, optimizer=None, loss=None).fit(points)


def logarithm(x: Any, y: Any) -> tuple[Any, Any]:
    return keras.ops.log(x), y


def of_unit_length(x: Any, y: Any) -> tuple[Any, Any]:
    return x / keras.ops.norm(x, axis=-1, keepdims=True), y


def spoiled(x: Any, y: Any) -> tuple[Any, Any]:
    return x * np.inf, y


@pytest.mark.parametrize("function", [logarithm, of_unit_length])
def test_nan_is_found_where_a_row_of_zeros_is_not_finite(function: Any) -> None:
    specs = {**SPECS, "y": ColumnSpec("scalar", "float32")}
    harms = Probe(pack(model("mse", 1)), COLUMNS, specs, function)
    assert harms("x", np.nan)
    assert harms("y", np.inf)


def test_nan_is_found_where_columns_must_differ() -> None:
    ends = [keras.Input((4,), name=name) for name in ("a", "b")]
    tower = keras.layers.Dense(3)
    distance = keras.ops.norm(tower(ends[0]) - tower(ends[1]), axis=-1)
    siamese = keras.Model(ends, distance)
    siamese.compile("adam", "hinge")
    row = ColumnSpec("array", "float32", (4,))
    specs = {"a": row, "b": row, "y": ColumnSpec("scalar", "float32")}
    harms = Probe(pack(siamese), Columns(("a", "b"), ("y",)), specs)
    assert harms("a", np.nan)
    assert harms("b", np.nan)


def test_values_that_no_row_can_tell_of_are_a_warning() -> None:
    probe = Probe(pack(model("mse", 1)), COLUMNS, SPECS, spoiled)
    assert probe("x", np.nan) is None
    reports = [{"x": {"nans": 3}}, {"x": {"nans": 1, "infinities": 2}}]
    with pytest.warns(RuntimeWarning, match="column 'x' has 4 rows with NaN; .* with infinity"):
        check_faults(reports, SPECS, None, ValueChecks({}, probe))


def test_files_that_are_refused_leave_no_run(spark: Any, tmp_path: Path) -> None:
    file, store = tmp_path / "rows.parquet", tmp_path / "store"
    pq.write_table(pa.table({"x": [[0.0, 1.0, 2.0, 3.0]] * 2, "y": [0, 7]}), file)
    with pytest.raises(errors.InvalidData, match="from 0 to 7,"):
        estimator(store=str(store)).fit_on_parquet(file, spark=spark)
    assert not list(store.iterdir())
