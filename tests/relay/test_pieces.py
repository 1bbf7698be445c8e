"""Of the values with which a `fit` starts and ends only those travel that the receiver lacks."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest

from keras_strom import NetworkConfig
from keras_strom.relay.training_relay import TrainingMaster, TrainingWorker

DEADLINE = 60.0
SIZE = 100_000
# One piece of 256, with what else is said meanwhile.
LITTLE = 4 * SIZE // 40

Floats = npt.NDArray[np.float32]


@pytest.fixture
def workers() -> Iterator[list[TrainingWorker]]:
    network = NetworkConfig(same_host=False)
    with TrainingMaster(workers=2, host="127.0.0.1", network=network) as master:
        both = [
            TrainingWorker(
                master.credentials, master=master.address, rank=rank, size=2, network=network
            )
            for rank in range(2)
        ]
        yield both
        for worker in both:
            worker.close()


def received(worker: TrainingWorker) -> int:
    return int(worker.status()["counters"]["bytes_received"])


def sent(worker: TrainingWorker) -> int:
    return int(worker.status()["counters"]["bytes_sent"])


def start(workers: list[TrainingWorker], number: int, values: list[Floats | None]) -> list[Floats]:
    def begin(worker: TrainingWorker, own: Floats | None) -> Floats:
        return worker.start(number, SIZE, 5, "same", own, timeout=DEADLINE)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(begin, workers, values))


def end(workers: list[TrainingWorker], values: list[Floats]) -> list[Floats]:
    def finish(worker: TrainingWorker, own: Floats) -> Floats:
        worker.finish(timeout=DEADLINE)
        _, parameters = worker.result(np.zeros(1), own, timeout=DEADLINE)
        worker.verify(0.0, 0, timeout=DEADLINE)
        return parameters

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(finish, workers, values))


def test_what_workers_have_already_does_not_come_again(workers: list[TrainingWorker]) -> None:
    first = np.arange(SIZE, dtype=np.float32)
    for parameters in start(workers, 1, [first, None]):
        np.testing.assert_array_equal(parameters, first)
    assert sent(workers[0]) > 4 * SIZE, "the master has had none"
    assert received(workers[1]) > 4 * SIZE, "the other has had none"
    before = received(workers[0]), received(workers[1]), sent(workers[0])
    for parameters in end(workers, [first, first]):
        np.testing.assert_array_equal(parameters, first)
    changed = first.copy()
    changed[SIZE // 2] = -1
    for parameters in start(workers, 3, [changed, first]):
        np.testing.assert_array_equal(parameters, changed)
    assert received(workers[0]) - before[0] < LITTLE
    assert received(workers[1]) - before[1] < LITTLE
    assert sent(workers[0]) - before[2] < LITTLE


def test_what_differs_at_the_end_comes(workers: list[TrainingWorker]) -> None:
    values = np.arange(SIZE, dtype=np.float32)
    start(workers, 1, [values, values])
    before = received(workers[0]), received(workers[1])
    other = values + np.float32(1)
    for parameters in end(workers, [values, other]):
        np.testing.assert_array_equal(parameters, values)
    assert received(workers[0]) - before[0] < LITTLE
    assert received(workers[1]) - before[1] > 4 * SIZE


def test_values_of_another_size_are_refused(workers: list[TrainingWorker]) -> None:
    with pytest.raises(ValueError, match="99999"):
        workers[0].start(1, SIZE, 5, "same", np.zeros(SIZE - 1, np.float32), timeout=DEADLINE)
