"""Why a worker could not join: the words that each side's half of the truth leads to."""

import contextlib
import io
import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from keras_strom import NetworkConfig, errors
from keras_strom.job import network
from keras_strom.job.credentials import Credentials
from keras_strom.job.joining import explained, path_mtu, verdict
from keras_strom.relay import JoinInfo, Master, Worker, new_secret
from keras_strom.runner.console import Console
from keras_strom.runner.launcher import Job, launch
from keras_strom.runner.master_options import MasterOptions
from keras_strom.runner.work import Function

ROOT = Path(__file__).resolve().parents[2]
QUICK = NetworkConfig(failure_timeout=0.5)

HEARS_NOTHING = (
    "keras_strom.errors.Unreachable: worker 3 hears nothing from the master at 10.0.0.1:4000 (it "
    "asked from UDP 10.0.2.4:40123); is the master running there, ..."
)


def test_a_worker_whose_packets_arrive_is_told_that_the_answers_do_not() -> None:
    status = {"counters": {"joiners": [{"address": "10.0.2.4:40123", "progress": "heard"}]}}
    assert verdict(HEARS_NOTHING, status) == (
        "worker 3's packets reach the master, but the master's answers do not reach worker 3: is "
        "UDP 40123 open inbound on 10.0.2.4, and UDP 4000 open outbound on 10.0.0.1?"
    )


def test_a_worker_whose_packets_never_arrive_is_told_so() -> None:
    words = verdict(HEARS_NOTHING, {"counters": {"joiners": []}})
    assert words == (
        "worker 3's packets do not reach the master at 10.0.0.1:4000: is UDP 4000 open inbound on "
        "10.0.0.1, and UDP 40123 open outbound on 10.0.2.4, or does the way drop packets of 1228 "
        "bytes, as a tunnel may?"
    )
    others = {"counters": {"joiners": [{"address": "10.0.2.5:9", "progress": "joined"}]}}
    assert verdict(HEARS_NOTHING, others) == words + " Other workers' packets do arrive."


def test_a_worker_beside_one_that_is_heard_is_not_taken_for_it() -> None:
    beside = {"counters": {"joiners": [{"address": "10.0.2.4:5000", "progress": "heard"}]}}
    assert "packets do not reach the master" in verdict(HEARS_NOTHING, beside)


def test_an_address_that_only_the_master_knows_points_to_translation() -> None:
    status = {"counters": {"joiners": [{"address": "192.0.2.7:6000", "progress": "heard"}]}}
    words = verdict(HEARS_NOTHING, status)
    assert "no packet from 10.0.2.4, but some from 192.0.2.7:6000" in words
    assert "address translation between worker 3 and the master" in words


@pytest.mark.parametrize(
    "refusal",
    [
        "a firewall on this machine itself holds back what it sends (Operation not permitted)",
        "this machine cannot send (Network is unreachable)",
    ],
)
def test_a_worker_that_may_not_send_says_so_and_blames_nobody_else(refusal: str) -> None:
    words = f"nobody answers at this address; {refusal} (asked from UDP port 40123)"
    with pytest.raises(errors.Unreachable) as caught, explained("worker 3", ("127.0.0.1", 4000)):
        raise errors.Unreachable(words)
    assert str(caught.value).endswith(f"; {refusal}")
    assert verdict(str(caught.value), {"counters": {"joiners": []}}) == ""


@pytest.mark.parametrize("failure", ["", "ValueError: no", "MasterLost: the master is silent"])
def test_other_failures_have_no_verdict(failure: str) -> None:
    assert verdict(failure, {"counters": {"joiners": []}}) == ""


def test_a_verdict_stands_in_the_workers_failure() -> None:
    failure = errors.WorkerFailed(3, "node4", HEARS_NOTHING).with_verdict("it is the firewall")
    assert "What the master has seen: it is the firewall" in str(failure)


# ------------------------------------------------------------------ in one process


