"""What the kernel says of a process of this machine: proc(5), /proc/pid/stat, and when it ends."""

from __future__ import annotations

import errno
import os
import threading
import time

from keras_strom.job import linux

# So often a process is looked at whose end the kernel does not tell by itself.
_LOOK_SECONDS = 0.05


def parent_of(pid: int) -> int:
    """The id of a process's parent.

    Raises:
        OSError: there is no such process.
    """
    return int(_status(pid)[1])


def start_of(pid: int) -> int:
    """When a process has started, in ticks since the boot.

    It tells processes apart that have the same id, one after the other.

    Raises:
        OSError: there is no such process.
    """
    return int(_status(pid)[19])


def process_end(pid: int) -> int:
    """A descriptor that can be read once this process has ended, reaped or not.

    The kernel gives one, or else a thread that looks at the process again and again.

    Raises:
        OSError: no file descriptor is left.
    """
    try:
        return linux.pidfd_open(pid)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM, errno.ESRCH):
            raise
    reading, writing = os.pipe()
    try:
        start = start_of(pid)
    except OSError:  # It has ended, and somebody has reaped it.
        os.close(writing)
        return reading
    threading.Thread(
        target=_tell_end, args=(pid, start, writing), name="keras-strom-end", daemon=True
    ).start()
    return reading


def _tell_end(pid: int, start: int, writing: int) -> None:
    while _runs(pid, start):
        time.sleep(_LOOK_SECONDS)
    # A forked child may have this end of the pipe too, so that to close it here would not do.
    try:
        os.write(writing, b".")
    except OSError:
        pass  # Nobody waits any more.
    finally:
        os.close(writing)


def _runs(pid: int, start: int) -> bool:
    """Whether the process with this id that has started then has not ended."""
    try:
        status = _status(pid)
    except OSError:
        return False
    return status[0] not in (b"Z", b"X") and int(status[19]) == start


def _status(pid: int) -> list[bytes]:
    """From its state on: what stands before are its id and its name, which may hold anything."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()
