"""Where the native tests' build, or the benchmarks', has left programs that Python's tests run."""

from __future__ import annotations

from pathlib import Path

from benchmarks import relay_peers, report


def folder_of(*programs: str) -> Path | None:
    """The first folder that has all of them; None = they are not built."""
    builds = report.ROOT / "build"
    for folder in (builds / "native", builds / "dev", relay_peers.PROGRAM.parent):
        if all((folder / program).exists() for program in programs):
            return folder
    return None
