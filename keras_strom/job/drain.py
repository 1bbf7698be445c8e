"""That a worker is to leave before its work is done, and how its process hears of that.

A machine is about to be taken away, and says so: by SIGTERM to the worker, by its runner, or by the
program itself (`drain`). The worker then has `KERAS_STROM_DRAIN_SECONDS` to hand over what it has
learnt and to leave (`keras_strom.recovery.leaving`); what is not over by then is killed.

A runner speaks to its worker through a pair of sockets, of which the worker inherits one: one byte
has it drain, another ends it, which SIGTERM alone could not tell apart. The worker answers with one
byte when it has left, or has not left in time; no exit code of a script's own is taken for that. A
program with a handler of SIGTERM of its own is ended by that one alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

from keras_strom import errors
from keras_strom.job.environment import ClusterEnvironment

_logger = logging.getLogger("keras_strom")

#: The exit code of a worker that has handed over all and left: no failure.
DRAINED_EXIT_CODE = 88

# So long, at least, a program may still write files or end threads of its own.
_UNWIND_SECONDS = 5.0

#: What a runner says to its worker.
DRAIN, END = b"d", b"e"

#: What a worker answers: it has left after steps of its `fit`, or without one; or it is too late,
#: and is killed.
LEFT, LEFT_WITHOUT_A_STEP, TOO_LATE = b"l", b"n", b"t"


class DrainRequest:
    """Whether a process is asked to leave, by whom, until when it has time, and how that ends."""

    def __init__(self) -> None:
        self._why = ""
        self._asked_at = self._until = 0.0
        self._looked_at = self._between_looks = 0.0
        self._listens = False
        self._handler: object = signal.SIG_DFL  # Ours, once it is there.
        self._runner_fd: int | None = None
        self._lock = threading.Lock()  # Guards what follows.
        self._has_left = False

    @property
    def why(self) -> str:
        """Who has asked, in words; "" = nobody."""
        return self._why

    @property
    def waited(self) -> float:
        """Seconds since somebody has asked."""
        return time.monotonic() - self._asked_at

    @property
    def is_over(self) -> bool:
        """Whether this process has handed over all and left its job."""
        return self._has_left

    def ask(self, why: str, seconds: float) -> None:
        """From now on the process has so many seconds to leave; asked again it has no more."""
        if self._why:
            return
        self._asked_at = time.monotonic()
        self._until = self._asked_at + seconds
        self._why = why
        # At once where it cannot be in time; but not here, where a signal's handler may be.
        after(0.0 if self._between_looks > seconds else seconds / 2, self._warn, seconds)
        after(seconds, self._kill, seconds)

    def looks(self) -> None:
        """Notes that the process is where it looks whether it is asked: before a batch of `fit`."""
        now = time.monotonic()
        self._between_looks, self._looked_at = now - (self._looked_at or now), now

    def has_left(self, *, stepped: bool) -> None:
        """All is handed over: from now on the process has seconds to unwind, and is not killed.

        Args:
            stepped: whether it has made a step of its `fit`.
        """
        with self._lock:
            self._has_left = True
            self._answer(LEFT if stepped else LEFT_WITHOUT_A_STEP)
        after(max(self._until - time.monotonic(), _UNWIND_SECONDS), os._exit, DRAINED_EXIT_CODE)

    def listen(self, here: ClusterEnvironment) -> None:
        """Hears SIGTERM, unless the program has a handler of its own, and the runner; once.

        Args:
            here: the worker's place in its job.
        """
        if self._listens or here.size == 1:
            return
        self._listens = True
        self._runner_fd = here.runner_fd
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
            _end_forked_children_by_sigterm(drain_on_signal)

    def _hear(self, fd: int, seconds: float) -> None:
        while word := os.read(fd, 1):
            if word != END:
                self.ask("the runner", seconds)
            elif signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, self._handler):
                os._exit(128 + signal.SIGTERM)  # As SIGTERM alone would have it.
            # Otherwise the program's own handler hears the SIGTERM that follows.

    def _warn(self, seconds: float) -> None:
        with self._lock:
            if self._has_left:
                return
        now = time.monotonic()
        looked = "this one has begun none"
        if self._looked_at:
            looked = f"this one did {now - self._looked_at:.1f} s ago, and "
            looked += f"{self._between_looks:.1f} s passed between its last two batches"
        _logger.warning(
            "this worker was asked to leave by %s %.1f s ago, and in %.1f s it is killed and what "
            "it has not sent is lost: a worker leaves before a batch of fit (of "
            "steps_per_execution steps), and %s; it leaves in time with a larger --drain-seconds, "
            "drain_seconds= of `run` (now %g), or a smaller steps_per_execution or batch",
            *(self._why, self.waited, max(0.0, self._until - now), looked, seconds),
        )

    def _kill(self, seconds: float) -> None:
        with self._lock:
            if self._has_left:
                return
            try:
                self._answer(TOO_LATE)
                _logger.error(
                    "this worker has not left within %g s of being asked to: it is killed", seconds
                )
            finally:
                os.kill(os.getpid(), signal.SIGKILL)

    def _answer(self, word: bytes) -> None:
        if self._runner_fd is not None:
            with contextlib.suppress(OSError):  # The runner is gone.
                os.write(self._runner_fd, word)


def _end_forked_children_by_sigterm(handler: object) -> None:
    """A forked child does not inherit this handler of SIGTERM: it ends by it, as it did before.

    Python forgets signals that come while it forks; here they wait until the child is there.
    """
    before = threading.local()

    def block() -> None:
        before.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before.blocked)

    def reset() -> None:
        if signal.getsignal(signal.SIGTERM) is handler:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=reset)


def after(seconds: float, act: Callable[..., object], *arguments: object) -> threading.Timer:
    """Calls it then, in a thread that keeps no process alive; the timer can be cancelled."""
    timer = threading.Timer(seconds, act, arguments)
    timer.daemon = True
    timer.start()
    return timer


#: That of this process.
request = DrainRequest()


def drain() -> None:
    """Has this worker leave at its next batch: it hands over what it has learnt and not sent.

    For a program that learns by itself that its machine is about to be taken away, in a callback or
    a thread of its own. It returns at once. `fit` hands over before the next batch begins, and ends
    the process with exit code 88; another worker goes on at its place, where the runner finds one
    room. What has not left after `--drain-seconds`, or `drain_seconds=` of `run`, is killed.

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
