"""What steps of the native ops copy to and from a device, and what they leave in its memory.

Run by tests/gpu/test_device_ops.py: device_memory.py [kernels] CASE
"""

from __future__ import annotations

import contextlib
import gc
import re
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_strom import errors
from keras_strom._native.ops import take_step_warnings
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.relay.training_relay import TrainingMaster
from keras_strom.sharing.statistics import TOLD
from keras_strom.strategy.user_errors import cause_of
from tests.support import emulated_gpu
from tests.support.scripts.device_ops import (
    MEMORY,
    SIZES,
    STEPS,
    TABLE,
    TAU,
    Options,
    Worker,
    arrived,
    joined,
    on_both,
)

#: Whether nothing is to be copied but messages and numbers.
STAYS = "stays" in sys.argv


def copies(options: Options) -> None:
    """A full step brings what was written to the host, and nothing goes back.

    With kernels nothing comes to the host but messages and numbers.

    Args:
        options: with compare_contents XLA writes every variable, so all are compared.
    """
    worker = Worker("/gpu:0", options)
    worker.show(own=True)
    for touches in ((0, 1, TABLE), (0, 1, TABLE), (), (1,), (0,)):
        arguments = worker.arguments(touches)
        before = emulated_gpu.counts()
        worker.run(arguments)
        after = emulated_gpu.counts()
        fetched = range(len(SIZES)) if options.compare_contents else touches
        wanted = 0 if STAYS else sum(4 * SIZES[i] for i in fetched)
        assert not STAYS or after.within == before.within
        # Numbers that TensorFlow computes there are copied besides.
        assert 0 <= after.from_device - before.from_device - wanted < 256
        assert after.to_device - before.to_device < 256
        assert after.waits == before.waits
    worker.replica.close()


def train_beside_the_cpu(
    options: Options, staleness: int | None, train: Callable[[int, Worker, Any], None]
) -> list[Worker]:
    """Worker 0 on the CPU and worker 1 on the device train at the same time, and have ended.

    Args:
        options: of both.
        staleness: of the job.
        train: what each does; takes its rank, itself and its connection.
    """
    with TrainingMaster(workers=2, host="127.0.0.1") as master:
        workers = [Worker(device, options, i) for i, device in enumerate(("/cpu:0", "/gpu:0"))]

        def train_joined(rank: int) -> None:
            connection = joined(master, workers[rank], rank, staleness)
            workers[rank].show(own=True)
            train(rank, workers[rank], connection)
            connection.close("done")

        on_both(train_joined)
    for worker in workers:
        worker.replica.close()
    return workers


def received_stays() -> None:
    """In synchronous mode messages alone go to the device, and nothing comes from there."""

    def train(rank: int, worker: Worker, _: Any) -> None:
        for i in range(STEPS):
            worker.run(worker.arguments((0, 1, TABLE)))
            before = emulated_gpu.counts()
            worker.await_release(i)
            after = emulated_gpu.counts()
            if rank == 1:
                assert after.from_device - before.from_device < 256
                # Entries of half of the elements, two bytes each, at most.
                assert after.to_device - before.to_device < sum(SIZES)
                assert after.within == before.within

    train_beside_the_cpu(Options(keep_shared=True, take_received=False), 0, train)


def gives_back() -> None:
    """What trainings that have ended had in the device's memory is there for the next one."""
    used = []
    for options in [*[Options()] * 4, Options(keep_shared=True, take_received=False)]:
        worker = Worker("/gpu:0", options)
        before = memory_in_use()
        worker.show(own=True)
        for _ in range(2):
            worker.run(worker.arguments((0, 1, TABLE)))
        worker.show(own=False, forget=True)
        assert memory_in_use() - before < 4 * sum(SIZES), "the residual is there"
        worker.replica.close()
        del worker
        gc.collect()
        used.append(memory_in_use())
    assert len(set(used)) == 1, used


def memory_in_use() -> int:
    return tf.config.experimental.get_memory_info("GPU:0")["current"]


def lost() -> None:
    """The card falls off its bus before a step, and nothing but the step has met it since."""
    worker = Worker("/gpu:0", Options())
    worker.show(own=True)
    worker.step()
    worker.step_first(0.01)
    with pytest.raises(tf.errors.InternalError, match="keras-strom -13") as caught:
        worker.step_first(0.01, meanwhile=emulated_gpu.lose)
    found = cause_of(caught.value, ClusterEnvironment(rank=3, size=4))
    assert isinstance(found, errors.DeviceLost), found
    assert "worker 3's GPU has stopped working (a copy failed: the emulated" in str(found), found


