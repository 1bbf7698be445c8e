"""What a Spark task runs: one worker in a process of its own, reported to the driver.

A worker whose process dies is started again if the driver says so, with a higher attempt. A task
never raises for a failed worker: it tells the driver over the control channel and returns, so that
Spark neither retries it nor buries its traceback.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from keras_strom import __version__, errors
from keras_strom.job.credentials import Credentials
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.job.gpus import one_each
from keras_strom.job.network import HostPort, NetworkConfig, format_address
from keras_strom.job.process_status import parent_of
from keras_strom.job.worker_record import ASKED, WorkerRecord
from keras_strom.runner.channel import HEARTBEAT_SECONDS, Channel
from keras_strom.runner.fork_server import ForkServers
from keras_strom.runner.outcome import Outcome
from keras_strom.runner.process import WorkerListener, WorkerProcess, worker_variables
from keras_strom.runner.started_process import StartProcess, fresh_interpreter
from keras_strom.runner.work import Function

from .executors import check_version
from .messages import Start
from .resources import UseGpu, gpu_variables
from .result_room import ResultRoom
from .spark_files import with_spark_files

if TYPE_CHECKING:
    from pyspark import Broadcast

    from keras_strom.job.checkpoint_plan import CheckpointPlan

    from ..data.exported import ExportedData
    from ..data.spool import Chunk

_logger = logging.getLogger(__name__)

_CONNECT_SECONDS = 30.0

# How often a task comes to the driver's door, and at most how long it waits before it does again.
_TRIES = 6
_PAUSE_SECONDS = 2.0
_PROGRESS_SECONDS = 0.25
_MAX_WAITING_LINES = 10_000
# Bounds of what one message holds, with room below wire.MAX_MESSAGE_BYTES.
_MAX_BATCH_CHARACTERS = 100_000
_MAX_TRACEBACK_CHARACTERS = 50_000
_MAX_TAIL_LINE_CHARACTERS = 1_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """The same value for every task of a job; it holds the secret and travels in the closure.

    Attributes:
        payload: the pickled call of `Function`; large ones are broadcast.
        workers: how many tasks there are.
        controller: the driver's control channel.
        controller_key: the public key that it proves to hold.
        credentials: the job's.
        master: the master's address; None for a lone worker.
        network, env, use_gpu, start_timeout, drain_seconds: as given to `run`.
        shares_gpu: whether Spark gives the same GPU to other tasks, too.
        may_grow: whether other workers may come to a machine while this one trains.
        stream_logs: whether the driver shows output.
        show_progress: whether it shows progress bars as they move.
        data: what the rows are that the task lays down for its worker; None = there are none.
        checkpoints: what workers save of their state and go on from; None = nothing.
        warm_start: as given to `run`.
        watched: whether the driver wants to know what the worker says of itself.
        version: of keras-strom, on the driver.
        room: for results; the driver says so where one is too large, and it stays here.
    """

    payload: bytes | Broadcast[bytes]
    workers: int
    controller: HostPort
    controller_key: bytes
    credentials: Credentials
    master: HostPort | None
    network: NetworkConfig
    env: Mapping[str, str]
    use_gpu: UseGpu
    start_timeout: float
    drain_seconds: float
    stream_logs: bool
    show_progress: bool
    room: ResultRoom
    data: ExportedData | None = None
    checkpoints: CheckpointPlan | None = None
    warm_start: bool = True
    watched: bool = False
    shares_gpu: bool = False
    may_grow: bool = False
    version: str = __version__


# A worker's rank and its pickled result; None: there is none, and the driver knows why.
Report = tuple[int, bytes | None]


def run_task(task: Task, rows: Iterable[Chunk]) -> Report:
    """Runs one worker from registration to its end; again if it dies and the driver wants it.

    Args:
        task: what to do.
        rows: what to lay down for it; meaningless where `task.data` is None.

    Raises:
        ExecutorMismatch: this executor has another version of keras-strom than the driver.
    """
    check_version(task.version)
    payload = task.payload if isinstance(task.payload, bytes) else task.payload.value
    work = Function(with_spark_files(payload))
    given = gpu_variables(task.use_gpu)
    env = {**given, **task.env}
    start: StartProcess = fresh_interpreter
    if task.warm_start:
        start = servers = ForkServers(_executor())
        servers.prepare(worker_variables(work, env))  # It imports while rows and others come.
    if task.data is None:
        return _run_worker(task, work, env, start, None, given)
    from ..data.spool import spooled

    with spooled(task.data, rows, _partition(), task.workers) as folder:
        return _run_worker(task, work, env, start, folder, given)


def _partition() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


def _executor() -> int:
    """The id of the executor: Spark's Python processes come and go between its JVM and a task."""
    ancestor = os.getppid()
    while Path(f"/proc/{ancestor}/exe").resolve().name.startswith("python"):
        ancestor = parent_of(ancestor)
    return ancestor


