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
import re
import socket
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from keras_strom import errors

from .columns import Columns, ColumnSpec, inspect, select
from .exported import TRAIN, VALIDATION, DataFile, ExportedData
from .store import Store, StoreRun
from .tensors import Faults, encode, storage_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Uncompressed bytes of a row group: small enough to shuffle well, large enough to read fast.
ROW_GROUP_BYTES = 1 << 20

_VALIDATION_COLUMN = "_strom_validation"


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
    extra = _marks(df, validation)
    specs = dict(specs or inspect(df, columns))
    run.store.delete(run.data_index)
    run.store.delete(run.train_data)
    run.store.delete(run.validation_data)
    marker = f"{run.train_data}/.started"
    run.store.write_bytes(marker, b"")
    plan = WritePlan(
        run=run,
        specs=specs,
        fraction=validation if isinstance(validation, float) else None,
        marked=bool(extra),
        seed=seed,
        row_group_bytes=row_group_bytes,
        marker=marker if run.store.is_local else None,
    )
    reports = write(select(df, specs, *extra), plan)
    try:
        check_faults(reports, specs, validation)
        splits = {TRAIN: _files(reports, TRAIN)}
        if validation is not None:
            splits[VALIDATION] = _files(reports, VALIDATION)
        data = ExportedData(run.store, columns, specs, splits)
        for split in splits:
            data.check_rows(workers, split)
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
        specs: the columns, in order.
        fraction: of the rows to hold out; None = none.
        marked: whether a last column marks the rows to hold out.
        seed: of the choice.
        row_group_bytes: as given to `export`.
        marker: a file that must be seen, or else the store is not shared; None = do not look.
    """

    run: StoreRun
    specs: Mapping[str, ColumnSpec]
    fraction: float | None
    marked: bool
    seed: int
    row_group_bytes: int
    marker: str | None


def write(df: DataFrame, plan: WritePlan) -> list[dict[str, Any]]:
    """Runs the Spark job; returns the tasks' reports.

    Raises:
        StoreUnavailable: a task could not write.
    """
    try:
        rows = df.mapInArrow(functools.partial(write_partition, plan), "report string").collect()
    except Exception as error:
        raise _cause(error) from error
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
    held_out = _HeldOut(plan, partition)
    faults: dict[str, Faults] = {}
    with contextlib.ExitStack() as stack:
        folders = {TRAIN: plan.run.train_data, VALIDATION: plan.run.validation_data}
        files = {
            split: _Writer(
                store, f"{folder}/part-{partition:05d}-{uuid.uuid4().hex}.parquet", plan, stack
            )
            for split, folder in folders.items()
        }
        for batch in batches:
            if not batch.num_rows:
                continue
            mask = held_out.mask(batch)
            encoded, found = encode_batch(batch, plan.specs)
            for name, fault in found.items():
                faults[name] = faults.get(name, Faults()) + fault
            if held_out.faults:
                faults[_VALIDATION_COLUMN] = held_out.faults
            if faults or encoded is None:
                continue  # Nothing will be read; the other rows are only counted.
            if mask is None:
                files[TRAIN].write(encoded)
            else:
                files[TRAIN].write(encoded.filter(pa.array(~mask)))
                files[VALIDATION].write(encoded.filter(pa.array(mask)))
        report = {
            "files": {split: file.close() for split, file in files.items()},
            "faults": {name: dataclasses.asdict(fault) for name, fault in faults.items()},
        }
    yield pa.RecordBatch.from_pydict({"report": [json.dumps(report)]})


def encode_batch(
    batch: pa.RecordBatch, specs: Mapping[str, ColumnSpec]
) -> tuple[pa.RecordBatch | None, dict[str, Faults]]:
    """A batch as it is stored, or None and what is wrong with which columns."""
    arrays, faults = [], {}
    for name, spec in specs.items():
        array, fault = encode(batch.column(name), spec)
        if fault:
            faults[name] = fault
        arrays.append(array)
    if faults:
        return None, faults
    return pa.RecordBatch.from_arrays(arrays, names=list(specs)), {}


def check_faults(
    reports: list[dict[str, Any]],
    specs: Mapping[str, ColumnSpec],
    validation: float | str | None,
) -> None:
    """Refuses data with nulls or misshapen rows.

    Raises:
        InvalidData: names each such column, and how many rows.
    """
    totals: dict[str, Faults] = {}
    for report in reports:
        for name, fault in report["faults"].items():
            totals[name] = totals.get(name, Faults()) + Faults(**fault)
    words = [totals[name].describe(name, specs[name]) for name in specs if name in totals]
    mark = totals.get(_VALIDATION_COLUMN)
    if mark is not None and mark.nulls:
        words.append(f"the validation column {validation!r} has {mark.nulls} rows with nulls")
    if mark is not None and mark.misshapen:
        words.append(
            f"the validation column {validation!r} has {mark.misshapen} values other than 0 and 1"
        )
    if words:
        raise errors.InvalidData(
            "; ".join(words) + ": drop or repair these rows (df.dropna(), df.fillna(), df.filter())"
        )


def _marks(df: DataFrame, validation: float | str | None) -> list[Column]:
    """The column that marks validation rows, where one does; refuses what makes no sense."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql import types

    if validation is None:
        return []
    if isinstance(validation, str):
        found = [field for field in df.schema.fields if field.name == validation]
        if not found:
            raise errors.InvalidData(
                f"no validation column {validation!r} in the DataFrame; it has "
                f"{', '.join(map(repr, df.columns))}"
            )
        if not isinstance(found[0].dataType, types.BooleanType | types.NumericType):
            raise errors.InvalidData(
                f"the validation column {validation!r} must be Boolean or 0 and 1, not "
                f"{found[0].dataType.simpleString()}"
            )
        name = validation.replace("`", "``")
        return [F.col(f"`{name}`").cast("double").alias(_VALIDATION_COLUMN)]
    if not isinstance(validation, float) or not 0.0 < validation < 1.0:
        raise errors.InvalidOption(
            f"validation={validation!r} must be a fraction between 0.0 and 1.0, or a column's name"
        )
    return []


