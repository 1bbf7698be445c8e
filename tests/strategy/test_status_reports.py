"""What a worker says of itself: figures of the step's own counters, in a process of its own."""

import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_strom import StromStrategy
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.job.worker_record import MAX_BYTES, WorkerRecord
from keras_strom.strategy import status_reports
from keras_strom.strategy.fit import _fit_alone
from keras_strom.strategy.status_reports import StatusReports, reports_of

SAMPLES = 32


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The reading end of the pipe that this worker is asked by."""
    path = tmp_path / "status"
    os.mkfifo(path)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    monkeypatch.setenv("KERAS_STROM_STATUS", str(path))
    yield reading
    reports = status_reports._of_process(str(path))
    if reports is not None:
        reports.close()
    os.close(reading)


def reports_here() -> StatusReports:
    reports = reports_of(ClusterEnvironment.from_environ())
    assert reports is not None
    return reports


def test_a_worker_tells_where_its_fit_is_and_what_its_steps_did(pipe: int) -> None:
    seen: list[WorkerRecord] = []

    class Look(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            seen.append(reports_here().record())

        def on_test_batch_end(self, batch: int, logs: object = None) -> None:
            seen.append(reports_here().record())

    with StromStrategy(always_encode=True).scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])
    x = np.random.default_rng(0).random((SAMPLES, 4), dtype=np.float32)
    data = (x, x[:, :1])
    model.fit(*data, batch_size=4, epochs=3, validation_data=data, verbose=0, callbacks=[Look()])
    after = reports_here().record()

    training = [one for one in seen if one.activity == "training"]
    assert [one.activity for one in seen[7:10]] == ["training", "validating", "validating"]
    last = training[-1]
    assert (last.epoch, last.epochs, last.batches, last.fit) == (3, 3, 8, 1)
    assert last.steps == 24
    assert last.step_seconds is not None
    assert last.step_seconds > 0
    assert last.input_seconds is not None
    assert 0 <= last.input_seconds <= last.step_seconds
    assert last.density is not None
    assert last.threshold is not None
    assert last.threshold > 0
    assert set(last.logs) >= {"loss", "mae"}
    assert last.residual_norm is not None  # Of the epoch before.
    assert "val_loss" in after.logs
    assert after.activity == "between fits"


def test_a_worker_alone_tells_of_plain_keras(pipe: int) -> None:
    seen: list[WorkerRecord] = []

    class Look(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            seen.append(reports_here().record())

    with StromStrategy().scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.ones((SAMPLES, 4), np.float32)
    model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0, callbacks=[Look()])
    status_reports._alone.clear()
    last = seen[-1]
    assert (last.activity, last.fit, last.epoch, last.epochs) == ("training", 1, 2, 2)
    assert last.step_seconds is not None
    assert last.steps == 15  # Our callback comes after the test's.
    assert "loss" in last.logs
    assert last.density is None


def test_a_worker_alone_gives_fit_its_arguments_by_name() -> None:
    """What else has replaced `fit` looks for `callbacks` there."""
    seen: list[Any] = []

    def fit(self: object, x: object = None, epochs: int = 1, callbacks: object = None) -> None:
        pass

    bound = inspect.signature(fit).bind("model", "x", epochs=3)
    bound.apply_defaults()
    reports = StatusReports(lambda _: True)
    _fit_alone(lambda *args, **by_name: seen.append((args, by_name)), bound, reports)
    ((args, by_name),) = seen
    assert args == ("model",)
    assert set(by_name) == {"x", "epochs", "callbacks"}
    assert len(by_name["callbacks"]) == 1


def test_numbers_of_numpy_are_told_as_any(pipe: int) -> None:
    reports = reports_here()
    reports.begin_fit(np.int64(5), np.int64(7))  # type: ignore[arg-type]
    reports.note(None, epoch=np.int64(2))  # type: ignore[arg-type]
    read = WorkerRecord.parse(reports.record().to_json())
    assert (read.epoch, read.epochs, read.batches) == (2, 5, 7)


def test_what_no_record_can_have_costs_one_record(
    pipe: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    reports = StatusReports(lambda line: not lines.append(line) and False, seconds=0.001)
    records = iter([WorkerRecord(activity="training", why=object()), None])  # type: ignore[arg-type]
    monkeypatch.setattr(
        reports, "record", lambda: next(records) or WorkerRecord(activity="training")
    )
    reports._run()  # Ends as nobody reads any more.
    assert len(lines) == 1


def test_records_come_through_the_pipe_by_themselves(pipe: int) -> None:
    reports_here()
    os.set_blocking(pipe, True)
    record = WorkerRecord.parse(os.read(pipe, MAX_BYTES).splitlines()[0])
    assert record.activity == "between fits"


def test_a_reader_that_is_behind_stops_nobody(pipe: int) -> None:
    reports = reports_here()
    for _ in range(2000):
        assert reports._write(WorkerRecord(activity="training").to_json())
    assert len(os.read(pipe, 1 << 20)) > MAX_BYTES


def test_nobody_is_told_where_nobody_asks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert reports_of(ClusterEnvironment.from_environ()) is None
    file = tmp_path / "file"
    file.write_text("something else")
    monkeypatch.setenv("KERAS_STROM_STATUS", str(file))
    assert reports_of(ClusterEnvironment.from_environ()) is None
    assert file.read_text() == "something else"


def test_a_wait_is_told_with_its_reason_and_its_end(pipe: int) -> None:
    reports = reports_here()
    with reports.doing("joining"):
        reports.enter("training")
        with reports.doing("waiting", "training waits for 1 more worker"):
            assert reports.record().why == "training waits for 1 more worker"
        assert (reports.record().activity, reports.record().why) == ("training", "")
    assert reports.record().activity == "between fits"
