"""One worker as a child process: started, listened to, ended, never left behind.

The launcher and the Spark task both start their workers here. What the worker does is a `Script` or
a `Function`; what it shares with the others is none of this module's business.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import logging
import os
import resource
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

from keras_strom import errors
from keras_strom.job import environment
from keras_strom.job.credentials import Credentials
from keras_strom.job.drain import (
    DRAIN,
    END,
    TOO_LATE,
    after,
)
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.job.linux import create_memory_file
from keras_strom.job.process_status import process_end
from keras_strom.job.worker_record import MAX_BYTES, WorkerRecord
from keras_strom.runner import worker_main
from keras_strom.runner.outcome import Outcome, described_exit, last_words
from keras_strom.runner.output import LineSplitter, OutputRecord, is_startup_note
from keras_strom.runner.started_process import (
    NewProcess,
    StartedProcess,
    StartProcess,
    fresh_interpreter,
    memory_file,
)
from keras_strom.runner.work import Function, Script

GRACE_SECONDS = 5.0

_FIRST_INHERITED_FD = 100
_LEAST_INHERITED = 2  # The job's credentials, and a socket to the runner.

_logger = logging.getLogger(__name__)

T = TypeVar("T")

# Defaults that the user's own environment overrides.
_WORKER_DEFAULTS = {
    "PYTHONUNBUFFERED": "1",  # Lines arrive when they are printed.
    "PYTHONFAULTHANDLER": "1",  # A crash in native code leaves a stack in the log.
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


class WorkerListener:
    """What a worker's starter wants to know; called from the worker's watching thread."""

    def line(self, text: str) -> None:
        """A finished line of output."""

    def progress(self, text: str) -> None:
        """The state of an unfinished line that the worker keeps redrawing."""

    def status(self, record: WorkerRecord) -> None:
        """What the worker says of itself, where its place has a `status_path`."""

    def ended(self, outcome: Outcome) -> None:
        """The worker has ended; nothing else follows."""


def tell(method: Callable[[T], None], value: T, worker: str) -> None:
    """Calls a listener's method, whose fault (a closed terminal, say) leaves no worker unwatched.

    Args:
        method: of the listener.
        value: that it is told.
        worker: whose listener it is, in words.
    """
    try:
        method(value)
    except Exception:
        _logger.exception("a listener of %s failed", worker)


class WorkerProcess:
    """A running worker in a process group of its own.

    It gets its place in the job through the KERAS_STROM_* variables and the credentials through
    an inherited memory file, and its output is read line by line. When it ends, whatever else is
    still in its process group ends with it; when the *thread* that made this object ends, the
    kernel kills the worker, so make it in a thread that waits for it.

    Args:
        work: what the worker does.
        place: its place in the job; `credentials_path` is set here, and `status_path` where it is
            not None: then the listener hears what the worker says of itself.
        listener: is told of output and end.
        credentials: the job's, for workers of a job of several.
        env: variables on top of this process's own.
        start: makes the process.

    Raises:
        InvalidOption: `env` sets a variable that the runner itself sets.
        OSError: the process could not be started.

    Example:
        >>> with WorkerProcess(Function.of(sum, [1, 2]), ClusterEnvironment()) as process:
        ...     process.wait().exit_code
        0
    """

    def __init__(
        self,
        work: Script | Function,
        place: ClusterEnvironment,
        listener: WorkerListener | None = None,
        *,
        credentials: Credentials | None = None,
        env: Mapping[str, str] | None = None,
        start: StartProcess = fresh_interpreter,
    ) -> None:
        self._listener = listener or WorkerListener()
        self._lock = threading.Lock()  # Guards _reaped: a reaped id may name somebody else.
        self._reaped = False
        self._terminated = False
        self._outcome: Outcome | None = None
        self._done = threading.Event()
        self._report_fd = self._status_fd = -1
        self._drain_seconds = place.drain_seconds
        self._runner_socket: socket.socket | None = (
            None  # To the worker, see keras_strom.job.drain.
        )
        self._left = b""
        self._grace: threading.Timer | None = None
        with contextlib.ExitStack() as inherited:
            self._process = self._start(work, place, credentials, check_env(env), start, inherited)
        self._watcher = threading.Thread(
            target=self._watch, name=f"keras-strom-worker-{place.rank}", daemon=True
        )
        self._watcher.start()

    @property
    def pid(self) -> int:
        """The worker's process id, which is its process group's id too."""
        return self._process.pid

    def wait(self, timeout: float | None = None) -> Outcome:
        """Waits until the worker has ended.

        Raises:
            DeadlinePassed: it is still running after `timeout` seconds.
        """
        self._done.wait(timeout)
        if self._outcome is None:
            raise errors.DeadlinePassed(f"worker process {self.pid} still runs after {timeout} s")
        return self._outcome

    def drain(self) -> None:
        """Asks the worker to hand over what it has learnt and to leave, and returns at once.

        One that has not left when its `drain_seconds` are over kills itself; one that cannot, not
        having joined its job or being stopped, is killed a little later.
        """
        with self._lock:
            if self._grace is not None or self._reaped:
                return
            self._grace = after(self._drain_seconds + GRACE_SECONDS, self._kill_late)
        self._tell_worker(DRAIN)

    def _kill_late(self) -> None:
        self._left = TOO_LATE  # What the worker has answered itself counts more.
        self._signal(signal.SIGKILL)

    def interrupt(self) -> None:
        """Ctrl+C for the worker and its children (SIGINT), and returns at once."""
        self._terminated = True
        self._signal(signal.SIGINT)

    def terminate(self) -> None:
        """Asks the worker to end (SIGTERM) and returns at once; `kill` follows if it does not."""
        self._terminated = True
        self._tell_worker(END)
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the worker and its children at once."""
        self._terminated = True
        self._signal(signal.SIGKILL)

    def close(self, grace: float = GRACE_SECONDS) -> Outcome:
        """Ends the worker if it still runs, within `grace` seconds or else by force."""
        if not self._done.is_set():
            self.terminate()
        try:
            return self.wait(grace)
        except errors.DeadlinePassed:
            self.kill()
            return self.wait()

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(
        self,
        work: Script | Function,
        place: ClusterEnvironment,
        credentials: Credentials | None,
        env: Mapping[str, str],
        start: StartProcess,
        inherited: contextlib.ExitStack,
    ) -> StartedProcess:
        fds = []

        def keep(low: int) -> int:
            try:
                fd = _inheritable(low)
            finally:
                os.close(low)
            inherited.callback(os.close, fd)
            fds.append(fd)
            return fd

        try:
            if credentials is not None:
                fd = keep(credentials.open_memory_file())
                place = dataclasses.replace(place, credentials_path=f"/proc/self/fd/{fd}")
            if place.status_path is not None:
                self._status_fd, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
                place = dataclasses.replace(place, status_path=f"/proc/self/fd/{keep(theirs)}")
            if place.size > 1:
                self._runner_socket, end = socket.socketpair()
                place = dataclasses.replace(place, runner_fd=keep(end.detach()))
            if isinstance(work, Script):
                command = ["script", work.path, *work.arguments]
            else:
                report = keep(create_memory_file("keras-strom-report"))
                self._report_fd = os.dup(report)
                payload = keep(memory_file("keras-strom-payload", work.payload))
                command = ["function", str(payload), str(report)]
            new = NewProcess(
                arguments=tuple(command),
                variables={**worker_variables(work, env), **place.to_environ()},
                fds=tuple(fds),
            )
            process = start(new)
            try:
                self._end_fd = process_end(process.pid)
            except BaseException:  # Nobody would see its end.
                os.killpg(process.pid, signal.SIGKILL)
                process.output.close()
                process.reap()
                raise
            return process
        except BaseException:
            self._close_report()
            if self._status_fd != -1:
                os.close(self._status_fd)
            self._close_socket()
            raise

    def _close_socket(self) -> None:
        own, self._runner_socket = self._runner_socket, None
        if own is not None:
            own.close()

    def _hear_answer(self) -> None:
        """Takes what the worker has answered; it has ended."""
        if self._runner_socket is not None:
            with contextlib.suppress(OSError):  # It has said nothing.
                self._left = self._runner_socket.recv(1, socket.MSG_DONTWAIT) or self._left

    def _tell_worker(self, word: bytes) -> None:
        with self._lock:
            if not self._reaped and self._runner_socket is not None:
                with contextlib.suppress(OSError):  # It reads no more: it ends.
                    self._runner_socket.send(word)

    def _signal(self, number: signal.Signals) -> None:
        with self._lock:
            if not self._reaped:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)

    def _watch(self) -> None:
        record = OutputRecord()
        self._read_output(record)
        # Still unreaped, the worker's id cannot name another group: its children end with it.
        with self._lock:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            exit_code = self._process.reap()
            self._reaped = True
            self._hear_answer()
            self._close_socket()
        if self._grace is not None:
            self._grace.cancel()
        self._outcome = self._conclude(exit_code, record)
        self._done.set()
        self._tell(self._listener.ended, self._outcome)

    def _read_output(self, record: OutputRecord) -> None:
        """Reads until the process has ended and its pipe is empty."""
        pipe = self._process.output
        splitter = LineSplitter()
        ended = self._end_fd
        try:
            poller = select.poll()
            poller.register(ended, select.POLLIN)
            poller.register(pipe, select.POLLIN)
            if self._status_fd != -1:
                poller.register(self._status_fd, select.POLLIN)
            os.set_blocking(pipe.fileno(), False)
            running = True
            while running:
                # The end is looked at first and the pipe read after it, so nothing is missed.
                ready = {fd for fd, _ in poller.poll()}
                running = ended not in ready
                if self._status_fd in ready and not self._hear_status():
                    poller.unregister(self._status_fd)
                if pipe.fileno() in ready and not self._read_all(pipe.fileno(), splitter, record):
                    poller.unregister(pipe)
            self._take(splitter.close(), record)
        finally:
            os.close(ended)
            pipe.close()
            if self._status_fd != -1:
                os.close(self._status_fd)

    def _read_all(self, fd: int, splitter: LineSplitter, record: OutputRecord) -> bool:
        """Reads all that is there; False at the stream's end."""
        while True:
            try:
                chunk = os.read(fd, 65536)
            except BlockingIOError:
                return True
            if not chunk:
                return False
            self._take(splitter.feed(chunk), record)
            if splitter.redrawn:
                self._tell(self._listener.progress, splitter.redrawn)

    def _hear_status(self) -> bool:
        """Takes the records that are there; False at the stream's end, or where it is no record's.

        A worker writes a record at once or not at all, so that none is ever a part.
        """
        try:
            said = os.read(self._status_fd, 16 * MAX_BYTES)
        except BlockingIOError:
            return True
        if not said:
            return False
        for line in said.splitlines():
            try:
                record = WorkerRecord.parse(line)
            except errors.CorruptMessage:
                continue  # What else the worker's program writes there concerns nobody.
            self._tell(self._listener.status, record)
        return True

    def _take(self, lines: list[str], record: OutputRecord) -> None:
        for line in lines:
            if is_startup_note(line):
                continue
            record.add(line)
            self._tell(self._listener.line, line)

    def _tell(self, method: Callable[[T], None], value: T) -> None:
        tell(method, value, f"worker process {self.pid}")

    def _conclude(self, exit_code: int, record: OutputRecord) -> Outcome:
        result, traceback = self._read_report()
        raised = bool(traceback)
        left = self._left.decode("ascii", "replace")
        if exit_code != 0:
            result = None
            printed = last_words(exit_code, record)
            traceback = traceback or printed or described_exit(exit_code, record.tail)
        elif self._is_function and result is None:
            traceback = traceback or "the function ended its process without returning"
        return Outcome(exit_code, result, traceback, record.tail, self._terminated, raised, left)

    @property
    def _is_function(self) -> bool:
        return self._report_fd != -1

    def _read_report(self) -> tuple[bytes | None, str]:
        if not self._is_function:
            return None, ""
        size = os.fstat(self._report_fd).st_size
        with open(os.dup(self._report_fd), "rb") as file:
            file.seek(0)
            kind, body = file.read(1), file.read(size)
        os.close(self._report_fd)
        if kind == worker_main.RESULT:
            return body, ""
        return None, body.decode("utf-8", "replace")

    def _close_report(self) -> None:
        if self._is_function:
            os.close(self._report_fd)


