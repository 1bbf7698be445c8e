"""Workers that die in the middle of training are started again and train on with the others.

Each job runs tests/support/scripts/elastic.py in processes over a real relay on the loopback. What
is to happen when is agreed through files, so that a slow machine changes nothing.
"""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_strom import NetworkConfig
from tests.support import faults
from tests.support.elastic_jobs import WatchedMaster, run
from tests.support.faults import Fault
from tests.support.scripts import elastic

pytestmark = pytest.mark.jobs

#: Batches of an epoch of each of two workers.
PER_EPOCH = 60
KILLED = Fault(mode="kill", rank=1, step=PER_EPOCH + 20)


def test_a_worker_that_is_killed_trains_on_where_it_was(tmp_path: Path) -> None:
    ended = run(tmp_path, elastic.Job(hold_at=PER_EPOCH + 30), KILLED)
    ended.check()
    assert "[1] worker 1 was killed by SIGKILL; it is started again" in ended.output
    assert [result["attempt"] for result in ended.results] == [0, 1]
    fit = ended.results[1]["fits"][0]
    (epoch, first), *later = fit["batches"]
    # It trains those batches again whose updates had not reached the master.
    assert (epoch, first) >= (1, PER_EPOCH - 20) or epoch == 0
    assert later == [[number, PER_EPOCH] for number in range(epoch + 1, 4)]
    # The optimizer goes on as well, and counts as at its own place: so it ends with its schedule.
    assert fit["iterations"][0] == (epoch + 1) * PER_EPOCH - first
    assert [result["steps"] for result in ended.results] == [4 * PER_EPOCH] * 2
    assert "fresh optimizer" not in ended.output
    assert "ran out of data" not in ended.output
    assert ("rejoined", 1) in ended.events


def test_the_chief_may_be_killed_and_an_earlier_fit_is_over_for_its_replacement(
    tmp_path: Path,
) -> None:
    work = elastic.Job(epochs=2, fits=2, hold_at=2 * PER_EPOCH + 30)
    ended = run(tmp_path, work, Fault(mode="kill", rank=0, step=20, fit=1))
    ended.check()
    first, second = ended.results[0]["fits"]
    assert first["epochs"] == [0, 1]  # The history that the other had.
    assert second["epochs"][-1] == 1


def test_of_three_workers_one_is_killed_twice_and_one_runs_out_of_memory(tmp_path: Path) -> None:
    twice = Fault(mode="kill", rank=2, step=10, attempts=2)
    memory = Fault(mode="memory", rank=1, step=12)
    ended = run(tmp_path, elastic.Job(hold_at=15, joins=3), twice, memory, workers=3)
    ended.check()
    assert [result["attempt"] for result in ended.results] == [0, 1, 2]
    assert len(re.findall(r"worker \d \(attempt \d\) goes on", ended.output)) == 3


@pytest.mark.parametrize(("rank", "as_on_spark"), [(0, True), (1, False)])
def test_a_worker_that_comes_when_the_others_have_ended_has_what_they_have(
    tmp_path: Path, rank: int, as_on_spark: bool
) -> None:
    work = elastic.Job(initial_epoch=2, after_the_end=True, as_on_spark=as_on_spark)
    ended = run(tmp_path, work, dataclasses.replace(KILLED, rank=rank))
    ended.check()
    fit = ended.results[rank]["fits"][0]
    assert fit["epochs"] == [2, 3, 4, 5]  # The history that the other had.
    assert fit["losses"] == 4
    assert "comes after the end" in ended.output


@pytest.mark.parametrize(
    ("mode", "waits_at_end", "sharing"),
    [("kill", False, {}), ("sigterm", False, {"max_staleness": 0}), ("kill", True, {})],
)
def test_what_was_trained_stays_where_the_chief_comes_after_the_end(
    tmp_path: Path, mode: faults.Mode, waits_at_end: bool, sharing: dict[str, Any]
) -> None:
    work = elastic.Job(
        epochs=2,
        norm=True,
        after_the_end=not waits_at_end,
        waits_at_end=waits_at_end,
        sharing=sharing,
    )
    ended = run(tmp_path, work, Fault(mode=mode, rank=0, step=PER_EPOCH + 20))
    ended.check()
    assert "comes after the end" in ended.output
    assert "has ended, so this training begins without" not in ended.output
    # BatchNormalization's moving statistics are of what the other has seen.
    assert ended.results[0]["moved"] == ended.results[1]["moved"]
    assert ended.results[1]["moved"][0] == pytest.approx(3, abs=0.5)
    assert [result["fits"][0]["losses"] for result in ended.results] == [2, 2]
    # Its next fit, as the chief, would begin with this count of steps.
    assert [result["steps"] for result in ended.results] == [2 * PER_EPOCH] * 2


