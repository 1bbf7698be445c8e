"""Spark's Python daemon, which has imported what keras-strom's tasks need before it forks any.

    spark.python.daemon.module=keras_strom.spark.runner.python_daemon

An executor starts one such process, and it forks the Python workers of all tasks there. What it
does is left to `pyspark.daemon`; here it has imported TensorFlow, Keras and keras-strom by then, so
that each worker begins with them: the first of an executor, one whose predecessor has died with its
task, and one that Spark starts beside others. They are imported and not used, since TensorFlow
cannot be forked once its own threads run, which its first operation starts.

Where something of it cannot be imported, a line on stderr names it and the process becomes
`pyspark.daemon` itself, as if nobody had set the option.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence

_SPARKS_OWN = "pyspark.daemon"
_IMPORTED = (
    "pyspark.worker",
    "pyarrow",
    "tensorflow",
    "keras",
    "keras_strom.spark.inference.prediction",
    "keras_strom.spark.training.averaging_tasks",
)


def main(arguments: Sequence[str]) -> None:
    """Serves until Spark ends it.

    Args:
        arguments: what Spark gives its daemon: the module that a worker runs.
    """
    failed = import_all(_IMPORTED)
    if failed is not None:
        sys.stderr.write(
            f"{__spec__.name}: {failed}; Python workers begin without what they may need, as those "
            f"of {_SPARKS_OWN} do\n"
        )
        sys.stderr.flush()
        # A new interpreter, which nothing that was imported by half can disturb.
        os.execv(sys.executable, [sys.executable, "-m", _SPARKS_OWN, *arguments])
    os.register_at_fork(after_in_child=_SeedsAnew(os.getpid()))
    # Of threads, which TensorFlow's libraries have; none of them holds a lock at rest.
    warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)
    importlib.import_module(_SPARKS_OWN).manager()


def import_all(names: Sequence[str]) -> str | None:
    """Imports modules for good; what came in between, in words, or None if nothing did."""
    gc.disable()  # Nothing of what is imported is garbage; to look for some takes a quarter longer.
    with _nothing_on_stdout():
        for name in names:
            try:
                importlib.import_module(name)
            except Exception as error:  # A broken package raises what it likes.
                return f"{name} cannot be imported here ({type(error).__name__}: {error})"
    gc.freeze()  # Workers look for garbage after each task: not among all this.
    gc.enable()
    return None


@contextlib.contextmanager
def _nothing_on_stdout() -> Iterator[None]:
    """Spark reads a port there, so what else is written goes to stderr."""
    stdout = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
        sys.stdout.flush()
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


class _SeedsAnew:
    """Python's own generator seeds itself anew in a forked process; NumPy's does not."""

    def __init__(self, daemon: int) -> None:
        self._daemon = daemon

    def __call__(self) -> None:
        if os.getppid() == self._daemon:  # A worker may fork others, and has its reasons.
            sys.modules["numpy"].random.seed()


if __name__ == "__main__":
    main(sys.argv[1:])