def _executor_id() -> str:
    """Spark's id of the executor, as its command line names it; "" = none, or it is hidden."""
    try:
        command = Path(f"/proc/{_executor()}/cmdline").read_bytes().decode("utf-8", "replace")
    except OSError:  # The system shows nobody else's processes.
        return ""
    words = command.split("\0")
    at = words.index("--executor-id") if "--executor-id" in words else len(words)
    return words[at + 1] if at + 1 < len(words) else ""


def _run_worker(
    task: Task,
    work: Function,
    env: Mapping[str, str],
    start: StartProcess,
    data_path: str | None,
    given: Mapping[str, str],
) -> Report:
    """Of its machine's GPUs the worker sees those that are `given`, or else one."""
    gpus: Literal["own", "shared"] | None = "shared" if task.may_grow else None
    if given:
        gpus = "shared" if task.shares_gpu else "own"
    credentials = task.credentials if task.master is not None else None
    link = _DriverLink(task)
    try:
        link.register()
        while (begin := link.wait_for_start()) is not None:
            checkpoints = task.checkpoints and task.checkpoints.as_here(begin.clock)
            place = ClusterEnvironment(
                rank=begin.rank,
                size=task.workers,
                local_rank=begin.local_rank,
                local_size=begin.local_size,
                gpus=gpus,
                needs_gpu=task.use_gpu is True,
                attempt=begin.attempt,
                master=task.master,
                network=task.network,
                join_timeout=task.start_timeout,
                drain_seconds=task.drain_seconds,
                data_path=data_path,
                checkpoints=checkpoints,
                status_path=ASKED if task.watched else None,
            )
            place, bound = one_each(place, worker_variables(work, env))
            # The worker ends with the thread that starts it: this one, the task's own.
            with WorkerProcess(
                work, place, link, credentials=credentials, env={**env, **bound}, start=start
            ) as process:
                link.ends_on_stop(process)
                outcome = process.wait()
            link.report(outcome)
            if not (_may_start_again(outcome) or outcome.gives_way):
                fits = outcome.result is None or task.room.takes(len(outcome.result))
                return place.rank, outcome.result if fits else None
        return -1, None
    finally:
        link.close()


def _may_start_again(outcome: Outcome) -> bool:
    """Whether a worker may do better alone: here all begin again with another run only."""
    return outcome.may_be_started_again and not outcome.lost_state


def _to_driver(task: Task) -> Channel:
    """Comes to the driver, which turns some away while too many come at once.

    Raises:
        Unreachable: it does not answer.
        SecretRejected: who answers is not the driver.
        ConnectionError: it has turned this task away again and again.
    """
    for _ in range(_TRIES - 1):
        try:
            return _connect(task)
        except errors.StromError:
            raise
        except ConnectionError:
            time.sleep(random.uniform(0.1, 1) * _PAUSE_SECONDS)
    return _connect(task)


def _connect(task: Task) -> Channel:
    try:
        connection = socket.create_connection(task.controller, _CONNECT_SECONDS)
    except OSError as error:
        raise errors.Unreachable(
            f"no way from {socket.gethostname()} to the driver's control port "
            f"{format_address(task.controller)}: {error}; is this TCP port open?"
        ) from error
    return Channel(connection, task.credentials, task.controller_key)


