"""What this process may take of its machine: of the system, and of its control groups' share.

A control group's limits hold for all groups below it, and a process may be in one far down (a job
of Slurm, a service of systemd): the least along its path counts, of version 2 or 1.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")  # A container's own is there.
_OWN_GROUPS = Path("/proc/self/cgroup")
_MEMORY = Path("/proc/meminfo")


def usable_cores() -> float:
    """As many as this process may use: of its affinity mask and its control groups' quota."""
    usable = float(len(os.sched_getaffinity(0)))
    for group in _groups("cpu"):
        limits = _read(f"{group}cpu.max").split() or [
            _read(f"{group}cpu.cfs_quota_us"),
            _read(f"{group}cpu.cfs_period_us"),
        ]
        with contextlib.suppress(ValueError):  # "max", or no such limit.
            quota, period = map(int, limits)
            usable = min(usable, quota / period) if quota > 0 else usable
    return usable


def available_memory() -> int | None:
    """Bytes that this process and its children may take: of the system and its control groups.

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
    for group in _groups("memory"):
        most = _read(f"{group}memory.max") or _read(f"{group}memory.limit_in_bytes")
        used = _read(f"{group}memory.current") or _read(f"{group}memory.usage_in_bytes")
        with contextlib.suppress(ValueError):  # "max", or no such limit.
            available = min(available, int(most) - int(used) + _droppable(group))
    return max(0, available)


def threads_left() -> int | None:
    """So many more processes and threads its control groups allow; None = they set no limit."""
    left = []
    for group in _groups("pids"):
        with contextlib.suppress(ValueError):  # "max", or no such limit.
            left.append(int(_read(f"{group}pids.max")) - int(_read(f"{group}pids.current")))
    return max(0, min(left)) if left else None


def _droppable(group: str) -> int:
    """Bytes of a control group's use that hold files, which are dropped before anybody is killed.

    Also those that somebody has touched lately: who is refused for too little memory is refused
    for good reason.
    """
    lines = _read(f"{group}memory.stat").splitlines()
    found = dict(line.split() for line in lines)
    # Version 1 has the sum with the groups below under a name of its own; its use is that sum too.
    names = ("inactive_file", "active_file")
    return sum(int(found.get(f"total_{name}") or found.get(name) or 0) for name in names)


def _groups(controller: str) -> Iterator[str]:
    """What names begin with in `_CGROUP`, from this process's own group up to the root.

    Of version 2 ("job/step/", "job/", ""), then of version 1 ("memory/job/", "memory/"). A
    container may be told the system's path to its group and see only the group, as the root: then
    that.
    """
    try:
        lines = [line.split(":", 2) for line in _OWN_GROUPS.read_text().splitlines()]
    except OSError:
        lines = []
    paths = {name: path for _, names, path in lines for name in names.split(",")}
    for version, root in (("", ""), (controller, f"{controller}/")):
        names = [f"{name}/" for name in paths.get(version, "").split("/") if name]
        if "../" in names or not (_CGROUP / root).joinpath(*names).is_dir():
            names = []
        for depth in range(len(names), -1, -1):
            yield root + "".join(names[:depth])


def _read(limit: str) -> str:
    """A file of control groups; "" = there is none."""
    try:
        return (_CGROUP / limit).read_text().strip()
    except OSError:
        return ""
