"""What runs in the process of a fork server; `keras_strom.runner.fork_server` starts it.

    python -m keras_strom.runner.fork_server_main LISTENER_FD OWNER_PID IDLE_SECONDS

It imports what every worker needs, then forks a worker for each request. It has no thread of
Python's but one (and on an old kernel one that looks whether its owner is there), and uses
TensorFlow for nothing, whose own threads start with its first operation.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import gc
import importlib
import json
import logging
import os
import selectors
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_strom.job import drain, environment
from keras_strom.job.drain import DRAINED_EXIT_CODE
from keras_strom.job.process_status import process_end
from keras_strom.runner import worker_main
from keras_strom.runner.fork_server import check_peer, send_integer

_IMPORTED = ("tensorflow", "keras", "cloudpickle", "keras_strom.strategy.strategy")
_MAX_FDS = 16

Work = Callable[[], int]


def main(arguments: Sequence[str]) -> int:
    """Serves until the owner has ended or nobody wants anything; in a worker: does its work."""
    listener_fd, owner = map(int, arguments[:2])
    # Whoever asks all processes of a job to leave (a cluster manager, `pkill`) means the workers,
    # which would lose what they have to hand over: they end with this one. It ends with its owner.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ending = _Ending()
    atexit.register(ending.skip_teardown)  # The first to be registered is the last to be called.
    gc.disable()  # Nothing of what is imported is garbage; to look for some takes a quarter longer.
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # What is here by now stays in memory that workers share.
    gc.enable()
    with socket.socket(fileno=listener_fd) as listener:
        work = _Server(listener, owner, float(arguments[2])).serve()
    if work is None:
        return 0
    try:
        return work()
    except SystemExit as error:
        ending.drained = error.code == DRAINED_EXIT_CODE and drain.request.is_over
        raise


class _Ending:
    """How a forked worker's process ends.

    Attributes:
        drained: it has handed over all, and its end is all that its replacement waits for.
    """

    drained = False

    def skip_teardown(self) -> None:
        """Ends one that has drained without taking TensorFlow apart; it has unwound by now."""
        if self.drained:
            logging.shutdown()
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            os._exit(DRAINED_EXIT_CODE)


class _Server:
    def __init__(self, listener: socket.socket, owner: int, idle_seconds: float) -> None:
        self._listener = listener
        self._idle_seconds = idle_seconds
        self._owner = process_end(owner)
        self._workers: dict[socket.socket, int] = {}  # Their ids; 0 = not asked for yet.
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._owner, selectors.EVENT_READ)

    def serve(self) -> Work | None:
        """Returns what to do in a forked process, None in the server at its end."""
        while ready := self._selector.select(None if self._workers else self._idle_seconds):
            for key, _ in ready:
                if key.fileobj == self._owner:
                    for connection in list(self._workers):
                        self._end(connection)
                    return None
                if key.fileobj is self._listener:
                    self._accept()
                elif (work := self._hear(key.fileobj)) is not None:  # type: ignore[arg-type]
                    return work
        return None

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        try:
            check_peer(connection)
        except PermissionError:
            connection.close()
            return
        self._workers[connection] = 0
        self._selector.register(connection, selectors.EVENT_READ)

    def _hear(self, connection: socket.socket) -> Work | None:
        message, fds = b"", list[int]()
        with contextlib.suppress(OSError):
            message, fds, _, _ = socket.recv_fds(connection, 16, _MAX_FDS)
        if message == b"fork" and not self._workers[connection]:
            return self._fork(connection, fds)
        self._end(connection, asked=message == b"reap")
        return None

    def _fork(self, connection: socket.socket, fds: list[int]) -> Work | None:
        server = os.getpid()
        with warnings.catch_warnings():
            # Of threads, which TensorFlow's libraries have; none of them holds a lock at rest.
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                pid = os.fork()
            except OSError:  # There may be no more processes, say: those that there are go on.
                pid = -1
        if pid:
            for fd in fds:
                os.close(fd)
            if pid > 0:
                self._workers[connection] = pid
            else:
                self._end(connection)
            return None
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        worker_main.die_with(server)
        request_fd, *others = fds
        with open(request_fd, encoding="utf-8", errors="surrogateescape") as file:
            request = json.load(file)
        # From here on the requester may end this process, and nothing is done for one that is gone.
        send_integer(connection, os.getpid())
        self._leave()
        return _become(request, *others)

    def _leave(self) -> None:
        """In a forked process: holds nothing by which the others see each other's end."""
        self._selector.close()
        for connection in self._workers:
            connection.close()
        self._listener.close()
        os.close(self._owner)

    def _end(self, connection: socket.socket, *, asked: bool = False) -> None:
        """Reaps the worker of a connection; ends it where nobody has asked for its exit code."""
        pid = self._workers.pop(connection)
        self._selector.unregister(connection)
        with connection:
            if pid:
                if not asked:
                    for kill in (os.kill, os.killpg):  # It may not lead its group yet.
                        with contextlib.suppress(ProcessLookupError):
                            kill(pid, signal.SIGKILL)
                _, status = os.waitpid(pid, 0)
                with contextlib.suppress(OSError):
                    send_integer(connection, os.waitstatus_to_exitcode(status))


def _become(request: Mapping[str, Any], output: int, *inherited: int) -> Work:
    """Makes a forked process what a fresh interpreter would be, and gives its work."""
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    _renumber(inherited, request["fds"])
    environment.replace(request["variables"])
    # Python's own generator seeds itself anew in a forked process; NumPy's does not.
    sys.modules["numpy"].random.seed()
    return functools.partial(worker_main.work, request["arguments"], forked=True)


def _renumber(fds: Sequence[int], numbers: Sequence[int]) -> None:
    """Gives file descriptors the numbers that they have where they come from."""
    above = max(numbers, default=0) + 1
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for fd in fds]
    for fd in fds:
        os.close(fd)
    for fd, number in zip(moved, numbers, strict=True):
        with contextlib.suppress(OSError):
            os.fstat(number)
            raise RuntimeError(f"file descriptor {number} is in use in the fork server")
        os.dup2(fd, number)
        os.close(fd)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
