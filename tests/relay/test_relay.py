"""The relay of any bytes: what one worker submits all others get, in order, once."""

import contextlib
import ctypes
import dataclasses
import doctest
import functools
import gc
import itertools
import json
import pickle
import queue
import socket
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keras_strom import NetworkConfig, errors, relay
from keras_strom._native import node
from keras_strom._native.bytes_node import BytesNode
from keras_strom._native.node import WorkerNode
from keras_strom.job.credentials import Credentials
from keras_strom.relay import JoinInfo, Master, Message, Worker, counters, new_secret
from keras_strom.relay.counters import NodeCounters

DEADLINE = 30.0


class Star:
    """A master and its workers on loopback."""

    def __init__(self, workers: int, host: str | None = None, **options: object) -> None:
        network = NetworkConfig(**options)  # type: ignore[arg-type]
        self.secret = new_secret()
        self.master = Master(self.secret, workers=workers, network=network, host=host)
        self.workers = [
            Worker(self.master.join_info, self.secret, network=network) for _ in range(workers)
        ]

    def __enter__(self) -> "Star":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.close(flush_timeout=0)
        self.master.close()


def take(worker: Worker, count: int) -> list[Message]:
    messages: list[Message] = []
    while len(messages) < count:
        more = worker.poll(timeout=DEADLINE)
        assert more, f"{len(messages)} of {count} messages came within {DEADLINE} s"
        messages += more
    assert len(messages) == count
    return messages


def assert_in_order(messages: list[Message], sent: dict[int, list[bytes]]) -> None:
    for origin, expected in sent.items():
        mine = [m for m in messages if m.origin == origin]
        assert [m.counter for m in mine] == list(range(1, len(expected) + 1))
        assert [m.data for m in mine] == expected


@pytest.mark.parametrize("module", [relay, counters])
def test_the_examples_in_the_docstrings_run(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def pair() -> Iterator[Star]:
    with Star(2) as star:
        yield star


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    sizes=st.lists(
        st.integers(0, 70_000) | st.sampled_from([0, 1, 1100, 1200, relay.MAX_MESSAGE_BYTES]),
        min_size=1,
        max_size=6,
    )
)
def test_messages_of_every_size_arrive_as_they_were(pair: Star, sizes: list[int]) -> None:
    one, other = pair.workers
    sent = [bytes([size % 251]) * size for size in sizes]
    numbers = [one.submit(data) for data in sent]
    received = take(other, len(sent))
    assert [m.data for m in received] == sent
    assert [m.counter for m in received] == numbers
    assert {m.origin for m in received} == {one.origin}
    assert one.poll() == []


TREE = {"topology": "mesh", "max_children": 2}


@pytest.mark.parametrize(
    ("workers", "options"),
    [(1, {}), (2, {}), (5, {}), (2, {"same_host": False}), (6, TREE)],
    ids=str,
)
def test_every_worker_gets_the_others_messages_in_order_once(
    workers: int, options: dict[str, object]
) -> None:
    with Star(workers, **options) as star:
        sent = {w.origin: [b"%d of %d" % (i, w.rank) for i in range(40)] for w in star.workers}
        for i in range(40):
            for worker in star.workers:
                worker.submit(sent[worker.origin][i])
        for worker in star.workers:
            of_others = {origin: data for origin, data in sent.items() if origin != worker.origin}
            received = take(worker, 40 * (workers - 1))
            assert_in_order(received, of_others)
            assert worker.poll() == []


def test_ranks_are_given_in_the_order_of_joining_or_chosen() -> None:
    secret = new_secret()
    with Master(secret, workers=3) as master, ExitStack() as stack:
        chosen = stack.enter_context(Worker(master.join_info, secret, rank=1))
        first, last = (stack.enter_context(Worker(master.join_info, secret)) for _ in range(2))
        assert (first.rank, chosen.rank, last.rank) == (0, 1, 2)
        with pytest.raises(errors.Refused, match="has its 3 workers already"):
            Worker(master.join_info, secret)
        with pytest.raises(errors.Refused, match="rank 1 is already taken"):
            Worker(master.join_info, secret, rank=1)


def test_workers_of_one_machine_get_ranks_where_ports_follow_from_them() -> None:
    secret, network = new_secret(), NetworkConfig(port=_first_of_free_ports(3))
    with Master(secret, workers=2, network=network) as master, ExitStack() as stack:
        join = functools.partial(Worker, master.join_info, secret, network=network)
        assert [stack.enter_context(join()).rank for _ in range(2)] == [0, 1]
        with pytest.raises(errors.AddressError, match="in use"):
            join()


def _first_of_free_ports(count: int) -> int:
    """A port behind which, and with it, so many are free."""
    for first in range(21000, 31000, count):
        with ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                one = stack.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
                one.bind(("::", port))
            return first
    raise OSError(f"no {count} ports in a row are free")


def test_nothing_travels_before_all_have_joined() -> None:
    secret = new_secret()
    with Master(secret, workers=2) as master, Worker(master.join_info, secret) as early:
        with pytest.raises(errors.DeadlinePassed, match="not all 2 workers have joined"):
            early.submit(b"too early", timeout=0.1)
        with Worker(master.join_info, secret) as late:
            assert early.submit(b"now") == 1
            assert take(late, 1) == [Message(early.origin, 1, b"now")]


