"""The driver's end of a job: gives out ranks, shows output, and learns of the first failure.

Every task registers over a `Channel`. Once all have, they get their ranks (workers of one host
next to each other) and start; from then on the controller hears their output and how they end.
A second copy of a task (speculation) is kept waiting until the job is over: were it to return,
Spark would end the first one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import socket
import threading
import time
from typing import Any

from keras_strom import errors
from keras_strom.console import Console
from keras_strom.credentials import Credentials
from keras_strom.network import HostPort
from keras_strom.output import exception_line
from keras_strom.process import GRACE_SECONDS

from .channel import HEARTBEAT_SECONDS, Channel
from .result import Event

_logger = logging.getLogger(__name__)


@dataclasses.dataclass
class _Member:
    """A task that has registered."""

    channel: Channel
    partition: int
    host: str
    rank: int = -1
    ended: bool = False


@dataclasses.dataclass(frozen=True)
class _Failure:
    error: errors.WorkerFailed
    is_consequence: bool


class Controller:
    """Serves the tasks of one job until `close`.

    Args:
        workers: how many tasks there will be.
        credentials: the job's; a task without them is not heard.
        bind: (host, port) of the TCP listener; port 0 = any.
        console: shows the workers' output; None = nobody does.

    Raises:
        AddressError: the port is in use, or the host no address of this machine.
    """

    def __init__(
        self, workers: int, credentials: Credentials, bind: HostPort, console: Console | None
    ) -> None:
        self._workers = workers
        self._credentials = credentials
        self._console = console
        self._begin = time.monotonic()
        self._changed = threading.Condition()  # Guards everything below.
        self._members: dict[int, _Member] = {}
        self._waiting: list[Channel] = []
        self._pending = 0  # Connections that have not proved anything yet.
        self._failures: list[_Failure] = []
        self._stop_reason: str | None = None
        self._job_ended = False
        self.events: list[Event] = []
        self._listener = _listen(bind)
        self.port: int = self._listener.getsockname()[1]
        for name, body in (("accept", self._accept), ("heartbeat", self._beat)):
            threading.Thread(target=body, name=f"keras-strom-{name}", daemon=True).start()

    def wait_for_start(self, timeout: float) -> None:
        """Waits until all tasks have registered and got their ranks.

        Raises:
            JoinTimeout: some have not; the message says how many.
            WorkerFailed: one has failed already.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._started or self._is_over, timeout)
            if self._failures or self._started or self._job_ended:
                return
            missing = sorted(set(range(self._workers)) - set(self._members))
            hosts = ", ".join(sorted({m.host for m in self._members.values()})) or "none"
        raise errors.JoinTimeout(
            f"{self._workers - len(missing)} of {self._workers} workers had come after {timeout:g} "
            f"s (hosts: {hosts}); missing: Spark partitions {missing}; are there free slots, and "
            f"can executors reach TCP port {self.port} of the driver?"
        )

    def wait_for_end(self) -> None:
        """Waits until the job has ended well, or a worker has failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over)

    def job_ended(self) -> None:
        """Tells that Spark's job is over, one way or another."""
        with self._changed:
            self._job_ended = True
            self._changed.notify_all()

    def first_failure(self) -> errors.WorkerFailed | None:
        """The failure that led to the others, or None.

        A worker that fails tells the others before it has ended, and one of them may report first:
        then the cause is waited for, for a few seconds.
        """

        def cause() -> _Failure | None:
            return next((one for one in self._failures if not one.is_consequence), None)

        with self._changed:
            if not self._failures:
                return None
            found = self._changed.wait_for(cause, GRACE_SECONDS)
            return (found or self._failures[0]).error

    def stop(self, reason: str) -> None:
        """Tells every task to end its worker, those that have yet to register too."""
        with self._changed:
            if self._stop_reason is not None:
                return
            self._stop_reason = reason
            self._record("stopped", -1, reason)
            channels = [*self._waiting, *(m.channel for m in self._members.values())]
        for channel in channels:
            _try_to_send(channel, {"type": "stop", "reason": reason})

    def close(self) -> None:
        """Ends all connections."""
        self.stop("the job has ended")
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # Wakes the accepting thread.
        self._listener.close()
        with self._changed:
            channels = [*self._waiting, *(m.channel for m in self._members.values())]
        for channel in channels:
            channel.close()

    @property
    def _started(self) -> bool:
        return len(self._members) == self._workers

    @property
    def _is_over(self) -> bool:
        return bool(self._failures) or self._job_ended

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # Closed.
            with self._changed:
                # Who holds no secret cannot take more of the driver than this many threads.
                if self._pending > self._workers + 64:
                    connection.close()
                    continue
                self._pending += 1
            threading.Thread(
                target=self._serve, args=(connection,), name="keras-strom-task", daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        """Hears one connection to its end."""
        member = None
        try:
            try:
                channel = Channel(connection, self._credentials, driver=True)
                hello = channel.receive()
            finally:
                with self._changed:
                    self._pending -= 1
            member = self._register(channel, hello)
            while True:
                message = channel.receive()
                if member is not None:
                    self._handle(member, message)
        except (ConnectionError, errors.StromError) as error:
            if member is None:
                _logger.debug("a control connection ended: %s", error)
            else:
                self._lose(member, str(error))
        finally:
            connection.close()

    def _register(self, channel: Channel, hello: dict[str, Any]) -> _Member | None:
        """Takes a task in; None for one that only waits for the end."""
        with self._changed:
            if self._stop_reason is not None:
                _try_to_send(channel, {"type": "stop", "reason": self._stop_reason})
                return None
            partition, host = int(hello["partition"]), str(hello["host"])
            if partition in self._members or not 0 <= partition < self._workers:
                self._waiting.append(channel)
                return None
            member = self._members[partition] = _Member(channel, partition, host)
            self._record("registered", -1, f"partition {partition} on {host}")
            if self._started:
                self._start_all()
            return member

    def _start_all(self) -> None:
        first: dict[str, int] = {}  # Hosts in the order of their first partition.
        for partition in sorted(self._members):
            first.setdefault(self._members[partition].host, partition)
        members = sorted(self._members.values(), key=lambda m: (first[m.host], m.partition))
        for rank, member in enumerate(members):
            member.rank = rank
        for member in members:
            neighbours = [other.rank for other in members if other.host == member.host]
            place = {
                "rank": member.rank,
                "local_rank": neighbours.index(member.rank),
                "local_size": len(neighbours),
            }
            _try_to_send(member.channel, {"type": "start", **place})
            self._record("started", member.rank, f"on {member.host}")
        self._changed.notify_all()

    def _handle(self, member: _Member, message: dict[str, Any]) -> None:
        kind = message.get("type")
        if kind == "log" and self._console is not None:
            for line in message["lines"]:
                self._console.line(member.rank, str(line))
        elif kind == "progress" and self._console is not None:
            self._console.progress(member.rank, str(message["text"]))
        elif kind == "ended":
            with self._changed:
                member.ended = True
                self._record("ended", member.rank, f"on {member.host}")
        elif kind == "failed":
            tail = tuple(str(line) for line in message["log_tail"])
            self._fail(member, str(message["traceback"]), tail, bool(message["is_consequence"]))

    def _lose(self, member: _Member, reason: str) -> None:
        text = f"it is lost: {reason}; was its executor ended (out of memory, or preempted)?"
        self._fail(member, text, (), is_consequence=False)

    def _fail(
        self, member: _Member, traceback: str, log_tail: tuple[str, ...], is_consequence: bool
    ) -> None:
        with self._changed:
            if member.ended or self._stop_reason is not None:
                return
            member.ended = True
            streamed = self._console is not None
            error = errors.WorkerFailed(member.rank, member.host, traceback, log_tail, streamed)
            self._failures.append(_Failure(error, is_consequence))
            self._record("failed", member.rank, f"on {member.host}: {exception_line(traceback)}")
            self._changed.notify_all()

    def _record(self, kind: str, rank: int, text: str) -> None:
        self.events.append(Event(time.monotonic() - self._begin, kind, rank, text))
        self._changed.notify_all()

    def _beat(self) -> None:
        """Lets the tasks know that the driver lives."""
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._stop_reason is not None, HEARTBEAT_SECONDS):
                    return
                channels = [*self._waiting, *(m.channel for m in self._members.values())]
            for channel in channels:
                _try_to_send(channel, {"type": "heartbeat"})


def _try_to_send(channel: Channel, message: dict[str, Any]) -> None:
    # A connection that is gone is noticed where it is read.
    with contextlib.suppress(ConnectionError):
        channel.send(message)


def _listen(bind: HostPort) -> socket.socket:
    family = socket.AF_INET6 if ":" in bind[0] else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(bind)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise errors.AddressError(
            f"cannot listen at TCP port {bind[1]} of {bind[0]}: {error.strerror}"
        ) from error
    return listener
