"""Exact mode: one worker with the joined batch, the same bits in every run, and a worker killed.

Each job runs tests/support/scripts/every_step.py or elastic.py over a real relay on the loopback.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.elastic_jobs import run
from tests.support.faults import Fault
from tests.support.scripts import elastic, every_step
from tests.support.two_workers import launch

pytestmark = pytest.mark.jobs

Weights = list[np.ndarray]
NAMES = ("first", "second")


def weights_of(folder: Path, options: str, workers: int) -> list[Weights]:
    """What each worker of a job has at the end."""
    folder.mkdir(exist_ok=True)
    ended = launch(Path(every_step.__file__), str(folder), options, workers=workers)
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-4000:]
    return [list(np.load(folder / f"{rank}.npz").values()) for rank in range(workers)]


def assert_same_bits(first: Weights, second: Weights) -> None:
    for of_first, of_second in zip(first, second, strict=True):
        np.testing.assert_array_equal(of_first, of_second)


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ("threshold=None", 1e-5),
        ("method=keras_strom.SparkNet(steps=1)", 1e-5),
        # The same roundings in NumPy come to 0.025 after 60 steps of this momentum.
        ("method=keras_strom.AllReduce(dtype='bfloat16')", 5e-2),
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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_worker_that_is_killed_trains_on_in_its_place(tmp_path: Path, dtype: str) -> None:
    # So long that the one in its place comes in time: all wait for all, so nobody may be held.
    work = elastic.Job(
        epochs=8, pause=0.1, hurries=True, method="AllReduce", options={"dtype": dtype}
    )
    ended = run(tmp_path, work, Fault(mode="kill", rank=1, step=80))
    ended.check()
    assert "[1] worker 1 was killed by SIGKILL; it is started again" in ended.output
    assert [result["attempt"] for result in ended.results] == [0, 1]
    assert ("rejoined", 1) in ended.events
