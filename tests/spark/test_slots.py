"""How `run` waits for the executors of an application that has just started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from keras_strom import errors
from keras_strom.spark import ParameterAveraging
from keras_strom.spark.runner import slots
from tests.support import standalone

DEADLINE = 200.0


class Application:
    """A SparkContext that started so many seconds ago."""

    def __init__(self, master: str, age: float = 0.0, **settings: str) -> None:
        self.master = master
        self.startTime = (time.time() - age) * 1000
        self._settings = {name.replace("_", "."): value for name, value in settings.items()}

    def getConf(self) -> dict[str, str]:  # noqa: N802
        return self._settings

    def statusTracker(self) -> Any:  # noqa: N802
        return types.SimpleNamespace(getActiveJobsIds=list)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds pass in sleeps only; no executor has been lost."""
    now = [1000.0]
    monkeypatch.setattr(slots.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(slots.time, "sleep", lambda seconds: now.append(now.pop() + seconds))
    monkeypatch.setattr(slots, "_executors", lambda *_: [])


def slots_come(monkeypatch: pytest.MonkeyPatch, moments: Iterable[float]) -> None:
    """One more slot after each of so many seconds from now."""
    begin = slots.time.monotonic()

    def count(*_: Any) -> int:
        return sum(slots.time.monotonic() >= begin + moment for moment in moments)

    monkeypatch.setattr(slots, "count_slots", count)


@pytest.mark.usefixtures("clock")
def test_an_executor_that_takes_long_to_start_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for application in (
        Application("spark://host:7077"),
        Application("spark://host:7077", spark_cores_max="2"),
        Application("yarn", spark_executor_cores="2", spark_executor_instances="1"),
        Application("k8s://https://host"),
    ):
        slots_come(monkeypatch, [1.0, 300.0])
        said: list[str] = []
        assert slots.choose_workers(application, 2, slots.Waiting(600.0, said.append)) == 2
        assert len(said) == 1
        assert "waiting up to 595 s for executors: num_proc=2 needs 2 slots" in said[0]
        assert f"{application.master} has 1 so far" in said[0]


@pytest.mark.usefixtures("clock")
def test_what_cannot_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for application in (
        Application("spark://host:7077", spark_cores_max="2"),
        Application("spark://host:7077", age=3600.0),
        Application("yarn"),
        Application("yarn", spark_executor_cores="4", spark_task_cpus="4"),
    ):
        slots_come(monkeypatch, [1.0, 100.0])
        begin = slots.time.monotonic()
        with pytest.raises(errors.NotEnoughSlots, match="has 1"):
            slots.choose_workers(application, 3, slots.Waiting(600.0, print))
        assert slots.time.monotonic() - begin < 20.0


@pytest.mark.usefixtures("clock")
def test_an_executor_that_was_lost_is_given_a_minute_to_be_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots.time, "time", slots.time.monotonic)
    now = slots.time.time()
    lost = [
        slots._Executor(1, now - 5000.0, now - 4000.0),
        slots._Executor(1, now - 4000.0, now - 10.0),
        slots._Executor(1, now - 5000.0),
    ]
    monkeypatch.setattr(slots, "_executors", lambda *_: lost)
    application: Any = Application("spark://host:7077", age=7200.0)
    for wanted in (2, None):
        slots_come(monkeypatch, [0.0, 40.0])
        said: list[str] = []
        assert slots.choose_workers(application, wanted, slots.Waiting(600.0, said.append)) == 2
        if wanted:
            assert "waiting up to 45 s for executors: num_proc=2 needs 2 slots" in said[0]
            assert said[0].endswith("has 1 so far (it had 2, and lost an executor 15 s ago)")
        lost[1] = slots._Executor(1, now - 4000.0, slots.time.time() - 10.0)
    # It does not come back, and neither would it be enough.
    slots_come(monkeypatch, [0.0])
    for wanted, seconds, words in (
        (2, 50.0, r"has 1 \(it had 2, and lost an executor 60 s ago\): raise"),
        (3, 0.0, "has 1: raise"),
    ):
        begin = slots.time.monotonic()
        with pytest.raises(errors.NotEnoughSlots, match=words):
            slots.choose_workers(application, wanted, slots.Waiting(600.0, print))
        assert seconds <= slots.time.monotonic() - begin < seconds + 1.0
        lost[1] = slots._Executor(1, now - 4000.0, slots.time.time() - 10.0)
    # One that was idle is let go there and comes once a task waits.
    application = Application("yarn", age=7200.0, spark_dynamicAllocation_enabled="true")
    begin = slots.time.monotonic()
    assert slots.choose_workers(application, None, slots.Waiting(600.0, print)) == 1
    assert slots.time.monotonic() - begin < 1.0


