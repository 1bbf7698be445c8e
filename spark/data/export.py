"""`export`: a DataFrame becomes Parquet files in a store, once, and workers read those.

Every Spark task writes its partition with pyarrow: tensors of fixed width (`tensors`), row groups
of about a mebibyte, which can be shuffled and divided. The same pass counts nulls and misshapen
rows, so bad data is refused before a worker starts. Only files that a task has reported count; what
a failed or repeated attempt has left is read by nobody.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import socket
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from keras_strom import errors

from .checked import CheckedRows, RowPlan, ValueChecks, check_faults, marks, tasks
from .columns import Columns, ColumnSpec, inspect, select
from .exported import TRAIN, VALIDATION, DataFile, ExportedData
from .parquet import spec_metadata
from .store import Store, StoreRun, explained
from .tensors import storage_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Uncompressed bytes of a row group: small enough to shuffle well, large enough to read fast.
ROW_GROUP_BYTES = 1 << 20


def export(
    df: DataFrame,
    columns: Columns,
    run: StoreRun | None,
    *,
    validation: float | str | None = None,
    workers: int = 1,
    seed: int = 0,
    specs: Mapping[str, ColumnSpec] | None = None,
    row_group_bytes: int = ROW_GROUP_BYTES,
    checks: ValueChecks | None = None,
    all_validate: bool = False,
) -> ExportedData:
    """Writes the chosen columns to a run of a store, in place of any data that it had.

    Args:
        df: any number of partitions, of any sizes.
        columns: what makes an example.
        run: where to, from `Store.run`.
        validation: the fraction of rows to hold out, or the name of a Boolean or 0/1 column that
            marks them; None = no validation data.
        workers: how many will read it; fewer rows than that are refused.
        seed: which rows are held out; the same ones for the same DataFrame in the same partitions.
        specs: what `inspect` gave, to not look again.
        row_group_bytes: about how many bytes, uncompressed, make a row group.
        checks: of the values, by the model; None = NaN and infinity may be.
        all_validate: whether each of them reads all held-out rows, and not its share.

    Returns:
        What was written; also saved in the run (`ExportedData.load`).

    Raises:
        InvalidData: a missing or mistyped column, nulls, misshapen rows, or too few rows.
        InvalidOption: no store, or a `validation` that is neither.
        StoreUnavailable: the store cannot be written, or is a local folder that an executor's host
            does not share with the driver.

    Example:
        >>> data = export(df, Columns(("x",), ("y",)), run, workers=2)  # doctest: +SKIP
        >>> data.rows()  # doctest: +SKIP
        1000
    """
    if run is None:
        raise errors.InvalidOption(
            "no store: give store=Store.create(path) with a path that the driver and all workers "
            "reach"
        )
    extra = marks(df, validation)
    specs = dict(specs or inspect(df, columns))
    run.store.delete(run.data_index)
    run.store.delete(run.train_data)
    run.store.delete(run.validation_data)
    marker = f"{run.train_data}/.started"
    run.store.write_bytes(marker, b"")
    plan = WritePlan(
        run=run,
        rows=RowPlan(
            specs=specs,
            fraction=validation if isinstance(validation, float) else None,
            marked=bool(extra),
            seed=seed,
            allowed={} if checks is None else checks.allowed,
        ),
        row_group_bytes=row_group_bytes,
        marker=marker if run.store.is_local else None,
    )
    reports = write(select(df, specs, *extra), plan)
    try:
        check_faults([report["faults"] for report in reports], specs, validation, checks)
        splits = {TRAIN: _files(reports, TRAIN)}
        if validation is not None:
            splits[VALIDATION] = _files(reports, VALIDATION)
        data = ExportedData(run.store, columns, specs, splits)
        data.check_shares(workers, all_validate=all_validate)
    except errors.InvalidData:
        run.store.delete(run.train_data)
        run.store.delete(run.validation_data)
        raise
    run.store.delete(marker)
    data.save(run)
    return data


@dataclasses.dataclass(frozen=True, kw_only=True)
class WritePlan:
    """What every writing task is told.

    Attributes:
        run: whose data it is.
        rows: what becomes of the rows.
        row_group_bytes: as given to `export`.
        marker: a file that must be seen, or else the store is not shared; None = do not look.
    """

    run: StoreRun
    rows: RowPlan
    row_group_bytes: int = ROW_GROUP_BYTES
    marker: str | None = None


def write(df: DataFrame, plan: WritePlan) -> list[dict[str, Any]]:
    """Runs the Spark job; returns the tasks' reports.

    Raises:
        StoreUnavailable: a task could not write.
    """
    with tasks(df.sparkSession, plan.rows.specs):
        rows = df.mapInArrow(functools.partial(write_partition, plan), "report string").collect()
    return [json.loads(row[0]) for row in rows]


def write_partition(plan: WritePlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a task does: writes a partition's rows, and yields one row, its report in JSON."""
    from pyspark import TaskContext

    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    store = plan.run.store
    if plan.marker is not None and not store.exists(plan.marker):
        raise errors.StoreUnavailable(
            f"the store {store.url} is a local folder of the driver, which {socket.gethostname()} "
            "does not share: choose one that all hosts reach (a mounted folder, hdfs://, s3://)"
        )
    rows = CheckedRows(plan.rows, partition)
    with contextlib.ExitStack() as stack:
        name = f"part-{partition:05d}-{uuid.uuid4().hex}.parquet"
        folders = {TRAIN: plan.run.train_data, VALIDATION: plan.run.validation_data}
        files = {
            split: RowGroupWriter(store, f"{folder}/{name}", plan, stack)
            for split, folder in folders.items()
        }
        for split, batch in rows.encode(batches):
            files[split].write(batch)
        report = {
            "files": {split: file.close() for split, file in files.items()},
            "faults": rows.faults_as_json(),
        }
    yield pa.RecordBatch.from_pydict({"report": [json.dumps(report)]})


