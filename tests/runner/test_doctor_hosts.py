"""`keras-strom doctor --hosts`: each finding, provoked on machines of network namespaces."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Container, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from keras_strom import errors
from keras_strom.doctor import (
    Finding,
    Grade,
    Report,
    examine_hosts,
    hosts,
    network_path,
    software,
    there,
)
from keras_strom.job.joining import verdict
from keras_strom.job.network import NetworkConfig
from keras_strom.relay.bytes_relay import Message
from keras_strom.runner.hosts import Host, parse_hosts
from keras_strom.runner.wire import PipeWire
from tests.support import ssh_hosts
from tests.support.processes import wait_until_gone
from tests.support.ssh_hosts import SshHosts

DEADLINE = 180.0
PORT = 40100


# ------------------------------------------------------------------ without another machine


class Answers:
    """A wire to a program whose clock is `ahead` seconds ahead."""

    def __init__(self, clock: Any, ahead: float) -> None:
        self._clock, self._ahead = clock, ahead

    def send(self, message: Any) -> None:
        """A question."""

    def receive(self, timeout: float) -> dict[str, Any]:
        return {"type": "clock", "seconds": self._clock() + self._ahead}

    def why_lost(self, error: ConnectionError) -> str:
        return f"ssh ended with code 1: Killed ({error})"

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(
    ("ahead", "grade"), [(0.3, Grade.GOOD), (-90.0, Grade.WARNING), (90.0, Grade.WARNING)]
)
def test_a_clock_that_is_wrong_is_told(ahead: float, grade: Grade) -> None:
    node = hosts._Node(Host("a"), 1, Answers(hosts.time.time, ahead))
    found = hosts._clock(node)
    assert found.grade is grade
    assert ("timedatectl" in found.remedy) == (grade is Grade.WARNING)
    assert f"{abs(ahead):.1f}" in found.words
    assert ("ahead of" in found.words) == (ahead > 0)


def test_other_versions_are_named_with_those_here() -> None:
    ours = software.versions()
    assert hosts.compare(ours, ours) is None
    found = hosts.compare({**ours, "keras": "3.0.0"}, {**ours, "pyspark": "4.0"})
    assert found is not None
    assert found.grade is Grade.BAD
    assert f"keras 3.0.0 (here: {ours['keras']})" in found.words


@pytest.mark.parametrize(
    ("name", "theirs", "here", "grade"),
    [
        ("Python", "3.11.9", "3.11.7", Grade.WARNING),
        ("Python", "3.12.7", "3.11.7", Grade.BAD),
        ("pyspark", "", "4.0.0", Grade.WARNING),
        ("tensorflow", "2.20.0", "2.21.0", Grade.BAD),
    ],
)
def test_versions_with_which_a_run_does_not_fail_are_a_warning(
    name: str, theirs: str, here: str, grade: Grade
) -> None:
    ours = software.versions()
    found = hosts.compare({**ours, name: theirs}, {**ours, name: here})
    assert found is not None
    assert found.grade is grade


def test_a_program_that_is_gone_is_found() -> None:
    class Gone(Answers):
        def receive(self, timeout: float) -> dict[str, Any]:
            raise ConnectionError("the connection has ended")

    node = hosts._Node(Host("a"), 1, Gone(None, 0.0))
    hosts._guarded(hosts._look, node, {})
    (found,) = node.found
    assert (found.check, found.grade, found.node) == ("ssh", Grade.BAD, "a")
    assert "ssh ended with code 1: Killed" in found.words
    assert node.wire is None


def test_programs_that_hang_are_ended_at_the_same_time() -> None:
    together = threading.Barrier(3)

    class Hangs(Answers):
        def close(self) -> None:
            together.wait(DEADLINE)

    nodes = [hosts._Node(Host(name), 1, Hangs(None, 0.0)) for name in "abc"]
    hosts._close([*nodes, hosts._Node(Host("d"), 1)])
    assert not together.broken


def look(monkeypatch: pytest.MonkeyPatch, network: NetworkConfig) -> dict[str, Any]:
    """What a host would answer that is this machine."""
    monkeypatch.setattr(software, "_in_another_process", list)
    questions = [
        {
            "type": "look",
            "network": network.to_json(),
            "slots": 1,
            "master": "127.0.0.1",
            "marker": None,
        },
        {"type": "stop"},
    ]
    answers: list[dict[str, Any]] = []

    class Asks(Answers):
        def receive(self, timeout: float) -> dict[str, Any]:
            return questions.pop(0)

        def send(self, message: Any) -> None:
            answers.append(message)

    there.serve(Asks(None, 0.0))
    (answer,) = answers
    return answer


def test_a_mask_that_a_host_is_not_in_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = look(monkeypatch, NetworkConfig(network_mask="203.0.113.0/24"))
    (found,) = [one for one in answer["findings"] if one["grade"] == "bad"]
    assert found["check"] == "address"
    assert "203.0.113.0/24" in found["words"]
    assert answer["versions"] == software.versions()


def test_a_variable_that_nobody_knows_is_found_on_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_STROM_RNAK", "1")
    bad = {one["check"]: one["words"] for one in look(monkeypatch, NetworkConfig())["findings"]}
    assert "KERAS_STROM_RNAK" in bad["environment"]


class There:
    """Machines by the names of hosts, which are threads here that serve a doctor.

    Args:
        monkeypatch: lets no ssh be started, and no TensorFlow be asked.
        meet: is called on each machine, with its name and the question, before it answers.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, meet: Callable[[str, dict[str, Any]], None]
    ) -> None:
        self._meet = meet
        monkeypatch.setattr(software, "_in_another_process", list)
        monkeypatch.setattr(hosts.ssh, "reach", self._reach)

    def _reach(self, name: str, *_: Any, **__: Any) -> tuple[PipeWire, dict[str, Any]]:
        there_reads, here_writes = os.pipe()
        here_reads, there_writes = os.pipe()
        wire = PipeWire(there_reads, there_writes)
        threading.Thread(target=self._serve, args=(name, wire), daemon=True).start()
        return PipeWire(here_reads, here_writes), {"host": name, "client": "127.0.0.1"}

    def _serve(self, name: str, wire: PipeWire) -> None:
        class Meets(Answers):
            def __init__(self, meet: Callable[[str, dict[str, Any]], None]) -> None:
                self._meet = meet

            def send(self, message: Any) -> None:
                wire.send(message)

            def receive(self, timeout: float) -> dict[str, Any]:
                question = wire.receive(timeout)
                self._meet(name, question)
                return question

        with contextlib.suppress(ConnectionError):
            there.serve(Meets(self._meet))
        wire.close()


