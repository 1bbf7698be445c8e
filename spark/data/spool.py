"""Rows that came straight from Spark, on a worker's local disk: written by its task, read by it.

The driver's side is `direct`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

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
_LOCK = "in-use"


@contextlib.contextmanager
def spooled(
    data: ExportedData, chunks: Iterable[Chunk], partition: int = 0, workers: int = 1
) -> Iterator[str]:
    """Lays rows down on the local disk until the block ends; gives the folder.

    What a task that was killed has left there is removed.

    Args:
        data: what the rows are, `Direct.data`.
        chunks: one partition of `Direct.partitions`.
        partition: which one.
        workers: how many there are.

    Raises:
        StoreUnavailable: they cannot be written, where the message names the file, or some have not
            come. Spark runs the task again, with its rows.
    """
    with explained("a temporary folder of the executor (TMPDIR)"):
        _remove_abandoned(Path(tempfile.gettempdir()))
        # What cannot be removed in the end spoils nothing.
        temporary = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
    with temporary as folder, _in_use(Path(folder)):
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
            _check_whole(data, written, partition, workers)
        splits = {
            split: (DataFile(**one),) if one is not None else () for split, one in written.items()
        }
        ExportedData(run.store, data.columns, data.specs, splits).save(run)
        yield folder


def _check_whole(
    data: ExportedData, written: Mapping[str, Any], partition: int, workers: int
) -> None:
    """Where Spark cannot fetch the rows, since executors are gone, it just ends their stream."""
    for split, file in written.items():
        total, came = data.rows(split), 0 if file is None else sum(file["rows"])
        share = (partition + 1) * total // workers - partition * total // workers
        if came not in (share, total):
            raise errors.StoreUnavailable(
                f"{came} of the {share} rows of {split} data have come to partition {partition}: "
                "were they lost with an executor? Spark computes them again"
            )


@contextlib.contextmanager
def _in_use(folder: Path) -> Iterator[None]:
    """Locks a file of the folder until the block or this process ends, however it does."""
    making = folder / f"{_LOCK}.new"
    with open(making, "wb") as lock:
        with contextlib.suppress(OSError):  # Where nothing can be locked, nothing is removed.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            making.rename(folder / _LOCK)
        yield


def _remove_abandoned(directory: Path) -> None:
    """Removes this user's folders whose processes are gone."""
    for folder in directory.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid != os.getuid():
                continue
            with open(folder / _LOCK, "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)


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