def test_a_worker_that_was_cut_off_gives_way_to_a_new_one(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        elastic.Job(hold_at=25),
        Fault(mode="cut", rank=1, step=20),
        network=NetworkConfig(failure_timeout=1.0, same_host=False),
    )
    ended.check()
    assert [result["attempt"] for result in ended.results] == [0, 1]


def test_a_worker_that_was_stopped_for_long_goes_on_from_a_snapshot(tmp_path: Path) -> None:
    master = WatchedMaster()
    with waking(tmp_path / "trains-1-0", master):
        ended = run(
            tmp_path,
            elastic.Job(epochs=10, pause=0.03),
            Fault(mode="stop", rank=1, step=20),
            network=NetworkConfig(failure_timeout=1.0, same_host=False),  # Updates stay for 3 s.
            master=master,
        )
    ended.check()
    assert [result["attempt"] for result in ended.results] == [0, 0]
    assert ended.results[1]["fits"][0]["batches"] == [[epoch, PER_EPOCH] for epoch in range(10)]
    assert ("lost", 1) in ended.events
    assert ("snapshot", 1) in ended.events


def test_a_worker_that_comes_late_trains_where_the_others_are(tmp_path: Path) -> None:
    work = elastic.Job(rows=2880, hold_at=PER_EPOCH + 30, late=2)
    ended = run(tmp_path, work, workers=3, min_workers=2)
    ended.check()
    (epoch, first), *later = ended.results[2]["fits"][0]["batches"]
    assert (epoch, first) == (1, PER_EPOCH - 30)
    assert later == [[number, PER_EPOCH] for number in range(epoch + 1, 4)]
    assert ("rejoined", 2) in ended.events


def test_with_fewer_than_the_least_number_training_waits(tmp_path: Path) -> None:
    ended = run(tmp_path, elastic.Job(), KILLED, min_workers=2)
    ended.check()
    assert "[0] worker 0: training waits for 1 more worker" in ended.output
    assert "[0] worker 0: training goes on after" in ended.output
    assert ("rejoined", 1) in ended.events  # Worker 0 has not ended meanwhile.


@contextmanager
def waking(trains: Path, master: WatchedMaster) -> Iterator[None]:
    """Wakes a stopped worker 1 when the other has made 100 more steps since it was given up."""
    over = threading.Event()

    def wake() -> None:
        steps = None
        while not over.wait(0.05):
            members = master.status().get("node", {}).get("members", [])
            by_rank = {member["rank"]: member for member in members}
            if 1 not in by_rank or by_rank[1]["state"] != "lost":
                continue
            accepted = by_rank[0]["updates_accepted"]
            steps = accepted if steps is None else steps
            if accepted >= steps + 100:
                os.kill(elastic.Trains.read(trains).pid, signal.SIGCONT)
                return

    thread = threading.Thread(target=wake, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_on_spark_a_worker_that_is_killed_trains_on(spark: Any, tmp_path: Path) -> None:
    from keras_strom.spark import run as run_on_spark

    results = run_on_spark(
        elastic.train,
        (elastic.Job(hold_at=PER_EPOCH + 30), str(tmp_path)),
        num_proc=2,
        max_failures=1,
        env=faults.to_environ(KILLED),
        spark=spark,
    )
    assert [result["attempt"] for result in results] == [0, 1]
    for one, other in zip(results[0]["weights"], results[1]["weights"], strict=True):
        np.testing.assert_array_equal(one, other)
    assert all(result["accuracy"] > 0.93 for result in results)
    kinds = {event.kind for event in results.events if event.rank == 1}
    assert {"lost", "restarted", "master: lost", "master: rejoined"} <= kinds