def test_all_hosts_look_and_join_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    together = {kind: threading.Barrier(4) for kind in ("look", "join")}

    def meet(_: str, question: dict[str, Any]) -> None:
        if (barrier := together.get(question["type"])) is not None:
            barrier.wait(DEADLINE)  # Broken where one waits for another's answer.

    There(monkeypatch, meet)
    found = Report(examine_hosts(parse_hosts("a:2,b,c,d"), None, NetworkConfig(port=0)))
    assert not found.would_fail, str(found)
    assert {one.node for one in found if one.check == "relay"} == set("abcd")


def test_a_folder_for_checkpoints_is_that_of_a_run_on_all_hosts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []
    There(monkeypatch, lambda _, question: asked.append(question.get("network", "{}")))
    monkeypatch.chdir(tmp_path)
    network = NetworkConfig(checkpoint_dir="checkpoints")
    list(examine_hosts(parse_hosts("a,b"), None, network))
    folders = {NetworkConfig.from_json(text).checkpoint_dir for text in asked} - {None}
    assert folders == {str(tmp_path / "checkpoints")}


def test_findings_stand_in_the_order_of_hosts_whoever_answers_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = {name: threading.Event() for name in "bc"}

    def meet(name: str, question: dict[str, Any]) -> None:
        if question["type"] == "join":  # c, then b, then a.
            waits_for = {"a": "b", "b": "c"}.get(name)
            assert waits_for is None or said[waits_for].wait(DEADLINE)
            if name in said:
                said[name].set()

    There(monkeypatch, meet)
    nodes = [one.node for one in examine_hosts(parse_hosts("a,b,c"), None, NetworkConfig())]
    assert list(dict.fromkeys(nodes)) == [hosts.HERE, "a", "b", "c"]


def test_a_host_that_dies_while_others_join_costs_them_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def meet(name: str, question: dict[str, Any]) -> None:
        if (name, question["type"]) == ("b", "join"):
            raise ConnectionError("the machine is gone")

    There(monkeypatch, meet)
    monkeypatch.setattr(PipeWire, "why_lost", lambda _, error: str(error), raising=False)
    found = list(examine_hosts(parse_hosts("a,b,c"), None, NetworkConfig()))
    (bad_one,) = [one for one in found if one.grade is Grade.BAD]
    assert (bad_one.node, bad_one.check) == ("b", "ssh")
    assert {one.node for one in found if one.check == "relay"} == {"a", "c"}


def test_another_hosts_packets_are_no_sign_of_address_translation() -> None:
    heard = {"address": "10.0.0.5:40101", "progress": "heard"}
    status = {"counters": {"joiners": [heard]}}
    words = (
        "worker 2 hears nothing from the master at 10.0.0.4:40100 (it asked from UDP "
        "10.0.0.6:40102); is it there?"
    )
    own = hosts._without({"10.0.0.5"}, status)
    assert "address translation" in verdict(words, status)
    assert "packets do not reach the master" in verdict(words, own)


