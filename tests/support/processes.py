"""Processes that are not children of the test's own."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path

DEADLINE = 60.0


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def wait_until_gone(pid: int) -> None:
    # A process that is not a child can only be watched through a descriptor of it.
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([fd], [], [], DEADLINE)[0], f"process {pid} is left over"
    finally:
        os.close(fd)


def wait_for(condition: Callable[[], object], deadline: float = DEADLINE) -> None:
    """Asks again and again until it is so."""
    end, tick = time.monotonic() + deadline, threading.Event()
    while not condition():
        assert time.monotonic() < end, "it does not come about"
        tick.wait(0.02)
