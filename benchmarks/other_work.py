"""How much of the processors went to work that is not the benchmark's: what its figures lack."""

from __future__ import annotations

import os
import pathlib
from time import monotonic

from benchmarks.report import Report

_STAT = pathlib.Path("/proc/stat")
#: Of /proc/stat's first line: user, nice, system, irq, softirq and steal; not idle and iowait.
_BUSY_FIELDS = (0, 1, 2, 5, 6, 7)


class OtherWork:
    """Counts from when it is made.

    What the kernel does for the benchmark outside of its processes counts as other work too.

    Example:
        >>> OtherWork().cores() >= 0
        True
    """

    def __init__(self) -> None:
        self._begin_s = monotonic()
        self._busy_s = _busy_seconds()
        self._own_s = _own_seconds()

    def cores(self) -> float:
        """Processors that were busy otherwise, on average."""
        elapsed = max(1e-9, monotonic() - self._begin_s)
        others = (_busy_seconds() - self._busy_s) - (_own_seconds() - self._own_s)
        return max(0.0, others / elapsed)

    def add_row(self, result: Report) -> None:
        """Says so in a benchmark's report, so that its figures are read with that in mind."""
        result.row(
            "busy with other work",
            group="The machine meanwhile",
            cores=self.cores(),
            of_cores=result.machine["cores"],
        )


def _busy_seconds() -> float:
    try:
        fields = _STAT.read_text(encoding="utf-8").splitlines()[0].split()[1:]
    except OSError:
        return 0.0
    ticks = sum(int(fields[place]) for place in _BUSY_FIELDS)
    return ticks / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    """Of this process and of every child that has ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
