"""What the benchmark of killed executors counts as Spark's time, and what as ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import executor_loss, report
from benchmarks.executor_loss import PHASES, Back
from keras_strom.spark.runner.event import Event


def back(killed: float, *ends: float) -> Back:
    marks = dict(zip((name for name, _, _ in PHASES), ends, strict=True))
    return Back(1, killed, marks, {"worker": 4.0})


def test_sparks_time_ends_and_ours_begins_where_the_tasks_python_begins() -> None:
    one = back(100.0, 101.0, 105.0, 105.5, 109.5, 109.6, 110.0, 111.0)
    assert one.total("Spark") == pytest.approx(5.0)
    assert one.total("ours") == pytest.approx(6.0)
    assert one.seconds["worker"] == pytest.approx(4.0)


def test_the_target_is_the_median_of_what_is_ours(tmp_path: Path) -> None:
    result = report.Report("chaos", "", tmp_path)
    backs = [back(0.0, 1.0, 2.0, 2.1, 6.0, 6.1, 6.5, 2.0 + own) for own in (5.0, 9.0, 6.0)]
    executor_loss.add_executor_losses(result, backs)
    (target,) = result.targets
    assert (target.name, target.value, target.met) == ("rejoin_spark_own_seconds", 6.0, True)


def test_the_replacement_of_a_worker_is_found_by_its_attempt(tmp_path: Path) -> None:
    for attempt in (1, 2):
        noted = {"executor": 1, "processor": {}, "marks": {"task": 100 * attempt}}
        (tmp_path / f"trains-1-{attempt}").write_text(json.dumps(noted))
    events = [
        Event(seconds, kind, 1, "")
        for seconds, kind in (
            (1.0, "registered"),
            (96.0, "registered"),
            (98.0, "master: joined"),
            (196.0, "registered"),
        )
    ]
    first, second = executor_loss._backs(tmp_path, [(1, 90.0), (1, 190.0)], events, begin=5.0)
    assert (first.marks["task"], first.registered, first.joined) == (100, 101.0, 103.0)
    assert (second.marks["task"], second.registered, second.joined) == (200, 201.0, None)


def test_a_process_begins_on_the_clock_of_the_driver() -> None:
    before = time.monotonic()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with child:
        assert before - 0.02 <= executor_loss.began(child.pid) <= time.monotonic() + 0.02
        assert child.pid in executor_loss.children(os.getpid())
        child.communicate(b"\n")
