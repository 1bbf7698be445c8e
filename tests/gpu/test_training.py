"""Trainings with variables on a GPU against the CPU's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from keras_strom import errors
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.runner.outcome import Outcome
from keras_strom.strategy import devices
from keras_strom.strategy.user_errors import cause_of
from tests.support import gpu

pytestmark = pytest.mark.jobs

SCRIPTS = Path(gpu.__file__).with_name("scripts")


def words(script: str, *arguments: str, level: str = "1") -> str:
    """What the script writes as errors, TensorFlow's log having this level."""
    command = [sys.executable, str(SCRIPTS / script), *arguments]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": level}
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=environment, check=False
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stderr


def run(script: str, *arguments: str) -> None:
    told = words(script, *arguments)
    if "kernels" in arguments:
        assert "copies what the optimizer wrote to the host" not in told


def test_a_gpu_trains_to_the_bits_of_the_cpu() -> None:
    run("gpu_alone.py", "defaults", "rows")


def test_steps_that_stay_on_a_gpu_train_to_the_bits_of_the_cpu() -> None:
    run("gpu_alone.py", "kernels", "fixed", "clipped")


@pytest.mark.usefixtures("emulated")
def test_why_steps_leave_the_gpu_is_said_where_tensorflows_log_is_silent() -> None:
    """As in workers; without the kernels' library, or a card for it, there are none here."""
    told = words("gpu_alone.py", "fixed", level="2")
    assert told.count("copies what the optimizer wrote to the host") == 1, told
    assert "worker 0: each step on " in told
    assert "[keras-strom" not in told


def test_what_the_kernels_do_not_have_is_named() -> None:
    told = words("gpu_alone.py", "kernels", "encoded", "each_variable", "rows", level="2")
    why = "which costs time but changes no result: the GPU's kernels do not have "
    for lacking in (
        'local_apply="encoded"',
        "momentum masking (momentum_masking=False turns it off)",
        "local_steps",
        "a threshold for each variable",
        "update_clipping",
        "embeddings whose rows are shared",
    ):
        assert told.count(f"{why}{lacking}") == 1, told


@pytest.mark.usefixtures("card")
def test_steps_that_xla_compiles_stay_on_a_card() -> None:
    run("gpu_alone.py", "kernels", "compiled")


def test_a_gpu_trains_to_the_bits_of_the_cpu_with_every_option() -> None:
    run("gpu_alone.py", "encoded", "each_variable", "mixed", "two_devices", "local")


@pytest.mark.usefixtures("emulated")
def test_too_little_memory_is_told_before_the_first_step() -> None:
    run("gpu_memory.py")


@pytest.mark.usefixtures("emulated")
def test_a_worker_takes_the_gpus_that_are_its_own() -> None:
    run("gpu_choice.py")


@pytest.mark.parametrize(
    ("words", "is_lost"),
    [
        ("failed to synchronize: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error", True),
        ("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered", True),
        ("[keras-strom -13] a copy failed: cudaErrorLaunchFailure: unspecified failure", True),
        ("[keras-strom -11] CUDA_ERROR_LAUNCH_TIMEOUT: the launch timed out", True),
        ("CUDA_ERROR_CONTAINED: Invalid access of peer GPU memory over nvlink", True),
        ("CUDA_ERROR_TENSOR_MEMORY_LEAK: Tensor Memory not completely freed", True),
        ("CUDA_ERROR_MPS_CLIENT_TERMINATED: the MPS client has been terminated", True),
        ("CUDA_ERROR_EXTERNAL_DEVICE: an external device has failed", True),
        ("[keras-strom -11] the device's memory has no 4096 bytes left", False),
        ("failed to allocate 4.00GiB: CUDA_ERROR_OUT_OF_MEMORY: out of memory", False),
        ("Matrix size-incompatible", False),
    ],
)
def test_a_card_that_works_no_more_is_told_from_other_failures(words: str, is_lost: bool) -> None:
    here = ClusterEnvironment(rank=3, size=4)
    found = cause_of(tf.errors.InternalError(None, None, words), here)
    if is_lost:
        assert str(found).startswith("worker 3's GPU has stopped working (")
    assert isinstance(found, errors.DeviceLost) is is_lost
    text = f"Traceback (most recent call last):\nkeras_strom.errors.{type(found).__name__}: {found}"
    outcome = Outcome(1, None, text, (), raised=True)
    assert outcome.may_be_started_again is is_lost


@pytest.mark.usefixtures("emulated")
def test_workers_on_the_cpu_are_told_of_gpus_that_tensorflow_does_not_see(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert devices.local_devices(None, ClusterEnvironment()) == ("/cpu:0",)
    assert "sees none of the GPUs that its process may use (2, 3)" in caplog.text
    assert "tensorflow[and-cuda]" in caplog.text
    caplog.clear()
    devices.local_devices("/cpu:0", ClusterEnvironment(needs_gpu=True))
    with pytest.raises(errors.InvalidOption, match=r"use_gpu=True.* CUDA_VISIBLE_DEVICES"):
        devices.local_devices(None, ClusterEnvironment(needs_gpu=True))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    devices.local_devices(None, ClusterEnvironment(gpus="own"))
    assert not caplog.text


def test_nvidias_library_adds_up_between_cards_but_not_within_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "_has_nccl", lambda: True)
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda _: ["a", "b"])
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda _: ["a", "b"])
    pair = ["/gpu:0", "/gpu:1"]
    assert isinstance(devices._reduction(pair), tf.distribute.NcclAllReduce)
    assert not isinstance(devices._reduction(["/cpu:0", "/cpu:1"]), tf.distribute.NcclAllReduce)
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda _: ["a0", "a1", "b"])
    assert not isinstance(devices._reduction(pair), tf.distribute.NcclAllReduce)


def test_of_divided_cards_a_worker_takes_the_parts_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TensorFlow has started, so that the others' cannot be hidden any more."""
    parts = {"a": ["a0", "a1"], "b": [], "c": ["c0", "c1", "c2"]}
    found = [tf.config.LogicalDevice(f"/gpu:{index}", "GPU") for index in range(6)]
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda _: list(parts))
    monkeypatch.setattr(tf.config, "get_logical_device_configuration", parts.get)
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda _: found)
    monkeypatch.setattr(devices, "_is_set", lambda *_: False)
    taken = [
        devices.local_devices(
            None, ClusterEnvironment(rank=rank, size=3, local_rank=rank, local_size=3)
        )
        for rank in range(3)
    ]
    assert taken == [("/gpu:0", "/gpu:1"), ("/gpu:2",), ("/gpu:3", "/gpu:4", "/gpu:5")]
