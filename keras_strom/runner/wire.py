"""What a launcher and the agent on another machine say to each other, and through which wire.

A `Wire` carries JSON objects both ways. There are two: `PipeWire`, through the pipes of an `ssh`
process, and `Channel`, encrypted over TCP (`keras_strom.runner.channel`). Each side speaks at least
every few seconds, so that silence means that the other, or the way to it, is gone.

==========  =======================================================================================
launcher    says
==========  =======================================================================================
prepare     what the job needs there, before anything starts: `Preparation`'s fields
part        of the pickled call that `prepare` has announced
start       a worker: its number, its place (the KERAS_STROM_* variables), the job's credentials and
            the launcher's clock
signal      to a worker: its number, and the signal's
drain       to a worker: its number; it is to hand over what it has learnt, and to leave
stop        the job is over, and why; "" = it has ended well
heartbeat   nothing
==========  =======================================================================================

==========  =======================================================================================
agent       says
==========  =======================================================================================
hello       its version of keras-strom, its host's name, and more by the kind of the wire
ready       all is there that `prepare` has named
unfit       something is not; in words
line        of a worker's output
progress    a worker's line that it keeps redrawing
status      a `WorkerRecord`, where the worker's place asks for them
part        of what a worker's function has returned; the worker's end follows
ended       a worker, and its `Outcome`
leaving     its machine is about to be taken away, and gets no more workers; those that it has leave
heartbeat   nothing
==========  =======================================================================================
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import os
import select
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from keras_strom import errors

Message = Mapping[str, Any]

#: A message is no longer than this.
MAX_MESSAGE_BYTES = 1 << 20
# Whoever waits for room in a pipe looks so often whether it is being closed.
_ROOM_SECONDS = 0.1
# Bounds of what one message holds of a worker's end.
_MAX_TRACEBACK_CHARACTERS = 50_000
_MAX_TAIL_LINE_CHARACTERS = 1_000
_PART_BYTES = 1 << 19  # As base64, two thirds of a message.


class Wire(Protocol):
    """Carries messages; any thread may send, one receives."""

    def send(self, message: Message) -> None:
        """Sends one message; blocks while the other end does not read.

        Raises:
            ConnectionError: the other end is gone.
        """

    def receive(self, timeout: float) -> dict[str, Any]:
        """The next message.

        Raises:
            ConnectionError: the other end is gone, or said nothing for `timeout` seconds.
        """

    def close(self) -> None:
        """Closes this end; a thread that waits in `send` or `receive` gets a ConnectionError."""


class PipeWire:
    """A `Wire` of two pipes, one line of JSON a message.

    What comes before the other end's first message (a greeting that a shell's start-up file prints)
    is no message and is left out.

    Args:
        reading: a file descriptor, which this object then owns.
        writing: the same.
    """

    def __init__(self, reading: int, writing: int) -> None:
        self._reading = reading
        self._writing = writing
        self._lock = threading.Lock()
        self._closing = self._closed = False
        self._left = b""
        self._heard = False

    def send(self, message: Message) -> None:
        """See `Wire`."""
        left = memoryview(json.dumps(message).encode() + b"\n")
        with self._lock:
            if self._closed:
                raise ConnectionError("the connection is closed")
            try:
                while left:
                    if self._has_room():
                        left = left[os.write(self._writing, left[: select.PIPE_BUF]) :]
            except OSError as error:
                raise ConnectionError(f"the connection is gone: {error.strerror}") from error

    def receive(self, timeout: float) -> dict[str, Any]:
        """See `Wire`."""
        deadline = time.monotonic() + timeout
        while True:
            line, end, rest = self._left.partition(b"\n")
            if end:
                self._left = rest
                if (message := self._message(line)) is not None:
                    return message
            else:
                self._read(deadline, timeout)

    def close(self) -> None:
        """Closes the writing end, by which the other end's `receive` ends; and then this one's."""
        self._closing = True  # Seen by a thread that waits for room, and has the lock.
        with self._lock:
            if not self._closed:
                self._closed = True
                with contextlib.suppress(OSError):
                    os.close(self._writing)

    def _has_room(self) -> bool:
        """Whether so much can be written at once as a pipe takes whole, after a while at most."""
        poller = select.poll()
        poller.register(self._writing, select.POLLOUT)
        has_room = bool(poller.poll(_ROOM_SECONDS * 1000))
        if self._closing:
            raise ConnectionError("the connection is closed")
        return has_room

    def _read(self, deadline: float, timeout: float) -> None:
        poller = select.poll()
        poller.register(self._reading, select.POLLIN)
        if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise ConnectionError(f"no sign of life for {timeout:g} s")
        chunk = os.read(self._reading, 65536)
        if not chunk:
            raise ConnectionError("the connection has ended")
        self._left += chunk
        if len(self._left) > MAX_MESSAGE_BYTES and b"\n" not in self._left:
            raise ConnectionError("what came is no message of keras-strom")

    def _message(self, line: bytes) -> dict[str, Any] | None:
        try:
            message = json.loads(line)
            if isinstance(message, dict) and isinstance(message.get("type"), str):
                self._heard = True
                return message
        except (ValueError, RecursionError):
            pass
        if self._heard:
            raise ConnectionError("what came is no message of keras-strom")
        return None


def standard_pipes() -> PipeWire:
    """The wire of a process that was started for one; what it prints is no message any more."""
    wire = PipeWire(os.dup(0), os.dup(1))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return wire


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preparation:
    """What a job needs on a machine before any of its workers is started.

    Attributes:
        script, arguments: what its workers run; "" = the machine's own user has said it there, or
            they call a function.
        function: bytes of the pickled call that follows in parts; 0 = they call none.
        folders: where they run it, by each of its names: the first that is there; none = where the
            agent is.
        env: the user's variables for them.
        warm_start: they are forked from a process that has imported TensorFlow once.
        network: the job's `NetworkConfig`, as JSON.
        size: the number of workers of the job, on all machines.
        slots: how many workers the machine can have.
        drain_file: a file that says, once it is there, that the machine is about to be taken away;
            "" = there is none.
        parts_folder: for parts of checkpoints, which it must reach; "" = there are none.
        silence: seconds after which the launcher, if it says nothing, is gone.
    """

    script: str = ""
    arguments: tuple[str, ...] = ()
    function: int = 0
    folders: tuple[str, ...] = ()
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    warm_start: bool = False
    network: str = "{}"
    size: int = 1
    slots: int = 1
    drain_file: str = ""
    parts_folder: str = ""
    silence: float = 60.0

    def to_message(self) -> Message:
        """The message."""
        return {"type": "prepare", **dataclasses.asdict(self)}

    @classmethod
    def parse(cls, message: Message) -> Preparation:
        """The inverse of `to_message`.

        Raises:
            CorruptMessage: the message is something else.
        """
        fields = {name: value for name, value in message.items() if name != "type"}
        try:
            several = {name: tuple(fields.get(name, ())) for name in ("arguments", "folders")}
            return cls(**{**fields, **several})
        except TypeError as error:
            raise errors.CorruptMessage(f"no preparation of a job: {error}") from None


def shortened(traceback: str, tail: tuple[str, ...]) -> Message:
    """What a message takes of a worker's end."""
    return {
        "traceback": traceback[-_MAX_TRACEBACK_CHARACTERS:],
        "log_tail": [line[:_MAX_TAIL_LINE_CHARACTERS] for line in tail],
    }


def parts_of(data: bytes) -> Iterator[Message]:
    """The messages that carry what is longer than a message may be."""
    for begin in range(0, len(data), _PART_BYTES):
        part = base64.b64encode(data[begin : begin + _PART_BYTES])
        yield {"type": "part", "data": part.decode("ascii")}


def bytes_of(part: Message) -> bytes:
    """What one of the messages of `parts_of` carries.

    Raises:
        CorruptMessage: it is none of them.
    """
    try:
        if part["type"] == "part":
            return base64.b64decode(part["data"], validate=True)
    except (KeyError, TypeError, ValueError):
        pass
    raise errors.CorruptMessage(f"no part of a function or a result: {str(part)[:100]}")
