"""A worker's records reach whoever started it: from its pipe, and through an agent's wire."""

import os
from typing import Any

import pytest

from keras_strom.job.environment import ClusterEnvironment
from keras_strom.job.worker_record import ASKED, WorkerRecord
from keras_strom.runner.process import WorkerListener, WorkerProcess
from keras_strom.runner.remote_machine import _RemoteWorker
from keras_strom.runner.wire import PipeWire
from keras_strom.runner.work import Function
from tests.support import simulated_job


class Heard(WorkerListener):
    def __init__(self) -> None:
        self.records: list[WorkerRecord] = []

    def status(self, record: WorkerRecord) -> None:
        self.records.append(record)


def say(records: int) -> str | None:
    """Tells of itself, between things that are no records."""
    path = os.environ.get("KERAS_STROM_STATUS")
    if path is not None:
        fd = os.open(path, os.O_WRONLY)
        os.write(fd, b"nonsense\n\xff\n")
        for number in range(records):
            os.write(fd, WorkerRecord(activity="training", steps=number).to_json().encode() + b"\n")
    return path


@pytest.mark.jobs
def test_a_worker_that_is_asked_is_heard_by_who_started_it() -> None:
    heard = Heard()
    place = ClusterEnvironment(status_path=ASKED)
    with WorkerProcess(Function.of(say, 3), place, heard) as process:
        assert not process.wait(60).failed
    assert [record.steps for record in heard.records] == [0, 1, 2]


@pytest.mark.jobs
def test_a_worker_that_is_not_asked_has_no_pipe() -> None:
    heard = Heard()
    with WorkerProcess(Function.of(say, 3), ClusterEnvironment(), heard) as process:
        assert not process.wait(60).failed
    assert heard.records == []


def test_an_agent_passes_on_what_its_workers_say() -> None:
    heard = Heard()
    record = simulated_job.record(0, 2, 5)
    worker = _RemoteWorker(PipeWire(-1, -1), 0, heard)
    for said in (record.to_json(), "nonsense"):
        message: dict[str, Any] = {"type": "status", "worker": 0, "record": said}
        worker.hear(message)
    assert [one.steps for one in heard.records] == [record.steps]
