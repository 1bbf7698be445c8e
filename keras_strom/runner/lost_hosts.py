"""Hosts that a job has lost: each is tried again until it answers, or the job ends."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from keras_strom import errors


class LostHosts:
    """Tries hosts again, each in a thread of its own.

    Args:
        enter: has a host of this name take part in the job again, or raises HostUnusable.
        pause: seconds from one try to the next. By the first one what was running there has
            ended, if an agent ends its workers within that time.
    """

    def __init__(self, enter: Callable[[str], object], pause: float) -> None:
        self._enter = enter
        self._pause = pause
        self._over = threading.Event()

    def seek(self, host: str) -> None:
        """Tries this host from now on; from any thread."""
        if not self.is_over:
            # A daemon: the end of a job does not wait for a host that says nothing.
            threading.Thread(
                target=self._seek, args=(host,), name=f"keras-strom-seeks-{host}", daemon=True
            ).start()

    def close(self) -> None:
        """The job is over; who is being entered may still be."""
        self._over.set()

    @property
    def is_over(self) -> bool:
        """Whether it has been closed."""
        return self._over.is_set()

    def _seek(self, host: str) -> None:
        due = time.monotonic() + self._pause
        while not self._over.wait(max(0.0, due - time.monotonic())):
            due = time.monotonic() + self._pause
            # Too many open files or threads here are as little a reason to give up.
            with contextlib.suppress(errors.HostUnusable, OSError, RuntimeError):
                self._enter(host)
                return
