"""The control channel and the controller, without Spark."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from keras_strom import errors
from keras_strom._native import sealing
from keras_strom.job.credentials import KEY_BYTES, Credentials
from keras_strom.runner.channel import Channel
from keras_strom.runner.output import MAX_LINE, TAIL_LINES
from keras_strom.runner.wire import MAX_MESSAGE_BYTES
from keras_strom.spark.runner.controller import Controller
from keras_strom.spark.runner.event import Event
from keras_strom.spark.runner.result import RunResult
from keras_strom.spark.runner.runner import _events_of_master, ended_from_outside, root_cause
from keras_strom.spark.runner.slots import Size
from keras_strom.spark.runner.task import (
    _MAX_BATCH_CHARACTERS,
    _MAX_TAIL_LINE_CHARACTERS,
    _MAX_TRACEBACK_CHARACTERS,
    _TRIES,
    _to_driver,
)
from tests.support.controlled_tasks import CREDENTIALS, DEADLINE, Tasks, hear

DRIVER_KEY = bytes(range(KEY_BYTES))
PUBLIC_KEY = sealing.public_key(DRIVER_KEY)


def connect() -> tuple[Channel, Channel]:
    """Both ends of a channel, the driver's first."""
    ends = socket.socketpair()
    with ThreadPoolExecutor(1) as pool:
        task = pool.submit(join, ends[1], CREDENTIALS)
        return Channel(ends[0], CREDENTIALS, PUBLIC_KEY, DRIVER_KEY), task.result()


def join(
    connection: socket.socket, credentials: Credentials, driver_key: bytes = DRIVER_KEY
) -> Channel:
    """A task's end of a channel to the driver that holds `driver_key`."""
    return Channel(connection, credentials, sealing.public_key(driver_key))


def test_messages_pass_both_ways_in_order() -> None:
    driver, task = connect()
    for number in range(3):
        task.send({"number": number})
        driver.send({"answer": number})
    assert [driver.receive()["number"] for _ in range(3)] == [0, 1, 2]
    assert [task.receive()["answer"] for _ in range(3)] == [0, 1, 2]
    task.close()
    with pytest.raises(ConnectionError):
        driver.receive()
    driver.close()


@pytest.mark.parametrize(
    ("secret", "driver_key"),
    [(CREDENTIALS.secret, bytes(KEY_BYTES)), (bytes(KEY_BYTES), DRIVER_KEY)],
    ids=["wrong key", "wrong secret"],
)
def test_a_task_says_nothing_to_what_is_not_its_driver(secret: bytes, driver_key: bytes) -> None:
    ends = socket.socketpair()
    task = dataclasses.replace(CREDENTIALS, secret=secret)
    with ThreadPoolExecutor(1) as pool:
        driver = pool.submit(Channel, ends[0], CREDENTIALS, PUBLIC_KEY, DRIVER_KEY)
        with pytest.raises(errors.SecretRejected, match="is not this job's driver"):
            join(ends[1], task, driver_key)
        ends[1].close()
        with pytest.raises(ConnectionError):
            driver.result().receive()


def test_a_wrong_secret_is_rejected_before_anything_is_parsed() -> None:
    ends = socket.socketpair()
    ends[1].sendall(sealing.public_key(b"t" * KEY_BYTES))
    driver = Channel(ends[0], CREDENTIALS, PUBLIC_KEY, DRIVER_KEY)
    ends[1].sendall(struct.pack("<I", 2) + b"{}" + bytes(sealing.TAG_BYTES))
    with pytest.raises(errors.SecretRejected, match="job's secret"):
        driver.receive()


def test_a_key_that_agrees_with_everybodys_is_refused() -> None:
    ends = socket.socketpair()
    ends[1].sendall(bytes(KEY_BYTES))
    with pytest.raises(errors.SecretRejected):
        Channel(ends[0], CREDENTIALS, PUBLIC_KEY, DRIVER_KEY)


