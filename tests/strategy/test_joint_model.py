"""Two workers train beside a joint model, with every method; and with a worker that is killed.

Each job runs tests/support/scripts/joint_model.py or elastic.py over a real relay on the loopback.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_strom import MPCA
from keras_strom.recovery.checkpoint_files import read_part
from tests.support.elastic_jobs import run, run_until_killed
from tests.support.faults import Fault
from tests.support.scripts import elastic, joint_endings, joint_model
from tests.support.two_workers import launch, results, run_two_workers, weights

pytestmark = pytest.mark.jobs

# Cycles are short on the loopback, so that the schedules come to their ends.
METHODS = (
    "MPCA()",
    "MPCA(phases=1, weighted=False)",
    "MPCA(phases=2, gamma=0, start=PullStart(free_cycles=0))",
    "MPCA(penalty='gradient')",
    "SparkNet(steps=5)",
    "AllReduce()",
    "AllReduce(average='updates', dtype='bfloat16')",
    "EASGD(steps=5)",
    "EASGD(steps=5, synchronous=True)",
)
FIGURES = {"cycle_seconds", "cycle_steps", "alpha", "divergence", "waited", "bytes_sent", "peers"}
EPOCHS = 6


@functools.cache
def trained(method: str) -> tuple[list[dict[str, Any]], list[dict[str, np.ndarray]]]:
    """What both workers of a job have written: figures, and weights."""
    with tempfile.TemporaryDirectory() as folder:
        run_two_workers(Path(joint_model.__file__), folder, method, str(EPOCHS))
        return results(folder), weights(folder)


@pytest.mark.parametrize("method", METHODS)
def test_all_workers_end_with_the_same_bits(method: str) -> None:
    found, (first, second) = trained(method)
    assert len(first) == 10  # Of the frozen layer two, of BatchNormalization four.
    for name, values in first.items():
        np.testing.assert_array_equal(values, second[name])
    for result in found:
        assert result["loaded_is_last"]  # What ModelCheckpoint wrote is the joint model.


@pytest.mark.parametrize("method", METHODS)
def test_the_joint_model_learns(method: str) -> None:
    for result in trained(method)[0]:
        logs = result["logs"][0]
        assert len(logs["loss"]) == EPOCHS
        # As plain Keras does with the data of both workers; before training it is log 3 or more.
        assert result["evaluated"]["loss"] < 0.5
        assert result["evaluated"]["accuracy"] > 0.8
        assert logs["val_loss"][-1] < 0.6


@pytest.mark.parametrize("method", METHODS)
def test_epochs_end_with_the_joint_model_and_training_goes_on_from_the_workers_own(
    method: str,
) -> None:
    found, _ = trained(method)
    for result in found:
        assert result["goes_on"] == [True] * (EPOCHS - 1)
    # The last epoch's callbacks see what the training has ended with.
    for fit_end in (EPOCHS - 1, EPOCHS):
        assert found[0]["at_ends"][fit_end] == found[1]["at_ends"][fit_end]


@pytest.mark.parametrize("method", METHODS)
def test_the_logs_of_an_epoch_have_the_figures_of_the_method(method: str) -> None:
    pulls = method.startswith("MPCA") and "gradient" not in method
    expected = FIGURES | ({"pull"} if pulls else set())
    for result in trained(method)[0]:
        logs = result["logs"][0]
        assert {name[6:] for name in logs if name.startswith("strom/")} == expected
        assert logs["strom/peers"] == [1.0] * EPOCHS
        assert sum(logs["strom/bytes_sent"]) > 4 * 339  # The parameters, at least once.
        assert logs["strom/cycle_steps"][-1] > 0
        # Until a worker has been asked for one of at most three shards twice it knows of no cycle.
        assert logs["strom/cycle_seconds"][-1] > 0 or result["reports"][0]["exchanges"] <= 3
        if method.startswith("MPCA"):
            assert logs["strom/waited"] == [0.0] * EPOCHS
        else:
            assert logs["strom/cycle_steps"][-1] == (5 if "steps=5" in method else 1)
            assert sum(logs["strom/waited"]) > 0
        assert all(np.isfinite(value) for values in logs.values() for value in values)


@pytest.mark.parametrize("method", METHODS)
def test_the_report_has_the_figures_of_the_method_alone(method: str) -> None:
    for rank, result in enumerate(trained(method)[0]):
        first, second = result["reports"]
        assert (first["rank"], first["workers"], first["parameters"]) == (rank, 2, 339)
        assert (first["steps"], second["steps"]) == (32 * EPOCHS, 32)
        assert first["exchanges"] > 0
        assert first["max_replica_difference"] == 0
        assert first["method"].startswith(method.split("(")[0])
        assert "density" not in first
        assert "density" not in result["report_words"]


def test_without_alpha_no_worker_is_ever_pulled() -> None:
    """Each goes its own way; what all end with is the mean of two models that differ."""
    found, (first, second) = trained("MPCA(alpha=0)")
    for result in found:
        assert result["logs"][0]["strom/alpha"] == [0.0] * EPOCHS
        assert result["logs"][0]["strom/pull"] == [0.0] * EPOCHS
        assert result["reports"][0]["exchanges"] > 0
    for name, values in first.items():
        np.testing.assert_array_equal(values, second[name])


# ------------------------------------------------------------------------- ends

ENDINGS = ("MPCA(phases=1)", "EASGD(steps=5)", "SparkNet(steps=5)")


@functools.cache
def ended(method: str) -> tuple[list[dict[str, Any]], list[dict[str, np.ndarray]]]:
    """What both workers of a job have written: how trainings have ended, and weights after each."""
    with tempfile.TemporaryDirectory() as folder:
        run_two_workers(Path(joint_endings.__file__), folder, method)
        return results(folder), weights(folder)


@pytest.mark.parametrize("method", ENDINGS)
def test_however_a_training_ends_all_workers_have_the_same_sound_weights(method: str) -> None:
    _, (first, second) = ended(method)
    assert len(first) == 10
    for name, values in first.items():
        assert np.isfinite(values).all(), name
        # What was trained with a function of before is refused on each worker by itself.
        np.testing.assert_array_equal(values, second[name], err_msg=name)


@pytest.mark.parametrize("method", ENDINGS)
def test_a_training_that_fails_or_meets_a_nan_ends_on_all_and_the_next_one_starts(
    method: str,
) -> None:
    found, _ = ended(method)
    assert "ValueError: boom" in found[1]["said"]["boom"]
    assert "fit has failed on worker 1 (ValueError: boom)" in found[0]["said"]["boom"]
    for result in found:
        assert set(result["said"]) == {"boom", "frozen without compile"}
        for name in ("well", "after the NaN", "best weights", "frozen"):
            assert len(result["losses"][name]) == 2
            assert np.isfinite(result["losses"][name]).all()
        # The last epoch's loss, though the others of a worker may have been sound.
        assert np.isnan(result["losses"]["terminated"][-1])


@pytest.mark.parametrize("method", ENDINGS)
def test_layers_that_are_frozen_need_a_function_of_their_own(method: str) -> None:
    for result in ended(method)[0]:
        assert "compile the model again" in result["said"]["frozen without compile"]


@pytest.mark.parametrize("method", ENDINGS)
def test_custom_loops_train_with_and_without_naming_their_models(method: str) -> None:
    for result in ended(method)[0]:
        for name in ("loop of 1 models", "loop of 0 models"):
            first, last, steps = result["losses"][name]
            assert np.isfinite([first, last]).all()
            assert steps == 32


@pytest.mark.parametrize("method", ENDINGS)
def test_a_step_of_a_loop_that_is_over_is_refused(method: str) -> None:
    for result in ended(method)[0]:
        assert "strategy.begin" in result["outside"]


@pytest.mark.parametrize("method", ENDINGS)
def test_the_scales_of_float8_layers_are_no_part_of_the_joint_model(method: str) -> None:
    """Each step computes them anew from a worker's own values: an average of old ones fits none."""
    for result in ended(method)[0]:
        assert len(result["float8"]) == 3 * 6
        assert all(result["float8"])


