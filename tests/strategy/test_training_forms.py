"""Every way in which Keras users train gives, under StromStrategy, what the oracle says.

The cases are those of tests/support/scripts/training_forms.py; the oracle is
tests/support/encoded_training.py.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import numpy as np
import pytest

from keras_strom.sharing.threshold import FixedThreshold
from keras_strom.strategy.strategy import StromStrategy
from tests.support.encoded_training import EncodedWorker, EncodedWorkers
from tests.support.scripts import training_forms
from tests.support.scripts.training_forms import CASES, TAU, Place
from tests.support.two_workers import run_two_workers, weights

pytestmark = pytest.mark.jobs


def oracle(name: str, size: int) -> list[np.ndarray]:
    """The weights after `size` workers have trained the case, and that something was sent."""
    workers = EncodedWorkers(size, TAU)
    models = [training_forms.start(name, Place(worker=w)) for w in workers.each]
    for model in models:
        model.run_eagerly = True  # The same bits; tracing would take longer than the training.

    def train(worker: EncodedWorker) -> list[np.ndarray]:
        model = models[worker.rank]
        CASES[name].train(model, Place(worker=worker))
        return model.get_weights()

    weights = workers.train(train)
    assert workers.sent > 0, "nothing was sent, so nothing was tested"
    return weights[0]


@functools.cache
def trained_by_two() -> list[dict[str, np.ndarray]]:
    """The weights of all cases as each of two real workers has written them."""
    with tempfile.TemporaryDirectory() as folder:
        run_two_workers(Path(training_forms.__file__), folder)
        return weights(folder)


# Those whose steps are closed in different ways; what tells the others apart is above the step.
LONE = [
    "arrays",
    "several_steps_per_execution",
    "run_eagerly",
    "layers_that_are_frozen_and_thawed",
    "two_models_and_two_optimizers_in_one_train_step",
    "a_loop_over_a_distributed_dataset_in_a_function",
]


@pytest.mark.parametrize("name", LONE)
def test_a_lone_worker_trains_as_the_oracle_says(name: str) -> None:
    strategy = StromStrategy(
        threshold=FixedThreshold(TAU), residual_clipping=None, warmup_steps=0, always_encode=True
    )
    place = Place(strategy)
    model = training_forms.start(name, place)
    CASES[name].train(model, place)
    # One that waits for nobody computes what is shared as x - r.
    for want, got in zip(oracle(name, 1), model.get_weights(), strict=True):
        np.testing.assert_allclose(got, want, atol=2e-6)


@pytest.mark.parametrize("name", CASES)
def test_two_workers_train_as_the_oracle_says(name: str) -> None:
    want = oracle(name, 2)
    for trained in trained_by_two():
        for i, value in enumerate(want):
            np.testing.assert_array_equal(trained[f"{name}/{i}"], value)
