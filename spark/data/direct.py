"""`direct`: a DataFrame goes straight to the workers' local disks, without a store.

Spark keeps the rows on its executors' disks as chunks of Arrow, checked in the same pass as
`export`'s are. From the chunks' sizes follows which worker gets which rows, equally many each, and
`run(..., data=...)` sends them there through Spark's shuffle: the task that starts a worker first
lays its rows down in a temporary folder (`spool`), where the worker can read them again and again.
A task that Spark starts anew, on another host perhaps, gets its rows again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from .checked import CheckedRows, RowPlan, ValueChecks, check_faults, marks, tasks
from .columns import Columns, ColumnSpec, inspect, select
from .connect import classic
from .exported import TRAIN, VALIDATION, DataFile, ExportedData
from .spool import FORMAT, Chunk
from .store import Store

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame

# A chunk's name -> (worker, begin, end) for each that gets rows of it.
Routes = Mapping[str, list[tuple[int, int, int]]]

_CHUNK_BYTES = 1 << 20
_SCHEMA = "split string, chunk string, rows long, bytes long, content binary, faults string"


class Direct:
    """Rows on their way to `workers` workers: give it to `run(data=...)`, then `close` it.

    Args:
        index: all chunks, as if each were a file.
        workers: how many there will be.
        seed: of the order in which chunks are dealt.
        chunks: the rows, persisted.
        all_validate: whether each worker gets all held-out rows, and not its share.

    Attributes:
        data: for the workers: `reader.dataset` finds the rows that were laid down beside them.
        workers: as given.

    Example:
        >>> with direct(df, columns, workers=2) as rows:  # doctest: +SKIP
        ...     run(train, (rows.data,), num_proc=2, data=rows)
    """

    def __init__(
        self,
        index: ExportedData,
        workers: int,
        seed: int,
        chunks: DataFrame,
        *,
        all_validate: bool = False,
    ) -> None:
        totals = {
            split: (DataFile("", (index.rows(split),), index.size_bytes(split)),)
            for split in index.splits
        }
        self.data = dataclasses.replace(index, splits=totals)
        self.workers = workers
        self._chunks = chunks
        self._routes: dict[str, list[tuple[int, int, int]]] = {}
        for split in index.splits:
            whole = all_validate and split == VALIDATION
            for rank in range(workers):
                share = (0, 1) if whole else (rank, workers)
                for piece in index.share(*share, split, seed=seed):
                    to = self._routes.setdefault(piece.path, [])
                    to.append((rank, piece.begin, piece.end))

    def partitions(self) -> RDD[Chunk]:
        """The rows of each worker as a partition."""
        routes = self._chunks.sparkSession.sparkContext.broadcast(self._routes)
        rows = self._chunks.filter("chunk is not null").select("split", "chunk", "content").rdd
        routed = rows.flatMap(
            lambda row: cut(routes.value[row.chunk], row.split, bytes(row.content))
        )
        return routed.partitionBy(self.workers, int).values()

    def close(self) -> None:
        """Lets Spark forget the rows."""
        self._chunks.unpersist()

    def __enter__(self) -> Direct:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def direct(
    df: DataFrame,
    columns: Columns,
    *,
    validation: float | str | None = None,
    workers: int,
    seed: int = 0,
    specs: Mapping[str, ColumnSpec] | None = None,
    checks: ValueChecks | None = None,
    all_validate: bool = False,
) -> Direct:
    """Prepares the chosen columns to be sent to the workers; the other arguments are `export`'s.

    With `all_validate` each worker gets all held-out rows, to be read with size=1, and not its
    share of them.

    Raises:
        InvalidData: a missing or mistyped column, nulls, misshapen rows, or too few rows.
        InvalidOption: a `validation` that is neither a fraction nor a column.
    """
    from pyspark import StorageLevel

    extra = marks(df, validation)
    specs = dict(specs or inspect(df, columns))
    plan = RowPlan(
        specs=specs,
        fraction=validation if isinstance(validation, float) else None,
        marked=bool(extra),
        seed=seed,
        allowed={} if checks is None else checks.allowed,
    )
    with contextlib.ExitStack() as undo:
        with tasks(df.sparkSession, specs):
            make = functools.partial(chunk_partition, plan)
            chunks = classic(select(df, specs, *extra).mapInArrow(make, _SCHEMA))
            chunks.persist(StorageLevel.DISK_ONLY)
            undo.callback(chunks.unpersist)
            # Spark makes the chunks, and keeps them, when it is asked for what is known of them.
            rows = chunks.drop("content").collect()
        reports = [json.loads(row.faults) for row in rows if row.faults]
        check_faults(reports, specs, validation, checks)
        rows.sort(key=lambda row: row.chunk or "")
        files = {
            split: tuple(
                DataFile(row.chunk, (row.rows,), row.bytes) for row in rows if row.split == split
            )
            for split in ([TRAIN] if validation is None else [TRAIN, VALIDATION])
        }
        index = ExportedData(Store(""), columns, specs, files, format=FORMAT)
        index.check_shares(workers, all_validate=all_validate)
        undo.pop_all()
    return Direct(index, workers, seed, chunks, all_validate=all_validate)


def chunk_partition(plan: RowPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a task does: makes a partition's rows chunks, and last a row that tells its faults."""
    from pyspark import TaskContext

    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    rows = CheckedRows(plan, partition)
    number = 0
    for split, batch in rows.encode(batches):
        if not batch.num_rows:
            continue
        size = max(1, _CHUNK_BYTES * batch.num_rows // max(1, batch.nbytes))
        for begin in range(0, batch.num_rows, size):
            part = batch.slice(begin, size)
            name = f"{partition:06d}-{number:08d}"
            yield _row(split, name, part.num_rows, part.nbytes, to_stream(part), None)
            number += 1
    yield _row(None, None, None, None, None, json.dumps(rows.faults_as_json()))


def cut(
    routes: list[tuple[int, int, int]], split: str, content: bytes
) -> Iterator[tuple[int, Chunk]]:
    """A chunk's parts with the workers that get them."""
    batch = pa.ipc.open_stream(content).read_next_batch()
    for rank, begin, end in routes:
        whole = (begin, end) == (0, batch.num_rows)
        yield rank, (split, content if whole else to_stream(batch.slice(begin, end - begin)))


def to_stream(batch: pa.RecordBatch) -> bytes:
    """A batch as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _row(*values: Any) -> pa.RecordBatch:
    types = [pa.string(), pa.string(), pa.int64(), pa.int64(), pa.binary(), pa.string()]
    names = [field.split()[0] for field in _SCHEMA.split(", ")]
    arrays = [pa.array([value], of) for value, of in zip(values, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=names)
