"""The GPU of the host's memory with which other tests stand in for a card."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.usefixtures("emulated"), pytest.mark.jobs]

SCRIPT = Path(__file__).resolve().parents[1] / "support" / "scripts" / "emulated_gpu.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_it_trains_as_the_cpu_does_though_its_streams_are_late() -> None:
    ended = run()
    assert ended.returncode == 0, ended.stderr


def test_a_host_that_reads_its_memory_is_stopped() -> None:
    ended = run("touch")
    assert ended.stdout == "reading", ended.stderr
    assert ended.returncode == -signal.SIGSEGV
