"""The native ops on variables that lie on a GPU: the bits of the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.jobs

SCRIPTS = Path(__file__).resolve().parents[1] / "support" / "scripts"


def run(*arguments: str, script: str = "device_ops.py", gpu_step: str = "on", ends: int = 0) -> str:
    """What the script writes as errors."""
    command = [sys.executable, str(SCRIPTS / script), *arguments]
    environment = {**os.environ, "KERAS_STROM_GPU_STEP": gpu_step, "TF_CPP_MIN_LOG_LEVEL": "0"}
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=environment, check=False
    )
    assert ended.returncode == ends, ended.stderr[-4000:]
    return ended.stderr


@pytest.mark.parametrize(
    "cases",
    [
        ("full",),
        ("encoded", "refused"),
        ("asynchronous", "synchronous", "bounded"),
        ("pulled", "mean_of_models", "elastic"),
        ("kernels", "full"),
        ("kernels", "refused", "parted", "asynchronous", "coded"),
        ("kernels", "synchronous", "bounded"),
    ],
    ids=" ".join,
)
def test_a_device_gives_the_bits_of_the_cpu_in_every_option(cases: tuple[str, ...]) -> None:
    run(*cases)


@pytest.mark.usefixtures("emulated")
def test_without_kernels_for_it_the_codec_on_a_gpu_goes_by_the_host_and_says_so_once() -> None:
    words = run("coded")
    assert words.count("keras_strom.ops on /job:localhost/replica:0/task:0/device:GPU:0") == 1
    assert "copy their tensors to the host and work there" in words


@pytest.mark.usefixtures("emulated")
def test_a_step_copies_what_the_optimizer_wrote_and_waits_for_no_device() -> None:
    run("copies", script="device_memory.py")


@pytest.mark.usefixtures("emulated")
def test_a_step_that_stays_on_the_device_copies_nothing_but_numbers() -> None:
    run("kernels", "stays", script="device_memory.py")


def test_a_training_that_has_ended_leaves_nothing_in_the_devices_memory() -> None:
    run("kernels", "gives_back", script="device_memory.py")


@pytest.mark.usefixtures("emulated")
def test_a_gpu_that_is_lost_is_told_by_the_step_that_notices_first() -> None:
    run("kernels", "lost", script="device_memory.py")


@pytest.mark.usefixtures("emulated")
def test_without_the_memory_for_it_a_step_goes_by_the_host_and_says_so_once() -> None:
    run("kernels", "short", script="device_memory.py")


@pytest.mark.usefixtures("emulated")
def test_without_the_memory_for_its_entries_a_step_sends_none_and_the_host_goes_on() -> None:
    run("kernels", "crowded", script="device_memory.py")


@pytest.mark.usefixtures("emulated")
def test_without_the_memory_for_what_others_have_sent_the_host_adds_it_once() -> None:
    run("kernels", "flooded", script="device_memory.py")


@pytest.mark.usefixtures("emulated")
def test_steps_can_be_kept_from_a_gpus_own_kernels() -> None:
    run("kernels", "copies", script="device_memory.py", gpu_step="off")
    assert 'KERAS_STROM_GPU_STEP is "on"' in run("kernels", "full", gpu_step="of", ends=1)
