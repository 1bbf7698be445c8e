"""Everything keras-strom raises.

Each class says what kind of thing went wrong; the message names what failed, on which worker, and
what to do next. Catch `StromError` for all of them. Mistakes of the caller are `ValueError`s too,
deadlines that passed are `TimeoutError`s and lost peers `ConnectionError`s, so code that knows
nothing of keras-strom handles them sensibly.
"""

# An error is named after what happened; every one of them is a StromError.
# ruff: noqa: N818

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from keras_strom.tracebacks import exception_line


class StromError(Exception):
    """Base of every error of keras-strom."""

    # Raised while TensorFlow traces a function it would be another class's, which nobody catches by
    # the names below.
    ag_pass_through = True


class InvalidOption(StromError, ValueError):
    """An argument, flag or variable that is not understood, out of range or without effect yet."""


class EnvironmentInvalid(InvalidOption):
    """KERAS_STROM_* or Keras's own variables do not do; the message names which."""


class AddressError(StromError):
    """No such address here, a port in use, or a network mask that picks none or several."""


class DeadlinePassed(StromError, TimeoutError):
    """Something did not happen in time; the message says what was missing."""


class JoinTimeout(DeadlinePassed):
    """The job did not start in time: the message says which workers had not come."""


class Unreachable(StromError, ConnectionError):
    """The master's address does not answer at all."""


class SecretRejected(StromError, ConnectionError):
    """The master answers, but the secret, the job id or the master's public key differ."""


class MasterLost(StromError, ConnectionError):
    """The master was there and went silent, or has ended the job."""


class StateLost(MasterLost):
    """In exact mode no worker is left that has the training's state; `keras-strom run` begins anew.

    Only the workers have it. The job goes on from its checkpoint, if it has one.
    """


class ConnectionClosed(StromError, ConnectionError):
    """This side has closed the connection already."""


class BackPressure(StromError, TimeoutError):
    """The network took no more updates for a whole deadline."""


class Refused(StromError):
    """The master refused this worker; the message is its reason."""


class CorruptMessage(StromError):
    """Bytes that are not a valid message."""


class NotFinite(StromError, ArithmeticError):
    """An update holds a NaN or an infinity; the message says of which variable, or where."""


class DeviceLost(StromError):
    """A GPU that worked has stopped working; where workers are started again, this one is."""


class FitFailed(StromError):
    """A `fit` that has failed on another worker, and so on all; the message says where and why.

    This worker is still part of the job: the next `fit` of all starts together again.
    """


class InternalError(StromError):
    """A fault of keras-strom itself; please report it with the message."""


class UnsupportedTensorFlow(StromError):
    """The native operations were built for other TensorFlows, or two are installed in one place."""


class UnsupportedSystem(StromError, ImportError):
    """This Python, machine or C library cannot run what is installed; the message says why."""


class UnsupportedOptimizer(StromError, ValueError):
    """An optimizer (or an option of it) whose updates cannot be shared; the message says why."""


class UnsupportedModel(StromError, ValueError):
    """A model, or a way of training it, that cannot be shared; the message says why."""


class TooLittleMemory(UnsupportedModel):
    """A GPU, or the machine, has too little memory left to train this model; with the figures."""


class InvalidData(StromError, ValueError):
    """Training data that cannot be used; the message names the column or file, and the remedy."""


class StoreUnavailable(StromError, OSError):
    """A store, or a file in it, that cannot be read or written; the message says which."""


class NotEnoughSlots(StromError):
    """Spark, the hosts or this machine's memory hold fewer workers; the message says what to do."""


class ExecutorMismatch(StromError):
    """An executor lacks a package that the driver has, or has another version of it."""


class HostUnusable(StromError, ConnectionError):
    """A host that was named for workers cannot run any; the message says why, and the remedy."""


class WorkerFailed(StromError):
    """A worker ended with an error: the first one of the job, which ended all others.

    Attributes:
        rank: the worker's rank; -1 when it failed before it had one.
        host: the machine it ran on.
        traceback: its Python traceback, or what is known when there is none (a signal, an exit
            code).
        log_tail: its last lines of output, oldest first.
        streamed: whether its output has been shown already, so that the message need not repeat it.
        verdict: what the failure means, where the driver knows more than the worker; "" = nothing.
    """

    def __init__(
        self,
        rank: int,
        host: str,
        traceback: str,
        log_tail: tuple[str, ...] = (),
        streamed: bool = False,
        verdict: str = "",
    ) -> None:
        super().__init__(rank, host, traceback, log_tail, streamed, verdict)
        self.rank = rank
        self.host = host
        self.traceback = traceback
        self.log_tail = tuple(log_tail)
        self.streamed = streamed
        self.verdict = verdict

    def with_verdict(self, verdict: str) -> WorkerFailed:
        """The same failure with what it means."""
        return WorkerFailed(
            self.rank, self.host, self.traceback, self.log_tail, self.streamed, verdict
        )

    @property
    def who(self) -> str:
        """Its name in a sentence: "worker 3"."""
        return f"worker {self.rank}" if self.rank >= 0 else "a worker without a rank"

    def __str__(self) -> str:
        traceback = self.traceback.strip()
        parts = [f"{self.who} on {self.host} failed: {exception_line(traceback)}"]
        if self.verdict:
            parts.append(f"What the master has seen: {self.verdict}")
        # A script prints its own traceback; a function's is in nobody's output.
        before, printed, _ = "\n".join(self.log_tail).partition(traceback)
        if self.streamed and printed:
            parts.append("Its output above has the traceback.")
        elif "\n" in traceback:
            parts.append(traceback)
        if not self.streamed and before.strip():
            lines = before.rstrip().split("\n")
            parts.append(f"Its last {len(lines)} lines of output before that:")
            parts += [f"  {line}" for line in lines]
        return "\n".join(parts)


# The result codes of custom_ops/capi/strom.h.
_BY_CODE: Mapping[int, type[StromError]] = MappingProxyType(
    {
        -1: InvalidOption,
        -2: DeadlinePassed,
        -3: Refused,
        -4: Unreachable,
        -5: SecretRejected,
        -6: MasterLost,
        -7: AddressError,
        -8: ConnectionClosed,
        -9: CorruptMessage,
        -10: BackPressure,
        -11: InternalError,
        -12: NotFinite,
        -13: DeviceLost,
        -14: StateLost,
    }
)


def error_of_code(code: int, message: str) -> StromError:
    """The exception for a negative result `code` of the native library, with its words."""
    return _BY_CODE.get(code, InternalError)(message)
