"""Results that Spark has no memory to bring end a run with their size, and not with a silence."""

from __future__ import annotations

import sys
from typing import Any

import cloudpickle
import keras
import pytest

pytest.importorskip("pyspark")

import keras_strom
from keras_strom import errors
from keras_strom.spark import StromEstimator, run
from keras_strom.spark.runner import runner
from keras_strom.spark.runner.result_room import ResultRoom
from tests.support.controlled_tasks import Tasks
from tests.support.silent_master import SilentMaster

# Executors cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

MIB = 1 << 20
ROOM = ResultRoom(executor=200 * MIB, driver=300 * MIB, limit=1024 * MIB)


@pytest.mark.parametrize(
    ("room", "size", "total", "words"),
    [
        (ROOM, 200, 300, ""),
        (ROOM, 201, 201, "has returned 201 MiB, and spark.executor.memory has room for 200 MiB: "),
        (ROOM, 150, 301, "150 MiB, with the others' results 301 MiB, and spark.driver.memory has"),
        (ResultRoom(9 * MIB, 9 * MIB, 5 * MIB), 6, 6, "spark.driver.maxResultSize has room for 5"),
    ],
)
def test_what_has_no_room_is_named_with_the_setting(
    room: ResultRoom, size: int, total: int, words: str
) -> None:
    found = room.fault(size * MIB, total * MIB)
    assert words in found
    assert bool(words) == bool(found)


def test_the_driver_adds_up_what_workers_say_that_they_have_returned() -> None:
    tasks = Tasks(3, room=ROOM)
    try:
        channels = tasks.start("a", "b", "c")
        for channel in channels[:2]:
            channel.send({"type": "ended", "size": 150 * MIB})
        tasks.wait_for("ended", 2)
        channels[2].send({"type": "ended", "size": 1})
        tasks.controller.wait_for_end()
        failure = tasks.controller.first_failure()
        assert failure is not None
        assert (failure.rank, failure.host) == (2, "c")
        assert "with the others' results 300 MiB" in failure.traceback
    finally:
        tasks.close()


def test_an_applications_room_is_a_part_of_its_memory(spark: Any) -> None:
    room = ResultRoom.of(spark.sparkContext)
    assert 200 * MIB < room.executor < 250 * MIB
    assert room.driver > 200 * MIB
    assert room.limit == 1024 * MIB


def test_a_result_without_room_ends_the_run(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "start_master", SilentMaster)
    small = ResultRoom(executor=20_000, driver=30_000, limit=1 << 40)
    monkeypatch.setattr(ResultRoom, "of", lambda _: small)
    assert len(run(bytes, (14_000,), num_proc=2, spark=spark)) == 2
    with pytest.raises(errors.WorkerFailed, match=r"spark\.driver\.memory has room"):
        run(bytes, (16_000,), num_proc=2, spark=spark)
    with pytest.raises(errors.WorkerFailed, match=r"worker 1 .*executor.memory has .*: let one"):
        run(lambda: bytes(21_000 * keras_strom.rank()), num_proc=2, spark=spark)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(9_000), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    df = spark.createDataFrame([(1.0, 2.0)] * 8, ["x", "y"])
    fits = StromEstimator(model=model, feature_cols=["x"], label_cols=["y"], num_proc=2)
    with pytest.raises(errors.InvalidOption, match=r"too little memory .* give store="):
        fits.fit(df)
