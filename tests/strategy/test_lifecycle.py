"""Several workers through whole fits: one start, averages at epoch ends, and the same bits after.

Each job runs tests/support/scripts/lifecycle.py in two processes over a real relay on the loopback.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.optimizer_oracle import EncodedTraining
from tests.support.scripts import lifecycle
from tests.support.two_workers import WORKERS, launch, results, run_two_workers, weights

pytestmark = pytest.mark.jobs

MODES = ["None", "0", "2"]
SCRIPT = Path(lifecycle.__file__)


class Job:
    """What the workers of one job have written."""

    def __init__(self, folder: Path) -> None:
        self.results = results(folder)
        self.weights = weights(folder)

    def fits(self, name: str) -> list[dict[str, Any]]:
        """The fit `name` as each worker saw it."""
        return [next(f for f in r["fits"] if f["name"] == name) for r in self.results]


@functools.cache
def job(mode: str, repetition: int = 0) -> Job:
    """Runs the script once a mode and repetition; the checks below share it."""
    with tempfile.TemporaryDirectory() as folder:
        run_two_workers(SCRIPT, folder, mode)
        return Job(Path(folder))


# ------------------------------------------------------------------ in every mode


@pytest.mark.parametrize("mode", MODES)
def test_every_fit_ends_with_the_same_bits_on_all_workers(mode: str) -> None:
    first, second = job(mode).weights
    shared = [name for name in second if "start" not in name]
    assert len(shared) > 20
    for name in shared:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


@pytest.mark.parametrize("mode", MODES)
def test_replicas_agree_before_the_final_copy(mode: str) -> None:
    for result in job(mode).results:
        for fit in result["fits"]:
            assert fit["report"]["max_replica_difference"] < 1e-5, fit["name"]


@pytest.mark.parametrize("mode", MODES)
def test_workers_with_different_numbers_of_batches_finish(mode: str) -> None:
    first, second = job(mode).fits("uneven")
    assert (first["report"]["steps"], second["report"]["steps"]) == (20, 6)
    assert first["epochs"] == second["epochs"] == 2


@pytest.mark.parametrize("mode", MODES)
def test_training_data_is_divided_among_the_workers(mode: str) -> None:
    for fit in job(mode).fits("even"):
        assert fit["report"]["steps"] == 2 * 96 / 8 / WORKERS


@pytest.mark.parametrize("mode", MODES)
def test_only_the_chief_can_end_the_training_for_all(mode: str) -> None:
    first, second = job(mode).fits("stopped")
    assert first["epochs"] == 2
    if mode == "None":
        assert second["epochs"] < 50
    else:
        assert second["epochs"] == 2


@pytest.mark.parametrize("mode", MODES)
def test_weights_that_the_chief_restores_at_the_end_are_everybodys(mode: str) -> None:
    """That they are equal is checked above; here that they are the restored ones."""
    for trained in job(mode).weights:
        best = [v for name, v in job(mode).weights[0].items() if name.startswith("best_start/")]
        assert best
        for i, value in enumerate(best):
            np.testing.assert_array_equal(trained[f"restored/{i}"], value)


@pytest.mark.parametrize("mode", MODES)
def test_networks_that_a_train_step_has_follow_another_one_keep_what_they_have(mode: str) -> None:
    """That they are equal on all workers is checked above."""
    for result in job(mode).results:
        assert result["followed"] == [True, True]


@pytest.mark.parametrize("mode", MODES)
def test_a_custom_loop_may_train_two_models_in_turn(mode: str) -> None:
    for rank, result in enumerate(job(mode).results):
        loop = result["loop"]
        assert loop["report"]["steps"] == 12
        assert loop["report"]["updates_applied"] > 0
        assert loop["moved"] == [True, True], rank


@pytest.mark.parametrize("mode", MODES)
def test_an_assignment_during_training_is_warned_about_and_not_shared(mode: str) -> None:
    first, second = (result["assigned"] for result in job(mode).results)
    assert not any("assigned outside" in words for words in first["warnings"])
    assert any("assigned outside strategy.run" in words for words in second["warnings"])
    assert second["report"]["assigned_outside"] > 0


@pytest.mark.parametrize("mode", MODES)
def test_the_logs_tell_of_the_sharing(mode: str) -> None:
    chief, other = job(mode).fits("even")
    assert chief["history"].keys() == other["history"].keys()
    history = chief["history"]
    peers = history["strom/peers"]  # Without order all of the other's may fall into one epoch.
    assert max(peers) == 1 if mode == "None" else peers[-1] == 1
    assert min(history["strom/bytes_sent"]) > 100
    assert all(0 <= late <= 24 for late in history["strom/staleness"])
    if mode != "None":
        assert max(history["strom/staleness"]) <= int(mode)


@pytest.mark.parametrize("mode", ["0", "2"])
def test_state_and_metrics_are_averaged_at_the_end_of_each_epoch(mode: str) -> None:
    fits = job(mode).fits("uneven")
    for epoch in range(2):
        own = [fit["own"][epoch] for fit in fits]
        averaged = [fit["averaged"][epoch] for fit in fits]
        for a, b, *seen in zip(
            own[0]["state"], own[1]["state"], *(s["state"] for s in averaged), strict=True
        ):
            for value in seen:
                np.testing.assert_allclose(value, (np.array(a) + np.array(b)) / 2, rtol=1e-6)
        # Loss and accuracy are sums over sums: (total, count) of each metric.
        for i, name in ((0, "loss"), (2, "accuracy")):
            total, count = (sum(o["metrics"][i + k] for o in own) for k in range(2))
            for fit in fits:
                assert fit["averaged"][epoch]["logs"][name] == pytest.approx(total / count, 1e-6)
                assert fit["history"][name][epoch] == pytest.approx(total / count, 1e-6)


def test_asynchronous_averages_are_of_the_latest_values() -> None:
    """No barrier: each worker averages what it has with the other's latest, where there is one."""
    fits = job("None").fits("uneven")
    own = [fit["own"][epoch]["state"] for fit in fits for epoch in range(2)]
    for fit in fits:
        for epoch in range(2):
            for i, seen in enumerate(fit["averaged"][epoch]["state"][:2]):
                values = np.array([state[i] for state in own])
                assert (np.array(seen) >= values.min(axis=0) - 1e-6).all()
                assert (np.array(seen) <= values.max(axis=0) + 1e-6).all()


