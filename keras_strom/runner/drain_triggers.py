"""How a launcher hears that its machine is about to be taken away: by a signal, or by a file."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from keras_strom import errors
from keras_strom.checks import check_seconds

_POLL_SECONDS = 0.2
# What these do is said already, or nobody can say.
_TAKEN = ("SIGKILL", "SIGSTOP", "SIGINT", "SIGTERM", "SIGCHLD")


def check_triggers(seconds: float, name: str | None, path: str | None) -> None:
    """Refuses what could never be noticed.

    Args:
        seconds: that a worker has to leave.
        name: of a signal, as in SIGUSR1.
        path: of a file.

    Raises:
        InvalidOption: in words.
    """
    check_seconds("drain_seconds", seconds)
    if name is not None:
        if name not in signal.Signals.__members__:
            raise errors.InvalidOption(f"drain_signal={name!r} is no signal; SIGUSR1 is one")
        if name in _TAKEN:
            raise errors.InvalidOption(
                f"drain_signal={name!r}: {name} to the launcher means something else; SIGUSR1 and "
                "SIGUSR2 are free"
            )
    if path is not None and not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise errors.InvalidOption(f"drain_file={path!r}: there is no such folder")
    if path is not None and os.path.exists(path):
        raise errors.InvalidOption(
            f"drain_file={path!r} is there already, from an earlier run; remove it"
        )


@contextlib.contextmanager
def drain_triggers(
    name: str | None, path: str | None, drain: Callable[[str], None]
) -> Iterator[None]:
    """Calls `drain` with the reason when the signal or the file comes; in the main thread.

    Args:
        name: of the signal; None = none.
        path: of the file; None = none.
        drain: is called in a signal's handler or another thread, once each.
    """
    with contextlib.ExitStack() as stack:
        if name is not None:

            def heard(number: int, _: FrameType | None) -> None:
                drain(signal.Signals(number).name)

            stack.callback(
                signal.signal, signal.Signals[name], signal.getsignal(signal.Signals[name])
            )
            signal.signal(signal.Signals[name], heard)
        if path is not None:
            over = threading.Event()

            def look(path: str = path) -> None:
                while not over.wait(_POLL_SECONDS):
                    if os.path.exists(path):
                        return drain(f"{path} is there")

            watcher = threading.Thread(target=look, name="keras-strom-drain", daemon=True)
            watcher.start()
            stack.callback(watcher.join)
            stack.callback(over.set)
        yield
