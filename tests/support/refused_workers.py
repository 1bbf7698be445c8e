"""Workers that a job's network options do not fit."""

from __future__ import annotations

import pytest

from keras_strom import NetworkConfig, errors
from keras_strom.relay.training_relay import TrainingMaster, TrainingWorker


def expect_refused_in_order(network: NetworkConfig, words: str) -> None:
    """Asserts that a synchronous worker refuses these options, with these words."""
    with (
        TrainingMaster(workers=2, host="127.0.0.1") as master,
        pytest.raises(errors.InvalidOption, match=words),
    ):
        TrainingWorker(
            master.credentials,
            master=master.address,
            rank=0,
            size=2,
            max_staleness=0,
            network=network,
        )
