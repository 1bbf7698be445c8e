"""Rows that came straight from Spark, on a worker's local disk: written by its task, read by it.

The driver's side is `direct`.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator

import pyarrow as pa

from keras_strom import errors
from keras_strom.job import environment

from .checked import RowPlan
from .export import RowGroupWriter, WritePlan
from .exported import TRAIN, VALIDATION, DataFile, ExportedData
from .store import Store, explained

# The split of some rows, and an Arrow stream of one batch of them.
Chunk = tuple[str, bytes]

FORMAT = "direct"
_RUN = "spool"
_PREFIX = "keras-strom-data-"


@contextlib.contextmanager
def spooled(data: ExportedData, chunks: Iterable[Chunk]) -> Iterator[str]:
    """Lays rows down on the local disk until the block ends; gives the folder.

    Args:
        data: what the rows are, `Direct.data`.
        chunks: one partition of `Direct.partitions`.

    Raises:
        StoreUnavailable: they cannot be written; the message names the file. Spark runs the task
            again, with its rows.
    """
    with explained("a temporary folder of the executor (TMPDIR)"):
        # What cannot be removed in the end spoils nothing.
        temporary = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
    with temporary as folder:
        run = Store.create(folder).run(_RUN)
        plan = WritePlan(run=run, rows=RowPlan(specs=data.specs))
        paths = {TRAIN: run.train_data, VALIDATION: run.validation_data}
        with contextlib.ExitStack() as stack:
            files = {
                split: RowGroupWriter(run.store, f"{paths[split]}/rows.parquet", plan, stack)
                for split in data.splits
            }
            for split, content in chunks:
                for batch in pa.ipc.open_stream(content):
                    files[split].write(batch)
            written = {split: file.close() for split, file in files.items()}
        splits = {
            split: (DataFile(**one),) if one is not None else () for split, one in written.items()
        }
        ExportedData(run.store, data.columns, data.specs, splits).save(run)
        yield folder


def laid_down(data: ExportedData, split: str, size: int) -> ExportedData:
    """This worker's own rows.

    Args:
        data: what all workers have.
        split: which rows are wanted.
        size: the number of workers.

    Raises:
        InvalidOption: not called in a worker of `run(data=...)`, or for another number of workers.
    """
    folder = environment.data_path()
    if folder is None:
        raise errors.InvalidOption(
            "these rows go straight to the workers: read them in a function that "
            "keras_strom.spark.run(..., data=...) calls"
        )
    found = ExportedData.load(Store.create(folder).run(_RUN))
    even = data.rows(split) // size
    if found.rows(split) not in (even, even + 1):
        remedy = "the job's number of workers"
        if found.rows(split) == data.rows(split):
            remedy = "rank=0, size=1, for each has them all"
        raise errors.InvalidOption(
            f"this worker has {found.rows(split)} of {data.rows(split)} rows of {split} data, "
            f"which is no share of size={size}: pass {remedy}"
        )
    return found
