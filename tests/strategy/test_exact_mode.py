"""Exact mode: one worker with the joined batch, the same bits in every run, and a worker killed.

Each job runs tests/support/scripts/every_step.py or elastic.py over a real relay on the loopback.
"""

from __future__ import annotations

import functools
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_strom import NetworkConfig
from tests.support.elastic_jobs import run, run_until_killed
from tests.support.faults import Fault
from tests.support.scripts import elastic, every_step, one_state
from tests.support.two_workers import launch, results, run_two_workers
from tests.support.two_workers import weights as weights_in

pytestmark = pytest.mark.jobs

Weights = list[np.ndarray]
NAMES = ("first", "second")
AVERAGES = (("gradients", "float32"), ("gradients", "bfloat16"), ("updates", "bfloat16"))


def weights_of(
    folder: Path, options: str, workers: int, optimizer: str = "momentum"
) -> list[Weights]:
    """What each worker of a job has at the end."""
    folder.mkdir(exist_ok=True)
    script = Path(every_step.__file__)
    ended = launch(script, str(folder), options, optimizer, workers=workers)
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-4000:]
    return [list(np.load(folder / f"{rank}.npz").values()) for rank in range(workers)]


def assert_same_bits(first: Weights, second: Weights) -> None:
    for of_first, of_second in zip(first, second, strict=True):
        np.testing.assert_array_equal(of_first, of_second)


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ("threshold=None", 1e-5),
        ("method=keras_strom.AllReduce(average='updates')", 1e-5),
        ("method=keras_strom.SparkNet(steps=1)", 1e-5),
        # The same roundings in NumPy come to 0.025 after 60 steps of this momentum.
        ("method=keras_strom.AllReduce(average='updates', dtype='bfloat16')", 5e-2),
        # ... and to 0.067 where it is the gradients.
        ("method=keras_strom.AllReduce(dtype='bfloat16')", 1e-1),
    ],
)
def test_two_workers_are_one_with_the_joined_batch(
    tmp_path: Path, options: str, tolerance: float
) -> None:
    first, second = weights_of(tmp_path, options, workers=2)
    assert_same_bits(first, second)
    alone, _ = every_step.train(every_step.BATCH * 2)
    for of_first, of_one in zip(first, alone, strict=True):
        np.testing.assert_allclose(of_first, of_one, atol=tolerance)


@pytest.mark.parametrize("optimizer", sorted(every_step.OPTIMIZERS.keys() - {"momentum"}))
def test_with_any_optimizer_two_workers_are_one_with_the_joined_batch(
    tmp_path: Path, optimizer: str
) -> None:
    first, second = weights_of(tmp_path, "threshold=None", workers=2, optimizer=optimizer)
    assert_same_bits(first, second)
    bits = [(tmp_path / f"{rank}.txt").read_text() for rank in range(2)]
    assert bits[0] == bits[1]  # After every step.
    alone, _ = every_step.train(every_step.BATCH * 2, optimizer)
    for of_first, of_one in zip(first, alone, strict=True):
        np.testing.assert_allclose(of_first, of_one, atol=2e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_runs_of_three_workers_have_the_same_bits(tmp_path: Path, dtype: str) -> None:
    options = f"method=keras_strom.AllReduce(dtype={dtype!r})"
    runs = [weights_of(tmp_path / name, options, workers=3) for name in NAMES]
    for workers in runs:
        for one in workers:
            assert_same_bits(one, runs[0][0])
    of_steps = {(tmp_path / name / f"{r}.txt").read_text() for name in NAMES for r in range(3)}
    assert len(of_steps) == 1  # After every step, on all workers, in both runs.
    assert len(of_steps.pop().split()) == 2 * every_step.ROWS // every_step.BATCH // 3


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("average", "dtype"), AVERAGES)
def test_a_worker_that_is_killed_trains_on_in_its_place(
    tmp_path: Path, average: str, dtype: str, rank: int
) -> None:
    # So long that the one in its place comes in time: all wait for all, so nobody may be held.
    options = {"average": average, "dtype": dtype}
    work = elastic.Job(epochs=8, pause=0.1, hurries=True, method="AllReduce", options=options)
    ended = run(tmp_path, work, Fault(mode="kill", rank=rank, step=80))
    ended.check()
    assert f"[{rank}] worker {rank} was killed by SIGKILL; it is started again" in ended.output
    assert [result["attempt"] for result in ended.results] == [1 - rank, rank]
    assert ("rejoined", rank) in ended.events
    if average == "gradients":
        assert_one_state(ended.results, least=20)


def test_workers_that_are_lost_one_after_the_other_leave_one_state(tmp_path: Path) -> None:
    work = elastic.Job(epochs=10, pause=0.1, hurries=True, joins=2, method="AllReduce")
    faults = [Fault(mode="kill", rank=rank, step=step) for rank, step in ((0, 40), (2, 55))]
    ended = run(tmp_path, work, *faults, workers=3)
    ended.check()
    assert [result["attempt"] for result in ended.results] == [1, 0, 1]
    assert_one_state(ended.results, least=50)