# ------------------------------------------------------------------ synchronous mode to the bit


def test_replicas_have_the_same_bits_after_every_synchronous_step() -> None:
    first, second = (fit["hashes"] for fit in job("0").fits("even"))
    assert first == second
    assert len(first) == 12
    assert len(set(first)) > 6  # The first steps send nothing yet.


def test_two_synchronous_runs_give_the_same_bits() -> None:
    first, second = job("0"), job("0", repetition=1)
    for one, other in zip(first.weights, second.weights, strict=True):
        for name, value in one.items():
            np.testing.assert_array_equal(value, other[name], err_msg=name)


def test_synchronous_training_is_what_the_oracle_of_two_workers_says() -> None:
    trained = job("0").weights[0]
    oracle = _TwoWorkers([trained[f"start/{i}"] for i in range(4)])
    oracle.fit(epochs=2)
    for i, value in enumerate(oracle.values):
        np.testing.assert_array_equal(trained[f"even/{i}"], value)
    # The second fit starts from the chief's values, whatever the other worker has assigned, without
    # the updates that the first kernel's values of before had not sent; the others wait on.
    oracle.values = [trained[f"again_start/{i}"] for i in range(4)]
    for worker in oracle.workers:
        worker.residuals[0][:] = 0
    oracle.fit(epochs=1)
    for i, value in enumerate(oracle.values):
        np.testing.assert_array_equal(trained[f"again/{i}"], value)


class _TwoWorkers:
    """Two plain Keras models whose encoded updates are added in rank order."""

    def __init__(self, start: list[np.ndarray]) -> None:
        self.values = start
        self.workers = []
        for _ in range(WORKERS):
            self.workers.append(EncodedTraining(lifecycle.build_dense(), lifecycle.TAU))
        self.steps = 0

    def fit(self, epochs: int) -> None:
        x, y = lifecycle.data(96, seed=1)
        for start in [s for _ in range(epochs) for s in range(0, 96 // WORKERS, 8)]:
            progress = 1 / WORKERS + (1 - 1 / WORKERS) * self.steps / lifecycle.WARMUP_STEPS
            scale = np.float32(min(1.0, progress))
            messages = [
                worker.message_of_batch(
                    self.values,
                    x[rank::WORKERS][start : start + 8],
                    y[rank::WORKERS][start : start + 8],
                    scale,
                )
                for rank, worker in enumerate(self.workers)
            ]
            self._add(messages)
            self.steps += 1

    def _add(self, messages: list[list[np.ndarray]]) -> None:
        for message in messages:
            self.values = [value + part for value, part in zip(self.values, message, strict=True)]


# ------------------------------------------------------------------ when a worker fails


def test_a_worker_that_fails_in_fit_ends_the_others(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(
        "import keras, numpy as np, keras_strom\n"
        "class Fails(keras.callbacks.Callback):\n"
        "    def on_train_batch_end(self, batch, logs=None):\n"
        "        if keras_strom.rank() == 1 and batch == 2:\n"
        "            raise RuntimeError('on purpose')\n"
        "with keras_strom.StromStrategy(max_staleness=0).scope():\n"
        "    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])\n"
        "    model.compile('sgd', 'mse')\n"
        "model.fit(np.ones((64, 2)), np.ones(64), batch_size=1, callbacks=[Fails()])\n"
    )
    completed = launch(script)
    assert completed.returncode != 0
    assert "on purpose" in completed.stdout + completed.stderr
