"""Where a job's workers run: machines, and which worker has a place on which of them."""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from keras_strom.job import environment
from keras_strom.job.credentials import Credentials
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.job.gpus import one_each
from keras_strom.runner.fork_server import ForkServers
from keras_strom.runner.outcome import Outcome
from keras_strom.runner.process import WorkerListener, WorkerProcess
from keras_strom.runner.started_process import fresh_interpreter
from keras_strom.runner.work import Function, Script


class RunningWorker(Protocol):
    """A worker's process, wherever it is; `WorkerProcess` says what each of these does."""

    def wait(self, timeout: float | None = None) -> Outcome:
        """Waits until it has ended, or raises DeadlinePassed."""

    def drain(self) -> None:
        """Asks it to hand over what it has learnt and to leave, and returns at once."""

    def interrupt(self) -> None:
        """Ctrl+C for it: its script's `except KeyboardInterrupt` runs. Returns at once."""

    def terminate(self) -> None:
        """Asks it to end and returns at once."""

    def kill(self) -> None:
        """Ends it and its children at once."""


class Machine(Protocol):
    """Where workers can be started."""

    @property
    def name(self) -> str:
        """As the user knows it."""

    lost: bool
    """Whether it is gone, and its workers with it."""

    leaves: bool
    """Whether it is about to be taken away: it gets no more workers, and has those it had."""

    def start(
        self,
        work: Script | Function | None,
        place: ClusterEnvironment,
        listener: WorkerListener,
        credentials: Credentials | None,
        env: Mapping[str, str],
    ) -> RunningWorker:
        """Starts a worker; the arguments are those of `WorkerProcess`.

        Without `work` it does what has been said on that machine.

        Raises:
            OSError: the process could not be started.
        """


class ThisMachine:
    """The machine of this process, whose workers are its children.

    Attributes:
        leaves: it is about to be taken away, and gets no more workers.

    Args:
        warm_start: workers are forked from a process that has imported TensorFlow once.
    """

    def __init__(self, *, warm_start: bool = False) -> None:
        self.name = socket.gethostname()
        self.lost = self.leaves = False
        self._start = ForkServers(os.getpid()) if warm_start else fresh_interpreter

    def start(
        self,
        work: Script | Function | None,
        place: ClusterEnvironment,
        listener: WorkerListener,
        credentials: Credentials | None,
        env: Mapping[str, str],
    ) -> WorkerProcess:
        """See `Machine`; the kernel ends the worker with the calling thread.

        Of several workers each sees one of the machine's GPUs, and so where others may come.
        """
        assert work is not None
        place, bound = one_each(place, {**environment.inherited(), **env})
        env = {**env, **bound}
        return WorkerProcess(
            work, place, listener, credentials=credentials, env=env, start=self._start
        )


@dataclasses.dataclass(frozen=True)
class Place:
    """A worker's place on a machine.

    Attributes:
        machine: which.
        local_rank: the worker's number among the workers there.
        local_size: how many there are.
        has_room: whether others may come there later.
    """

    machine: Machine
    local_rank: int
    local_size: int
    has_room: bool = False


class Places(Protocol):
    """Says where each worker runs, and where it can run when its machine is lost."""

    arrived: Callable[[int], object]
    """Is called when there is a place for a worker that had none."""

    @property
    def may_grow(self) -> bool:
        """Whether there may be a place later for a worker that has none now."""

    def of(self, rank: int) -> Place | None:
        """Where this worker is to be started; None = there is no place for it now."""

    def leave_here(self) -> None:
        """This process's machine is about to be taken away: no more workers get a place on it."""

    def has_ended(self, rank: int) -> None:
        """This worker has ended well: another may have its place."""


class Slots:
    """Machines with so many slots each, one for a worker; a `Places`.

    Workers fill one machine after the other. One whose machine is lost gets a free slot of another,
    or waits until its own is there again.

    Args:
        machines: with the number of their slots.
        workers: how many of the slots are taken at the start; no more than there are.

    Example:
        >>> here = ThisMachine()
        >>> Slots([(here, 2)], workers=2).of(1).local_rank
        1
    """

    may_grow = False

    def __init__(self, machines: Sequence[tuple[Machine, int]], workers: int) -> None:
        self.arrived: Callable[[int], object] = lambda _: None
        self._machines = list(machines)
        free = [(at, slot) for at, (_, slots) in enumerate(machines) for slot in range(slots)]
        self._taken = dict(enumerate(free[:workers]))  # By rank: the machine's index, the slot.
        self._without: set[int] = set()  # Ranks that have asked in vain.

    def of(self, rank: int) -> Place | None:
        """See `Places`."""
        if not self._has_open(rank) and not self._move(rank):
            self._without.add(rank)
            return None
        self._without.discard(rank)
        at, slot = self._taken[rank]
        there = sum(other == at for other, _ in self._taken.values())
        machine, slots = self._machines[at]
        has_room = len(self._machines) > 1 and slots > there
        return Place(machine, slot, max(there, slot + 1), has_room)

    def answers_again(self, machine: Machine) -> None:
        """A machine that was lost is there again, under the name that it had; from any thread."""
        names = [other.name for other, _ in self._machines]
        at = names.index(machine.name)
        self._machines[at] = (machine, self._machines[at][1])
        for rank in sorted(self._without | set(self._taken)):
            if not self._has_open(rank) or self._taken[rank][0] == at:
                self.arrived(rank)

    def has_ended(self, rank: int) -> None:
        """See `Places`."""
        self._taken.pop(rank, None)
        self._without.discard(rank)

    def by_machine(self) -> list[tuple[Machine, list[int]]]:
        """The machines that have workers, with these workers' ranks."""
        return [
            (machine, ranks)
            for at, (machine, _) in enumerate(self._machines)
            if (ranks := [rank for rank, (other, _) in self._taken.items() if other == at])
        ]

    def leave_here(self) -> None:
        """See `Places`."""
        for machine, _ in self._machines:
            if isinstance(machine, ThisMachine):
                machine.leaves = True

    def _has_open(self, rank: int) -> bool:
        """Whether it has a slot; not one that has ended, before all begin again."""
        return rank in self._taken and _is_open(self._machines[self._taken[rank][0]][0])

    def _move(self, rank: int) -> bool:
        taken = set(self._taken.values())
        for at, (machine, slots) in enumerate(self._machines):
            for slot in range(slots):
                if _is_open(machine) and (at, slot) not in taken:
                    self._taken[rank] = (at, slot)
                    return True
        return False


def may_come_back(machine: Machine) -> bool:
    """Whether one that is lost may be there again: it has not left as it was announced."""
    return machine.lost and not machine.leaves


def _is_open(machine: Machine) -> bool:
    return not (machine.lost or machine.leaves)