@pytest.mark.parametrize("order", list(itertools.permutations(["master", "sender", "receiver"])))
def test_closing_in_any_order_ends_well(order: tuple[str, ...]) -> None:
    with Star(2) as star:
        sender, receiver = star.workers
        sender.submit(b"a message on its way")
        take(receiver, 1)
        nodes = {"master": star.master, "sender": sender, "receiver": receiver}
        for name in order:
            nodes[name].close()
            nodes[name].close()  # Harmless.
            assert nodes[name].counters()["datagrams_sent"] > 0  # The last ones stay.
        with pytest.raises((errors.ConnectionClosed, errors.MasterLost)):
            sender.submit(b"too late")


def test_what_a_worker_submitted_before_closing_arrives() -> None:
    with Star(2) as star:
        sender, receiver = star.workers
        sent = [bytes([i]) * 100_000 for i in range(50)]
        for data in sent:
            sender.submit(data)
        sender.close()
        assert [m.data for m in take(receiver, 50)] == sent


def test_whoever_leaves_may_name_a_file_whose_name_is_no_utf8() -> None:
    with Star(2) as star:
        star.workers[0].close("no such file: caf\udce9.csv")
        star.master.close("no such file: caf\udce9.csv")
        with pytest.raises(errors.MasterLost, match=r"no such file: caf\\udce9\.csv"):
            star.workers[1].poll(timeout=DEADLINE)


def test_a_join_that_is_interrupted_leaves_nobody_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    gives_up, closed = threading.Event(), queue.SimpleQueue[int]()

    def join(_: int, handle: int) -> int:
        gives_up.wait(DEADLINE)
        ctypes.c_int64.from_address(handle).value = 7
        return 0

    def close(handle: int, _: bytes) -> int:
        closed.put(handle)
        return 0

    class Interrupted(BytesNode):
        def meanwhile(self) -> None:
            gives_up.set()
            raise KeyboardInterrupt

    functions = {"strom_bytes_join": join, "strom_bytes_close": close}
    monkeypatch.setattr(node, "declare", lambda name, *_: functions[name])
    credentials = Credentials.new().with_master(bytes(32))
    with pytest.raises(KeyboardInterrupt):
        Interrupted(credentials, master=("127.0.0.1", 9), rank=0, size=1)
    assert closed.get(timeout=DEADLINE) == 7


def test_what_an_interrupted_wait_is_still_writing_to_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writes, ends, memory = threading.Event(), threading.Event(), list[weakref.ref[np.ndarray]]()

    def read_joint_model(*_: object) -> int:
        writes.set()
        ends.wait(DEADLINE)
        return 0

    def empty(*shape: Any) -> np.ndarray:
        array = np.ndarray(*shape)
        memory.append(weakref.ref(array))
        return array

    class Interrupted(WorkerNode):
        def __init__(self) -> None:
            self.handle = 0

        def meanwhile(self) -> None:
            if writes.is_set():
                raise KeyboardInterrupt

    monkeypatch.setattr(node, "declare", lambda *_: read_joint_model)
    monkeypatch.setattr(node.np, "empty", empty)
    with contextlib.suppress(KeyboardInterrupt):
        Interrupted().joint_model(4)
    gc.collect()
    assert memory[0]() is not None
    ends.set()


def test_what_came_before_the_masters_end_is_polled_before_the_error() -> None:
    with Star(2) as star:
        one, other = star.workers
        one.submit(b"a question")
        take(other, 1)
        other.submit(b"an answer")
        assert take(one, 1)
        star.master.close("the show is over")
        with pytest.raises(errors.MasterLost, match="the show is over"):
            one.poll(timeout=DEADLINE)


def test_two_relays_in_one_process_know_nothing_of_each_other() -> None:
    with Star(2) as a, Star(3) as b:
        a.workers[0].submit(b"for a")
        b.workers[0].submit(b"for b")
        assert [m.data for m in take(a.workers[1], 1)] == [b"for a"]
        assert [[m.data for m in take(w, 1)] for w in b.workers[1:]] == [[b"for b"]] * 2
        assert a.workers[1].poll() == b.workers[1].poll() == []
        with pytest.raises(errors.SecretRejected):
            Worker(a.master.join_info, b.secret)