@pytest.mark.parametrize("played", ["back", "again", "changed"])
def test_a_message_is_bound_to_its_direction_and_its_number(played: str) -> None:
    driver, task = connect()
    sent: list[bytes] = []
    for _ in range(2):
        driver.send({"type": "stop"})
        sent.append(task._socket.recv(1000))
    first, second = sent
    assert first != second
    assert len(first) == len(second) == 4 + len(b'{"type": "stop"}') + sealing.TAG_BYTES
    assert b"stop" not in first + second
    if played == "back":
        task._socket.sendall(first)
        with pytest.raises(errors.SecretRejected):
            driver.receive()
        return
    driver._socket.sendall(first)
    assert task.receive() == {"type": "stop"}
    driver._socket.sendall(first if played == "again" else second[:-1] + bytes([second[-1] ^ 1]))
    with pytest.raises(errors.SecretRejected):
        task.receive()


def test_silence_and_nonsense_end_a_channel() -> None:
    driver, task = connect()
    with pytest.raises(ConnectionError, match="no sign of life"):
        driver.receive(timeout=0.0)
    with pytest.raises(errors.InternalError):
        task.send({"text": "x" * MAX_MESSAGE_BYTES})
    task._socket.sendall(b"\xff\xff\xff\xff")
    with pytest.raises(ConnectionError, match="announced"):
        driver.receive()


@pytest.fixture
def tasks(request: pytest.FixtureRequest) -> Iterator[Tasks]:
    options = getattr(request, "param", {})
    started = Tasks(**{"workers": 2, **options})
    yield started
    started.close()


def fail(
    channel: Channel, text: str, *, is_consequence: bool = False, may_start_again: bool = False
) -> None:
    channel.send(
        {
            "type": "failed",
            "traceback": text,
            "log_tail": ["last"],
            "is_consequence": is_consequence,
            "cause": "was killed by SIGKILL",
            "may_start_again": may_start_again,
        }
    )


@pytest.mark.parametrize("tasks", [{"workers": 4}], indirect=True)
def test_ranks_are_grouped_by_host(tasks: Tasks) -> None:
    hosts = ["a", "b", "a", "b"]
    channels = [tasks.register(partition, host) for partition, host in enumerate(hosts)]
    starts = [hear(channel) for channel in channels]
    assert [start["rank"] for start in starts] == [0, 2, 1, 3]
    assert [start["local_rank"] for start in starts] == [0, 0, 1, 1]
    assert [start["local_size"] for start in starts] == [2, 2, 2, 2]
    tasks.controller.wait_for_start(DEADLINE)


def test_output_is_shown_with_its_rank(tasks: Tasks) -> None:
    channels = tasks.start("a", "a")
    channels[1].send({"type": "log", "lines": ["one", "two"]})
    fail(channels[1], "it", is_consequence=False)
    tasks.controller.wait_for_end()
    assert tasks.output.getvalue() == "[1] one\n[1] two\n"


def test_the_cause_wins_over_an_earlier_consequence(tasks: Tasks) -> None:
    channels = tasks.start("a", "b")
    fail(channels[0], "MasterLost", is_consequence=True)
    tasks.controller.wait_for_end()
    fail(channels[1], "ValueError: the cause", is_consequence=False)
    failure = tasks.controller.first_failure()
    assert failure is not None
    assert (failure.rank, failure.host) == (1, "b")
    assert (failure.traceback, failure.log_tail) == ("ValueError: the cause", ("last",))


def test_a_task_that_vanishes_is_a_failure(tasks: Tasks) -> None:
    channels = tasks.start("a", "b")
    channels[1].close()
    tasks.controller.wait_for_end()
    failure = tasks.controller.first_failure()
    assert failure is not None
    assert failure.rank == 1
    assert "lost" in failure.traceback


def test_a_second_copy_of_a_task_waits_and_is_stopped_at_the_end(tasks: Tasks) -> None:
    first = tasks.register(0, "a")
    tasks.wait_for("registered")
    copy = tasks.register(0, "b")
    other = tasks.register(1, "a")
    assert [hear(channel)["type"] for channel in (first, other)] == ["start", "start"]
    tasks.controller.stop("the job has ended")
    assert [hear(channel)["type"] for channel in (copy, first)] == ["stop", "stop"]


