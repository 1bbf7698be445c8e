"""That a worker is to leave before its work is done, and how its process hears of that.

A machine is about to be taken away, and says so: by SIGTERM to the worker, by its runner, or by the
program itself (`drain`). The worker then has `KERAS_STROM_DRAIN_SECONDS` to hand over what it has
learnt and to leave (`keras_strom.recovery.leaving`); what is not over by then is killed.

A runner speaks to its worker through a pipe, which the worker inherits: one byte has it drain,
another ends it, which SIGTERM alone could not tell apart. A program with a handler of SIGTERM of
its own is ended by that one alone.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from types import FrameType

from keras_strom import errors
from keras_strom.job.environment import ClusterEnvironment

_logger = logging.getLogger("keras_strom")

#: The exit code of a worker that has handed over all and left: no failure.
DRAINED_EXIT_CODE = 88

#: What a runner writes into its worker's pipe.
DRAIN, END = b"d", b"e"


class DrainRequest:
    """Whether a process is asked to leave, by whom, and until when it has time."""

    def __init__(self) -> None:
        self._why = ""
        self._asked_at = 0.0
        self._listens = False
        self._handler: object = signal.SIG_DFL  # Ours, once it is there.

    @property
    def why(self) -> str:
        """Who has asked, in words; "" = nobody."""
        return self._why

    @property
    def waited(self) -> float:
        """Seconds since somebody has asked."""
        return time.monotonic() - self._asked_at

    def ask(self, why: str, seconds: float) -> None:
        """From now on the process has so many seconds to leave; asked again it has no more."""
        if self._why:
            return
        self._asked_at = time.monotonic()
        self._why = why
        grace = threading.Timer(seconds, _kill, (seconds,))
        grace.daemon = True
        grace.start()

    def listen(self, here: ClusterEnvironment) -> None:
        """Hears SIGTERM, unless the program has a handler of its own, and the runner; once.

        Args:
            here: the worker's place in its job.
        """
        if self._listens or here.size == 1:
            return
        self._listens = True
        if here.runner_fd is not None:
            reader = threading.Thread(
                target=self._hear,
                args=(here.runner_fd, here.drain_seconds),
                name="keras-strom-runner",
                daemon=True,
            )
            reader.start()
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:

            def drain_on_signal(number: int, _: FrameType | None) -> None:
                self.ask(signal.Signals(number).name, here.drain_seconds)

            self._handler = drain_on_signal
            signal.signal(signal.SIGTERM, drain_on_signal)

    def _hear(self, fd: int, seconds: float) -> None:
        while word := os.read(fd, 1):
            if word != END:
                self.ask("the runner", seconds)
            elif signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, self._handler):
                os._exit(128 + signal.SIGTERM)  # As SIGTERM alone would have it.
            # Otherwise the program's own handler hears the SIGTERM that follows.


def _kill(seconds: float) -> None:
    _logger.error("this worker has not left within %g s of being asked to: it is killed", seconds)
    os.kill(os.getpid(), signal.SIGKILL)


#: That of this process.
request = DrainRequest()


def drain() -> None:
    """Has this worker leave at its next batch: it hands over what it has learnt and not sent.

    For a program that learns by itself that its machine is about to be taken away, in a callback or
    a thread of its own. It returns at once. `fit` hands over before the next batch begins, and ends
    the process with exit code 88; another worker goes on at its place, where the runner finds one
    room. What has not left after `--drain-seconds` is killed.

    Raises:
        InvalidOption: one worker alone has nobody to hand over to.

    Example:
        >>> import keras_strom
        >>> keras_strom.drain()
        Traceback (most recent call last):
        keras_strom.errors.InvalidOption: one worker alone cannot drain: nobody would take over
    """
    here = ClusterEnvironment.from_environ()
    if here.size == 1:
        raise errors.InvalidOption("one worker alone cannot drain: nobody would take over")
    request.ask("the program", here.drain_seconds)