def test_threads_may_share_a_worker() -> None:
    with Star(2) as star:
        one, other = star.workers
        threads = [
            threading.Thread(target=lambda: [one.submit(b"x" * 500) for _ in range(50)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        assert [m.counter for m in take(other, 200)] == list(range(1, 201))
        for thread in threads:
            thread.join()


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1")
def test_ipv6_works_from_end_to_end() -> None:
    with Star(2, host="::1") as star:
        assert star.master.address[0] == "::1"
        one, other = star.workers
        one.submit(b"x" * 100_000)
        assert take(other, 1)[0].data == b"x" * 100_000
        assert NodeCounters.from_status(one.status()).links[0].peer.startswith("[::1]:")


def test_of_a_name_with_several_addresses_the_one_that_answers_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find, secret = socket.getaddrinfo, new_secret()
    both = [*find("127.0.0.2", 9), *find("127.0.0.1", 9)]
    with Master(secret, workers=1) as master:
        by_name = ("both.example", master.address[1])
        info = dataclasses.replace(master.join_info, address=by_name)
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
        with Worker(info, secret, join_timeout=0.5) as worker:
            assert worker.rank == 0


def test_a_mask_picks_the_interface_of_master_and_workers() -> None:
    with Star(2, network_mask="127.0.0.0/8") as star:
        assert star.master.address[0] == "127.0.0.1"
        star.workers[0].submit(b"x")
        take(star.workers[1], 1)


def test_what_is_wrong_with_the_input_is_said_with_the_remedy() -> None:
    with pytest.raises(errors.InvalidOption, match=r"5 bytes .* at least 32 .*new_secret\(\)"):
        Master(b"short", workers=1)
    with pytest.raises(errors.InvalidOption, match="must be bytes, not str"):
        Master("a" * 32, workers=1)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidOption, match="workers=0 must be a whole number, 1 or more"):
        Master(new_secret(), workers=0)
    with Star(1) as star:
        too_long = bytes(relay.MAX_MESSAGE_BYTES + 1)
        with pytest.raises(errors.InvalidOption, match="over the limit of 4194248; submit it in"):
            star.workers[0].submit(too_long)
        with pytest.raises(errors.InvalidOption, match="take the master's join_info"):
            Worker(star.master, star.secret)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidOption, match=r"not what JoinInfo.to_json gives"):
        JoinInfo.from_json("{}")


def test_a_secret_of_any_length_from_32_bytes_on_is_the_same_on_both_sides() -> None:
    long = b"correct horse battery staple, and then some more of it"
    with Master(long, workers=1) as master, Worker(master.join_info, long) as worker:
        assert worker.submit(b"alone") == 1
        with pytest.raises(errors.SecretRejected):
            Worker(master.join_info, long[:32])


def test_the_join_info_holds_no_secret_and_travels_as_text() -> None:
    secret = new_secret()
    with Master(secret, workers=1) as master:
        text = master.join_info.to_json()
        assert secret.hex() not in text
        assert secret not in master.join_info.job_id + master.join_info.master_public_key
        with Worker(JoinInfo.from_json(text), secret) as worker:
            assert worker.rank == 0


def test_counters_tell_what_went_through_each_link() -> None:
    with Star(2) as star:
        one, other = star.workers
        one.submit(b"x" * 50_000)
        take(other, 1)
        one.flush()
        sender = NodeCounters.from_status(one.status())
        (link,) = sender.links
        assert link.peer == f"127.0.0.1:{star.master.address[1]}"
        assert 50_000 < link.bytes_sent <= sender.bytes_sent < 100_000
        assert link.round_trip_seconds > 0
        master = NodeCounters.from_status(star.master.status())
        assert len(master.links) == 2
        assert master.bytes_received >= 50_000 < master.bytes_sent
        assert one.counters()["links"][0]["peer"] == link.peer


def test_a_way_that_loses_packets_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    good = {"peer": "10.0.0.1:9", "datagrams_sent": 10_000, "retransmitted_packets": 100}
    bad = {"peer": "10.0.0.2:9", "datagrams_sent": 10_000, "retransmitted_packets": 1200}
    short = {"peer": "10.0.0.3:9", "datagrams_sent": 100, "retransmitted_packets": 50}
    NodeCounters.from_status({"counters": {"links": [good, bad, short]}}).log("worker 3")
    (warning,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert warning.startswith("worker 3: 12% of the packets to 10.0.0.2:9 had to be sent again")


def test_counters_travel_as_values_and_as_text() -> None:
    status = {"counters": {"drop_replayed": 2, "links": [{"peer": "10.0.0.1:9"}]}}
    counted = NodeCounters.from_status(status)
    assert pickle.loads(pickle.dumps(counted)) == counted
    as_text = json.loads(json.dumps(dataclasses.asdict(counted)))
    assert as_text["drops"] == {"replayed": 2}
    assert as_text["links"][0]["peer"] == "10.0.0.1:9"


def test_counters_read_as_a_line_for_people() -> None:
    link = {"peer": "10.0.0.1:9", "bytes_sent": 2_500_000, "smoothed_round_trip_ns": 250_000}
    status = {
        "counters": {
            "bytes_sent": 2_500_000,
            "datagrams_sent": 1000,
            "retransmitted_packets": 20,
            "drop_replayed": 3,
            "drop_malformed": 0,
            "links": [link, {"peer": "[::1]:10"}],
        }
    }
    lines = str(NodeCounters.from_status(status)).split("\n")
    assert lines == [
        "2.5 MB sent, 0 bytes received, 2.00% sent again, dropped: replayed 3",
        "  10.0.0.1:9: 2.5 MB sent, 0 bytes received, round trip 0.25 ms, window 0 packets",
        "  [::1]:10: 0 bytes sent, 0 bytes received, window 0 packets",
    ]
