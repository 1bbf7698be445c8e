"""How a worker has ended: well, by request or by a fault, and by whose."""

from __future__ import annotations

import dataclasses
import re
import signal
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from keras_strom import errors
from keras_strom.job.drain import DRAINED_EXIT_CODE, LEFT, LEFT_WITHOUT_A_STEP, TOO_LATE
from keras_strom.runner.output import OutputRecord
from keras_strom.tracebacks import exception_line

#: A rank that leaves so often in a row, with no step of its `fit` before, does not get on.
MOST_IDLE_DRAINS = 3
TOO_MANY_DRAINS = (
    f"it was asked to leave {MOST_IDLE_DRAINS} times in a row, and made no step of its fit before"
)

#: What follows "worker 1" where a worker that was asked to leave had to be killed.
LATE_DRAIN = "was asked to leave and has not in time: it was killed, what it had not sent is lost"

# What TensorFlow says where it waits for a GPU that fails: it ends its process then (LOG(FATAL)).
_GPU_FAILED = re.compile(r"(?:Unexpected Event status|[CG]PU->[CG]PU Memcpy failed).{0,200}")
_UNREADABLE_SCRIPT = re.compile(r"\b(?:Syntax|Indentation|Tab)Error: ")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a worker ended.

    Attributes:
        exit_code: 0, a positive code, or -N for signal N.
        result: the pickled result of a `Function` that returned.
        traceback: what went wrong; empty when nothing did.
        log_tail: the last lines of output.
        terminated: whether it was told to end by `WorkerProcess.terminate`.
        raised: whether the traceback is of an exception that a `Function` raised.
        left: the worker's own answer to a drain (`keras_strom.job.drain`); "" = it has given none.
    """

    exit_code: int
    result: bytes | None
    traceback: str
    log_tail: tuple[str, ...]
    terminated: bool = False
    raised: bool = False
    left: str = ""

    @property
    def failed(self) -> bool:
        """Whether the worker ended by its own fault, rather than well or by request."""
        return bool(self.traceback) and not self.terminated and not self.gives_way

    @property
    def drained(self) -> bool:
        """Whether it has handed over what it had learnt, and left: another goes on there."""
        says_so = self.left in (LEFT.decode(), LEFT_WITHOUT_A_STEP.decode())
        return says_so and self.exit_code in _ENDS_OF_A_DRAIN and not self.terminated

    @property
    def too_late(self) -> bool:
        """Whether it was asked to leave, and killed since it had not when its time was over."""
        killed = self.exit_code == -signal.SIGKILL
        return killed and self.left == TOO_LATE.decode() and not self.terminated

    @property
    def gives_way(self) -> bool:
        """Whether it has left because it was asked to, in time or not, which is no failure."""
        return self.drained or self.too_late

    @property
    def stepped(self) -> bool:
        """Whether one that has drained had made a step of its `fit`."""
        return self.left == LEFT.decode()

    @property
    def is_consequence(self) -> bool:
        """Whether it failed only because the job had ended elsewhere."""
        return self._error in _CONSEQUENCES

    @property
    def may_be_started_again(self) -> bool:
        """Whether the process, not the user's function, is at fault: a new one may do better.

        A worker that the others took for dead (it was stopped, or its network cut) ends itself. So
        does one whose GPU has failed. A script that Python cannot read stays so, as does a model
        that cannot be shared.
        """
        if not self.failed or self._stays_so:
            return False
        return not self.raised or self.is_consequence or self._error in _DEVICE_LOST

    @property
    def lost_state(self) -> bool:
        """Whether nobody is left with what workers need to go on, so that all must begin again."""
        return self._error in _STATE_LOST

    @property
    def _stays_so(self) -> bool:
        unreadable = _UNREADABLE_SCRIPT.search(exception_line(self.traceback))
        return unreadable is not None or self._error in _UNSUPPORTED

    @property
    def _error(self) -> str:
        """The class of the error that it ended with."""
        return exception_line(self.traceback).partition(":")[0]

    @property
    def cause(self) -> str:
        """How it failed in a few words that follow "worker 1": "was killed by SIGKILL"."""
        if self.exit_code < 0:
            why = _gpus_last_words(self.log_tail) if self.exit_code == -signal.SIGABRT else ""
            return f"was killed by {signal_name(-self.exit_code)}" + why
        if "\n" in self.traceback:
            return f"failed: {exception_line(self.traceback)}"
        return self.traceback.removeprefix("it ")


# What is killed while it unwinds has handed over all the same.
_ENDS_OF_A_DRAIN = (DRAINED_EXIT_CODE, -signal.SIGKILL)


def _in_tracebacks(*kinds: type[Exception]) -> frozenset[str]:
    return frozenset(f"{kind.__module__}.{kind.__name__}" for kind in kinds)


_DEVICE_LOST = _in_tracebacks(errors.DeviceLost)
_UNSUPPORTED = _in_tracebacks(errors.UnsupportedModel, errors.UnsupportedOptimizer)
_STATE_LOST = _in_tracebacks(errors.StateLost)
_CONSEQUENCES = _STATE_LOST | _in_tracebacks(
    errors.MasterLost, errors.ConnectionClosed, errors.FitFailed
)


class Failure(Protocol):
    """How a worker has failed."""

    @property
    def is_consequence(self) -> bool:
        """Whether only because the job had ended elsewhere."""


AnyFailure = TypeVar("AnyFailure", bound=Failure)


def first_cause(failures: Iterable[AnyFailure]) -> AnyFailure | None:
    """The first failure that led to others; None = so far all are consequences.

    A worker that fails tells the others before it has ended, and one of them may be gone sooner.
    So whoever looks for the cause waits for more, for GRACE_SECONDS at most.
    """
    return next((one for one in failures if not one.is_consequence), None)


def last_words(exit_code: int, record: OutputRecord) -> str:
    """The traceback that a process has ended with; "" = none, or one that it has outlived.

    A process that a signal ends has mostly outlived what it has printed: an exception that it has
    caught and logged. Who kills it asks for no exception; else the last lines may tell of one, as
    where threads that are left abort a process whose program has failed.
    """
    traceback = record.traceback
    has_ended_with = exit_code > 0 or (
        exit_code != -signal.SIGKILL and traceback.rpartition("\n")[2] in record.tail
    )
    return traceback if has_ended_with else ""


def described_exit(exit_code: int, tail: Sequence[str]) -> str:
    """How a process has ended that has left no traceback, in words.

    Args:
        exit_code: not 0; -N for signal N.
        tail: its last lines of output.
    """
    if exit_code > 0:
        # Python shows no traceback of a script that it cannot read.
        error = tail[-1] if tail and _UNREADABLE_SCRIPT.match(tail[-1]) else ""
        return f"it ended with exit code {exit_code}" + (f": {error}" if error else "")
    name = signal_name(-exit_code)
    hint = "; was it out of memory?" if -exit_code == signal.SIGKILL else ""
    if -exit_code == signal.SIGABRT:
        hint = _gpus_last_words(tail)
    return f"it was ended by {name}{hint}"


def _gpus_last_words(tail: Sequence[str]) -> str:
    """What follows "SIGABRT" where TensorFlow has ended its process for a GPU."""
    found = next(filter(None, map(_GPU_FAILED.search, reversed(tail))), None)
    return "" if found is None else f", for its GPU has failed ({found[0]})"


def signal_name(number: int) -> str:
    """Such as "SIGKILL"."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