def restarting(**options: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("tasks", [{"max_failures": 1, **options}], indirect=True)


@restarting()
def test_a_worker_that_died_is_started_again_by_its_task(tasks: Tasks) -> None:
    channels = [tasks.register(0, "a"), tasks.register(1, "b")]
    assert [hear(channel)["attempt"] for channel in channels] == [0, 0]
    fail(channels[1], "it was ended by SIGKILL", may_start_again=True)
    again = hear(channels[1])
    assert (again["type"], again["rank"], again["attempt"]) == ("start", 1, 1)
    assert tasks.output.getvalue() == (
        "[1] worker 1 was killed by SIGKILL; it is started again (failure 1 of 1)\n"
    )
    tasks.wait_for("restarted")
    # One failure more than the job allows ends it.
    fail(channels[0], "it was ended by SIGKILL", may_start_again=True)
    tasks.controller.wait_for_end()
    failure = tasks.controller.first_failure()
    assert failure is not None
    assert failure.rank == 0


def test_a_worker_that_has_drained_is_started_again_and_counts_as_no_failure(
    tasks: Tasks,
) -> None:
    channels = [tasks.register(0, "a"), tasks.register(1, "b")]
    assert [hear(channel)["attempt"] for channel in channels] == [0, 0]
    for attempt in (1, 2):
        channels[1].send({"type": "drained", "stepped": True, "too_late": False})
        again = hear(channels[1])
        assert (again["type"], again["rank"], again["attempt"]) == ("start", 1, attempt)
    assert tasks.output.getvalue() == 2 * "[1] worker 1 has drained; it is started again\n"
    assert [event.kind for event in tasks.controller.events].count("drained") == 2


def test_a_worker_that_leaves_again_and_again_without_a_step_ends_the_job(tasks: Tasks) -> None:
    channels = [tasks.register(0, "a"), tasks.register(1, "b")]
    said = [(False, False), (True, False), (False, True), (False, False), (False, False)]
    for attempt, (stepped, too_late) in enumerate(said):
        assert hear(channels[1])["attempt"] == attempt
        channels[1].send({"type": "drained", "stepped": stepped, "too_late": too_late})
    tasks.controller.wait_for_end()
    failure = tasks.controller.first_failure()
    assert failure is not None
    assert "asked to leave 3 times in a row" in failure.traceback
    assert "was killed, what it had not sent is lost; it is started" in tasks.output.getvalue()


def test_a_worker_that_is_moved_again_and_again_without_a_step_ends_the_job(tasks: Tasks) -> None:
    channels = [tasks.register(0, "a"), tasks.register(1, "b", executor="0")]
    assert hear(channels[0])["type"] == "start"
    for attempt in range(3):
        assert hear(channels[1])["attempt"] == attempt
        tasks.controller.drain(str(attempt))
        assert hear(channels[1])["type"] == "drain"
        channels[1].send({"type": "drained", "stepped": False, "too_late": False})
        if attempt < 2:
            tasks.wait_for("drained", attempt + 1)
            channels[1] = tasks.register(1, "b", attempt + 1, executor=str(attempt + 1))
    tasks.controller.wait_for_end()
    failure = tasks.controller.first_failure()
    assert failure is not None
    assert "asked to leave 3 times in a row" in failure.traceback


@pytest.mark.parametrize("tasks", [{"workers": 1}], indirect=True)
def test_one_worker_alone_is_not_asked_to_hand_over_to_nobody(tasks: Tasks) -> None:
    channel = tasks.register(0, "a", executor="7")
    assert hear(channel)["type"] == "start"
    tasks.controller.drain("7")
    tasks.controller.stop("the job has ended")
    assert hear(channel)["type"] == "stop"


def test_a_result_that_was_lost_with_its_executor_is_a_failure(tasks: Tasks) -> None:
    channels = tasks.start("a", "b")
    for channel in channels:
        channel.send({"type": "ended", "size": 0})
    tasks.wait_for("ended", 2)
    channels[1].close()
    tasks.register(1, "c", attempt=1, task=7)
    tasks.controller.wait_for_end()
    failure = tasks.controller.first_failure()
    assert failure is not None
    assert (failure.rank, failure.host) == (1, "b")
    assert "lost before Spark had what it returned" in failure.traceback


def test_a_task_that_a_crowded_driver_turns_away_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("keras_strom.spark.runner.task._PAUSE_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as door, ThreadPoolExecutor(1) as pool:
        task = SimpleNamespace(
            controller=door.getsockname(), credentials=CREDENTIALS, controller_key=PUBLIC_KEY
        )
        comes: Any = pool.submit(_to_driver, task)
        door.accept()[0].close()
        driver = Channel(door.accept()[0], CREDENTIALS, PUBLIC_KEY, DRIVER_KEY)
        driver.send({"type": "stop"})
        assert hear(comes.result(DEADLINE)) == {"type": "stop"}
        comes = pool.submit(_to_driver, task)
        for _ in range(_TRIES):
            door.accept()[0].close()
        with pytest.raises(ConnectionError):
            comes.result(DEADLINE)


@restarting(max_failures=9)
def test_an_exception_of_the_users_function_ends_the_job(tasks: Tasks) -> None:
    channels = tasks.start("a", "b")
    fail(channels[1], "ValueError: bad data")
    tasks.controller.wait_for_end()
    failure = tasks.controller.first_failure()
    assert failure is not None
    assert failure.traceback == "ValueError: bad data"


@restarting()
def test_a_lost_task_is_replaced_by_the_one_that_spark_runs_next(tasks: Tasks) -> None:
    channels = tasks.start("a", "b")
    channels[1].close()
    tasks.wait_for("lost")
    start = hear(tasks.register(1, "a", attempt=1))
    assert (start["rank"], start["attempt"], start["local_rank"]) == (1, 1, 1)
    kinds = [event.kind for event in tasks.controller.events]
    assert kinds[-3:] == ["lost", "registered", "restarted"]


@restarting()
def test_a_task_that_spark_runs_anew_fences_the_old_one(tasks: Tasks) -> None:
    channels = tasks.start("a", "b")
    start = hear(tasks.register(1, "a", attempt=1))
    assert (start["rank"], start["attempt"]) == (1, 1)
    assert hear(channels[1])["type"] == "stop"


@restarting(speculation=True)
def test_a_speculative_copy_waits_until_the_first_one_is_lost(tasks: Tasks) -> None:
    channels = tasks.start("a", "b")
    copy = tasks.register(1, "a", attempt=1)
    channels[1].close()
    assert hear(copy)["attempt"] == 1


@restarting(max_failures=2)
def test_a_stage_that_spark_repeats_replaces_the_lost_worker_alone(tasks: Tasks) -> None:
    channels = tasks.start("a", "b")
    first = tasks.register(0, "c", task=7)
    tasks.wait_until(lambda controller: [t.task for t in controller._waiting] == [7])
    first.close()
    copy = tasks.register(0, "c", attempt=1, task=9)  # Of the copy itself.
    tasks.wait_until(lambda controller: [t.task for t in controller._waiting] == [9])
    channels[1].close()
    tasks.wait_for("lost")
    start = hear(tasks.register(1, "c", task=8))
    assert (start["rank"], start["attempt"]) == (1, 1)
    assert tasks.controller.failures == 1
    channels[0].close()  # Now the copy is of use.
    start = hear(copy)
    assert (start["rank"], start["attempt"]) == (0, 1)
    assert tasks.controller.failures == 2


@restarting()
def test_a_stage_that_spark_repeats_runs_those_anew_whose_results_were_lost(tasks: Tasks) -> None:
    channels = tasks.start("a", "b")
    channels[1].send({"type": "ended", "size": 0})
    tasks.wait_for("ended")
    assert tasks.told.get(timeout=DEADLINE) == 1  # Somebody may wait for it.
    start = hear(tasks.register(1, "c", task=7))
    assert (start["rank"], start["attempt"]) == (1, 1)


@restarting()
def test_a_stage_that_spark_repeats_may_have_no_slot_for_the_lost_worker(tasks: Tasks) -> None:
    channels = tasks.start("a", "b")
    tasks.register(0, "c", task=7)
    channels[1].close()
    tasks.wait_for("lost")
    tasks.wait_until(lambda controller: bool(controller._waiting))
    tasks.controller.wait_for_end(replace_timeout=0.0)
    failure = tasks.controller.first_failure()
    assert failure is not None
    assert "took 1 of the free slots" in failure.traceback
    assert "Give an estimator a store" in failure.traceback


@restarting()
def test_a_task_that_is_lost_before_the_start_is_waited_for(tasks: Tasks) -> None:
    tasks.register(1, "b").close()
    tasks.wait_for("lost")
    channels = [tasks.register(0, "a"), tasks.register(1, "b", attempt=1)]
    assert [hear(channel)["attempt"] for channel in channels] == [0, 0]


@restarting()
def test_a_lost_task_that_does_not_come_back_fails(tasks: Tasks) -> None:
    channels = tasks.start("a", "b")
    channels[1].close()
    tasks.wait_for("lost")
    tasks.controller.wait_for_end(replace_timeout=0.0)
    failure = tasks.controller.first_failure()
    assert failure is not None
    assert "Spark ran it nowhere" in failure.traceback


@restarting()
def test_where_spark_gives_a_lost_task_up_its_setting_is_named(tasks: Tasks) -> None:
    channels = tasks.start("a", "b")
    channels[0].close()
    tasks.wait_for("lost")
    tasks.controller.job_ended()
    failure = tasks.controller.first_failure()
    assert failure is not None
    assert "spark.task.maxFailures" in failure.traceback


@restarting()
@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("Job 0 cancelled because SparkContext was shut down", "session was stopped meanwhile"),
        ("[SPARK_JOB_CANCELLED] Job 0 cancelled as part of cancellation of all jobs", "cancelled"),
    ],
)
def test_where_spark_is_stopped_or_its_job_cancelled_that_is_the_cause(
    tasks: Tasks, message: str, words: str
) -> None:
    channels = tasks.start("a", "b")
    channels[0].close()
    tasks.wait_for("lost")
    tasks.controller.job_ended(ended_from_outside(message))
    failure = tasks.controller.first_failure()
    assert failure is not None
    assert words in failure.traceback
    assert "maxFailures" not in failure.traceback
    assert ended_from_outside("Job aborted due to stage failure: Task 0 failed 4 times") == ""