@pytest.mark.usefixtures("clock")
def test_an_embedded_cluster_has_as_many_slots_as_its_tasks_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    application = Application("local-cluster[2,5,1024]", spark_task_cpus="2")
    slots_come(monkeypatch, [1.0, 1.0, 30.0, 30.0])
    begin = slots.time.monotonic()
    assert slots.choose_workers(application, None, slots.Waiting(600.0, print)) == 4
    assert slots.time.monotonic() - begin < 60.0
    with pytest.raises(errors.NotEnoughSlots, match=r'has 4: .* "local-cluster\[5,2,1024\]"'):
        slots.choose_workers(application, 5, slots.Waiting(600.0, print))
    assert slots.time.monotonic() - begin < 90.0
    with pytest.raises(errors.NotEnoughSlots, match=r'has 4: .* "local\[10\]"'):
        slots.choose_workers(
            Application("local[8]", spark_task_cpus="2"), 5, slots.Waiting(600.0, print)
        )


@pytest.mark.usefixtures("clock")
def test_without_a_number_the_first_executor_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    slots_come(monkeypatch, [100.0, 102.0])
    said: list[str] = []
    application = Application("spark://host:7077")
    assert slots.choose_workers(application, None, slots.Waiting(600.0, said.append)) == 2
    assert "waiting up to 595 s for executors: spark://host:7077 has 0 slots" in said[0]
    slots_come(monkeypatch, [])
    with pytest.raises(errors.NotEnoughSlots, match="no executor after 600 s"):
        slots.choose_workers(application, None, slots.Waiting(600.0, print))


@pytest.mark.usefixtures("clock")
def test_averaging_with_more_workers_than_slots_waits_for_the_first_slot_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    application: Any = Application("spark://host:7077")
    method, wanted = ParameterAveraging(), slots.WantedSize(num_proc=3)
    slots_come(monkeypatch, [100.0])
    begin = slots.time.monotonic()
    assert method.choose_size(application, wanted, 600.0) == slots.Size(workers=3)
    assert 100.0 <= slots.time.monotonic() - begin < 102.0
    assert "for executors: spark://host:7077 has 0 slots" in caplog.text
    slots_come(monkeypatch, [])
    with pytest.raises(errors.NotEnoughSlots, match="no executor after 8 s"):
        method.choose_size(application, wanted, 8.0)
    # There an executor comes once a task waits for it.
    application = Application("yarn", spark_dynamicAllocation_enabled="true")
    assert method.choose_size(application, wanted, 8.0) == slots.Size(workers=3)


@pytest.mark.usefixtures("clock")
def test_executors_that_dynamic_allocation_cannot_bring_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def choose(wanted: int | None, count: int, master: str = "yarn", **settings: str) -> int:
        slots_come(monkeypatch, [0.0] * count)
        application: Any = Application(master, spark_dynamicAllocation_enabled="true")
        application._settings |= {
            f"spark.{'' if name == 'executor.cores' else 'dynamicAllocation.'}{name}": value
            for name, value in settings.items()
        }
        begin = slots.time.monotonic()
        try:
            return slots.choose_workers(application, wanted, slots.Waiting(600.0, print))
        finally:
            waited = slots.time.monotonic() - begin
            assert waited < 20.0 or "minExecutors" in settings

    assert choose(3, 0) == 3
    assert choose(3, 0, maxExecutors="3") == 3
    words = r"maxExecutors=2 allows 2: raise it or spark\.executor\.cores .*, or choose num_proc=2"
    with pytest.raises(errors.NotEnoughSlots, match=words):
        choose(3, 0, maxExecutors="2")
    assert choose(3, 0, maxExecutors="2", **{"executor.cores": "2"}) == 3
    assert choose(3, 0, master="spark://host:7077", maxExecutors="2") == 3  # Of how many cores?
    assert choose(3, 3, master="local[3]", maxExecutors="1") == 3  # There it has no effect.
    # Nobody asks for an executor there, so none would come.
    assert choose(None, 2) == 2
    with pytest.raises(errors.NotEnoughSlots, match=r"has no executor, and .*: give num_proc"):
        choose(None, 0)
    with pytest.raises(errors.NotEnoughSlots, match="has no executor after 600 s"):
        choose(None, 0, minExecutors="2")


_DRIVER = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
import keras_strom
from keras_strom.spark import run
from keras_strom.spark.runner import slots

class Gate:
    def write(self, text):  # The executor may start when the driver says that it waits.
        if "waiting up to" in text:
            Path(sys.argv[2]).touch()
        return sys.__stdout__.write(text)
    def flush(self):
        sys.__stdout__.flush()
    def isatty(self):
        return False

slots._STARTING_SECONDS = slots._SILENT_SECONDS = 0.0
builder = SparkSession.builder.master(sys.argv[1]).config("spark.ui.enabled", "false")
spark = builder.config("spark.executor.memory", "512m").getOrCreate()
sys.stdout = Gate()
ranks = run(keras_strom.rank, num_proc=2, start_timeout=180, warm_start=False, spark=spark)
sys.stdout = sys.__stdout__
print("ranks", list(ranks))
spark.stop()
"""


def test_a_granted_executor_that_is_late_on_a_real_cluster_is_waited_for(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with standalone.cluster(tmp_path, late=gate) as url:
        driver = subprocess.run(
            [sys.executable, "-c", _DRIVER, url, str(gate)],
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
    assert "for executors: num_proc=2 needs 2 slots" in driver.stdout, driver.stderr
    assert "ranks [0, 1]" in driver.stdout, driver.stderr
