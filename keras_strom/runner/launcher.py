"""Runs a job's workers as child processes of this machine: `keras-strom run`."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import socket
import time
from collections.abc import Mapping
from typing import NamedTuple

from keras_strom import errors
from keras_strom.checks import check_least, whole_number
from keras_strom.job import environment
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.job.network import NetworkConfig, resolve_address
from keras_strom.runner.console import Console
from keras_strom.runner.fork_server import ForkServers
from keras_strom.runner.job_master import JobMaster
from keras_strom.runner.master_options import MasterOptions, StartMaster
from keras_strom.runner.process import (
    GRACE_SECONDS,
    Function,
    Outcome,
    Script,
    WorkerListener,
    WorkerProcess,
    check_env,
    check_start_timeout,
    first_cause,
)
from keras_strom.runner.start_master import start_master
from keras_strom.runner.started_process import fresh_interpreter

#: Where a job stays that is given no mask.
LOOPBACK_MASK = "127.0.0.1/32"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """What `launch` runs.

    Attributes:
        work: what every worker does.
        workers: how many there are; all are started at once.
        network: without a mask the job stays on the loopback interface.
        env: variables for the workers on top of this process's own.
        start_timeout: seconds that workers wait for each other at the start.
        max_failures: so many workers that fail, for whatever reason, are started again; they take
            part from where the others are.
        min_workers: so many, worker 0 among them, are enough to start, and the others join when
            they are there; with fewer of them training waits. None = training starts with all and
            goes on with those that are left.
        warm_start: workers are forked from a process that has imported TensorFlow once; False =
            each is a fresh interpreter.
    """

    work: Script | Function
    workers: int
    network: NetworkConfig = dataclasses.field(default_factory=NetworkConfig)
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    start_timeout: float = 600.0
    max_failures: int = 0
    min_workers: int | None = None
    warm_start: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.workers, bool) or not isinstance(self.workers, int) or self.workers < 1:
            raise errors.InvalidOption(f"workers={self.workers!r} must be 1 or more")
        check_start_timeout(self.start_timeout)
        whole_number("max_failures", self.max_failures, least=0)
        check_least("min_workers", self.min_workers, "workers", self.workers)
        if isinstance(self.work, Script) and not os.path.isfile(self.work.path):
            raise errors.InvalidOption(f"no such script: {self.work.path}")
        check_env(self.env)
        self.network.of_worker(self.workers - 1)  # Refuses a port that leaves none for workers.


def launch(
    job: Job, console: Console | None = None, start: StartMaster = start_master
) -> list[Outcome]:
    """Runs a job to its end; call it in the main thread, where Ctrl+C arrives.

    Args:
        job: what to run.
        console: shows the workers' output; None = on sys.stdout.
        start: starts the master. A lone worker needs none.

    Returns:
        The workers' outcomes in rank order.

    Raises:
        WorkerFailed: the first failure beyond `max_failures`; all other workers have been ended.
        KeyboardInterrupt: by Ctrl+C; all workers have been ended.
        AddressError: a port in use or a mask that matches nothing.
        StoreUnavailable: the folder for checkpoints cannot be written.
    """
    console = console or Console(job.workers)
    network = job.network
    if job.workers == 1:
        network.refuse_waiting("one worker has no master")
    if network.network_mask is None:
        network = dataclasses.replace(network, network_mask=LOOPBACK_MASK)
    check_ports(network, job.workers)
    options = MasterOptions(workers=job.workers, network=network, min_workers=job.min_workers)
    with JobMaster(options, start) as master, _Crew(job, network, console, master) as crew:
        for rank in range(job.workers):
            crew.start(rank)
        try:
            outcomes = crew.wait()
        except errors.WorkerFailed as failure:
            raise master.judged(failure) from None
        master.end_well()
        return outcomes


def check_ports(network: NetworkConfig, workers: int) -> None:
    """Refuses ports of workers that are in use: they themselves would know once they have joined.

    Raises:
        AddressError: one is, or the mask picks no or several interfaces.
    """
    if workers == 1 or network.port == 0:
        return
    host = resolve_address(network, node_address=environment.node_address())
    for rank in range(workers):
        port = network.of_worker(rank).port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind((host, port))
            except OSError as error:
                raise errors.AddressError(
                    f"UDP {host}, port {port}, which worker {rank} would have with --port "
                    f"{network.port}, cannot be used: {error.strerror}; choose another port, or 0 "
                    "for any free one"
                ) from error


class _Ended(NamedTuple):
    """A worker whose process has ended."""

    rank: int
    outcome: Outcome

    @property
    def is_consequence(self) -> bool:
        """Whether it failed only because the job had ended elsewhere."""
        return self.outcome.is_consequence


class _Crew:
    """The worker processes of a job; one that fails gives way to another, while the job allows."""

    def __init__(
        self, job: Job, network: NetworkConfig, console: Console, master: JobMaster
    ) -> None:
        self._job = job
        self._network = network
        self._console = console
        self._master = master
        self._ended: queue.Queue[_Ended] = queue.Queue()
        self._processes: dict[int, WorkerProcess] = {}
        self._attempts = [0] * job.workers
        self._start = ForkServers(os.getpid()) if job.warm_start else fresh_interpreter

    def start(self, rank: int) -> None:
        """Starts a worker; the kernel ends it with the calling thread."""
        self._processes[rank] = WorkerProcess(
            self._job.work,
            self._place(rank),
            _Listener(rank, self._console, self._ended),
            credentials=self._master.credentials,
            env=self._job.env,
            start=self._start,
        )

    def wait(self) -> list[Outcome]:
        """Waits until all have ended well.

        Raises:
            WorkerFailed: one failure more than the job allows.
        """
        outcomes: dict[int, Outcome] = {}
        failures = 0
        while len(outcomes) < self._job.workers:
            ended = self._ended.get()
            rank, outcome = ended
            if not outcome.failed:
                outcomes[rank] = outcome
                continue
            failures += 1
            if failures > self._job.max_failures:
                running = self._job.workers - len(outcomes) - 1
                raise _first_failure(ended, running, self._ended)
            self._console.line(
                rank,
                f"worker {rank} {outcome.cause}; it is started again (failure {failures} of "
                f"{self._job.max_failures})",
            )
            self._attempts[rank] += 1
            self.start(rank)
        return [outcomes[rank] for rank in range(self._job.workers)]

    def __enter__(self) -> _Crew:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends every worker: politely first, all at the same time, then by force."""
        processes = self._processes.values()
        try:
            for process in processes:
                process.terminate()
            deadline = time.monotonic() + GRACE_SECONDS
            for process in processes:
                with contextlib.suppress(errors.DeadlinePassed):
                    process.wait(max(0.0, deadline - time.monotonic()))
        finally:  # Ctrl+C a second time comes here at once.
            for process in processes:
                process.kill()
            for process in processes:
                process.wait()

    def _place(self, rank: int) -> ClusterEnvironment:
        job = self._job
        return ClusterEnvironment(
            rank=rank,
            size=job.workers,
            local_rank=rank,
            local_size=job.workers,
            attempt=self._attempts[rank],
            master=self._master.address,
            network=self._network,
            join_timeout=job.start_timeout,
            max_failures=job.max_failures,
            checkpoints=self._master.plan,
        )


class _Listener(WorkerListener):
    def __init__(self, rank: int, console: Console, ended: queue.Queue[_Ended]) -> None:
        self._rank = rank
        self._console = console
        self._ended = ended

    def line(self, text: str) -> None:
        self._console.line(self._rank, text)

    def progress(self, text: str) -> None:
        self._console.progress(self._rank, text)

    def ended(self, outcome: Outcome) -> None:
        self._ended.put(_Ended(self._rank, outcome))


def _first_failure(failed: _Ended, running: int, ended: queue.Queue[_Ended]) -> errors.WorkerFailed:
    """The failure that led to the others, which is not always the one that is seen first."""
    failures = [failed]
    deadline = time.monotonic() + GRACE_SECONDS
    while first_cause(failures) is None and running > 0:
        try:
            seen = ended.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        running -= 1
        if seen.outcome.failed:
            failures.append(seen)
    rank, outcome = first_cause(failures) or failed
    return errors.WorkerFailed(
        rank, socket.gethostname(), outcome.traceback, outcome.log_tail, streamed=True
    )
