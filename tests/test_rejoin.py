"""A replaced worker at the relay: how it starts, and whose state it gets."""

from __future__ import annotations

import numpy as np
import pytest

from keras_strom import errors
from keras_strom._native.node import StartInfo
from keras_strom.network import NetworkConfig
from keras_strom.training_relay import TrainingMaster, TrainingWorker

NETWORK = NetworkConfig(failure_timeout=1.0)
SIZE = 1000


def join(master: TrainingMaster, rank: int, attempt: int = 0) -> TrainingWorker:
    return TrainingWorker(
        master.credentials,
        master=master.address,
        rank=rank,
        size=1,
        attempt=attempt,
        network=NETWORK,
    )


def start(worker: TrainingWorker, seed: np.ndarray | None = None) -> np.ndarray:
    return worker.start(1, SIZE, 5, "same", seed, timeout=20)


def test_a_worker_that_starts_with_the_others_needs_nobodys_state() -> None:
    with TrainingMaster(workers=1, network=NETWORK, host="127.0.0.1") as master:
        worker = join(master, 0)
        start(worker, np.ones(SIZE, np.float32))
        assert worker.start_info == StartInfo(late=False, ended=False, resume_iteration=-1)
        assert not worker.donation_wanted()
        worker.donate(b"nobody has asked")
        with pytest.raises(errors.InvalidOption, match="worker 0 has not joined late"):
            worker.take_donation(timeout=1)
        worker.close()
