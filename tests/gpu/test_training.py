"""Trainings with variables on a GPU, which the emulated one stands in for, against the CPU's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from keras_strom import errors
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.runner.process import Outcome
from keras_strom.strategy.user_errors import cause_of
from tests.support import emulated_gpu

SCRIPTS = Path(emulated_gpu.__file__).with_name("scripts")


@pytest.fixture(autouse=True, scope="module")
def _built() -> None:
    try:
        emulated_gpu.build()
    except emulated_gpu.NotHereError as error:
        pytest.skip(str(error))


def run(script: str, *arguments: str) -> None:
    command = [sys.executable, str(SCRIPTS / script), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-4000:]


def test_a_gpu_trains_to_the_bits_of_the_cpu() -> None:
    run("gpu_alone.py", "defaults", "rows")


@pytest.mark.jobs
def test_a_gpu_trains_to_the_bits_of_the_cpu_with_every_option() -> None:
    run("gpu_alone.py", "encoded", "each_variable", "mixed", "two_devices")


def test_too_little_memory_is_told_before_the_first_step() -> None:
    run("gpu_memory.py")


def test_a_worker_takes_the_gpus_that_are_its_own() -> None:
    run("gpu_choice.py")


@pytest.mark.parametrize(
    ("words", "is_lost"),
    [
        ("failed to synchronize: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error", True),
        ("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered", True),
        ("failed to allocate 4.00GiB: CUDA_ERROR_OUT_OF_MEMORY: out of memory", False),
        ("Matrix size-incompatible", False),
    ],
)
def test_a_card_that_works_no_more_is_told_from_other_failures(words: str, is_lost: bool) -> None:
    found = cause_of(tf.errors.InternalError(None, None, words), ClusterEnvironment())
    assert isinstance(found, errors.DeviceLost) is is_lost
    text = f"Traceback (most recent call last):\nkeras_strom.errors.{type(found).__name__}: {found}"
    outcome = Outcome(1, None, text, (), raised=True)
    assert outcome.may_be_started_again is is_lost
