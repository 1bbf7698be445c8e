"""What this process may take of its machine: of the system, and of a container's share of it."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")  # A container's own is there.
_MEMORY = Path("/proc/meminfo")


def usable_cores() -> float:
    """As many as this process may use: of its affinity mask and its control group's quota."""
    allowed = float(len(os.sched_getaffinity(0)))
    limits = _read("cpu.max").split() or [
        _read("cpu/cpu.cfs_quota_us"),
        _read("cpu/cpu.cfs_period_us"),
    ]
    try:
        quota, period = map(int, limits)
    except ValueError:  # "max", or no control group.
        return allowed
    return allowed if quota <= 0 else min(allowed, quota / period)


def available_memory() -> int | None:
    """Bytes that this process and its children may take: of the system and its control group.

    What either keeps of files counts as free where it can be dropped. None = the system does not
    say.
    """
    try:
        found = re.search(r"^MemAvailable: +(\d+) kB", _MEMORY.read_text(), re.MULTILINE)
    except OSError:
        return None
    if found is None:
        return None
    available = int(found[1]) << 10
    most = _read("memory.max") or _read("memory/memory.limit_in_bytes")
    used = _read("memory.current") or _read("memory/memory.usage_in_bytes")
    with contextlib.suppress(ValueError):  # "max", or no control group.
        available = min(available, int(most) - int(used) + _droppable())
    return max(0, available)


def _droppable() -> int:
    """Bytes of the control group's use that hold files which nobody has touched for a while."""
    lines = (_read("memory.stat") or _read("memory/memory.stat")).splitlines()
    found = dict(line.split() for line in lines)
    # Version 1 has the sum with the groups below under a name of its own; its use is that sum too.
    return int(found.get("total_inactive_file") or found.get("inactive_file") or 0)


def _read(limit: str) -> str:
    """A file of this process's control group, of version 2 or 1; "" = there is none."""
    try:
        return (_CGROUP / limit).read_text().strip()
    except OSError:
        return ""
