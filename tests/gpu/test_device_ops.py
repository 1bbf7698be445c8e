"""The native ops on variables that lie on a device, which is emulated: the bits of the CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import emulated_gpu

SCRIPT = Path(__file__).resolve().parents[1] / "support" / "scripts" / "device_ops.py"


@pytest.fixture(autouse=True, scope="module")
def _built() -> None:
    try:
        emulated_gpu.build()
    except emulated_gpu.NotHereError as error:
        pytest.skip(str(error))


def run(*arguments: str) -> None:
    command = [sys.executable, str(SCRIPT), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-4000:]


@pytest.mark.parametrize(
    "cases",
    [
        ("full",),
        ("encoded", "refused"),
        ("asynchronous", "synchronous", "bounded"),
        ("pulled", "mean_of_models", "elastic"),
    ],
    ids=" ".join,
)
def test_a_device_gives_the_bits_of_the_cpu_in_every_option(cases: tuple[str, ...]) -> None:
    run(*cases)


def test_a_step_copies_what_the_optimizer_wrote_and_waits_for_no_device() -> None:
    run("copies")