def elastic(**options: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("tasks", [{"workers": 4, "least": 2, **options}], indirect=True)


@elastic()
def test_an_elastic_job_starts_with_the_least_and_takes_in_who_comes_later(tasks: Tasks) -> None:
    channels = [tasks.register(3, "b"), tasks.register(1, "a")]
    assert [hear(channel)["rank"] for channel in channels] == [1, 0]
    tasks.controller.wait_for_start(DEADLINE)
    late = hear(tasks.register(0, "b"))
    assert (late["rank"], late["local_rank"], late["local_size"]) == (2, 1, 2)
    assert tasks.output.getvalue() == "[2] worker 2 on b comes while the others train\n"


@elastic()
def test_lost_tasks_of_an_elastic_job_are_no_failures(tasks: Tasks) -> None:
    channels = tasks.start("a", "a", "a")
    for place, lost in enumerate((2, 1)):
        channels[lost].close()
        tasks.wait_for("lost", place + 1)
    tasks.wait_for("waits")
    assert "1 of the 2 workers are left that are needed: training waits" in tasks.output.getvalue()
    start = hear(tasks.register(1, "c", attempt=1))
    assert (start["rank"], start["attempt"]) == (1, 1)
    assert (tasks.controller.failures, tasks.controller.lost_tasks) == (0, 2)
    kinds = [event.kind for event in tasks.controller.events]
    assert kinds[-5:] == ["lost", "lost", "waits", "registered", "restarted"]


@elastic()
def test_an_elastic_job_ends_without_those_that_did_not_come_back(tasks: Tasks) -> None:
    channels = tasks.start("a", "a", "a")
    channels[2].close()
    tasks.wait_for("lost")
    for channel in channels[:2]:
        channel.send({"type": "ended", "size": 0})
    tasks.controller.wait_for_end(replace_timeout=0.0)
    assert tasks.controller.first_failure() is None
    tasks.controller.stop("the job has ended")
    assert hear(tasks.register(2, "a", attempt=1))["type"] == "stop"
    tasks.controller.job_ended()
    assert tasks.controller.first_failure() is None


@elastic()
def test_an_elastic_job_that_has_too_few_for_too_long_fails(tasks: Tasks) -> None:
    channels = tasks.start("a", "a")
    channels[0].close()
    tasks.wait_for("waits")
    tasks.controller.wait_for_end(replace_timeout=0.0)
    failure = tasks.controller.first_failure()
    assert failure is not None
    assert "Spark ran it nowhere" in failure.traceback


@elastic()
def test_an_elastic_job_without_its_least_number_names_it(tasks: Tasks) -> None:
    tasks.register(1, "a")
    tasks.wait_for("registered")
    with pytest.raises(errors.JoinTimeout, match=r"1 of the 2 that are enough.*\[0, 2, 3\]"):
        tasks.controller.wait_for_start(0.01)


def test_a_task_that_comes_too_late_is_stopped(tasks: Tasks) -> None:
    tasks.controller.stop("worker 1 has failed")
    assert hear(tasks.register(0, "a")) == {"type": "stop", "reason": "worker 1 has failed"}


def test_missing_tasks_are_counted(tasks: Tasks) -> None:
    tasks.register(1, "some-host")
    tasks.wait_for("registered")
    with pytest.raises(errors.JoinTimeout, match=r"1 of 2 .*some-host.*\[0\].*driver\?$"):
        tasks.controller.wait_for_start(0.01)
    with pytest.raises(errors.JoinTimeout, match="a larger start_timeout, or a store"):
        tasks.controller.wait_for_start(0.01, with_rows=True)


def test_who_says_nothing_sealed_is_not_waited_for_longer_than_all_in_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("keras_strom.runner.channel.SILENCE_SECONDS", 0.2)
    here, there = socket.socketpair()
    with there:
        there.sendall(sealing.public_key(bytes(KEY_BYTES)))
        driver = Channel(here, CREDENTIALS, PUBLIC_KEY, DRIVER_KEY)
        there.sendall(struct.pack("<I", 100))  # A length begins no new time.
        with pytest.raises(ConnectionError, match="has not shown the job's secret within"):
            driver.receive(10 * DEADLINE)
        driver.close()


def test_strangers_are_not_heard(tasks: Tasks) -> None:
    with pytest.raises(errors.SecretRejected):
        tasks.connect(Credentials.new())
    for nonsense in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + bytes(500), bytes(KEY_BYTES)):
        stranger = socket.create_connection(("127.0.0.1", tasks.controller.port))
        with contextlib.suppress(OSError), stranger:  # Reset at any moment, or closed.
            stranger.sendall(nonsense)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(1000):
                pass
    silent = socket.create_connection(("127.0.0.1", tasks.controller.port))
    channels = [tasks.register(0, "a"), tasks.register(1, "a")]
    assert [hear(channel)["rank"] for channel in channels] == [0, 1]
    silent.close()


