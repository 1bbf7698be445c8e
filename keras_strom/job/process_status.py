"""What the kernel says of a process of this machine: proc(5), /proc/pid/stat."""

from __future__ import annotations


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


def _status(pid: int) -> list[bytes]:
    """From its state on: what stands before are its id and its name, which may hold anything."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()
