"""What a task and the driver say to each other over a `Channel`, as values.

A message is parsed once, by whom it reaches, into one of these or refused: whoever holds the job's
secret can send any JSON. Texts lose what no stream can write (halves of surrogate pairs).
"""

from __future__ import annotations

import dataclasses
import math
import reprlib
from typing import Any

from keras_strom import errors
from keras_strom.job.worker_record import WorkerRecord
from keras_strom.runner.channel import Message

# Ranks, partitions and attempts lie far below it.
_MOST = 1 << 31
# An application's tasks are counted in 64 bits.
_MOST_TASKS = 1 << 63
_MOST_BYTES = 1 << 63
_MOST_HOST_CHARACTERS = 255


@dataclasses.dataclass(frozen=True)
class Registration:
    """A task's first message.

    Attributes:
        partition, attempt, host: what Spark has made of the task.
        executor: the id of its executor; "" = it has none, or none is known.
        task: Spark's id of this attempt of the task.
    """

    partition: int
    attempt: int
    host: str
    executor: str
    task: int

    @classmethod
    def parse(cls, message: Message) -> Registration:
        """Raises CorruptMessage where it is none."""
        host = _text(message, "host")
        executor = _text(message, "executor")
        for name, text in (("host", host), ("executor", executor)):
            if len(text) > _MOST_HOST_CHARACTERS:
                raise _nonsense(name, text)
        return cls(
            _number(message, "partition"),
            _number(message, "attempt"),
            host,
            executor,
            _number(message, "task", below=_MOST_TASKS),
        )


@dataclasses.dataclass(frozen=True)
class Output:
    """Lines of a worker's output."""

    lines: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Progress:
    """A line that a worker keeps redrawing."""

    text: str


@dataclasses.dataclass(frozen=True)
class Said:
    """What a worker says of itself."""

    record: WorkerRecord


@dataclasses.dataclass(frozen=True)
class Ended:
    """A worker has ended well.

    Attributes:
        size: of its result, which Spark brings, in bytes.
    """

    size: int


@dataclasses.dataclass(frozen=True)
class Drained:
    """A worker has left because it was told to go; the fields are those of `Outcome`."""

    stepped: bool
    too_late: bool


@dataclasses.dataclass(frozen=True)
class Failed:
    """A worker has failed; the fields are those of `Outcome`."""

    traceback: str
    log_tail: tuple[str, ...]
    is_consequence: bool
    cause: str
    may_start_again: bool


FromTask = Output | Progress | Said | Ended | Drained | Failed


def parse_from_task(message: Message) -> FromTask | None:
    """What a task that has registered says; None = that it lives, or of a kind that is not known.

    Raises:
        CorruptMessage: a field is missing, or of another type.
    """
    kind = message.get("type")
    if kind == "log":
        return Output(_texts(message, "lines"))
    if kind == "progress":
        return Progress(_text(message, "text"))
    if kind == "status":
        return Said(WorkerRecord.parse(_text(message, "record")))
    if kind == "ended":
        return Ended(_number(message, "size", below=_MOST_BYTES))
    if kind == "drained":
        return Drained(_truth(message, "stepped"), _truth(message, "too_late"))
    if kind == "failed":
        return Failed(
            _text(message, "traceback"),
            _texts(message, "log_tail"),
            _truth(message, "is_consequence"),
            _text(message, "cause"),
            _truth(message, "may_start_again"),
        )
    return None


@dataclasses.dataclass(frozen=True)
class Start:
    """The driver has a task start its worker.

    Attributes:
        rank, local_rank, local_size, attempt: the worker's, as in `ClusterEnvironment`.
        clock: `time.monotonic()` at the driver.
    """

    rank: int
    local_rank: int
    local_size: int
    attempt: int
    clock: float

    @classmethod
    def parse(cls, message: Message, workers: int) -> Start:
        """Raises CorruptMessage where it is none for a job of so many workers."""
        found = cls(
            _number(message, "rank", below=workers),
            _number(message, "local_rank", below=workers),
            _number(message, "local_size", below=workers + 1),
            _number(message, "attempt"),
            _seconds(message, "clock"),
        )
        if found.local_rank >= found.local_size:
            raise _nonsense("local_rank", found.local_rank)
        return found


def _number(message: Message, name: str, below: int = _MOST) -> int:
    value = message.get(name)
    if type(value) is not int or not 0 <= value < below:
        raise _nonsense(name, value)
    return value


def _seconds(message: Message, name: str) -> float:
    value = message.get(name)
    if type(value) is int and abs(value) < _MOST:
        return float(value)
    if type(value) is not float or not math.isfinite(value):
        raise _nonsense(name, value)
    return value


def _truth(message: Message, name: str) -> bool:
    value = message.get(name)
    if not isinstance(value, bool):
        raise _nonsense(name, value)
    return value


def _text(message: Message, name: str) -> str:
    return _writable(name, message.get(name))


def _texts(message: Message, name: str) -> tuple[str, ...]:
    value = message.get(name)
    if not isinstance(value, list):
        raise _nonsense(name, value)
    return tuple(_writable(name, one) for one in value)


def _writable(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _nonsense(name, value)
    return value.encode("utf-8", "replace").decode()


def _nonsense(name: str, value: Any) -> errors.CorruptMessage:
    short = _writable(name, _SHORT.repr(value))
    return errors.CorruptMessage(f"a control message that makes no sense: its {name} is {short}")


_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2