def short() -> None:
    """The device has no memory left when the first step wants it."""
    worker = Worker("/gpu:0", Options())
    worker.show(own=True)
    touches = (0, 1, TABLE)
    steps = [worker.arguments(touches) for _ in range(3)]
    taken: list[list[Any]] = []
    for elements in (2000, 50):
        taken.append([])
        with tf.device("/gpu:0"), contextlib.suppress(tf.errors.InternalError):
            for _ in range(MEMORY):
                taken[-1].append(tf.constant(np.zeros(elements, np.float32)))
    del taken[0][-3:]  # What the optimizer writes has room there, and more has not.
    for arguments in steps:
        worker.run(arguments)
    words = take_step_warnings()
    assert len(words) == 1, words
    assert "copies what the optimizer wrote to the host" in words[0]
    assert re.search(r"no \d+ bytes left", words[0])
    assert "[keras-strom" not in words[0]
    worker.replica.close()


def crowded() -> None:
    """The device has no memory left for what a step finds, when the residual is there already."""
    worker = Worker("/gpu:0", Options())
    worker.show(own=True)
    worker.step_first(1.0)
    assert not take_step_warnings()
    taken: list[Any] = []
    count = TOLD.index("count")
    assert worker.step_first(TAU / 4, meanwhile=lambda: take_all(taken))[count] == 0
    words = take_step_warnings()
    assert len(words) == 1, words
    assert "bytes left for what a step is to send" in words[0]
    taken.clear()
    assert worker.step_first(TAU / 4)[count] == SIZES[0]
    # Three updates, of which one entry an element has left.
    left = worker.replica.read_residual(0, SIZES[0])
    assert np.allclose(left, 3 * TAU / 3 - TAU / 4, atol=1e-4)
    worker.replica.close()


def take_all(taken: list[Any]) -> None:
    """Takes the device's memory, but what TensorFlow itself needs for numbers."""
    with tf.device("/gpu:0"):
        numbers = [tf.constant(np.zeros(50, np.float32)) for _ in range(8)]
        for elements in (2000, 50):
            size = -(-4 * elements // 256) * 256
            # TensorFlow waits ten seconds for memory before it says that there is none.
            with contextlib.suppress(tf.errors.InternalError):
                while memory_in_use() + size <= MEMORY:
                    taken.append(tf.constant(np.zeros(elements, np.float32)))
    del numbers


def warned_of_received() -> None:
    words = take_step_warnings()
    assert len(words) == 1, words
    assert "bytes left for what others have sent" in words[0]


def flooded() -> None:
    """The device has no memory left for what others have sent, which is added once all the same."""
    received = TOLD.index("received")
    is_on_device = threading.Event()

    def train(rank: int, worker: Worker, connection: Any) -> None:
        if rank == 0:
            assert is_on_device.wait(60)
            worker.step_first(TAU / 4)
            return
        start = worker.variables[0].numpy()
        worker.step_first(1.0)
        is_on_device.set()
        arrived(connection)
        taken: list[Any] = []
        assert worker.step_first(1.0, lambda: take_all(taken))[received] == 0
        warned_of_received()
        taken.clear()
        assert worker.step_first(1.0)[received] == 1
        change = worker.variables[0].numpy() - start
        assert np.allclose(change, 3 * TAU / 3 + TAU / 4, atol=1e-4)

    train_beside_the_cpu(Options(), None, train)


def flooded_while_others_wait() -> None:
    """In synchronous mode it is the host's at once, and replicas stay equal."""
    taken: list[Any] = []

    def train(rank: int, worker: Worker, _: Any) -> None:
        for i in range(STEPS):
            worker.run(worker.arguments((0, 1, TABLE)))
            if rank == 1 and i == 0:
                take_all(taken)
            told = worker.await_release(i)
            assert told[TOLD.index("received")].numpy() == 2, told
            if rank == 1 and i == 0:
                warned_of_received()
                taken.clear()
        worker.show(own=False)

    options = Options(keep_shared=True, take_received=False)
    workers = train_beside_the_cpu(options, 0, train)
    here, there = ([v.numpy() for v in worker.variables] for worker in workers)
    assert all(map(np.array_equal, here, there))


def copies_all() -> None:
    """By way of the host, and where XLA might have written any variable."""
    copies(Options())
    copies(Options(compare_contents=True))


def stays() -> None:
    """Of every step that the kernels have."""
    copies(Options())
    copies(Options(scale=0.5, clip_multiple=1.0))
    copies(Options(sends_every=3))
    copies(Options(compare_contents=True))
    copies(Options(keep_shared=True, take_received=False))
    received_stays()


if __name__ == "__main__":
    CASES = {"copies": copies_all, "stays": stays, "gives_back": gives_back}
    CASES |= {"lost": lost, "short": short, "crowded": crowded}
    CASES |= {"flooded": lambda: (flooded(), flooded_while_others_wait())}
    CASES[sys.argv[-1]]()
