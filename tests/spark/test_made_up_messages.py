"""Control messages that somebody has made up who holds the job's secret."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_strom import errors
from keras_strom._native import sealing
from keras_strom.job.credentials import KEY_BYTES, Credentials
from keras_strom.job.network import NetworkConfig
from keras_strom.runner.channel import Channel
from keras_strom.runner.console import Console
from keras_strom.spark.runner.controller import Controller
from keras_strom.spark.runner.messages import Registration, Start, parse_from_task
from keras_strom.spark.runner.result_room import ResultRoom
from keras_strom.spark.runner.slots import Size
from keras_strom.spark.runner.task import Task, _DriverLink
from tests.support.made_up import VALUES, bent

pytestmark = pytest.mark.fuzz

CREDENTIALS = Credentials.new()
DRIVER_KEY = bytes(range(KEY_BYTES))
WORKERS = 2

REGISTRATION = {
    "type": "register",
    "partition": 0,
    "attempt": 0,
    "host": "a",
    "executor": "0",
    "task": 7,
}
START = {"type": "start", "rank": 1, "local_rank": 0, "local_size": 1, "attempt": 2, "clock": 3.5}
FROM_TASKS = (
    {"type": "log", "lines": ["one", "two"]},
    {"type": "progress", "text": "1/9"},
    {"type": "ended", "size": 0},
    {"type": "drained", "stepped": True, "too_late": False},
    {
        "type": "failed",
        "traceback": "Error: x",
        "log_tail": ["last"],
        "is_consequence": False,
        "cause": "was killed",
        "may_start_again": True,
    },
    {"type": "heartbeat"},
)
messages = st.sampled_from(FROM_TASKS).flatmap(bent)


@contextlib.contextmanager
def all_threads_end_well() -> Iterator[None]:
    """No thread that this process starts within the block is ended by an exception."""
    thrown: list[Any] = []
    before, threading.excepthook = threading.excepthook, thrown.append
    try:
        yield
    finally:
        threading.excepthook = before
    assert not thrown


def say(channel: Channel, value: Any) -> None:
    """Sends any JSON, or bytes, as a message."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    with contextlib.suppress(ConnectionError):
        channel._write(
            len(body).to_bytes(4, "little") + sealing.seal(channel._out, channel._sent, body)
        )
    channel._sent += 1


def hear_to_its_end(channel: Channel) -> list[dict[str, Any]]:
    """Says no more, and hears what the other end says until it closes."""
    heard = []
    with contextlib.suppress(OSError):
        channel._socket.shutdown(socket.SHUT_WR)
    with contextlib.suppress(ConnectionError):
        while True:
            heard.append(channel.receive())
    channel.close()
    return heard


@settings(settings.get_profile("fuzz"), max_examples=20, deadline=None)
@given(
    registration=bent(REGISTRATION),
    said=st.lists(messages | VALUES | st.binary(max_size=9), max_size=4),
    failures=st.integers(0, 2),
    starts_first=st.booleans(),
)
@example({**REGISTRATION, "partition": float("inf")}, [], 0, False)
@example(REGISTRATION, [{"type": "log", "lines": ["\ud800"]}], 0, True)
@example(REGISTRATION, [{**FROM_TASKS[3], "traceback": [[[]]]}], 1, False)
def test_a_task_that_makes_its_messages_up_is_lost_at_worst(
    registration: Any, said: list[Any], failures: int, starts_first: bool
) -> None:
    with all_threads_end_well():
        controller = Controller(
            Size(workers=WORKERS),
            CREDENTIALS,
            ("127.0.0.1", 0),
            Console(WORKERS, io.TextIOWrapper(io.BytesIO(), "ascii")),
            max_failures=failures,
        )

        def connect() -> Channel:
            connection = socket.create_connection(("127.0.0.1", controller.port))
            return Channel(connection, CREDENTIALS, controller.public_key)

        def join() -> Channel:
            channel = connect()
            say(channel, {**REGISTRATION, "partition": 1})
            return channel

        early = join() if starts_first else None
        odd = connect()
        say(odd, registration)
        for value in said:
            say(odd, value)
        hear_to_its_end(odd)
        other = early or join()
        controller.stop("enough")
        assert {"type": "stop", "reason": "enough"} in hear_to_its_end(other) or early is None
        controller.close()
        for event in controller.events:
            event.text.encode()


@settings(settings.get_profile("fuzz"), max_examples=20, deadline=None)
@given(st.lists(bent(START) | VALUES | st.binary(max_size=9), max_size=3))
@example([{}])
@example([{**START, "clock": None}])
@example([{**START, "rank": 7}])
def test_a_task_ends_where_its_driver_makes_messages_up(said: list[Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, all_threads_end_well():
        key = sealing.public_key(DRIVER_KEY)
        task = Task(
            payload=b"",
            workers=WORKERS,
            controller=listener.getsockname(),
            controller_key=key,
            credentials=CREDENTIALS,
            master=None,
            network=NetworkConfig(),
            env={},
            use_gpu=None,
            start_timeout=1.0,
            drain_seconds=1.0,
            stream_logs=True,
            show_progress=False,
            room=ResultRoom(executor=0, driver=0, limit=0),
        )
        with ThreadPoolExecutor(1) as pool:
            linked = pool.submit(_DriverLink, task)
            driver = Channel(listener.accept()[0], CREDENTIALS, key, DRIVER_KEY)
            link = linked.result()
        link.register()
        assert Registration.parse(driver.receive()).partition == 0
        for value in said:
            say(driver, value)
        driver.close()
        while (start := link.wait_for_start()) is not None:
            assert start.rank < WORKERS
        link.close()


@settings(settings.get_profile("fuzz"), max_examples=80, deadline=None)
@given(bent(REGISTRATION) | messages | bent(START))
def test_a_message_is_a_value_or_refused(message: Any) -> None:
    if not isinstance(message, dict):
        return
    for parse in (Registration.parse, parse_from_task, lambda m: Start.parse(m, WORKERS)):
        with contextlib.suppress(errors.CorruptMessage):
            repr(parse(message)).encode()


def test_a_driver_does_not_wait_for_a_task_that_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends = socket.socketpair()
    key = sealing.public_key(DRIVER_KEY)
    with ThreadPoolExecutor(1) as pool:
        joined = pool.submit(Channel, ends[1], CREDENTIALS, key)
        driver = Channel(ends[0], CREDENTIALS, key, DRIVER_KEY)
        task = joined.result()
    monkeypatch.setattr("keras_strom.runner.channel.SILENCE_SECONDS", 0.05)

    def say_on_and_on() -> None:
        while True:
            driver.send({"type": "heartbeat", "text": "x" * 100_000})

    with pytest.raises(ConnectionError, match=r"has read nothing for 0\.05 s"):
        say_on_and_on()
    with pytest.raises(ConnectionError, match="has read nothing"):
        driver.receive()
    task.close()
    driver.close()