def check_open_files() -> None:
    """Refuses a limit of open files under which no worker of several can be started.

    Raises:
        OSError: it is too low; in words.
    """
    with contextlib.ExitStack() as stack:
        try:
            nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise _in_words(error) from None
        stack.callback(os.close, nothing)
        for _ in range(_LEAST_INHERITED):
            stack.callback(os.close, _inheritable(nothing))


def _inheritable(low: int) -> int:
    """The same file under a number that is free in a worker, which has it under that, too.

    Raises:
        OSError: the limit of open files is too low for that, in words; or another.
    """
    try:
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _FIRST_INHERITED_FD)
    except OSError as error:
        raise _in_words(error) from None


def _in_words(error: OSError) -> OSError:
    """The error itself where it is not about the limit of open files."""
    if error.errno not in (errno.EINVAL, errno.EMFILE):
        return error
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OSError(
        f"the limit of open files, {limit}, is too low: a worker needs some from number "
        f"{_FIRST_INHERITED_FD} on; raise it (ulimit -n)"
    )


def worker_variables(work: Script | Function, env: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a worker, but for its place in the job.

    Args:
        work: what the worker does.
        env: the user's variables, on top of this process's own.
    """
    variables = {**_WORKER_DEFAULTS, **environment.inherited(), **env}
    if isinstance(work, Function):
        # A function may come from a module that only this process's path leads to, such as a file
        # that Spark has shipped. What the user's own variables name comes first.
        paths = [env.get("PYTHONPATH", ""), *sys.path]
        variables["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return variables


def check_env(env: Mapping[str, str] | None) -> Mapping[str, str]:
    """The user's variables for workers; refuses those that the runner sets."""
    if not isinstance(env, Mapping | None):
        raise errors.InvalidOption(f"env={env!r} must be a dict: variables and their values")
    for name, value in (env or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise errors.InvalidOption(f"env[{name!r}]={value!r}: names and values are strings")
        if name.startswith(environment.PREFIX) and name not in environment.USERS:
            raise errors.InvalidOption(f"env must not set {name}: the runner sets it")
    return env or {}
