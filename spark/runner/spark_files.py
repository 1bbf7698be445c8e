"""Files that Spark brings to its executors (`addFile`, `addArchive`), for their workers too.

`SparkFiles` knows where they are in Spark's own Python processes. A worker is another one, on the
same machine, and is told as it reads what it is to call.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any

_CLASS = b"SparkFiles"


def with_spark_files(payload: bytes) -> bytes:
    """In a task: a pickled call that also lets `SparkFiles` find in the worker what the task finds.

    Args:
        payload: as `Function` has it.
    """
    from pyspark import SparkFiles

    folder = SparkFiles._root_directory
    return payload if folder is None else pickle.dumps(_Call(folder, payload))


class _Call:
    """Is pickled, and comes back as what `payload` holds."""

    def __init__(self, folder: str, payload: bytes) -> None:
        self._given = folder, payload

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, bytes]]:
        return _read, self._given


def _read(folder: str, payload: bytes) -> Any:
    # PySpark takes a third of a second to import, and most functions need none of it.
    if _CLASS in payload:
        _tell(folder)
    call = pickle.loads(payload)
    if "pyspark" in sys.modules:
        _tell(folder)
    return call


def _tell(folder: str) -> None:
    from pyspark import SparkFiles

    SparkFiles._root_directory, SparkFiles._is_running_on_worker = folder, True