class RowGroupWriter:
    """A Parquet file that exists once the first row has come, in row groups of about one size.

    What it has taken is gone, so that a file which becomes stale is an error; Spark runs the task
    again, with its rows.

    Args:
        store: where it is.
        path: its path.
        plan: what it holds.
        stack: closes the file at its end, or deletes it where that is an error.

    `write` and `close` raise StoreUnavailable.
    """

    def __init__(
        self, store: Store, path: str, plan: WritePlan, stack: contextlib.ExitStack
    ) -> None:
        self._store = store
        self._stack = stack
        self._path = path
        self._plan = plan
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0
        self._groups: list[int] = []
        self._bytes = 0
        self._writer: Any = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Takes rows."""
        if not batch.num_rows:
            return
        row_bytes = max(1, batch.nbytes // batch.num_rows)
        group_rows = max(1, self._plan.row_group_bytes // row_bytes)
        begin = 0
        while begin < batch.num_rows:
            part = batch.slice(begin, group_rows - min(self._rows, group_rows - 1))
            self._waiting.append(part)
            self._rows += part.num_rows
            self._bytes += part.num_rows * row_bytes
            begin += part.num_rows
            if self._rows >= group_rows:
                self._flush()

    def close(self) -> dict[str, Any] | None:
        """Ends the Parquet; returns a `DataFile`'s fields, or None where there were no rows."""
        if self._rows:
            self._flush()
        if self._writer is None:
            return None
        with explained(self._path):
            self._writer.close()
        return {"path": self._path, "rows": self._groups, "size_bytes": self._bytes}

    def _flush(self) -> None:
        with explained(self._path):
            if self._writer is None:
                self._writer = self._open()
            table = pa.Table.from_batches(self._waiting)
            self._writer.write_table(table, row_group_size=self._rows)
        self._groups.append(self._rows)
        self._waiting, self._rows = [], 0

    def _open(self) -> pq.ParquetWriter:
        specs = self._plan.rows.specs
        schema = pa.schema(
            [
                pa.field(name, storage_type(spec), metadata=spec_metadata(spec))
                for name, spec in specs.items()
            ]
        )
        return pq.ParquetWriter(
            self._stack.enter_context(self._store.open_output(self._path)),
            schema,
            compression="snappy",  # Half of zstd's time to read, for a tenth more bytes.
            use_dictionary=[name for name, spec in specs.items() if spec.kind == "string"],
            write_statistics=False,
        )


def _files(reports: list[dict[str, Any]], split: str) -> tuple[DataFile, ...]:
    found = [report["files"][split] for report in reports if report["files"][split]]
    return tuple(
        DataFile(one["path"], tuple(one["rows"]), one["size_bytes"])
        for one in sorted(found, key=lambda one: str(one["path"]))
    )