class _HeldOut:
    """Chooses the rows of one partition that are validation data.

    A fraction is kept to exactly in every stretch of rows, not just on average: of the first n rows
    n times the fraction are chosen, give or take one, at random places within each batch.
    """

    def __init__(self, plan: WritePlan, partition: int) -> None:
        self._plan = plan
        self._random = np.random.default_rng((plan.seed, partition))
        self._debt = self._random.random()
        self.faults = Faults()

    def mask(self, batch: pa.RecordBatch) -> np.ndarray[Any, Any] | None:
        """Which of the next rows are held out; None = there is no validation data."""
        if self._plan.marked:
            marks = batch.column(_VALIDATION_COLUMN)
            values = marks.fill_null(0.0).to_numpy(zero_copy_only=False)
            wrong = int(np.count_nonzero((values != 0) & (values != 1)))
            self.faults += Faults(nulls=marks.null_count, misshapen=wrong)
            return np.asarray(values == 1)
        if self._plan.fraction is None:
            return None
        self._debt += batch.num_rows * self._plan.fraction
        count, self._debt = int(self._debt), self._debt % 1.0
        mask = np.zeros(batch.num_rows, bool)
        mask[self._random.permutation(batch.num_rows)[:count]] = True
        return mask


class _Writer:
    """A Parquet file that exists once the first row has come, in row groups of about one size."""

    def __init__(
        self, store: Store, path: str, plan: WritePlan, stack: contextlib.ExitStack
    ) -> None:
        self._store = store
        self._stack = stack  # Closes the file, or deletes it where the task fails.
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
        self._writer.close()
        return {"path": self._path, "rows": self._groups, "size_bytes": self._bytes}

    def _flush(self) -> None:
        if self._writer is None:
            specs = self._plan.specs
            schema = pa.schema([(name, storage_type(spec)) for name, spec in specs.items()])
            self._writer = pq.ParquetWriter(
                self._stack.enter_context(self._store.open_output(self._path)),
                schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=[name for name, spec in specs.items() if spec.kind == "string"],
                write_statistics=False,
            )
        self._writer.write_table(pa.Table.from_batches(self._waiting), row_group_size=self._rows)
        self._groups.append(self._rows)
        self._waiting, self._rows = [], 0


def _files(reports: list[dict[str, Any]], split: str) -> tuple[DataFile, ...]:
    found = [report["files"][split] for report in reports if report["files"][split]]
    return tuple(
        DataFile(one["path"], tuple(one["rows"]), one["size_bytes"])
        for one in sorted(found, key=lambda one: str(one["path"]))
    )


def _cause(error: Exception) -> Exception:
    """An error of ours out of the traceback that Spark made of it."""
    found = re.search(r"^keras_strom\.errors\.(\w+): (.*)$", str(error), re.MULTILINE)
    kind = getattr(errors, found.group(1), None) if found else None
    if found is None or not isinstance(kind, type) or not issubclass(kind, errors.StromError):
        return error
    return kind(found.group(2))
