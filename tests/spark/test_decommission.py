"""A worker on an executor that Spark decommissions leaves by itself, and goes on on another.

On a standalone cluster of three machines with a core each, one of which hears SIGPWR.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from keras_strom.spark.runner import decommission, task
from keras_strom.spark.runner.decommission import Decommissions
from tests.support import faults, standalone
from tests.support.controlled_tasks import DEADLINE, Tasks, hear
from tests.support.faults import Fault

CLUSTER_SECONDS = 400.0
BATCHES = 40

_DRIVER = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
from keras_strom.spark import run
from tests.support.scripts import elastic

builder = SparkSession.builder.master(sys.argv[1]).config("spark.ui.enabled", "false")
builder = builder.config("spark.decommission.enabled", "true")
spark = builder.config("spark.executor.memory", "512m").getOrCreate()
work = elastic.Job(epochs=3, hold_at=BATCHES + 10)
results = run(
    elastic.main,
    (sys.argv[2], json.dumps(vars(work)), sys.argv[3]),
    num_proc=2,
    max_failures=0,
    start_timeout=300,
    spark=spark,
)
found = {"failures": results.metrics["failures"]}
found["events"] = [(event.kind, event.rank, event.text) for event in results.events]
Path(sys.argv[2], "found").write_text(json.dumps(found))
spark.stop()
"""


@pytest.mark.jobs
@pytest.mark.timeout(1.5 * CLUSTER_SECONDS)  # Eight JVMs start on a machine that may be busy.
def test_a_worker_whose_executor_is_decommissioned_goes_on_at_its_batch_on_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repository: Path
) -> None:
    monkeypatch.setenv("SPARK_WORKER_OPTS", "-Dspark.decommission.enabled=true")
    monkeypatch.setenv("PYTHONPATH", str(repository))
    fault = Fault(mode="decommission", rank=1, step=BATCHES)
    with standalone.cluster(tmp_path, workers=3) as url:
        script = _DRIVER.replace("BATCHES", str(BATCHES))
        driver = subprocess.run(
            [sys.executable, "-c", script, url, str(tmp_path), faults.to_json(fault)],
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=CLUSTER_SECONDS,
            check=False,
        )
    sys.stdout.write(driver.stdout + driver.stderr)  # Shown where the test fails.
    assert driver.returncode == 0
    found = json.loads((tmp_path / "found").read_text())
    kinds = [kind for kind, rank, _ in found["events"] if rank == 1]
    ours = [kind for kind in kinds if not kind.startswith("master: ")]
    assert ours[-1] == "ended"
    assert [k for k in ours if k != "registered"][:4] == [
        "started",
        "leaves",
        "drained",
        "restarted",
    ]
    assert "master: drained" in kinds
    assert "lost" not in kinds
    assert found["failures"] == 0
    chief, other = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert (chief["attempt"], other["attempt"]) == (0, 1)
    assert other["fits"][0]["batches"][0] == [0, chief["fits"][0]["batches"][0][1] - BATCHES]
    weights = [np.load(tmp_path / f"{rank}.npz") for rank in range(2)]
    for name in weights[0]:
        np.testing.assert_array_equal(weights[0][name], weights[1][name])


# ------------------------------------------------------------------ without Spark


def test_a_worker_of_an_executor_that_is_taken_away_goes_on_in_another_which_is_no_failure() -> (
    None
):
    with contextlib.closing(Tasks(2)) as tasks:
        controller = tasks.controller
        for partition in range(2):
            tasks.register(partition, "a", executor=str(partition), task=10 + partition)
            tasks.wait_for("registered", partition + 1)
        first, second = tasks.channels
        hear(first)
        hear(second)
        assert controller.executors() == {"0", "1"}
        for _ in range(2):  # Whoever has not heard it may.
            controller.drain("1")
            assert hear(second) == {"type": "drain"}
        second.send({"type": "drained", "stepped": True, "too_late": False})
        assert controller.vacated.get(timeout=DEADLINE) == 11
        assert controller.executors() == {"0"}
        controller.drain("1")
        second.close()  # Spark has killed its task.
        place = hear(tasks.register(1, "b", attempt=1, executor="2", task=12))
        assert (place["rank"], place["attempt"]) == (1, 1)
        assert controller.executors() == {"0", "2"}
        assert (controller.failures, controller.lost_tasks) == (0, 0)
        assert controller.first_failure() is None
        kinds = [event.kind for event in controller.events if event.rank == 1]
        assert kinds == ["registered", "started", "leaves", "drained", "registered", "restarted"]
        assert "executor 1 on a is decommissioned: worker 1 drains" in tasks.output.getvalue()
        assert "Spark is to run its task elsewhere" in tasks.output.getvalue()


def test_an_executor_is_known_by_its_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = "print('here', flush=True); input()"
    command = [sys.executable, "-c", work, "--executor-id", "17", "--cores", "1"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()  # Before it has begun the system shows no command line.
        monkeypatch.setattr(task, "_executor", lambda: process.pid)
        assert task._executor_id() == "17"
        process.communicate(b"\n")
    monkeypatch.setattr(task, "_executor", os.getpid)
    assert task._executor_id() == ""  # A driver's.
    monkeypatch.setattr(task, "_executor", lambda: 1 << 30)
    assert task._executor_id() == ""  # Nobody's, as it seems.


class Scheduler:
    """What is asked of Spark's driver; some executors are decommissioned."""

    def __init__(self, *leaving: str) -> None:
        self.leaving = set(leaving)
        self.killed: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._jsc = self

    def sc(self) -> Scheduler:
        return self

    taskScheduler = getConf = sc  # noqa: N815, as Spark calls it.

    def get(self, name: str, default: str) -> str:
        return "true" if name == "spark.decommission.enabled" else default

    def getExecutorDecommissionState(self, executor: str) -> Any:  # noqa: N802
        return SimpleNamespace(isDefined=lambda: executor in self.leaving)

    def killTaskAttempt(self, task: int, interrupt: bool, why: str) -> bool:  # noqa: N802
        self.killed.put(task)
        return True


def test_the_task_of_a_decommissioned_executor_is_killed_once_its_worker_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decommission, "POLL_SECONDS", 0.01)
    scheduler: Any = Scheduler("0")
    with contextlib.closing(Tasks(2)) as tasks:
        for partition in range(2):
            tasks.register(partition, "a", executor=str(partition), task=10 + partition)
            tasks.wait_for("registered", partition + 1)
        with Decommissions(scheduler, tasks.controller):
            first, second = tasks.channels
            hear(first)
            hear(second)
            assert hear(first) == {"type": "drain"}
            first.send({"type": "drained", "stepped": True, "too_late": False})
            assert scheduler.killed.get(timeout=DEADLINE) == 10
            second.send({"type": "ended", "size": 0})
            tasks.wait_for("ended")
    assert scheduler.killed.empty()


def test_a_scheduler_that_cannot_say_who_is_decommissioned_is_asked_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(decommission, "POLL_SECONDS", 0.01)
    scheduler: Any = Scheduler()
    scheduler.getExecutorDecommissionState = None
    with contextlib.closing(Tasks(1)) as tasks:
        tasks.register(0, "a", executor="0")
        tasks.wait_for("started")
        with Decommissions(scheduler, tasks.controller) as watching:
            assert watching._thread is not None
            watching._thread.join(DEADLINE)
            assert not watching._thread.is_alive()
    assert "decommissioned executors are not noticed any more" in caplog.text
