"""Whether Spark's executors see the files that a job will read and write, asked before it starts.

A path that only the driver has would fail each worker after it has loaded TensorFlow, or worse,
let the chief write a model where nobody finds it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from keras_strom import errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A host, a path, and what is wrong with it there.
Finding = tuple[str, str, str]


def check_visible(
    session: SparkSession, readable: Sequence[str], writable: Sequence[str], tasks: int
) -> None:
    """Looks at paths from `tasks` tasks at once.

    Args:
        session: a running session.
        readable: files and folders that must exist on every executor; local paths or URLs that
            TensorFlow's file systems know.
        writable: folders that tasks must be able to write to (local ones; others must exist).
        tasks: how many; with as many as there are slots every executor looks.

    Raises:
        Unreachable: some executor does not see a path; the message names host and path.
    """
    wanted = (tuple(readable), tuple(writable))
    context = session.sparkContext
    rows = context.parallelize(range(tasks), tasks)
    findings = rows.mapPartitions(lambda _: look(*wanted)).collect()
    if findings:
        host, path, what = sorted(findings)[0]
        others = len({path for _, path, _ in findings}) - 1
        more = f" (and {others} more path{'s' if others > 1 else ''})" if others else ""
        raise errors.Unreachable(
            f"{path} {what} on {host}, where Spark runs workers{more}: put the pipeline's root on "
            "storage that all machines share, at the same path or as a URL"
        )


def look(readable: Sequence[str], writable: Sequence[str]) -> Iterator[Finding]:
    """What of the paths is missing on this machine."""
    here = socket.gethostname()
    for path in readable:
        if not _exists(path):
            yield here, path, "does not exist"
    for path in writable:
        if not _exists(path):
            yield here, path, "does not exist"
        elif "://" not in path and not os.access(path, os.W_OK):
            yield here, path, "cannot be written to"


def _exists(path: str) -> bool:
    if "://" not in path:
        return os.path.exists(path)
    import tensorflow as tf

    return bool(tf.io.gfile.exists(path))
