"""Can each executor do what the driver asks for: has it the same packages?

An estimator looks before it trains. `run` costs no job more: its tasks compare versions, and of one
that cannot even be unpickled the driver reads why.
"""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from keras_strom import __version__, errors

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

#: What must be the same on the driver and every executor.
PACKAGES = ("keras_strom", "keras", "tensorflow")

# A session that `python train.py` builds reads the variable alone, whatever its settings say.
_NAMED_BY = "PYSPARK_PYTHON (or --conf spark.pyspark.python of spark-submit)"
_REMEDY = (
    "Install the same wheel there as on the driver (`make wheel`), or set "
    f"{_NAMED_BY} to an environment that has it"
)
_PYTHON_MEMORY = "spark.executor.pyspark.memory"  # Spark divides it by an executor's cores.
_MIB = {"k": 1 / 1024, "m": 1, "": 1, "g": 1024, "t": 1024 * 1024}
_TENSORFLOW_MIB = 1400  # Measured with TensorFlow 2.21 for CPUs.
#: In the place of a host that Spark does not name.
UNKNOWN_HOST = "an unknown host"

# Spark's words of a minor version; each names the task's first.
_OTHER_PYTHON = (
    r"PYTHON_VERSION_MISMATCH\][^\n]*?version:? \(?(\d+)(?:\.|, )(\d+)\)? "
    r"than that in driver:? (\d+\.\d+)"
)


def check_executors(context: SparkContext, workers: int) -> None:
    """Compares the packages of the executors with the driver's.

    Args:
        context: the application.
        workers: how many tasks look around; not every executor need get one.

    Raises:
        ExecutorMismatch: an executor has another Python, lacks a package, or has another version.
    """
    here = installed()
    look = _looking(PACKAGES)
    try:
        found = context.parallelize(range(workers), workers).mapPartitions(look).collect()
    except Exception as error:  # Of Spark, by which of its ways it has noticed.
        refuse_mismatch(UNKNOWN_HOST, str(error))
        raise
    for host, versions in found:
        missing = [name for name in PACKAGES if versions[name].startswith("!")]
        if missing:
            reasons = "; ".join(f"{name}: {versions[name][1:]}" for name in missing)
            raise errors.ExecutorMismatch(
                f"the Python of the executor on {host} ({versions['executable']}) cannot import "
                f"{reasons}. {_REMEDY}"
            )
        other = [name for name in PACKAGES if versions[name] != here[name]]
        if other:
            differences = ", ".join(
                f"{name} {versions[name]} (driver: {here[name]})" for name in other
            )
            raise errors.ExecutorMismatch(
                f"the executor on {host} ({versions['executable']}) has {differences}: install "
                "the same versions everywhere"
            )


def check_python_memory(session: SparkSession) -> None:
    """Refuses a limit under which Spark's Python workers cannot import TensorFlow.

    One that fails to is short of memory to say so as well, and Spark waits for it without an end.

    Raises:
        InvalidOption: the message names setting and remedy.
    """
    given = session.conf.get(_PYTHON_MEMORY, None)
    size = re.fullmatch(r"(\d+)\s*([kmgt]?)(?:i?b)?", (given or "").strip().lower())
    if size is None:
        return
    each = int(size[1]) * _MIB[size[2]] / int(session.conf.get("spark.executor.cores", None) or 1)
    if each < _TENSORFLOW_MIB:
        raise errors.InvalidOption(
            f"{_PYTHON_MEMORY}={given} lets a Python worker have {each:.0f} MiB of address space, "
            f"of which TensorFlow takes {_TENSORFLOW_MIB} when it is imported: raise it to 3 GiB "
            "for each core of an executor and what the model needs, or leave it out and set "
            "spark.executor.memoryOverhead"
        )


def check_version(of_driver: str) -> None:
    """In a task: refuses to work with another version of keras-strom.

    Raises:
        ExecutorMismatch: both are named.
    """
    if of_driver != __version__:
        raise errors.ExecutorMismatch(
            f"the Python of the executor on {socket.gethostname()} ({sys.executable}) has "
            f"keras_strom {__version__} (driver: {of_driver}). {_REMEDY}"
        )


def refuse_mismatch(host: str, text: str) -> None:
    """Says what words of Spark or of a worker mean, where it has found itself among other packages.

    Args:
        host: where it was.
        text: its Python traceback, or Spark's words.

    Raises:
        ExecutorMismatch: there is no such Python, it is another one than the driver's, has no
            keras-strom, Keras or TensorFlow, or `check_version` has refused.
    """
    if found := re.search(r"^keras_strom\.errors\.ExecutorMismatch: (.*)$", text, re.MULTILINE):
        raise errors.ExecutorMismatch(found[1])
    on_host = f"the executor on {host}"
    unknown = r"No module named 'keras_strom\b.*|Can't get attribute .* on <module 'keras_strom\b.*"
    if found := re.search(unknown, text):
        raise errors.ExecutorMismatch(
            f"the Python of {on_host} has no keras-strom, or another version than the driver: "
            f"{found[0].strip()}. {_REMEDY}"
        )
    if found := re.search(
        r"^ModuleNotFoundError: No module named '(tensorflow|keras|cloudpickle)'$", text, re.M
    ):
        raise errors.ExecutorMismatch(
            f"the Python of {on_host} has keras-strom but no {found[1]}: install what it needs "
            "there too (pip install 'keras-strom[cpu,executor]'), the same versions everywhere"
        )
    if found := re.search(_OTHER_PYTHON, text):
        raise errors.ExecutorMismatch(
            f"{on_host} runs Python {found[1]}.{found[2]}, and the driver Python {found[3]}: set "
            f"{_NAMED_BY} to a Python of the driver's version that has keras-strom, or run the "
            "driver with the executors'"
        )
    if found := re.search(r'Cannot run program "([^"]*)": (?:error=\d+, )?([^\n]*)', text):
        raise errors.ExecutorMismatch(
            f"{on_host} cannot run {found[1]} ({found[2]}), which "
            f"{_NAMED_BY} names: name a Python with keras-strom that is on every machine, or "
            "comes with spark.archives"
        )


def installed() -> dict[str, str]:
    """The versions of `PACKAGES` here."""
    return dict(next(iter(_looking(PACKAGES)(iter(()))))[1])


def _looking(
    packages: tuple[str, ...],
) -> Callable[[Iterator[Any]], Iterator[tuple[str, dict[str, str]]]]:
    """A function that is pickled whole, for an executor may lack this very package."""

    def look(_: Iterator[Any]) -> Iterator[tuple[str, dict[str, str]]]:
        import importlib
        import importlib.metadata
        import importlib.util
        import socket
        import sys

        versions = {"executable": sys.executable}
        for name in packages:
            try:
                # TensorFlow takes seconds to import; where it lies says enough.
                if importlib.util.find_spec(name) is None:
                    versions[name] = f"!no module named {name!r}"
                elif name == "keras_strom":
                    versions[name] = str(importlib.import_module(name).__version__)
                    importlib.import_module("keras_strom.spark")
                    importlib.import_module("keras_strom._native.library").library()
                else:
                    versions[name] = _version(importlib.metadata, name)
            except Exception as error:
                versions[name] = f"!{type(error).__name__}: {error}"
        yield socket.gethostname(), versions

    def _version(metadata: Any, name: str) -> str:
        for distribution in (name, f"{name}-cpu", f"{name}-intel"):
            try:
                return str(metadata.version(distribution))
            except metadata.PackageNotFoundError:
                pass
        return "unknown"

    return look