def test_a_worker_is_called_by_its_rank_in_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Finding("relay", Grade.BAD, "worker 4 hears nothing", "is there worker 4, worker 0?")
    found = hosts._as_in_a_run(trial, 3, 2)
    assert (found.words, found.remedy) == ("worker 3 hears nothing", "is there worker 3, worker 0?")

    class Silent:
        def __init__(self, _: Any, __: Any, *, rank: int, **___: Any) -> None:
            raise errors.Unreachable(f"worker {rank} hears nothing")

    There(monkeypatch, lambda *_: None)
    monkeypatch.setattr(there, "Worker", Silent)
    found_all = examine_hosts(parse_hosts("a:2,localhost,b"), None, NetworkConfig())
    words = {one.node: one.words for one in found_all if one.check == "relay"}
    assert words == {"a": "worker 0 hears nothing", "b": "worker 3 hears nothing"}


def test_hosts_are_filled_in_their_order() -> None:
    assert hosts._filled([2, 4, 1], 3) == [2, 1, 0]


def test_more_workers_than_slots_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "examine", lambda *_: iter(()))
    found = {one.check: one for one in examine_hosts([Host("localhost", 2)], 3, NetworkConfig())}
    assert found["slots"].grade is Grade.BAD
    assert found["slots"].remedy.startswith("-np 2")


@pytest.mark.parametrize(
    ("workers", "network"), [(0, NetworkConfig()), (None, NetworkConfig(port=65535))]
)
def test_bad_options_are_refused_before_any_host_is_asked(
    workers: int | None, network: NetworkConfig
) -> None:
    with pytest.raises(errors.InvalidOption):
        next(examine_hosts(parse_hosts("no-such-host.invalid:2"), workers, network))


def test_what_is_alike_on_several_nodes_stands_in_the_table_once() -> None:
    alike = [Finding("packets", Grade.GOOD, "of 1500 bytes pass", node=f"h{n}") for n in range(9)]
    lines = str(Report([*alike, Finding("clock", Grade.GOOD, "right", node="h1")])).splitlines()
    assert [" ".join(line.split()) for line in lines[1:]] == [
        "ok h0, h1, h2 and 6 more packets of 1500 bytes pass",
        "ok h1 clock right",
    ]


# ------------------------------------------------------------------ over ssh


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with ssh_hosts.ssh_hosts(tmp_path_factory.mktemp("ssh")) as found:
        yield found


@contextlib.contextmanager
def firewall(machines: SshHosts, machine: int, *rule: str) -> Iterator[None]:
    """Has a machine's firewall follow a rule for what comes in."""
    for action in ("-A", "-D"):
        command = ["iptables", action, "INPUT", "-p", "udp", *rule, "-j", "DROP"]
        subprocess.run([*machines.inside(machine), *command], check=True)
        if action == "-A":
            yield


