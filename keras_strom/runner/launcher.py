"""Runs a job's workers to their end, on this machine or on several: `keras-strom run`."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from keras_strom import errors
from keras_strom.checks import check_least, check_seconds, whole_number
from keras_strom.dashboard.page_address import PageAddress
from keras_strom.dashboard.watch import watch
from keras_strom.dashboard.watching import Watching
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.job.network import NetworkConfig
from keras_strom.job.worker_record import ASKED, WorkerRecord
from keras_strom.runner.console import Console, workers_in_words
from keras_strom.runner.drain_triggers import check_triggers, drain_triggers
from keras_strom.runner.fleet import Fleet, Machines, silence_seconds
from keras_strom.runner.hosts import Host
from keras_strom.runner.job_master import JobMaster
from keras_strom.runner.master_options import MasterOptions, StartMaster
from keras_strom.runner.outcome import (
    LATE_DRAIN,
    MOST_IDLE_DRAINS,
    TOO_MANY_DRAINS,
    Outcome,
    first_cause,
)
from keras_strom.runner.output import WithoutInterrupt
from keras_strom.runner.places import (
    Machine,
    Place,
    Places,
    RunningWorker,
    ThisMachine,
    may_come_back,
)
from keras_strom.runner.ports import check_ports
from keras_strom.runner.process import GRACE_SECONDS, WorkerListener, check_env
from keras_strom.runner.start_master import start_master
from keras_strom.runner.work import Function, Script

# So long after the last of those that have ended well the user is told for whom the job waits.
_LATE_SECONDS = 60.0

#: Where a job stays that is given no mask.
LOOPBACK_MASK = "127.0.0.1/32"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """What `launch` runs.

    Attributes:
        work: what every worker does; None = what has been said where it runs.
        workers: how many there are; all are started at once.
        network: without a mask the job stays on the loopback interface.
        env: variables for the workers on top of this process's own.
        start_timeout: seconds that workers wait for each other at the start.
        max_failures: so many workers that fail are started again; they take part from where the
            others are. A script's may fail for whatever reason; an exception of a `Function` ends
            the job, for it would be raised again.
        min_workers: so many, worker 0 among them, are enough to start, and the others join when
            they are there; with fewer of them training waits. None = training starts with all and
            goes on with those that are left.
        drain_seconds: seconds that a worker has to hand over what it has learnt and to leave when
            its machine is about to be taken away; then it is killed.
        drain_signal: name of the signal to the launcher that says so of its machine, whose workers
            then go on elsewhere, where there is room; None = there is none.
        drain_file: a file that, once it is there, says the same; of each host, its own one.
        warm_start: workers are forked from a process that has imported TensorFlow once; False =
            each is a fresh interpreter.
        hosts: where they run, so many as have slots; none = on this machine. Those of a host that
            is lost are started again on others that have free slots, or there once it is back,
            while `max_failures` allows it.
        ssh_args: options for the ssh that leads to the hosts.
        dashboard: where the job's page is served; None = there is none.
    """

    work: Script | Function | None
    workers: int
    network: NetworkConfig = dataclasses.field(default_factory=NetworkConfig)
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    start_timeout: float = ClusterEnvironment.join_timeout
    max_failures: int = 0
    min_workers: int | None = None
    drain_seconds: float = ClusterEnvironment.drain_seconds
    drain_signal: str | None = None
    drain_file: str | None = None
    warm_start: bool = False
    hosts: tuple[Host, ...] = ()
    ssh_args: tuple[str, ...] = ()
    dashboard: PageAddress | None = None

    def __post_init__(self) -> None:
        whole_number("workers", self.workers, least=1)
        check_seconds("start_timeout", self.start_timeout)
        whole_number("max_failures", self.max_failures, least=0)
        check_least("min_workers", self.min_workers, "workers", self.workers)
        if isinstance(self.work, Script):
            self.work.check()
        if self.ssh_args and not self.hosts:
            raise errors.InvalidOption(f"ssh_args={self.ssh_args!r} has no effect without hosts")
        check_triggers(self.drain_seconds, self.drain_signal, self.drain_file)
        if self.workers == 1 and (self.drain_signal or self.drain_file):
            raise errors.InvalidOption(
                "one worker alone cannot drain: nobody would take over; leave out drain_signal and "
                "drain_file"
            )
        check_env(self.env)
        self.network.of_worker(self.workers - 1)  # Refuses a port that leaves none for workers.


def launch(
    job: Job,
    console: Console | None = None,
    start: StartMaster = start_master,
    machines: AbstractContextManager[Machines] | None = None,
) -> list[Outcome]:
    """Runs a job to its end; call it in the main thread, where Ctrl+C arrives.

    Args:
        job: what to run.
        console: shows the workers' output; None = on sys.stdout.
        start: starts the master. A lone worker needs none.
        machines: where workers run; None = this machine, or the job's hosts.

    Returns:
        The workers' outcomes in rank order.

    Raises:
        WorkerFailed: the first failure beyond `max_failures`; all other workers have been ended.
        KeyboardInterrupt: by Ctrl+C, which workers have had, too; all have ended, or been ended.
        AddressError: a port in use or a mask that matches nothing.
        StoreUnavailable: the folder for checkpoints cannot be written.
        HostUnusable: some hosts cannot run workers; nothing has been started.
        NotEnoughSlots: there are fewer slots than workers, or this machine's memory cannot hold
            its own.
        InvalidOption: what the page needs is not installed.
    """
    console = console or Console(job.workers)
    network = job.network
    if job.workers == 1:
        network.refuse_waiting("one worker has no master")
        network.refuse_merging("one worker has no master, and no other's updates")
    if machines is None:
        machines = Fleet(
            job.hosts,
            job.workers,
            ssh_args=job.ssh_args,
            silence=silence_seconds(network),
            warm_start=job.warm_start,
            drain_file=job.drain_file,
            tell=console.message,
        )
    with (
        watch(job.dashboard, _name(job), job.workers, console.message) as watching,
        machines as fleet,
    ):
        if network.network_mask is None and not fleet.is_distant:
            network = dataclasses.replace(network, network_mask=LOOPBACK_MASK)
        if job.workers > 1:
            check_ports(network, fleet.number_here)
        options = MasterOptions(
            workers=job.workers,
            network=network,
            host=fleet.master_host(network),
            min_workers=job.min_workers,
        )
        with (
            JobMaster(options, start, watching.checkpoint) as master,
            _Crew(job, network, console, master, fleet.places, watching) as crew,
            drain_triggers(job.drain_signal, job.drain_file, crew.drain_here),
        ):
            watching.follow(master.status)
            fleet.prepare(job.work, job.env, network, lambda: master.plan)
            if fleet.is_distant:
                console.message(fleet.describe(master.address))
            crew.begin()
            try:
                outcomes = crew.wait()
            except errors.WorkerFailed as failure:
                raise master.judged(failure) from None
            master.end_well()
            if words := master.of_nothing_shared():
                console.message(words)
            for rank in sorted(master.lost_at_last()):
                if not outcomes[rank].exit_code:
                    console.message(_WITHOUT_GOODBYE.format(rank))
            return outcomes


_WITHOUT_GOODBYE = (
    "worker {} has ended with exit code 0 and without a goodbye, as os._exit(0) and some native "
    "libraries end a process: if that was in the middle of its fit, the others have trained on "
    "without it"
)


def _name(job: Job) -> str:
    if isinstance(job.work, Script):
        return os.path.basename(job.work.path)
    return "a job" if job.work is None else job.work.name


#: So long after Ctrl+C a worker may take to save its model, say; as long as to drain.
INTERRUPT_SECONDS = 30.0
_QUIET_SECONDS = 2.0  # Nothing is said of those that end sooner.


class _Ended(NamedTuple):
    """A worker whose process has ended."""

    rank: int
    attempt: int
    outcome: Outcome

    @property
    def is_consequence(self) -> bool:
        """Whether it failed only because the job had ended elsewhere."""
        return self.outcome.is_consequence


class _ToDrain(NamedTuple):
    """The launcher's machine is about to be taken away."""

    why: str