@pytest.mark.parametrize("restores", [False, True])
def test_where_all_are_lost_at_once_all_begin_again(tmp_path: Path, restores: bool) -> None:
    work = elastic.Job(epochs=4, pause=0.05, method="AllReduce")
    faults = [Fault(mode="kill", rank=rank, step=60) for rank in range(2)]
    folder, network, where = tmp_path / "checkpoints", NetworkConfig(), "their start"
    if restores:
        network = NetworkConfig(checkpoint_dir=str(folder), checkpoint_interval=0.4)
        where = re.escape(f"{folder}/checkpoint-") + r"[-\d]+"
    ended = run(tmp_path, work, *faults, network=network, consequences=1)
    ended.check()
    assert re.search(rf"StateLost: .*; all workers begin again, from {where} \(fail", ended.output)
    assert ("goes on from the checkpoint" in ended.output) == restores
    assert_one_state(ended.results, least=60)


def test_a_job_that_was_killed_goes_on_from_its_checkpoint_in_one_state(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    work = elastic.Job(epochs=8, fits=2, pause=0.02, method="AllReduce")
    run_until_killed(tmp_path, work, checkpoints, workers=2)
    again = json.dumps(vars(elastic.Job(epochs=8, fits=2, method="AllReduce")))
    options = ["--checkpoint-dir", str(checkpoints)]
    done = launch(Path(elastic.__file__), str(tmp_path), again, options=options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "goes on from the checkpoint" in done.stdout
    for fit in range(2):
        assert_one_state(results(tmp_path), least=100, fit=fit)


def assert_one_state(found: list[dict[str, Any]], least: int, fit: int = 0) -> None:
    """After each step that several have made all have the same bits, of the optimizer too."""
    of_workers = [dict(result["fits"][fit]["states"]) for result in found]
    common = 0
    for step in set().union(*of_workers):
        states = [states[step] for states in of_workers if step in states]
        assert len(set(states)) == 1
        common += len(states) > 1
    assert common >= least


@functools.cache
def parted() -> tuple[list[dict[str, Any]], list[Weights]]:
    """What both workers of one_state.py have written: of each training, and weights at the end."""
    with tempfile.TemporaryDirectory() as folder:
        run_two_workers(Path(one_state.__file__), folder)
        found = [list(weights.values()) for weights in weights_in(folder)]
        return results(folder), found


@pytest.mark.parametrize("training", ["overflow", "uneven", "after it", "nan"])
def test_nothing_that_one_worker_meets_parts_the_two(training: str) -> None:
    first, second = (result[training] for result in parted()[0])
    states = [dict(zip(one["steps"], one["states"], strict=True)) for one in (first, second)]
    common = states[0].keys() & states[1].keys()
    assert len(common) >= one_state.BAD
    assert all(states[0][step] == states[1][step] for step in common)


def test_a_gradient_that_overflows_on_one_worker_has_all_leave_out_the_step() -> None:
    for result in parted()[0]:
        scales = result["overflow"]["scales"]
        assert scales == [2.0**15] * one_state.BAD + [2.0**14] * (len(scales) - one_state.BAD)


def test_a_learning_rate_that_the_chief_sets_is_that_of_the_next_step_of_all() -> None:
    first, second = (result["overflow"]["rates"] for result in parted()[0])
    set_after = one_state.HALVED + 1
    assert first == second
    assert len(set(first[:set_after])) == len(set(first[set_after:])) == 1
    assert first[set_after] == first[0] / 2


def test_what_most_steps_have_made_is_what_all_end_with_and_the_next_fit_is_of_one_state() -> None:
    first, second = (result["uneven"] for result in parted()[0])
    assert len(second["states"]) == len(first["states"]) + 3
    assert second["difference"] == first["difference"] > 0  # Of who has stopped earlier.
    for result in parted()[0]:
        assert result["after it"]["difference"] == 0
    assert_same_bits(*parted()[1])


def test_all_who_lack_the_state_of_the_chief_get_it_before_the_first_step(tmp_path: Path) -> None:
    ended = launch(Path(one_state.__file__), str(tmp_path), workers=3)
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-4000:]
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    first, *others = (result["after it"]["states"] for result in found)
    assert len(first) == one_state.BATCHES
    assert others == [first, first]


def test_a_gradient_that_is_no_number_ends_the_training_of_all_before_the_step() -> None:
    for result in parted()[0]:
        assert "NotFinite: the workers' mean gradient of" in result["nan"]["said"]
        assert result["nan"]["finite"]
        assert len(result["nan"]["states"]) == one_state.BAD + 1  # Keras has seen that step.
