"""Which of three emulated GPUs a worker takes, and which choices are refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support import emulated_gpu

emulated_gpu.load(3)

import tensorflow as tf  # noqa: E402

from keras_strom import errors  # noqa: E402
from keras_strom.job.environment import ClusterEnvironment  # noqa: E402
from keras_strom.strategy.devices import local_devices  # noqa: E402

GPUS = tf.config.list_physical_devices("GPU")
ALL = ("/gpu:0", "/gpu:1", "/gpu:2")


def take(
    devices: Any = None, rank: int = 0, of: int = 1, gpus: Any = None
) -> tuple[tuple[str, ...], list[Any]]:
    """What a worker takes that sees all three, and what it sees then."""
    tf.config.set_visible_devices(GPUS, "GPU")
    place = ClusterEnvironment(rank=rank, size=of, local_rank=rank, local_size=of, gpus=gpus)
    return local_devices(devices, place), tf.config.get_visible_devices("GPU")


def grows(gpu: Any) -> bool:
    """Whether TensorFlow takes the card's memory bit by bit."""
    return bool(tf.config.experimental.get_memory_growth(gpu))


def refused(devices: Any, words: str) -> None:
    with pytest.raises(errors.InvalidOption, match=re.escape(words)):
        take(devices)


def main() -> None:
    assert take() == (ALL, GPUS)
    assert take(rank=1, of=2, gpus="own") == (ALL, GPUS)
    assert take("/cpu:0") == (("/cpu:0",), GPUS)
    assert take(["/gpu:2", "/gpu:0"]) == (("/gpu:2", "/gpu:0"), GPUS)
    assert take(rank=1, of=2) == (("/gpu:0",), [GPUS[1]])
    assert not any(map(grows, GPUS))
    assert take(rank=3, of=4) == (("/gpu:0",), [GPUS[0]])
    assert list(map(grows, GPUS)) == [True, False, False]
    assert take("/cpu:0", rank=1, of=2) == (("/cpu:0",), [])
    tf.config.set_visible_devices(GPUS[2], "GPU")  # By the user, for whom two workers share it.
    place = ClusterEnvironment(rank=1, size=2, local_rank=1, local_size=2)
    assert local_devices(None, place) == ("/gpu:0",)
    assert list(map(grows, GPUS)) == [True, False, True]
    assert take("/gpu:1", rank=1, of=4) == (("/gpu:1",), GPUS)
    assert all(map(grows, GPUS))
    refused("/gpu:3", "sees 3 GPU(s), '/gpu:0' to '/gpu:2'")
    refused(["/gpu:0", "/cpu:0"], "mixes CPU and GPU")
    refused(["/gpu:1", "/device:GPU:1"], "names a device twice")
    refused("/tpu:0", "CPU and GPU only")
    tf.constant(1.0)  # The runtime starts.
    place = ClusterEnvironment(rank=2, size=3, local_rank=2, local_size=3)
    assert local_devices(None, place) == ("/gpu:2",)


main()