# ------------------------------------------------------------------------- losses

PER_EPOCH = 60


@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_that_is_killed_trains_on_in_its_place(tmp_path: Path, rank: int) -> None:
    # So slow that there are cycles enough for the joint model to learn, on a busy machine too.
    work = elastic.Job(epochs=8, pause=0.005, hold_at=PER_EPOCH + 30, method="MPCA")
    ended = run(tmp_path, work, Fault(mode="kill", rank=rank, step=PER_EPOCH + 20))
    ended.check()
    assert f"[{rank}] worker {rank} was killed by SIGKILL; it is started again" in ended.output
    assert [result["attempt"] for result in ended.results] == [1 - rank, rank]
    assert "fresh optimizer" not in ended.output
    assert ("rejoined", rank) in ended.events


def test_a_job_that_was_killed_goes_on_from_its_checkpoint_in_the_middle_of_the_schedules(
    tmp_path: Path,
) -> None:
    work = elastic.Job(epochs=8, fits=2, pause=0.02, method="MPCA")
    checkpoints = tmp_path / "checkpoints"
    parts = run_until_killed(tmp_path, work, checkpoints, workers=2).values()
    assert all(part.arrays["residuals"].size == 0 for part in parts)
    assert max(part.cycles for part in parts) < 50
    for path in max(checkpoints.glob("checkpoint-*")).iterdir():
        path.write_bytes(dataclasses.replace(read_part(path), cycles=1000).to_bytes())
    # So slow that the master's orders, with alpha, come within the first epoch of each training.
    again = elastic.Job(epochs=8, fits=2, pause=0.01, method="MPCA")
    options = ["--checkpoint-dir", str(checkpoints)]
    done = launch(Path(elastic.__file__), str(tmp_path), json.dumps(vars(again)), options=options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "goes on from the checkpoint" in done.stdout
    first, second = weights(tmp_path)
    for name, values in first.items():
        np.testing.assert_array_equal(values, second[name])
    for result in results(tmp_path):
        assert result["accuracy"] > 0.93
        # Of a training that begins the pull is none at first, and then ten times as strong.
        for fit in result["fits"]:
            assert fit["alphas"][0] == pytest.approx(MPCA().alpha)
