"""`make bench-reader`: how fast a worker reads exported rows, against pyarrow by itself.

Rows of 26 float columns and a label, written as `export` writes them, are read from the page cache:
by pyarrow alone, row group by row group; and by `reader.dataset` in order and shuffled, as 26
scalars and as one vector of 26. TensorFlow counts the batches, as `fit` draws them: no Python
between them. Everything takes turns, round after round.
"""

from __future__ import annotations

import argparse
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from benchmarks import report
from keras_strom.spark.data.checked import RowPlan
from keras_strom.spark.data.columns import Columns, ColumnSpec
from keras_strom.spark.data.export import WritePlan, write_partition
from keras_strom.spark.data.exported import ExportedData
from keras_strom.spark.data.parquet import from_parquet
from keras_strom.spark.data.reader import dataset
from keras_strom.spark.data.store import Store

FEATURES = 26
BATCH = 256
SCALARS = "26 scalars"
VECTOR = "a vector of 26"
PYARROW = "pyarrow alone"
TARGETS = {"reader_rows_per_s"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures everything and shows the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=report.ROUNDS)
    parser.add_argument("--output", type=pathlib.Path, default=report.OUTPUT)
    chosen = parser.parse_args(arguments)
    result = report.Report("reader", "Reading exported rows", chosen.output)
    with tempfile.TemporaryDirectory(prefix="keras-strom-bench-") as folder:
        variants: dict[str, Callable[[], None]] = {}
        for form in (SCALARS, VECTOR):
            data = write(pathlib.Path(folder, form.split()[-2]), form, chosen.rows)
            variants |= {f"{form}, {name}": run for name, run in ways(data).items()}
        timings = report.interleave(variants, rounds=chosen.rounds)
    for name in variants:
        form, _, way = name.partition(", ")
        own = timings.speedup(name, over=f"{form}, {PYARROW}")
        low, high = timings.spread(name, over=f"{form}, {PYARROW}")
        result.row(
            way,
            group=f"{form}, batches of {BATCH}",
            rows_per_s=chosen.rows / timings.median(name),
            of_pyarrow=own,
            quartiles=f"{low:.2f} to {high:.2f}",
        )
    shuffled = timings.median(f"{SCALARS}, shuffled")
    result.target("reader_rows_per_s", chosen.rows / shuffled, goal=150_000)
    result.finish()


def write(folder: pathlib.Path, form: str, rows: int) -> ExportedData:
    """Random rows in one file of a store, without Spark."""
    if form == SCALARS:
        specs = {f"f{i}": ColumnSpec("scalar", "float32") for i in range(FEATURES)}
    else:
        specs = {"f": ColumnSpec("vector", "float32", (FEATURES,))}
    columns = Columns(tuple(specs), ("label",))
    specs["label"] = ColumnSpec("scalar", "int32")
    run = Store.create(folder).run("bench")
    plan = WritePlan(run=run, rows=RowPlan(specs=specs))
    list(write_partition(plan, batches(specs, rows)))
    return from_parquet(run.train_data, columns)


def batches(specs: dict[str, ColumnSpec], rows: int) -> Iterator[pa.RecordBatch]:
    """What Spark would hand to the writing task."""
    random = np.random.default_rng(1)
    for begin in range(0, rows, 10_000):
        count = min(10_000, rows - begin)
        arrays = []
        for spec in specs.values():
            if spec.dtype == "int32":
                arrays.append(pa.array(random.integers(0, 2, count, dtype=np.int32)))
                continue
            values = pa.array(random.random(count * spec.size, dtype=np.float32))
            if spec.shape:
                ends = np.arange(0, len(values) + 1, spec.size, dtype=np.int32)
                values = pa.ListArray.from_arrays(ends, values)
            arrays.append(values)
        yield pa.RecordBatch.from_arrays(arrays, names=list(specs))


def ways(data: ExportedData) -> dict[str, Callable[[], None]]:
    """How the rows are read, each a pass over all of them."""

    def alone() -> None:
        rows = 0
        for file in data.splits["train"]:
            with pq.ParquetFile(file.path) as opened:
                for group in range(opened.num_row_groups):
                    rows += opened.read_row_group(group).num_rows
        _check(rows, data)

    def through(batches: tf.data.Dataset) -> Callable[[], None]:
        def run() -> None:
            count = batches.reduce(
                np.int64(0), lambda total, batch: total + tf.size(batch[1], tf.int64)
            )
            _check(int(count), data)

        return run

    return {
        PYARROW: alone,
        "in order": through(dataset(data, batch_size=BATCH)),
        "shuffled": through(dataset(data, batch_size=BATCH, shuffle=True)),
    }


def _check(rows: int, data: ExportedData) -> None:
    if rows != data.rows():
        raise RuntimeError(f"read {rows} of {data.rows()} rows")


if __name__ == "__main__":
    main()
