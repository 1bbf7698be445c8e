"""A worker that a scheduler starts: `keras-strom worker`.

It finds its job by the job's file, comes to the master, and does what the master says: starts the
script, and again where it fails and the job allows it. Its output is shown where it runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from keras_strom import errors
from keras_strom.checks import check_seconds
from keras_strom.job import environment
from keras_strom.job.drain import DRAINED_EXIT_CODE
from keras_strom.job.gpus import are_of_a_task
from keras_strom.job.network import HostPort, format_address
from keras_strom.runner.agent import Agent, hello
from keras_strom.runner.channel import Channel
from keras_strom.runner.console import Console
from keras_strom.runner.job_file import JobFile
from keras_strom.runner.outcome import Outcome
from keras_strom.runner.process import WorkerListener
from keras_strom.runner.work import Script

_CONNECT_SECONDS = 10.0
_PAUSE_SECONDS = 0.5
# A master begins once its checkpoints are found, and keeps a newcomer waiting whose predecessor has
# gone without a word.
_WAITS_FOR_OTHERS_SECONDS = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduledWorker:
    """What `keras-strom worker` runs.

    Attributes:
        rank: of the worker.
        job_path: of the job's file.
        work: the script.
        start_timeout: seconds to wait for the file and the master.
        master: the master's address, where the file's is not the one to reach it by: of its door
            (TCP), and at this host its relay (UDP), at this port where both have one.
    """

    rank: int
    job_path: str
    work: Script
    start_timeout: float = environment.ClusterEnvironment.join_timeout
    master: HostPort | None = None

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise errors.InvalidOption(f"--rank {self.rank}: workers are numbered from 0")
        check_seconds("start_timeout", self.start_timeout)
        self.work.check()


def serve(worker: ScheduledWorker, console: Console | None = None) -> int:
    """Runs a worker to the job's end; the return value is the exit code of its last process.

    Raises:
        JoinTimeout: there is no job's file, or no master at its address.
        InvalidOption: the job's file is not private, or the rank is none of the job's.
        SecretRejected: the master is that of another job.
        MasterLost: the master has ended the job, or is gone.
    """
    console = console or Console(2)  # A line's rank says whose it is, where outputs are mixed.
    deadline = time.monotonic() + worker.start_timeout
    job = JobFile.wait(worker.job_path, worker.start_timeout)
    master = worker.master or job.master
    channel = _connect(job, master, deadline, worker.start_timeout)
    patience = max(1.0, deadline - time.monotonic()) + _WAITS_FOR_OTHERS_SECONDS
    shown = _Shown(worker.rank, console)
    has_own_gpus = are_of_a_task(environment.inherited())
    agent = Agent(
        channel,
        worker.work,
        shown,
        patience,
        has_own_gpus=has_own_gpus,
        reach=as_seen_here(job.master, master),
    )
    try:
        channel.send(hello(rank=worker.rank))
        with _draining_on_sigterm(agent):
            agent.serve()
    except errors.StromError:
        raise
    except ConnectionError as error:
        if agent.leaves and (agent.outcome is None or agent.outcome.drained):
            return DRAINED_EXIT_CODE
        if agent.leaves:
            return _exit_code(worker.rank, agent.outcome, None)
        raise errors.MasterLost(
            f"the master at {format_address(master)} is gone, and worker {worker.rank} with it: "
            f"{error}"
        ) from None
    finally:
        channel.close()
    return _exit_code(worker.rank, agent.outcome, agent.reason)


@contextlib.contextmanager
def _draining_on_sigterm(agent: Agent) -> Iterator[None]:
    """The scheduler takes this machine away; SIGTERM once more ends the worker at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)

    def leave(number: int, _: FrameType | None) -> None:
        signal.signal(number, before)
        threading.Thread(target=agent.drain, name="keras-strom-drain", daemon=True).start()

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _connect(job: JobFile, master: HostPort, deadline: float, seconds: float) -> Channel:
    """A master may come later than its workers, and turn some away while too many come at once."""
    while True:
        try:
            return _shake_hands(job, socket.create_connection(master, _CONNECT_SECONDS))
        except errors.StromError:
            raise
        except OSError as error:
            if time.monotonic() > deadline:
                raise errors.JoinTimeout(
                    f"no master answers at {format_address(master)} (TCP) after {seconds:g} s: "
                    f"{error}; does it run, and is this port open?"
                ) from error
        time.sleep(_PAUSE_SECONDS)


def as_seen_here(master: HostPort, here: HostPort) -> Callable[[HostPort], HostPort]:
    """Where this machine reaches the master's relay, of which the master knows its own address.

    Args:
        master: where the job's file says that the master is.
        here: where this machine has reached it, behind address translation say.
    """
    if here == master:
        return lambda relay: relay
    # One that has the door's port is where the door is, and one that has another has that here too.
    return lambda relay: (here[0], here[1] if relay[1] == master[1] else relay[1])


def _shake_hands(job: JobFile, connection: socket.socket) -> Channel:
    key = job.credentials.master_public_key
    assert key is not None
    return Channel(connection, job.credentials, key)


def _exit_code(rank: int, outcome: Outcome | None, reason: str | None) -> int:
    if outcome is not None and (outcome.failed or outcome.too_late):
        return 128 - outcome.exit_code if outcome.exit_code < 0 else outcome.exit_code
    if reason:
        raise errors.MasterLost(f"worker {rank} ends, for the job has {reason}")
    return 0


class _Shown(WorkerListener):
    """Shows a worker's output."""

    def __init__(self, rank: int, console: Console) -> None:
        self._rank = rank
        self._console = console

    def line(self, text: str) -> None:
        self._console.line(self._rank, text)

    def progress(self, text: str) -> None:
        self._console.progress(self._rank, text)
