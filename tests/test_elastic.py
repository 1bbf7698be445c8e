"""Workers that die in the middle of training are started again and train on with the others.

Each job runs tests/scripts/elastic.py in processes over a real relay on the loopback. What is to
happen when is agreed through files, so that a slow machine changes nothing.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from tests import faults
from tests.faults import Fault
from tests.scripts import elastic

SCRIPT = Path(elastic.__file__)
#: Batches of an epoch of each of two workers.
PER_EPOCH = 60


class Ended:
    """What the workers of a job have written and shown."""

    def __init__(self, workers: int, folder: Path, output: str) -> None:
        self.results = [json.loads((folder / f"{r}.json").read_text()) for r in range(workers)]
        self.weights = [dict(np.load(folder / f"{r}.npz")) for r in range(workers)]
        self.output = output

    def fit(self, rank: int) -> dict[str, Any]:
        """The first fit of a worker's last attempt."""
        fit: dict[str, Any] = self.results[rank]["fits"][0]
        return fit

    def check(self) -> None:
        """All have the same bits, and have learnt."""
        for other in self.weights[1:]:
            for name, value in self.weights[0].items():
                np.testing.assert_array_equal(other[name], value)
        # Undisturbed jobs get 0.93 to 0.95.
        assert all(result["accuracy"] > 0.9 for result in self.results)


@functools.cache
def run(fault: Fault | None, job: elastic.Job, workers: int = 2) -> Ended:
    """Runs a job to its end."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "keras_strom", "run", "-np", str(workers)]
        job_text = json.dumps(vars(job))
        completed = subprocess.run(
            [*command, "--max-failures", "2", str(SCRIPT), folder, job_text],
            env={**os.environ, **(fault.to_environ() if fault else {})},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert completed.returncode == 0, completed.stdout[-5000:] + completed.stderr[-2000:]
        return Ended(workers, Path(folder), completed.stdout)


KILLED_ONCE = Fault(mode="kill", rank=1, step=PER_EPOCH + 20)
CHIEF_KILLED = Fault(mode="kill", rank=0, step=PER_EPOCH + 20)
KILLED_TWICE = Fault(mode="kill", rank=2, step=10, attempts=2)


def test_a_worker_that_is_killed_trains_on_where_it_was() -> None:
    ended = run(KILLED_ONCE, elastic.Job(hold_at=PER_EPOCH + 30))
    ended.check()
    assert ended.results[1]["attempt"] == 1
    assert "[1] worker 1 was killed by SIGKILL; it is started again" in ended.output
    batches = dict(ended.fit(1)["batches"])
    # It may train the last batches again whose updates had not left.
    epoch, first = next(iter(batches.items()))
    assert epoch in (0, 1)
    assert PER_EPOCH - 20 <= first <= PER_EPOCH
    assert all(count == PER_EPOCH for later, count in batches.items() if later > epoch)
    assert max(batches) == 3
    assert "ran out of data" not in ended.output
    # The optimizer goes on as well: its count is the donor's.
    assert ended.fit(1)["iterations"][0] >= PER_EPOCH


def test_the_chief_may_be_killed() -> None:
    ended = run(CHIEF_KILLED, elastic.Job(hold_at=PER_EPOCH + 30))
    ended.check()
    assert ended.results[0]["attempt"] == 1
    assert ended.fit(0)["epochs"][-1] == ended.fit(1)["epochs"][-1] == 3


def test_a_worker_of_three_may_be_killed_twice() -> None:
    ended = run(KILLED_TWICE, elastic.Job(hold_at=15, joins=2), workers=3)
    ended.check()
    assert ended.results[2]["attempt"] == 2
    assert len(re.findall(r"worker 2 \(attempt \d\) goes on", ended.output)) == 2


def test_a_worker_that_comes_when_the_others_have_ended_has_what_they_have() -> None:
    ended = run(KILLED_ONCE, elastic.Job(after_the_end=True))
    ended.check()
    assert ended.fit(1)["epochs"] == []
    assert "comes after the end" in ended.output


def test_a_worker_that_joins_the_second_fit_skips_the_first() -> None:
    fault = Fault(mode="kill", rank=1, step=2 * PER_EPOCH + 20)
    ended = run(fault, elastic.Job(epochs=2, fits=2, hold_at=2 * PER_EPOCH + 30))
    ended.check()
    first, second = ended.results[1]["fits"]
    assert first["epochs"] == []
    assert second["epochs"][-1] == 1


@pytest.mark.parametrize("mode", ["exception", "exit", "memory"])
def test_a_worker_that_fails_otherwise_is_replaced_too(mode: faults.Mode) -> None:
    fault = Fault(mode=mode, rank=1, step=20)
    ended = run(fault, elastic.Job(epochs=2, hold_at=30))
    ended.check()
    assert ended.results[1]["attempt"] == 1


def test_on_spark_a_worker_that_is_killed_trains_on(spark: Any, tmp_path: Path) -> None:
    from keras_strom.spark import run as run_on_spark

    cloudpickle.register_pickle_by_value(elastic)
    cloudpickle.register_pickle_by_value(faults)
    results = run_on_spark(
        elastic.train,
        (elastic.Job(hold_at=PER_EPOCH + 30), str(tmp_path)),
        num_proc=2,
        max_failures=1,
        env=KILLED_ONCE.to_environ(),
        spark=spark,
    )
    assert [result["attempt"] for result in results] == [0, 1]
    for one, other in zip(results[0]["weights"], results[1]["weights"], strict=True):
        np.testing.assert_array_equal(one, other)
    assert all(result["accuracy"] > 0.9 for result in results)
    kinds = {event.kind for event in results.events if event.rank == 1}
    assert {"lost", "restarted", "master: lost"} <= kinds
