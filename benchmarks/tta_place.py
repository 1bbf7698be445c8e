"""Where the jobs of `make bench-time-to-accuracy` run: a machine for each worker, and lines.

A machine is a network namespace. Node 0 is for what a job needs beside its workers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

import numpy as np

from benchmarks import namespaces, report
from benchmarks.horovod_job import THREADS
from benchmarks.horovod_place import ENVIRONMENT
from benchmarks.horovod_training import Traffic
from benchmarks.processes import last_line, stop, wait_for
from benchmarks.tta_driver import DRIVERS, Driven, Variables
from benchmarks.tta_training import (
    EXACT_DTYPES,
    METHODS,
    MIRRORED,
    SILENT,
    STROM,
    Course,
    Parameters,
    Place,
    Training,
    arguments,
    copies_path,
)

if TYPE_CHECKING:
    from typing_extensions import Self

#: What the switch holds for a node before it drops, as a switch in an office does.
BUFFER_BYTES = 512 << 10
_MASK = "10.77.0.0/24"
_MIRRORED_PORT = 40300
#: For the start, and at least so many steps a second after it.
_START_SECONDS = 300.0
_SLOWEST_STEP = 4.0


@dataclasses.dataclass(frozen=True)
class Line:
    """What leads to every machine.

    Attributes:
        name: for people.
        key: in names of targets and on the command line.
        megabits: its rate in Mbit/s; None = as fast as this machine.
        loss: the share of packets that every machine loses.
    """

    name: str
    key: str
    megabits: float | None
    loss: float = 0.0


UNLIMITED = Line("unlimited", "unlimited", None)
LINES = (
    Line("100 Mbit/s", "100mbit", 100),
    Line("1 Gbit/s", "1gbit", 1000),
    Line("100 Mbit/s, 1 % lost", "100mbit_1loss", 100, loss=0.01),
)


@dataclasses.dataclass(frozen=True)
class Trained:
    """A job that has ended.

    Attributes:
        courses: of each worker.
        copies: the workers' that have made them, by mark.
    """

    courses: Sequence[Course]
    copies: Sequence[Parameters]


class Nodes(Protocol):
    """Machines, however they are connected; from node 1 on they are the workers'."""

    def __enter__(self) -> object: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def address(self, node: int) -> str:
        """The node's IPv4 address."""

    def inside(self, node: int) -> list[str]:
        """What a command line starts with to run on the node."""

    def counts(self) -> list[str]:
        """A command line that prints a /proc/net/dev."""


class Jobs:
    """Runs trainings on machines; a context manager.

    Args:
        nodes: the machines.
        mask: has the addresses of all.
        interfaces: how the names of those begin, in `nodes.counts`, that count all that is sent.
        driver: the node that the driver runs on.
    """

    def __init__(self, nodes: Nodes, mask: str, interfaces: str, driver: int = 0) -> None:
        self._nodes = nodes
        self._mask = mask
        self._interfaces = interfaces
        self._driver_node = driver

    def __enter__(self) -> Self:
        self._nodes.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._nodes.__exit__(kind, error, traceback)

    def run(self, training: Training) -> Trained:
        """One job from start to end.

        Raises:
            RuntimeError: a process of it failed, or took too long; its last words follow.
        """
        with (
            tempfile.TemporaryDirectory(prefix="strom-tta-") as folder,
            self._driver(training, folder) as variables,
        ):
            traffic = Traffic(tuple(self._nodes.counts()), self._interfaces)
            courses = self._run(training, folder, traffic, variables)
            paths = [copies_path(folder, rank) for rank in range(training.workers)]
            return Trained(courses, [np.load(path) for path in paths if path.exists()])

    @contextlib.contextmanager
    def _driver(self, training: Training, folder: str) -> Iterator[Variables]:
        """Runs it while the workers do; gives the workers' variables."""
        addresses = tuple(self._nodes.address(1 + rank) for rank in range(training.workers))
        if training.way not in DRIVERS:
            yield [
                _variables_without_driver(training.way, rank, addresses)
                for rank in range(training.workers)
            ]
            return
        address = self._nodes.address(self._driver_node)
        job = Driven(training.way, address, addresses, "line", self._mask, folder)
        python, common = _python_of(training.way)
        with (
            tempfile.TemporaryFile("w+") as words,
            subprocess.Popen(
                [*self._nodes.inside(self._driver_node), python, *job.arguments()],
                env=common,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                text=True,
            ) as process,
        ):
            try:
                assert process.stdout is not None
                told = process.stdout.readline()
                if not told:
                    words.seek(0)
                    raise RuntimeError(f"{training.way}: its driver has ended:\n{words.read()}")
                yield json.loads(told)
            finally:
                stop(process)

    def _run(
        self, training: Training, folder: str, traffic: Traffic, variables: Variables
    ) -> list[Course]:
        python, common = _python_of(training.way)
        with contextlib.ExitStack() as stack:
            running = []
            for rank, own in enumerate(variables):
                words = stack.enter_context(tempfile.TemporaryFile("w+"))
                command = [python, *arguments(training, Place(rank, folder, traffic))]
                process = subprocess.Popen(
                    [*self._nodes.inside(1 + rank), *command],
                    env={**common, **own},
                    stdin=subprocess.DEVNULL,
                    stdout=words,
                    stderr=subprocess.STDOUT,
                )
                stack.callback(stop, process)
                running.append((process, words))
            seconds = _START_SECONDS + _SLOWEST_STEP * training.marks[-1]
            wait_for(training.way, running, seconds)
            return [Course.from_json(last_line(training.way, words)) for _, words in running]


class Machines(Jobs):
    """Of one driver and so many workers, around a switch.

    Args:
        workers: at most.
        driver_beside: whether the driver is on the first worker's machine, as that of
            `keras-strom run --hosts` is.
        both_ways: whether lines limit what machines send, too.

    Example:
        >>> with Machines(2) as machines:  # doctest: +SKIP
        ...     machines.train(training, LINES[0])
    """

    def __init__(
        self, workers: int, *, driver_beside: bool = False, both_ways: bool = False
    ) -> None:
        # Horovod's Gloo takes the address of the host's name, whatever interface it is told.
        self._network = namespaces.Network(1 + workers, own_names=True, both_ways=both_ways)
        super().__init__(self._network, _MASK, "port", 1 if driver_beside else 0)

    def train(self, training: Training, line: Line) -> Trained:
        """`run` behind such lines."""
        self._set(line)
        return self.run(training)

    def _set(self, line: Line) -> None:
        if line.megabits is None:
            self._network.lift_limit()
        else:
            self._network.set_line(megabits=line.megabits, buffer_bytes=BUFFER_BYTES)
        self._network.set_loss(line.loss)


def _python_of(way: str) -> tuple[str, dict[str, str]]:
    """The program that runs a method, and its variables; every worker computes with one thread."""
    own = way in (STROM, SILENT, *METHODS, *EXACT_DTYPES)
    common = {
        **os.environ,
        **THREADS,
        "PYTHONPATH": str(report.ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_USE_LEGACY_KERAS": "0" if own else "1",
    }
    return sys.executable if own else str(ENVIRONMENT / "bin" / "python"), common


def _variables_without_driver(way: str, rank: int, addresses: Sequence[str]) -> Mapping[str, str]:
    if way != MIRRORED:
        return {}
    workers = [f"{address}:{_MIRRORED_PORT}" for address in addresses]
    task = {"type": "worker", "index": rank}
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": task})}
