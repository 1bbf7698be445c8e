"""Runs a job's workers as child processes of this machine: `keras-strom run`."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import socket
import time
from collections.abc import Mapping, Sequence

from keras_strom import errors
from keras_strom.console import Console
from keras_strom.environment import ClusterEnvironment
from keras_strom.exchange import Exchange, StartExchange, share_updates
from keras_strom.joining import verdict
from keras_strom.network import NetworkConfig
from keras_strom.process import (
    GRACE_SECONDS,
    Function,
    Outcome,
    Script,
    WorkerListener,
    WorkerProcess,
    check_env,
    check_start_timeout,
)

_LOOPBACK = "127.0.0.1/32"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """What `launch` runs.

    Attributes:
        work: what every worker does.
        workers: how many there are.
        network: without a mask the job stays on the loopback interface.
        env: variables for the workers on top of this process's own.
        start_timeout: seconds that workers wait for each other at the start.
    """

    work: Script | Function
    workers: int
    network: NetworkConfig = dataclasses.field(default_factory=NetworkConfig)
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    start_timeout: float = 600.0

    def __post_init__(self) -> None:
        if isinstance(self.workers, bool) or not isinstance(self.workers, int) or self.workers < 1:
            raise errors.InvalidOption(f"workers={self.workers!r} must be 1 or more")
        check_start_timeout(self.start_timeout)
        if isinstance(self.work, Script) and not os.path.isfile(self.work.path):
            raise errors.InvalidOption(f"no such script: {self.work.path}")
        check_env(self.env)
        self.network.of_worker(self.workers - 1)  # Refuses a port that leaves none for workers.


def launch(
    job: Job, console: Console | None = None, start: StartExchange = share_updates
) -> list[Outcome]:
    """Runs a job to its end; call it in the main thread, where Ctrl+C arrives.

    Args:
        job: what to run.
        console: shows the workers' output; None = on sys.stdout.
        start: starts what the workers exchange updates through. A lone worker needs none.

    Returns:
        The workers' outcomes in rank order.

    Raises:
        WorkerFailed: the first failure; all other workers have been ended.
        KeyboardInterrupt: by Ctrl+C; all workers have been ended.
        AddressError: a port in use or a mask that matches nothing.
    """
    console = console or Console(job.workers)
    network = job.network
    if network.network_mask is None:
        network = dataclasses.replace(network, network_mask=_LOOPBACK)
    with contextlib.ExitStack() as stack:
        exchange = None
        if job.workers > 1:
            exchange = start(job.workers, network, None)
            stack.callback(exchange.close, "the job has ended")
        ended: queue.Queue[tuple[int, Outcome]] = queue.Queue()
        processes: list[WorkerProcess] = []
        stack.callback(_end_all, processes)
        for rank in range(job.workers):
            place = _place(job, rank, network, exchange)
            processes.append(
                WorkerProcess(
                    job.work,
                    place,
                    _Listener(rank, console, ended),
                    credentials=exchange.credentials if exchange else None,
                    env=job.env,
                )
            )
        try:
            return _wait_for_all(job.workers, ended)
        except errors.WorkerFailed as failure:
            if exchange is None:
                raise
            raise failure.with_verdict(verdict(failure.traceback, exchange.status())) from None


def _place(
    job: Job, rank: int, network: NetworkConfig, exchange: Exchange | None
) -> ClusterEnvironment:
    return ClusterEnvironment(
        rank=rank,
        size=job.workers,
        local_rank=rank,
        local_size=job.workers,
        master=exchange.address if exchange else None,
        network=network,
        join_timeout=job.start_timeout,
    )


class _Listener(WorkerListener):
    def __init__(
        self, rank: int, console: Console, ended: queue.Queue[tuple[int, Outcome]]
    ) -> None:
        self._rank = rank
        self._console = console
        self._ended = ended

    def line(self, text: str) -> None:
        self._console.line(self._rank, text)

    def progress(self, text: str) -> None:
        self._console.progress(self._rank, text)

    def ended(self, outcome: Outcome) -> None:
        self._ended.put((self._rank, outcome))


def _wait_for_all(workers: int, ended: queue.Queue[tuple[int, Outcome]]) -> list[Outcome]:
    outcomes: dict[int, Outcome] = {}
    while len(outcomes) < workers:
        rank, outcome = ended.get()
        if outcome.failed:
            raise _first_failure(rank, outcome, workers - len(outcomes) - 1, ended)
        outcomes[rank] = outcome
    return [outcomes[rank] for rank in range(workers)]


def _first_failure(
    rank: int, outcome: Outcome, running: int, ended: queue.Queue[tuple[int, Outcome]]
) -> errors.WorkerFailed:
    """The failure that led to the others, which is not always the one that is seen first.

    A worker that fails tells the others before it has ended, and one of them may be gone sooner.
    """
    candidates = [(rank, outcome)]
    deadline = time.monotonic() + GRACE_SECONDS
    while candidates[-1][1].is_consequence and running > 0:
        try:
            seen = ended.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        running -= 1
        if seen[1].failed:
            candidates.append(seen)
    rank, outcome = next((one for one in candidates if not one[1].is_consequence), candidates[0])
    return errors.WorkerFailed(
        rank, socket.gethostname(), outcome.traceback, outcome.log_tail, streamed=True
    )


def _end_all(processes: Sequence[WorkerProcess]) -> None:
    """Ends every worker: politely first, all at the same time, then by force."""
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
