"""What Linux can do and not every Python has a name for: files in memory, watching a process.

A Python that is made to run on any Linux, as conda's and uv's are, was built against an older C
library than the one that it finds, and leaves out what that one lacked. So the C library that is
here is asked wherever Python cannot be.
"""

from __future__ import annotations

import ctypes
import fcntl
import os

# Of <linux/memfd.h>, <linux/fcntl.h> and <asm-generic/unistd.h>; the same on every processor.
_MFD_CLOEXEC, _MFD_ALLOW_SEALING = 1, 2
_F_ADD_SEALS = 1033
_ALL_SEALS = 0x1 | 0x2 | 0x4 | 0x8  # Against more seals, shrinking, growing and writing.
_PIDFD_OPEN = 434


def create_memory_file(name: str, *, can_be_sealed: bool = False) -> int:
    """A descriptor of a new, empty file in memory, which a child process does not inherit.

    Args:
        name: for people who look at /proc; several may have the same.
        can_be_sealed: whether `seal` may come.

    Raises:
        OSError: there is no memory, or no file descriptor left.
    """
    flags = _MFD_CLOEXEC | (_MFD_ALLOW_SEALING if can_be_sealed else 0)
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, flags)
    return _checked(_c_library().memfd_create(os.fsencode(name), flags))


def seal(fd: int) -> None:
    """From now on nobody can change a file in memory."""
    fcntl.fcntl(fd, _F_ADD_SEALS, _ALL_SEALS)


def pidfd_open(pid: int) -> int:
    """A descriptor of a process, which can be read once that has ended.

    Raises:
        ProcessLookupError: there is no such process.
        OSError: the kernel is older than Linux 5.3, or a sandbox does not know the call; or no file
            descriptor is left.
    """
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    return _checked(_c_library().syscall(_PIDFD_OPEN, pid, 0))


def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
