"""The master dies in the middle of a training, and another one takes its place."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_strom import NetworkConfig, errors
from keras_strom.dashboard.watched_job import WatchedJob
from keras_strom.relay.training_relay import TrainingMaster, TrainingWorker
from keras_strom.runner import master_supervisor
from keras_strom.runner.launcher import Job, launch
from keras_strom.runner.master_options import Master, MasterOptions
from keras_strom.runner.master_supervisor import SupervisedMaster
from keras_strom.runner.start_master import start_master
from keras_strom.runner.work import Script
from tests.support.elastic_jobs import Ended, WatchedMaster, run
from tests.support.refused_workers import expect_refused_in_order
from tests.support.scripts import elastic

pytestmark = pytest.mark.jobs

DEADLINE = 100.0
SIZE = 1000
SEED = np.arange(SIZE, dtype=np.float32)
LATER = SEED + 1
NETWORK = NetworkConfig(failure_timeout=1.0, on_master_loss="wait", network_mask="127.0.0.1/32")


@pytest.fixture
def master() -> Iterator[SupervisedMaster]:
    started = start_master(MasterOptions(workers=2, network=NETWORK))
    assert isinstance(started, SupervisedMaster)
    yield started
    started.close("the test is over")


def join(
    master: SupervisedMaster, rank: int, join_timeout: float = DEADLINE, **options: Any
) -> TrainingWorker:
    return TrainingWorker(
        master.credentials,
        master=master.address,
        rank=rank,
        size=2,
        network=NETWORK,
        join_timeout=join_timeout,
        **options,
    )


def start(worker: TrainingWorker, rank: int) -> np.ndarray:
    return worker.start(1, SIZE, 5, "same", SEED if rank == 0 else None, timeout=DEADLINE)


def end(worker: TrainingWorker) -> np.ndarray:
    worker.finish(timeout=DEADLINE)
    _, parameters = worker.result(np.zeros(1), np.zeros(SIZE), timeout=DEADLINE)
    worker.verify(0.0, 0, timeout=DEADLINE)
    return parameters


def hand_over(worker: TrainingWorker) -> None:
    """What a training does while it waits, between two steps or in a request."""
    if worker.replica_wanted():
        worker.hand_over(LATER)


def wait_until(holds: Any, what: str) -> None:
    deadline, tick = time.monotonic() + DEADLINE, threading.Event()
    while not holds():
        assert time.monotonic() < deadline, what
        tick.wait(0.01)


def test_a_worker_may_wait_longer_than_nanoseconds_can_be_counted(
    master: SupervisedMaster,
) -> None:
    join(master, 0, join_timeout=1e10).close()


def test_training_goes_on_from_a_replica_when_another_master_comes(
    master: SupervisedMaster,
) -> None:
    workers = [join(master, 0), join(master, 1)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(start, workers, (0, 1)))
        os.kill(master.pid, signal.SIGKILL)
        for worker in workers:
            wait_until(worker.waits_for_master, "a worker has not noticed")
        for worker in workers:
            worker.meanwhile = functools.partial(hand_over, worker)
        for parameters in pool.map(end, workers):
            np.testing.assert_array_equal(parameters, LATER)
    events = master.status()["events"]
    assert [event["type"] for event in events if event["type"] == "resumed"] == ["resumed"]
    assert any("was ended by SIGKILL" in event["text"] for event in events)
    assert workers[0].status()["node"]["epoch"] == (1 << 16) + 1
    for worker in workers:
        worker.close()


def test_the_page_tells_of_each_takeover_and_of_what_follows(master: SupervisedMaster) -> None:
    page = WatchedJob("train.py", workers=2, now=0.0)

    def told() -> list[str]:
        page.master(master.status(), now=1.0)
        return [event[4] for event in page.snapshot(2.0)["events"]]

    workers = [join(master, 0), join(master, 1)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(start, workers, (0, 1)))
        before = told()
        os.kill(master.pid, signal.SIGKILL)
        for worker in workers:
            wait_until(worker.waits_for_master, "a worker has not noticed")
            worker.meanwhile = functools.partial(hand_over, worker)
        list(pool.map(end, workers))
    for worker in workers:
        worker.close()
    assert told()[: len(before)] == before
    os.kill(master.pid, signal.SIGKILL)
    wait_until(lambda: any(f"epoch {(1 << 16) + 2}" in text for text in told()), "no takeover")
    texts = told()
    assert texts == [event["text"] for event in master.status()["events"]]
    assert sum("was ended by SIGKILL" in text for text in texts) == 2
    assert texts.count("worker 0 has joined") == 2  # Two masters have had it.


def test_a_new_chief_learns_the_last_end_under_another_master(master: SupervisedMaster) -> None:
    workers = [join(master, 0), join(master, 1)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(start, workers, (0, 1)))
        list(pool.map(end, workers))
        other = workers[1]
        other.meanwhile = functools.partial(hand_over, other)  # LATER is what it holds.
        begins = pool.submit(other.start, 3, SIZE, 5, "same", timeout=DEADLINE)
        os.kill(master.pid, signal.SIGKILL)
        wait_until(other.waits_for_master, "the worker has not noticed")
        workers[0].close("killed")
        chief = workers[0] = join(master, 0, attempt=1)
        np.testing.assert_array_equal(start(chief, 0), LATER)
        assert chief.start_info.ended
        chief.start(3, SIZE, 5, "same", LATER + 1, timeout=DEADLINE)
        np.testing.assert_array_equal(begins.result(), LATER + 1)
    for worker in workers:
        worker.close()


def test_a_master_that_stands_still_gives_way_to_another(
    master: SupervisedMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        master_supervisor, "_ANSWER_SECONDS", 20.0
    )  # A process starts within it, too.
    stopped = master.pid
    os.kill(stopped, signal.SIGSTOP)
    wait_until(lambda: master.pid != stopped, "the stopped master stays")


def test_a_master_that_dies_before_it_hears_who_has_ended_is_followed_by_another(
    master: SupervisedMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, died = SupervisedMaster._start, threading.Event()

    def begin_and_die(self: SupervisedMaster, port: int) -> Any:
        process, started = begin(self, port)
        if not died.is_set():
            process.kill()
            process.wait()  # Whoever writes to its pipe from here on fails.
            died.set()
        return process, started

    monkeypatch.setattr(SupervisedMaster, "_start", begin_and_die)
    master.worker_has_ended(1)
    os.kill(master.pid, signal.SIGKILL)
    wait_until(died.is_set, "no other master is started")

    def told() -> list[str]:
        return [event["text"] for event in master.status()["events"]]

    wait_until(
        lambda: sum("waits for the workers" in text for text in told()) == 2, "no third master"
    )
    assert not any("could not be started" in text for text in told())
    assert sum("was ended by SIGKILL" in text for text in told()) == 2


def test_no_other_master_is_started_after_five_that_ended_at_once(master: SupervisedMaster) -> None:
    for number in range(1, 6):
        ended = master.pid
        os.kill(ended, signal.SIGKILL)
        if number < 5:
            wait_until(lambda ended=ended: master.pid != ended, "no other master is started")
    wait_until(
        lambda: any("no other is started" in event["text"] for event in master.status()["events"]),
        "another master is started",
    )


@pytest.mark.timeout(60)
def test_a_master_that_says_what_is_no_answer_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a sitecustomize of the machine's prints something."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho welcome\nexec cat\n")
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(master_supervisor, "_CLOSE_SECONDS", 0.1)
    with pytest.raises(errors.InternalError, match="ended with code -9 before it could say why"):
        start_master(MasterOptions(workers=2, network=NETWORK))


def test_workers_end_where_no_master_comes_in_time() -> None:
    network = NetworkConfig(failure_timeout=0.5, on_master_loss="wait")
    with TrainingMaster(workers=1, host="127.0.0.1", network=network) as lost:
        worker = TrainingWorker(
            lost.credentials,
            master=lost.address,
            rank=0,
            size=1,
            network=network,
            join_timeout=1.0,
        )
        worker.start(1, SIZE, 5, "same", SEED, timeout=DEADLINE)
        lost.close("the job has ended")  # Said in words, it is no loss.
        wait_until(lambda: worker.status()["failure"], "the worker waits")
        assert "the job has ended" in worker.status()["failure"]
        worker.close()


def test_waiting_is_refused_where_it_cannot_work(tmp_path: Path) -> None:
    expect_refused_in_order(NETWORK, "max_staleness=0 has all workers")
    script = tmp_path / "script.py"
    script.write_text("")
    with pytest.raises(errors.InvalidOption, match="one worker has no master"):
        launch(Job(work=Script(str(script)), workers=1, network=NETWORK))
    with pytest.raises(errors.InvalidOption, match='"stop" or "wait"'):
        NetworkConfig(on_master_loss="panic")


class KilledMaster(WatchedMaster):
    """The master of a job is killed once it has so many updates, or steps of a joint model."""

    def __init__(self, after: int) -> None:
        self._after = after
        self.killed = threading.Event()

    def start(self, options: MasterOptions) -> Master:
        master = super().start(options)
        assert isinstance(master, SupervisedMaster)
        threading.Thread(target=self._kill, args=(master,), daemon=True).start()
        return master

    def _kill(self, master: SupervisedMaster) -> None:
        tick = threading.Event()
        while _received(master) < self._after:
            tick.wait(0.02)
        os.kill(master.pid, signal.SIGKILL)
        self.killed.set()


def _received(master: Master) -> int:
    node = master.status().get("node", {})
    updates: int = sum(member["updates_accepted"] for member in node.get("members", []))
    return updates + int(node.get("steps_counted", 0))


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("", {}),
        ("MPCA", {}),
        ("SparkNet", {"steps": 3}),
        ("EASGD", {"steps": 3}),
        ("AllReduce", {"average": "updates", "dtype": "bfloat16"}),
    ],
    ids=["updates", "MPCA", "SparkNet", "EASGD", "AllReduce"],
)
def test_a_fit_outlives_its_master(tmp_path: Path, method: str, options: dict[str, Any]) -> None:
    master = KilledMaster(after=60)
    work = elastic.Job(epochs=4, pause=0.02, method=method, options=options)
    ended: Ended = run(tmp_path, work, network=NETWORK, master=master)
    assert master.killed.is_set()
    ended.check()
    assert ("resumed", -1) in ended.events
    assert "training waits for it to come back" in ended.output
    # Nobody began an epoch again.
    for result in ended.results:
        assert [batches for _, batches in result["fits"][0]["batches"]] == [60] * 4