class _DriverLink(WorkerListener):
    """The task's end of the control channel.

    Output waits in a bounded queue for a thread that sends it: a driver that is slow to show it
    (a paused terminal) costs lines, which are counted, but never stops a worker.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._channel = _to_driver(task)
        self._changed = threading.Condition()  # Guards everything below.
        self._lines: deque[str] = deque()
        self._lost_lines = 0
        self._bar = ""
        self._bar_time = 0.0
        self._record: WorkerRecord | None = None
        self._sending = False
        self._process: WorkerProcess | None = None
        self._start: Start | None = None
        self._stopped = False
        self._closing = False
        self._sender = threading.Thread(target=self._send, name="keras-strom-send", daemon=True)

    def register(self) -> None:
        """Makes this task known to the driver."""
        from pyspark import TaskContext

        context = TaskContext.get()
        self._channel.send(
            {
                "type": "register",
                "partition": _partition(),
                "attempt": context.attemptNumber() if context is not None else 0,
                "host": socket.gethostname(),
                "executor": _executor_id() if context is not None else "",
                "task": context.taskAttemptId() if context is not None else 0,
            }
        )
        self._sender.start()
        threading.Thread(target=self._receive, name="keras-strom-receive", daemon=True).start()

    def wait_for_start(self) -> Start | None:
        """Waits until the driver has the worker started; its place, or None if the job is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._start is not None or self._stopped)
            start, self._start = self._start, None
            return None if self._stopped else start

    def ends_on_stop(self, process: WorkerProcess) -> None:
        """From now on the driver's word, or its silence, ends `process`."""
        with self._changed:
            self._process = process
            stopped = self._stopped
        if stopped:
            process.close()

    def line(self, text: str) -> None:
        if self._task.stream_logs:
            with self._changed:
                if len(self._lines) >= _MAX_WAITING_LINES:
                    self._lines.popleft()
                    self._lost_lines += 1
                self._lines.append(text)
                self._bar = ""
                self._changed.notify_all()

    def progress(self, text: str) -> None:
        if self._task.stream_logs and self._task.show_progress:
            with self._changed:
                self._bar = text
                if time.monotonic() - self._bar_time >= _PROGRESS_SECONDS:
                    self._changed.notify_all()

    def status(self, record: WorkerRecord) -> None:
        with self._changed:
            self._record = record  # Of several the latest says it all.
            self._changed.notify_all()

    def report(self, outcome: Outcome) -> None:
        """Sends what output is left, then how the worker ended."""
        with self._changed:
            self._process = None
            self._changed.wait_for(lambda: not self._lines and not self._sending, _CONNECT_SECONDS)
        message: dict[str, Any] = {"type": "ended", "size": len(outcome.result or b"")}
        if outcome.gives_way:
            message = {
                "type": "drained",
                "stepped": outcome.stepped,
                "too_late": outcome.too_late,
            }
        elif outcome.failed:
            message = {
                "type": "failed",
                "traceback": outcome.traceback[-_MAX_TRACEBACK_CHARACTERS:],
                "log_tail": [line[:_MAX_TAIL_LINE_CHARACTERS] for line in outcome.log_tail],
                "is_consequence": outcome.is_consequence,
                "cause": outcome.cause[:_MAX_TAIL_LINE_CHARACTERS],
                "may_start_again": _may_start_again(outcome),
            }
        if not outcome.terminated:
            with contextlib.suppress(ConnectionError):  # A driver that is gone needs no report.
                self._channel.send(message)

    def close(self) -> None:
        """Ends the connection."""
        self._finish_sending()
        self._channel.close()

    def _receive(self) -> None:
        try:
            while (message := self._channel.receive()).get("type") != "stop":
                if message.get("type") == "start":
                    start = Start.parse(message, self._task.workers)
                    with self._changed:
                        self._start = start
                        self._changed.notify_all()
                elif message.get("type") == "drain":
                    with self._changed:
                        process = self._process
                    if process is not None:
                        process.drain()
        except errors.CorruptMessage as error:
            _logger.error("this task ends: the driver sent %s", error)
        except (ConnectionError, errors.StromError) as error:
            _logger.debug("the control connection ended: %s", error)
        # By its word, or without it: a worker has nobody to work for.
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            process = self._process
        if process is not None:
            process.close()

    def _send(self) -> None:
        try:
            while True:
                with self._changed:
                    self._sending = False
                    self._changed.notify_all()
                    self._changed.wait_for(self._has_something, HEARTBEAT_SECONDS)
                    self._sending = True
                    messages = self._take()
                    closing = self._closing and not self._lines
                for message in messages:
                    self._channel.send(message)
                if closing:
                    return
        except ConnectionError:
            with self._changed:  # Nobody is there to read what waits.
                self._stopped = True
                self._lines.clear()
        finally:
            with self._changed:
                self._sending = False
                self._changed.notify_all()

    def _has_something(self) -> bool:
        return bool(self._lines or self._bar or self._record or self._closing)

    def _take(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        lines: list[str] = []
        if self._lost_lines:
            lines.append(f"... {self._lost_lines} lines left out, the driver was too slow ...")
            self._lost_lines = 0
        characters = 0
        while self._lines and characters < _MAX_BATCH_CHARACTERS:
            lines.append(self._lines.popleft())
            characters += len(lines[-1])
        if lines:
            messages.append({"type": "log", "lines": lines})
        if self._bar:
            messages.append({"type": "progress", "text": self._bar})
            self._bar, self._bar_time = "", time.monotonic()
        if self._record is not None:
            messages.append({"type": "status", "record": self._record.to_json()})
            self._record = None
        return messages or [{"type": "heartbeat"}]

    def _finish_sending(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._sender.is_alive():
            self._sender.join(_CONNECT_SECONDS)
