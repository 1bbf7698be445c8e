"""Starts workers by forking a process that has imported TensorFlow and Keras already.

These imports take a fresh interpreter 3 to 6 s of a processor; a fork takes some milliseconds. A
fork server (`fork_server_main`) only imports, forks and waits: it never trains, so a worker that it
forks has nothing of the workers before it. It serves one owner, the process for which it was
started and with which it ends, and starts only processes for which it imported what a fresh
interpreter would import: the same Python, folder, variables and versions of packages. For others
there is another server.

Requester and server speak over a Unix socket, one connection a worker:

1. The requester sends the file descriptors of a memory file with the request, of the pipe for
   output and of what the worker inherits; the server forks and answers with the worker's id.
2. The requester asks for the exit code; the server reaps the worker and answers with it.

A connection that ends sooner ends the worker: its requester is gone.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO

from keras_strom.job import environment
from keras_strom.job.process_status import start_of
from keras_strom.runner.started_process import (
    NewProcess,
    StartedProcess,
    fresh_interpreter,
    memory_file,
)

#: Where no worker has run for so long, a server ends.
IDLE_SECONDS = 600.0
#: A server's first import takes long on a machine that is busy or has a slow disk.
ANSWER_SECONDS = 120.0

_INTEGER = struct.Struct("<q")
_PEER = struct.Struct("3i")  # ucred: process, user, group
# What is looked at to tell whether a server has imported what a fresh interpreter would.
_PACKAGES = ("keras_strom", "tensorflow", "keras", "numpy")
# Read when a device is first used, long after the imports.
_READ_LATE = frozenset({"CUDA_VISIBLE_DEVICES", "TF_FORCE_GPU_ALLOW_GROWTH"})

# Servers that this process has started, which nobody waits for.
_started: list[subprocess.Popen[bytes]] = []

_logger = logging.getLogger(__name__)


class ForkServers:
    """Finds the fork server that fits a process, or starts one; a `StartProcess`.

    Args:
        owner: the id of the process with which the servers end. All that have the same owner share
            its servers, whichever process they are in.
    """

    def __init__(self, owner: int) -> None:
        self._owner = owner

    def prepare(self, variables: Mapping[str, str]) -> None:
        """Lets a server import what processes with these variables need; returns at once."""
        with contextlib.suppress(OSError):
            self._connect(variables).close()

    def __call__(self, new: NewProcess) -> StartedProcess:
        """Forks a process; starts a fresh interpreter instead where that cannot be.

        It is a child of the server, and ends with it and with the calling process.

        Raises:
            OSError: neither can be.
        """
        try:
            connection = self._connect(new.variables)
            try:
                return _Forked(connection, new)
            except BaseException:
                connection.close()
                raise
        except OSError as error:
            _logger.info("no fork server, so a fresh interpreter starts: %s", error)
            return fresh_interpreter(new)

    def _connect(self, variables: Mapping[str, str]) -> socket.socket:
        variables = environment.without_place(variables)
        address = self._address(variables)
        for _ in range(2):  # The second time if a server has ended between the two attempts.
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            connection.settimeout(ANSWER_SECONDS)
            try:
                connection.connect(address)
                check_peer(connection)
                return connection
            except ConnectionRefusedError:
                connection.close()
                self._start(address, variables)
            except BaseException:
                connection.close()
                raise
        raise ConnectionRefusedError("a fork server has ended as soon as it was started")

    def _start(self, address: bytes, variables: Mapping[str, str]) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            try:
                listener.bind(address)
            except OSError:
                return  # Somebody else was faster: theirs listens, or is about to.
            listener.listen()  # Who connects from now on waits until it has imported.
            main = "keras_strom.runner.fork_server_main"
            numbers = [listener.fileno(), self._owner]
            server = subprocess.Popen(
                [sys.executable, "-m", main, *map(str, numbers), str(IDLE_SECONDS)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=variables,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )
            _started.append(server)

    def _address(self, variables: Mapping[str, str]) -> bytes:
        """In the abstract namespace, so that nothing is left behind; same for all who may share."""
        read_early = sorted(item for item in variables.items() if item[0] not in _READ_LATE)
        owner = [self._owner, start_of(self._owner), os.getuid()]
        what = [owner, sys.executable, os.getcwd(), read_early, _packages()]
        digest = hashlib.sha256(json.dumps(what).encode("utf-8", "surrogateescape")).hexdigest()
        return b"\0fork-server-of-keras-strom-" + digest[:32].encode()


class _Forked:
    """A process that a server has forked; see `StartedProcess`."""

    def __init__(self, connection: socket.socket, new: NewProcess) -> None:
        self._connection = connection
        reading, writing = os.pipe()
        try:
            request = {
                "arguments": new.arguments,
                "variables": dict(new.variables),
                "fds": new.fds,
            }
            content = json.dumps(request).encode("utf-8", "surrogateescape")
            with open(memory_file("keras-strom-request", content), "rb") as file:
                socket.send_fds(connection, [b"fork"], [file.fileno(), writing, *new.fds])
            self.pid = _receive_integer(connection)
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self._output = open(reading, "rb", buffering=0)  # noqa: SIM115, closed by its reader

    @property
    def output(self) -> BinaryIO:
        return self._output

    def reap(self) -> int:
        with self._connection as connection:
            connection.settimeout(None)
            try:
                connection.send(b"reap")
                return _receive_integer(connection)
            except OSError:
                return -signal.SIGKILL  # The server is gone, and took the process with it.


def check_peer(connection: socket.socket) -> None:
    """Refuses to speak with another user: names of Unix sockets belong to nobody.

    Raises:
        PermissionError: who is at the other end is not this process's user.
    """
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    _, user, _ = _PEER.unpack(raw)
    if user != os.getuid():
        raise PermissionError(f"the fork server's socket belongs to user {user}")


def send_integer(connection: socket.socket, number: int) -> None:
    """What `_receive_integer` reads."""
    connection.send(_INTEGER.pack(number))


def _receive_integer(connection: socket.socket) -> int:
    answer = connection.recv(_INTEGER.size)
    if len(answer) != _INTEGER.size:
        raise ConnectionResetError("the fork server has ended")
    return int(_INTEGER.unpack(answer)[0])


def _packages() -> list[Any]:
    """Where an import finds the packages, and since when they are there."""
    found: list[Any] = []
    for name in _PACKAGES:
        origin = getattr(importlib.util.find_spec(name), "origin", None)
        with contextlib.suppress(OSError):
            found.append(os.stat(origin or "").st_mtime_ns)
        found.append(origin)
    return found