class _Arrived(NamedTuple):
    """There is a place for a worker that had none."""

    rank: int


# A job that has too few workers waits while a lost host is tried so often, and a little longer.
_TRIES = 5
_NO_ROOM = "is not started again: no other host has a slot free"
_HAS_NOT_COME = Outcome(1, None, "it has never come", ())
_HAS_NO_PLACE = Outcome(1, None, "it has no place where all begin again", ())


class _Crew:
    """The workers of a job; one that fails gives way to another, while the job allows."""

    def __init__(
        self,
        job: Job,
        network: NetworkConfig,
        console: Console,
        master: JobMaster,
        places: Places,
        watching: Watching,
    ) -> None:
        self._watching = watching
        self._job = job
        self._network = network
        self._console = console
        self._master = master
        self._places = places
        # A signal's handler may put something in while this thread does.
        self._events: queue.SimpleQueue[_Ended | _Arrived | _ToDrain] = queue.SimpleQueue()
        self._interrupted = threading.Event()
        self._processes: dict[int, RunningWorker] = {}
        self._machines: dict[int, Machine] = {}  # Where each was started last.
        self._homeless: dict[int, Outcome] = {}  # Why they have no place.
        self._failures = 0
        self._needs_all = False  # They begin again, and some have no place yet.
        self._told_of_late = False
        self._gives_up: float | None = None  # When, where there are too few workers.
        self._idle_drains = [0] * job.workers  # Of each rank, since it last made a step.
        self._attempts = [0] * job.workers

    def begin(self) -> None:
        """Starts all workers for which there is a place."""
        self._places.arrived = lambda rank: self._events.put(_Arrived(rank))
        for rank in range(self._job.workers):
            if self._start(rank) is None:
                self._homeless[rank] = _HAS_NOT_COME

    def wait(self) -> list[Outcome]:
        """Waits until all have ended well, or all but those for which there is no place any more.

        Raises:
            WorkerFailed: one failure more than the job allows, or too few workers are left: fewer
                than it needs, or the first, which writes the files, is not among them.
        """
        outcomes: dict[int, Outcome] = {}
        while (event := self._next_event(outcomes)) is not None:
            if isinstance(event, _Arrived):
                self._place(event.rank)
            elif isinstance(event, _ToDrain):
                self._drain(event.why)
            elif self._is_of_before(event):
                continue
            elif event.outcome.gives_way:
                self._follow(event)
            elif event.outcome.failed:
                self._replace(event, outcomes)
            else:
                outcomes[event.rank] = event.outcome
                self._watching.ended(event.rank, f"worker {event.rank} has ended")
                self._master.worker_has_ended(event.rank)
                self._places.has_ended(event.rank)
                self._place(0)  # Without which the job is worth nothing; it may have the result.
        for rank in self._homeless:
            if rank in self._machines and may_come_back(self._machines[rank]):
                self._watching.ended(rank, f"worker {rank} {_NO_ROOM}", failed=True)
        if 0 in self._homeless:
            raise self._failed(0, self._homeless[0])
        return [{**self._homeless, **outcomes}[rank] for rank in range(self._job.workers)]

    def _next_event(self, ended: Mapping[int, Outcome]) -> _Ended | _Arrived | _ToDrain | None:
        """What happens next; None = there is nothing to wait for any more.

        Without the first worker the job is worth nothing, and with too few none may train; so for
        a while it waits for them.

        Args:
            ended: by rank, the workers that have ended well.

        Raises:
            WorkerFailed: too few are left, and no other has come in time.
        """
        running = self._job.workers - len(ended) - len(self._homeless)
        if running == 0 and 0 not in self._homeless:
            return None
        limit = self._limit(running)
        if limit is None:
            self._gives_up = None
            return self._next_of_enough(ended) if running else None
        seconds, words = limit
        if self._gives_up is None:
            self._gives_up = time.monotonic() + seconds
            self._console.message(words)
        with contextlib.suppress(queue.Empty):
            return self._events.get(timeout=max(0.0, self._gives_up - time.monotonic()))
        if running:
            raise self._failed(*list(self._homeless.items())[-1])
        return None

    def _next_of_enough(self, ended: Mapping[int, Outcome]) -> _Ended | _Arrived | _ToDrain:
        if ended and not self._told_of_late:
            with contextlib.suppress(queue.Empty):
                return self._events.get(timeout=_LATE_SECONDS)
            self._tell_of_late(ended)
        return self._events.get()

    def _limit(self, running: int) -> tuple[float, str] | None:
        """So many seconds the job waits for more workers, and the words that say so.

        None = it has enough, or no other can come.
        """
        if running == 0 and self._places.may_grow:
            seconds, who = self._job.start_timeout, "keras-strom worker comes for rank 0"
        elif (running == 0 or self._has_too_few()) and (hosts := self._lost_hosts()):
            seconds = _TRIES * silence_seconds(self._network)
            who = f"{' or '.join(hosts)} answers again"
        else:
            return None
        what = f"fewer than {self._least} workers are left" if running else "no worker runs"
        return seconds, f"{what}: the job ends in {seconds:g} s unless {who}"

    @property
    def _least(self) -> int:
        """So many workers are needed from now on."""
        return self._job.min_workers or (self._job.workers if self._needs_all else 1)

    def _has_too_few(self) -> bool:
        return self._job.workers - len(self._homeless) < self._least

    def _lost_hosts(self) -> list[str]:
        """The names of those whose workers have no place, and which are tried again."""
        if self._places.may_grow:  # There machines come by themselves.
            return []
        machines = [self._machines[rank] for rank in self._homeless if rank in self._machines]
        return sorted({machine.name for machine in machines if may_come_back(machine)})

    def _tell_of_late(self, ended: Mapping[int, Outcome]) -> None:
        """One that stands still for good looks like one that has much to do after its training."""
        self._told_of_late = True
        late = sorted(set(range(self._job.workers)) - set(ended) - set(self._homeless))
        self._console.message(
            f"the job waits for {workers_in_words(late)}: the last of the others has ended "
            f"{_LATE_SECONDS:g} s ago"
        )

    def _place(self, rank: int) -> None:
        """There is a place for a worker, which needs one if it has none."""
        if rank in self._homeless and (place := self._start(rank)) is not None:
            del self._homeless[rank]
            self._needs_all = self._needs_all and bool(self._homeless)
            if self._attempts[rank]:
                words = f"worker {rank} is started again on {place.machine.name}"
                self._console.line(rank, words)

    def _start(self, rank: int) -> Place | None:
        """Starts a worker, which ends with the calling thread; None = there is no place for it."""
        place = self._places.of(rank)
        if place is not None:
            self._machines[rank] = place.machine
            self._watching.started(rank, place.machine.name, self._attempts[rank])
            self._processes.pop(rank, None)  # It has ended.
            listener = _Listener(
                rank,
                self._attempts[rank],
                self._console,
                self._events,
                self._watching,
                self._interrupted,
            )
            try:
                self._processes[rank] = place.machine.start(
                    self._job.work,
                    self._environment(rank, place),
                    listener,
                    self._master.credentials,
                    self._job.env,
                )
            except OSError as error:  # No more processes may be, say.
                listener.ended(Outcome(1, None, f"it could not be started: {error}", ()))
        return place

    def _is_of_before(self, ended: _Ended) -> bool:
        """Whether the worker was ended for all to begin again."""
        return ended.attempt != self._attempts[ended.rank]

    def _replace(self, ended: _Ended, outcomes: dict[int, Outcome]) -> None:
        """Starts a worker anew that has failed, and others where they need it, or says why not.

        Args:
            ended: that worker.
            outcomes: of those that have ended well, which may have to begin again.
        """
        rank, outcome = ended.rank, ended.outcome
        self._failures += 1
        if self._failures > self._job.max_failures or not outcome.may_be_started_again:
            running = self._job.workers - len(outcomes) - len(self._homeless) - 1
            raise self._first_failure(ended, running)
        self._watching.away(rank, f"worker {rank} {outcome.cause}")
        if outcome.lost_state and not self._places.may_grow:
            what = self._begin_again()
            outcomes.clear()
        else:
            what = self._start_again(rank, outcome)
        self._console.line(
            rank,
            f"worker {rank} {outcome.cause}; {what} (failure {self._failures} of "
            f"{self._job.max_failures})",
        )
        self._check_number(rank, outcome)

    def _begin_again(self) -> str:
        """Starts all workers anew, under another master, and says in words from where.

        Nobody has any more what they need to go on. As at the start, none trains before all have
        come, or as many as the job needs at least.
        """
        self._end_all()
        self._master.begin_again()
        for rank in range(self._job.workers):
            self._attempts[rank] += 1
            if self._start(rank) is not None:
                self._homeless.pop(rank, None)
            elif rank not in self._homeless:
                self._homeless[rank] = _HAS_NO_PLACE
                self._watching.away(rank, f"worker {rank} has no place")
        self._needs_all = bool(self._homeless)
        plan = self._master.plan
        where = None if plan is None else plan.restore
        words = f"all workers begin again, from {where or 'their start'}"
        if not self._homeless:
            return words
        return f"{words}; for {workers_in_words(sorted(self._homeless))} no host has a slot free"

    def _follow(self, ended: _Ended) -> None:
        """Starts another worker in the place of one that was asked to leave, which is no failure.

        Raises:
            WorkerFailed: a rank has left too often in a row with no step in between.
        """
        rank, outcome = ended.rank, ended.outcome
        what = LATE_DRAIN if outcome.too_late else "has drained"
        self._idle_drains[rank] = 0 if outcome.stepped else self._idle_drains[rank] + 1
        if self._idle_drains[rank] == MOST_IDLE_DRAINS:
            raise self._failed(rank, dataclasses.replace(outcome, traceback=TOO_MANY_DRAINS))
        why_not = "no other has come for it" if self._places.may_grow else "no host has room for it"
        gone = dataclasses.replace(outcome, traceback=f"it {what}, and {why_not}")
        self._watching.away(rank, f"worker {rank} {what}")
        self._console.line(rank, f"worker {rank} {what}; {self._start_again(rank, gone)}")
        self._check_number(rank, gone)

    def drain_here(self, why: str) -> None:
        """The launcher's machine is about to be taken away; from any thread, or a signal's handler.

        Args:
            why: who says so.
        """
        self._events.put(_ToDrain(why))

    def _drain(self, why: str) -> None:
        """Has the workers of this machine go on elsewhere."""
        self._places.leave_here()
        self._console.message(f"{why}: this machine's workers drain")
        for rank, machine in self._machines.items():
            if isinstance(machine, ThisMachine) and rank in self._processes:
                self._processes[rank].drain()

    def _start_again(self, rank: int, outcome: Outcome) -> str:
        """Starts the next attempt of a worker that has ended, and says in words where."""
        before = self._machines[rank]
        self._attempts[rank] += 1
        place = self._start(rank)
        if place is not None:
            where = "" if place.machine.name == before.name else f" on {place.machine.name}"
            return f"it is started again{where}"
        self._homeless[rank] = outcome
        if self._places.may_grow:
            return f"the others go on until keras-strom worker comes again for rank {rank}"
        alone = "no other host has a slot free, so the others go on without it"
        if may_come_back(before):
            return f"{alone} until {before.name} answers again"
        self._watching.ended(rank, f"worker {rank} {_NO_ROOM}", failed=True)
        return alone

    def _check_number(self, rank: int, outcome: Outcome) -> None:
        """Ends the job where it has too few workers left, and no other may come."""
        if self._has_too_few() and not (self._places.may_grow or self._lost_hosts()):
            raise self._failed(rank, outcome)

    def __enter__(self) -> _Crew:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Ends every worker: politely first, all at the same time, then by force."""
        self._end_all(interrupted=kind is not None and issubclass(kind, KeyboardInterrupt))

    def _end_all(self, *, interrupted: bool = False) -> None:
        processes = self._processes.values()
        try:
            if interrupted:
                self._interrupt()
            for process in processes:
                process.terminate()
            self._all_end_within(GRACE_SECONDS)
        finally:  # Ctrl+C a second time comes here at once.
            for process in processes:
                process.kill()
            for process in processes:
                process.wait()

    def _interrupt(self) -> None:
        """Ctrl+C reaches the scripts as without a launcher: what they do upon it takes its time."""
        self._interrupted.set()
        for process in self._processes.values():
            process.interrupt()
        if not self._all_end_within(_QUIET_SECONDS):
            self._console.message(
                f"interrupted: workers that are not through with it in {INTERRUPT_SECONDS:.0f} s "
                "are ended; Ctrl+C again ends them at once"
            )
            self._all_end_within(INTERRUPT_SECONDS - _QUIET_SECONDS)

    def _all_end_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        try:
            for process in self._processes.values():
                process.wait(max(0.0, deadline - time.monotonic()))
        except errors.DeadlinePassed:
            return False
        return True

    def _environment(self, rank: int, place: Place) -> ClusterEnvironment:
        job = self._job
        return ClusterEnvironment(
            rank=rank,
            size=job.workers,
            local_rank=place.local_rank,
            local_size=place.local_size,
            gpus="shared" if place.has_room else None,
            attempt=self._attempts[rank],
            master=self._master.address,
            network=self._network,
            join_timeout=job.start_timeout,
            max_failures=job.max_failures,
            drain_seconds=job.drain_seconds,
            checkpoints=self._master.plan,
            status_path=ASKED if self._watching.wants_records else None,
        )

    def _first_failure(self, failed: _Ended, running: int) -> errors.WorkerFailed:
        """The failure that led to the others, which is not always the one that is seen first."""
        failures = [failed]
        deadline = time.monotonic() + GRACE_SECONDS
        while first_cause(failures) is None and running > 0:
            try:
                seen = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if not isinstance(seen, _Ended) or self._is_of_before(seen):
                continue
            running -= 1
            if seen.outcome.failed:
                failures.append(seen)
        cause = first_cause(failures) or failed
        return self._failed(cause.rank, cause.outcome)

    def _failed(self, rank: int, outcome: Outcome) -> errors.WorkerFailed:
        self._watching.ended(rank, f"worker {rank} ends the job: it {outcome.cause}", failed=True)
        machine = self._machines.get(rank)
        host = "no host" if machine is None else machine.name
        streamed = self._console.shows_lines
        return errors.WorkerFailed(rank, host, outcome.traceback, outcome.log_tail, streamed)


class _Listener(WorkerListener):
    def __init__(
        self,
        rank: int,
        attempt: int,
        console: Console,
        ended: queue.SimpleQueue[Any],
        watching: Watching,
        interrupted: threading.Event,
    ) -> None:
        self._watching = watching
        self._rank = rank
        self._attempt = attempt
        self._console = console
        self._ended = ended
        self._interrupted = interrupted
        self._without_interrupt = WithoutInterrupt()

    def line(self, text: str) -> None:
        lines = self._without_interrupt.feed(text) if self._interrupted.is_set() else [text]
        for line in lines:
            self._console.line(self._rank, line)

    def progress(self, text: str) -> None:
        self._console.progress(self._rank, text)

    def status(self, record: WorkerRecord) -> None:
        self._watching.heard(self._rank, record)

    def ended(self, outcome: Outcome) -> None:
        for line in self._without_interrupt.close():
            self._console.line(self._rank, line)
        self._ended.put(_Ended(self._rank, self._attempt, outcome))