@contextmanager
def one_way(to: tuple[str, int]) -> Iterator[tuple[str, int]]:
    """A port whose packets are passed on to `to` from another address; nothing comes back."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as entry,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as exit_,
    ):
        entry.bind(("127.0.0.1", 0))
        exit_.bind(("127.0.0.2", 0))

        def forward() -> None:
            while datagram := entry.recv(2048):
                exit_.sendto(datagram, to)

        thread = threading.Thread(target=forward)
        thread.start()
        try:
            yield entry.getsockname()
        finally:
            exit_.sendto(b"", entry.getsockname())
            thread.join()


def join_through(info: JoinInfo, address: tuple[str, int], secret: bytes) -> str:
    through = JoinInfo(address, info.workers, info.job_id, info.master_public_key)
    with pytest.raises(errors.Unreachable) as raised:
        Worker(through, secret, rank=0, network=QUICK)
    return str(raised.value)


def test_a_question_that_is_lost_is_told_from_one_that_is_translated() -> None:
    secret = new_secret()
    with Master(secret, workers=1, network=QUICK) as master:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            silent.bind(("127.0.0.1", 0))
            lost = join_through(master.join_info, silent.getsockname(), secret)
        assert "worker 0 hears nothing from the master at 127.0.0.1:" in lost
        assert "packets do not reach the master" in verdict(lost, master.status())
        with one_way(master.address) as address:
            unanswered = join_through(master.join_info, address, secret)
        translated = verdict(unanswered, master.status())
        assert "but some from 127.0.0.2:" in translated
        assert "address translation between worker 0 and the master" in translated


def test_the_master_tells_how_far_each_joiner_got() -> None:
    secret = new_secret()
    with Master(secret, workers=1, network=QUICK) as master:
        with pytest.raises(errors.SecretRejected, match="does not accept the secret"):
            Worker(master.join_info, new_secret(), network=QUICK)
        with Worker(master.join_info, secret, network=QUICK):
            joiners = master.counters()["joiners"]
        assert sorted(one["progress"] for one in joiners) == ["joined", "wrong secret"]


def test_a_wrong_secret_shows_even_where_the_wait_is_short() -> None:
    with (
        Master(new_secret(), workers=1) as master,
        pytest.raises(errors.SecretRejected, match="give every worker the credentials"),
    ):
        Worker(master.join_info, new_secret(), join_timeout=0.4)


@pytest.mark.parametrize("timeout", ["5", None, float("nan"), float("inf"), -1, True])
def test_a_time_that_is_none_is_refused_in_words(timeout: Any) -> None:
    info = JoinInfo(("127.0.0.1", 9), 1, bytes(16), bytes(32))
    with pytest.raises(errors.InvalidOption, match=r"join_timeout=.* second"):
        Worker(info, new_secret(), join_timeout=timeout)


def test_a_capped_receive_buffer_is_warned_about_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(network, "_warned_of_receive_buffer", False)
    counters = {"receive_buffer_bytes": 212_992, "receive_buffer_wanted_bytes": 4 << 20}
    network.warn_of_receive_buffer({**counters, "receive_buffer_bytes": 1 << 20})
    assert not caplog.records  # Less than was asked for, but enough.
    network.warn_of_receive_buffer(counters)
    network.warn_of_receive_buffer(counters)
    (record,) = caplog.records
    assert "208 KiB" in record.getMessage()
    assert "sysctl -w net.core.rmem_max=4194304" in record.getMessage()


# ------------------------------------------------------------------ as the launcher tells it


def join_and_leave() -> str:
    """What a worker process does; `StromStrategy` joins in the same way."""
    from keras_strom.job.environment import ClusterEnvironment
    from keras_strom.relay.training_relay import TrainingWorker

    worker = TrainingWorker.from_environment(ClusterEnvironment.from_environ())
    (link,) = worker.counters().links
    worker.close()
    return link.peer


class UnheardMaster:
    """A master that hears every worker and is heard by none."""

    def __init__(self, options: MasterOptions) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._socket.getsockname()
        self.credentials = (options.credentials or Credentials.new()).with_master(b"k" * 32)

    def status(self) -> dict[str, Any]:
        self._socket.setblocking(False)
        heard = set()
        with contextlib.suppress(BlockingIOError):
            while True:
                heard.add("{}:{}".format(*self._socket.recvfrom(2048)[1]))
        return {"counters": {"joiners": [{"address": a, "progress": "heard"} for a in heard]}}

    def worker_has_ended(self, rank: int) -> None:
        pass

    def close(self, reason: str = "") -> None:
        self._socket.close()


@pytest.mark.jobs
def test_the_launcher_adds_what_the_master_has_seen() -> None:
    job = Job(work=Function.of(join_and_leave), workers=2, network=QUICK)
    with pytest.raises(errors.WorkerFailed) as raised:
        launch(job, Console(2, io.StringIO()), UnheardMaster)
    text = str(raised.value)
    assert "failed: keras_strom.errors.Unreachable: worker " in text
    assert "What the master has seen: worker " in text
    assert "'s packets reach the master, but the master's answers do not reach worker " in text


@pytest.mark.skipif(not os.path.exists("/proc/net/if_inet6"), reason="this machine has no IPv6")
def test_a_job_runs_over_ipv6() -> None:
    network = NetworkConfig(network_mask="::1/128")
    job = Job(work=Function.of(join_and_leave), workers=2, network=network)
    outcomes = launch(job, Console(2, io.StringIO()))
    assert {pickle.loads(outcome.result or b"").partition("]")[0] for outcome in outcomes} == {
        "[::1"
    }


# ------------------------------------------------------------------ in network namespaces


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def why_no_namespaces() -> str:
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None or shutil.which("iptables") is None:
        return "ip or iptables is not installed"
    try:
        run("ip", "netns", "add", "door-probe")
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {error.stderr.decode().strip()}"
    try:
        run("ip", "netns", "exec", "door-probe", "iptables", "-L", "-n")
    except subprocess.CalledProcessError as error:
        return f"iptables does not work here: {error.stderr.decode().strip()}"
    finally:
        run("ip", "netns", "delete", "door-probe")
    return ""


@pytest.fixture(scope="module")
def namespaces() -> Iterator[Callable[..., None]]:
    """Two machines: the master's 10.77.0.1 and the worker's 10.77.0.2. Gives `inside`."""
    if reason := why_no_namespaces():
        pytest.skip(reason)

    def inside(name: str, *command: str) -> None:
        run("ip", "netns", "exec", name, *command)

    with ExitStack() as stack:
        for name in ("door-master", "door-worker"):
            run("ip", "netns", "add", name)
            stack.callback(run, "ip", "netns", "delete", name)
        run("ip", "link", "add", "door-m", "netns", "door-master", "type", "veth",
            "peer", "name", "door-w", "netns", "door-worker")  # fmt: skip
        for name, link, host in (("master", "door-m", 1), ("worker", "door-w", 2)):
            inside(f"door-{name}", "ip", "address", "add", f"10.77.0.{host}/24", "dev", link)
            inside(f"door-{name}", "ip", "link", "set", link, "up")
        yield inside


MASTER = """
import json, sys
from keras_strom import NetworkConfig
from keras_strom.relay import Master
network = NetworkConfig(failure_timeout=0.5, network_mask="10.77.0.0/24")
with Master(bytes.fromhex(sys.argv[1]), workers=1, network=network) as master:
    print(master.join_info.to_json(), flush=True)
    sys.stdin.read()
    print(json.dumps(master.status()))
