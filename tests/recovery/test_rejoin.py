"""A replaced worker at the relay: how it starts, and whose state it gets."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from keras_strom import errors
from keras_strom._native.node import StartInfo
from keras_strom.job.network import NetworkConfig
from keras_strom.relay.training_relay import TrainingMaster, TrainingWorker

NETWORK = NetworkConfig(failure_timeout=2.0)
SIZE = 1000
SEED = np.arange(SIZE, dtype=np.float32)


def join(master: TrainingMaster, rank: int, size: int, attempt: int = 0) -> TrainingWorker:
    return TrainingWorker(
        master.credentials,
        master=master.address,
        rank=rank,
        size=size,
        attempt=attempt,
        network=NETWORK,
    )


def start(worker: TrainingWorker, rank: int, options: str = "same") -> np.ndarray:
    return worker.start(1, SIZE, 5, options, SEED if rank == 0 else None, timeout=20)


def end(worker: TrainingWorker, state: float = 0.0) -> float:
    worker.finish(timeout=20)
    worker.result(np.array([state]), np.zeros(SIZE), timeout=20)
    return worker.verify(0.0, 0, timeout=20)


def together(*calls: Callable[[], object]) -> list[object]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [waiting.result() for waiting in [pool.submit(call) for call in calls]]


def give_when_asked(worker: TrainingWorker, state: bytes) -> None:
    """What a training does after each batch, until somebody has asked."""
    tick = threading.Event()
    while not worker.donation_wanted():
        tick.wait(0.01)
    worker.donate(state)


def test_a_worker_that_starts_with_the_others_needs_nobodys_state() -> None:
    with TrainingMaster(workers=1, network=NETWORK, host="127.0.0.1") as master:
        worker = join(master, 0, 1)
        start(worker, 0)
        assert worker.start_info == StartInfo(late=False, ended=False, resume_iteration=-1)
        assert not worker.donation_wanted()
        worker.donate(b"nobody has asked")
        with pytest.raises(errors.InvalidOption, match="worker 0 has not joined late"):
            worker.take_donation(timeout=1)
        worker.close()


def test_who_waits_for_the_others_to_finish_gives_its_state() -> None:
    with TrainingMaster(workers=2, network=NETWORK, host="127.0.0.1") as master:
        chief, lost = join(master, 0, 2), join(master, 1, 2)
        together(lambda: start(chief, 0), lambda: start(lost, 1))
        lost.close("its machine is gone")
        replacement = join(master, 1, 2, attempt=1)
        start(replacement, 1)

        def give() -> None:
            if chief.donation_wanted():
                chief.donate(b"a state")

        def take_and_end() -> bytes | None:
            tick = threading.Event()
            while chief.status()["node"]["phase"] != "finishing":
                tick.wait(0.01)
            donation = replacement.take_donation(timeout=20)
            end(replacement)
            return donation

        chief.meanwhile = give
        _, donation = together(lambda: end(chief), take_and_end)
        assert donation == b"a state"
        for worker in (chief, replacement):
            worker.close()


def test_a_replaced_worker_gets_parameters_a_state_and_at_the_end_the_result() -> None:
    with TrainingMaster(workers=2, network=NETWORK, host="127.0.0.1") as master:
        chief, lost = join(master, 0, 2), join(master, 1, 2)
        together(lambda: start(chief, 0), lambda: start(lost, 1))
        lost.close("its machine is gone")

        other = join(master, 1, 2, attempt=1)
        with pytest.raises(errors.Refused, match=r"options differ .* other against same"):
            start(other, 1, "other")
        replacement = join(master, 1, 2, attempt=2)
        np.testing.assert_array_equal(start(replacement, 1), SEED)
        assert replacement.start_info == StartInfo(late=True, ended=False, resume_iteration=-1)
        state = bytes(range(256)) * 20_000  # five chunks
        donation, _ = together(
            lambda: replacement.take_donation(timeout=20), lambda: give_when_asked(chief, state)
        )
        assert donation == state
        events = [event["text"] for event in master.status()["events"]]
        assert any("worker 1 (attempt 2) has rejoined generation 1 from 127." in x for x in events)
        assert any("worker 0 has given worker 1 its state: 5.1 MB" in x for x in events)

        together(lambda: end(chief, 5.0), lambda: end(replacement, 8.0))
        replacement.close("its machine is gone, too")
        late = join(master, 1, 2, attempt=3)
        np.testing.assert_array_equal(start(late, 1), SEED)
        assert late.start_info == StartInfo(late=False, ended=True, resume_iteration=-1)
        state_at_end = late.take_donation(timeout=20)
        assert state_at_end == np.uint64(1).tobytes() + np.array([6.5]).tobytes()
        for worker in (chief, late):
            worker.close()