def test_any_number_of_silent_connections_lock_out_no_task(tasks: Tasks) -> None:
    address = ("127.0.0.1", tasks.controller.port)
    silent = [socket.create_connection(address) for _ in range(200)]
    channels = [tasks.register(0, "a"), tasks.register(1, "a")]
    assert [hear(channel)["rank"] for channel in channels] == [0, 1]
    assert len(tasks.controller._strangers) <= 64
    for connection in silent:
        connection.close()


def test_tasks_are_heard_again_when_file_descriptors_are_free_again(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, failed = socket.socket.accept, threading.Event()

    def fail_once(listener: socket.socket) -> Any:
        if not failed.is_set():
            failed.set()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", fail_once)
    # The first of these is accepted by the call that waits already.
    channels = [tasks.register(0, "a"), tasks.register(1, "a")]
    assert [hear(channel)["rank"] for channel in channels] == [0, 1]
    assert failed.is_set()


@pytest.mark.parametrize(
    "message",
    [{"type": "failed"}, {"type": "log", "lines": 3}, {"type": "failed", "log_tail": None}],
)
def test_a_message_that_makes_no_sense_loses_its_task_with_words(
    tasks: Tasks, message: dict[str, Any]
) -> None:
    first, _ = tasks.start("a", "b")
    first.send(message)
    tasks.wait_for("failed")
    failure = tasks.controller.first_failure()
    assert failure is not None
    assert "makes no sense" in str(failure)


def test_a_registration_that_makes_no_sense_leaves_the_port_open(tasks: Tasks) -> None:
    for hello in ({}, {"partition": "x", "attempt": 0, "host": "a"}):
        channel = tasks.connect()
        channel.send({"type": "register", **hello})
        with pytest.raises(ConnectionError):
            channel.receive()
    channels = [tasks.register(0, "a"), tasks.register(1, "a")]
    assert [hear(channel)["rank"] for channel in channels] == [0, 1]


def test_who_reads_along_sees_neither_output_nor_tracebacks(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []
    write = Channel._write

    def copied(channel: Channel, content: bytes) -> None:
        seen.append(content)
        write(channel, content)

    monkeypatch.setattr(Channel, "_write", copied)
    first, _ = tasks.start("a", "b")
    first.send({"type": "log", "lines": ["row 7: a patient's name"]})
    fail(first, "ValueError: a patient's name")
    tasks.wait_for("failed")
    tasks.controller.stop("a patient's name")
    assert "patient" in tasks.output.getvalue()
    assert "patient" in str(tasks.controller.first_failure())
    wire = b"".join(seen)
    assert len(wire) > 500
    for word in (b"patient", b"ValueError", b"type", b"rank", b"register", CREDENTIALS.secret):
        assert word not in wire


@pytest.mark.parametrize("character", ["\x00", "é", "漢", "🙂"])
def test_the_longest_report_fits_whatever_its_characters(character: str) -> None:
    received: list[dict[str, Any]] = []
    driver, task = connect()
    reader = threading.Thread(target=lambda: received.extend(driver.receive() for _ in range(2)))
    reader.start()
    report = {
        "traceback": character * _MAX_TRACEBACK_CHARACTERS,
        "log_tail": [character * _MAX_TAIL_LINE_CHARACTERS] * TAIL_LINES,
    }
    log = {"lines": [character * (_MAX_BATCH_CHARACTERS + MAX_LINE)]}
    task.send(report)
    task.send(log)
    reader.join(DEADLINE)
    assert received == [report, log]
    driver.close()
    task.close()


def test_a_port_in_use_is_a_clear_error(tasks: Tasks) -> None:
    port = tasks.controller.port
    with pytest.raises(errors.AddressError, match=f"TCP port {port}"):
        Controller(Size(workers=2), CREDENTIALS, ("127.0.0.1", port), None)


def test_the_root_cause_is_found_in_sparks_message() -> None:
    message = (
        "An error occurred while calling z:...collectAndServe.\n: org.apache.spark.SparkException: "
        "Job aborted due to stage failure: Task 1 in stage 0.0 failed 4 times, most recent: "
        "Lost task 1.3 in stage 0.0 (TID 7) (10.0.0.7 executor 1): "
        "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        '  File "serializers.py", line 1, in loads\n'
        "ModuleNotFoundError: in user code:\n\n    No module named 'keras_strom'\n\n"
        "\tat org.apache.spark.api.python.BasePythonRunner\n"
    )
    host, text = root_cause(message)
    assert host == "10.0.0.7"
    assert text.startswith("Traceback")
    assert text.endswith("No module named 'keras_strom'")
    assert root_cause("Job 3 cancelled\n\tat org.apache")[1] == "Job 3 cancelled"


def test_the_masters_events_stand_among_the_runners() -> None:
    seen = {"time_ns": 12_500_000_000, "type": "rejoined", "rank": 1, "text": "after 3.2 s"}
    (event,) = _events_of_master({"events": [seen]}, begin=10.0)
    assert event == Event(2.5, "master: rejoined", 1, "after 3.2 s")
    assert _events_of_master({}, begin=10.0) == []


def test_a_result_is_a_list_with_more() -> None:
    result = RunResult([1, 2], metrics={"seconds": 1.0}, events=())
    assert result == [1, 2]
    assert result.metrics["seconds"] == 1.0