def examined(
    machines: SshHosts, which: str, *flags: str, code: int = 1, beside: int = 0, **env: str
) -> dict[tuple[str, str], dict[str, str]]:
    """What `keras-strom doctor` on machine 0 finds, by node and check.

    No process is left behind; `beside` is one of the test's own.
    """
    command = [sys.executable, "-m", "keras_strom", "doctor", "--json", "--hosts", which]
    done = subprocess.run(
        [*machines.inside(0), *command, "--ssh-args", machines.ssh_args, *flags],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    sys.stdout.write(done.stdout + done.stderr)  # Shown where the test fails.
    assert done.returncode == code
    for machine in range(1, ssh_hosts.MACHINES):
        for pid in machines.processes(machine):
            if pid != beside:
                wait_until_gone(pid)
    return {(one["node"], one["check"]): one for one in json.loads(done.stdout)}


def bad(found: dict[tuple[str, str], dict[str, str]]) -> set[tuple[str, str]]:
    return {where for where, one in found.items() if one["grade"] == "bad"}


@pytest.mark.jobs
def test_ports_packets_and_firewalls_of_each_host_are_found(machines: SshHosts) -> None:
    taken = (
        "import socket, sys; s = socket.socket(type=socket.SOCK_DGRAM); "
        f"s.bind(('{machines.address(1)}', {PORT + 1})); print('bound', flush=True); "
        "sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [*machines.inside(1), sys.executable, "-c", taken],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder, contextlib.ExitStack() as stack:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdout.readline()
        stack.enter_context(firewall(machines, 2))
        set_mtu(machines, 3, 1100)
        stack.callback(set_mtu, machines, 3, 1500)
        found = examined(
            machines, "host1,host2,host3,stranger", "--port", str(PORT), beside=holder.pid
        )
        holder.stdin.close()
    assert bad(found) == {
        ("host1", "ports"),
        ("host2", "relay"),
        ("host3", "packets"),
        ("stranger", "ssh"),
    }
    assert f"port {PORT + 1}" in found["host1", "ports"]["words"]
    relay = found["host2", "relay"]
    assert "the master's answers do not reach" in relay["remedy"]
    assert f"is UDP {PORT + 1} open inbound on {machines.address(2)}" in relay["remedy"]
    assert "of 1100 bytes pass" in found["host3", "packets"]["words"]
    assert "ssh-copy-id" in found["stranger", "ssh"]["words"]


def set_mtu(machines: SshHosts, machine: int, length: int) -> None:
    command = ["ip", "link", "set", "dev", "line", "mtu", str(length)]
    subprocess.run([*machines.inside(machine), *command], check=True)


@pytest.mark.jobs
def test_loss_a_single_port_folders_and_versions_are_found(
    machines: SshHosts, tmp_path: Path
) -> None:
    others = tmp_path / "keras-9.9.dist-info"
    others.mkdir()
    (others / "METADATA").write_text("Metadata-Version: 2.1\nName: keras\nVersion: 9.9\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    lossy = ("-m", "statistic", "--mode", "random", "--probability", "0.1")
    with firewall(machines, 1, *lossy), firewall(machines, 2, "--dport", str(PORT + 2)):
        flags = ["--port", str(PORT), "--checkpoint-dir", "/run/keras-strom-checkpoints"]
        found = examined(machines, "host1,host2:2", *flags, PYTHONPATH=path)
    where = [("host1", "versions"), ("host1", "checkpoints"), ("host2", "relay")]
    assert set(where) <= bad(found)
    assert "(here: 9.9)" in found["host1", "versions"]["words"]
    # Each of these machines has a /run of its own.
    assert "/run is another folder here" in found["host1", "checkpoints"]["words"]
    assert found["host1", "relay"]["grade"] == "warning"
    assert "% back" in found["host1", "relay"]["words"]
    assert "loses them" in found["host1", "relay"]["remedy"]
    assert f"is UDP {PORT + 2} open inbound" in found["host2", "relay"]["remedy"]


@pytest.mark.jobs
def test_a_masters_port_that_is_closed_is_found_by_every_host(machines: SshHosts) -> None:
    with firewall(machines, 0, "--dport", str(PORT)):
        found = examined(machines, "host1", "--port", str(PORT))
    assert bad(found) == {("host1", "relay")}
    assert f"is UDP {PORT} open inbound on {machines.address(0)}" in str(found["host1", "relay"])


@pytest.mark.jobs
def test_machines_that_are_fit_are_called_so(machines: SshHosts) -> None:
    found = examined(machines, "host1:2,localhost", "--port", str(PORT), code=0)
    assert not bad(found)
    checks = {check for node, check in found if node == "host1"}
    assert {"ssh", "clock", "versions", "Keras", "native code", "memory", "relay"} <= checks
    assert {"relay ports", "receive buffer", "address", "ports", "packets"} <= checks
    assert "10.77.0.1" in found["here", "address"]["words"]


class SlowLine:
    """One end of a line that takes `seconds` for each message, and for each direction by itself."""

    def __init__(self, seconds: float) -> None:
        self.carried = 0
        self._seconds = seconds
        self._free_at = 0.0
        self._coming: queue.Queue[tuple[float, Message]] = queue.Queue()
        self.other: SlowLine

    def submit(self, data: bytes, *, timeout: float) -> None:
        self.carried += 1
        self._free_at = max(self._free_at, time.monotonic()) + self._seconds
        self.other._coming.put((self._free_at, Message(0, self.carried, data)))

    def poll(self, timeout: float) -> list[Message]:
        due, message = self._coming.get(timeout=timeout)
        time.sleep(max(0.0, due - time.monotonic()))
        return [message]

    def flush(self, timeout: float) -> None:
        pass


@pytest.mark.parametrize(("seconds", "messages"), [(0.05, range(3, 32)), (0.0, [there.MESSAGES])])
def test_a_slow_line_carries_less_and_is_not_taken_for_a_lost_host(
    monkeypatch: pytest.MonkeyPatch, seconds: float, messages: Container[int]
) -> None:
    """All would take 64 times as long as one message, and who asks waits a minute."""
    monkeypatch.setattr(there, "_EXCHANGE_SECONDS", 0.5)
    here, far = SlowLine(seconds), SlowLine(seconds)
    here.other, far.other = far, here
    with ThreadPoolExecutor(2) as ends:
        rates = list(ends.map(there.exchange, [here, far]))  # type: ignore[list-item]
    assert here.carried - 1 in messages
    assert far.carried - 1 in messages
    if seconds:
        assert rates == pytest.approx([len(network_path.MESSAGE) / seconds] * 2, rel=0.5)