"""
WORKER = """
import sys
from keras_strom import NetworkConfig, errors
from keras_strom.relay import JoinInfo, Worker
try:
    with Worker(JoinInfo.from_json(sys.argv[2]), bytes.fromhex(sys.argv[1]),
                network=NetworkConfig(failure_timeout=0.5)):
        print("joined")
except errors.StromError as error:
    print(f"{type(error).__name__}: {error}")
"""


def start(namespace: str, program: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        ["ip", "netns", "exec", namespace, sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def try_to_join() -> tuple[str, dict[str, Any]]:
    """What a worker says on its machine, and the master's status on the other."""
    secret = new_secret().hex()
    with start("door-master", MASTER, secret) as master:
        assert master.stdout is not None
        info = master.stdout.readline()
        with start("door-worker", WORKER, secret, info) as worker:
            words, _ = worker.communicate(timeout=60)
        status, _ = master.communicate(timeout=60)
    return words, json.loads(status)


@contextmanager
def blocked(inside: Callable[..., None], namespace: str, *which: str) -> Iterator[None]:
    rule = ("INPUT", "-p", "udp", *which, "-j", "DROP")
    inside(namespace, "iptables", "-A", *rule)
    try:
        yield
    finally:
        inside(namespace, "iptables", "-D", *rule)


def test_two_machines_that_reach_each_other_join(namespaces: Callable[..., None]) -> None:
    words, status = try_to_join()
    assert words == "joined\n"
    assert [one["progress"] for one in status["counters"]["joiners"]] == ["joined"]


def test_a_firewall_before_the_master_is_named(namespaces: Callable[..., None]) -> None:
    with blocked(namespaces, "door-master"):
        words, status = try_to_join()
    assert words.startswith("Unreachable: worker 0 hears nothing from the master at 10.77.0.1:")
    assert verdict(words, status).startswith("worker 0's packets do not reach the master at 10.77.")


def test_a_firewall_before_the_worker_is_named(namespaces: Callable[..., None]) -> None:
    with blocked(namespaces, "door-worker"):
        words, status = try_to_join()
    assert words.startswith("Unreachable: worker 0 hears nothing from the master at 10.77.0.1:")
    found = verdict(words, status)
    assert "the master's answers do not reach worker 0: is UDP" in found
    assert "open inbound on 10.77.0.2" in found


def test_a_way_that_drops_long_packets_alone_is_asked_for(
    namespaces: Callable[..., None],
) -> None:
    with blocked(namespaces, "door-master", "-m", "length", "--length", "1201:65535"):
        words, status = try_to_join()
    for said in (words, verdict(words, status)):
        assert "or does the way drop packets of 1228 bytes, as a tunnel may?" in said


def test_an_mtu_that_is_too_small_is_named(namespaces: Callable[..., None]) -> None:
    namespaces("door-worker", "ip", "link", "set", "door-w", "mtu", "1000")
    try:
        words, _ = try_to_join()
    finally:
        namespaces("door-worker", "ip", "link", "set", "door-w", "mtu", "1500")
    assert "takes packets of 1000 bytes only and a join needs 1228: raise the MTU" in words


def test_the_system_tells_what_a_way_takes() -> None:
    assert (path_mtu("127.0.0.1") or 0) >= 1500
    assert path_mtu("no-such-host.invalid") is None
