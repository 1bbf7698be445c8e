"""Looks at the executors before a training: can each of them do what the driver will ask for?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from keras_strom import errors

if TYPE_CHECKING:
    from pyspark import SparkContext

#: What must be the same on the driver and every executor.
PACKAGES = ("keras_strom", "keras", "tensorflow")


def check_executors(context: SparkContext, workers: int) -> None:
    """Compares the packages of the executors with the driver's.

    Args:
        context: the application.
        workers: how many tasks look around; not every executor need get one.

    Raises:
        ExecutorMismatch: an executor lacks a package, or has another version of it.
    """
    here = installed()
    look = _looking(PACKAGES)
    found = context.parallelize(range(workers), workers).mapPartitions(look).collect()
    for host, versions in found:
        missing = [name for name in PACKAGES if versions[name].startswith("!")]
        if missing:
            reasons = "; ".join(f"{name}: {versions[name][1:]}" for name in missing)
            raise errors.ExecutorMismatch(
                f"the Python of the executor on {host} ({versions['executable']}) cannot import "
                f"{reasons}. Install the same wheel there as on the driver (`make wheel`), or "
                "point spark.pyspark.python at an environment that has it"
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
