"""Looks at several machines before a run over ssh: each by itself, and every way to the master's.

All hosts are looked at at the same time, and so is whether their workers could join the master, on
the machine of whoever asks, at the address and ports that a run would use. What a way carries is
then tried host after host, so that a rate and a loss are those of one host alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import re
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from keras_strom import errors
from keras_strom.checks import whole_number
from keras_strom.doctor import machine, network_path, software
from keras_strom.doctor.examination import examine
from keras_strom.doctor.finding import Finding, Grade, unless
from keras_strom.doctor.there import exchange, without_ports
from keras_strom.job import environment
from keras_strom.job.joining import verdict
from keras_strom.job.network import (
    NetworkConfig,
    default_route_address,
    parse_address,
    parse_ip,
    resolve_address,
)
from keras_strom.relay.bytes_relay import Master, Worker, new_secret
from keras_strom.relay.counters import NodeCounters
from keras_strom.runner import ssh
from keras_strom.runner.fleet import ANOTHER_ADDRESS, client_of, seen_address, why_unreachable
from keras_strom.runner.hosts import Host
from keras_strom.runner.job_checkpoints import refuse_without_others

_MODULE = "keras_strom.doctor.there"
_LOOK_SECONDS = 360.0  # TensorFlow's import on a slow disk among them.
_ANSWER_SECONDS = 60.0
_JOIN_SECONDS = 5.0
_CLOCK_QUESTIONS = 5

# Each host costs an ssh and a thread here.
_AT_ONCE = 16

#: How this machine is called among the nodes.
HERE = "here"


@dataclasses.dataclass
class _Node:
    """A host that ssh leads to.

    Attributes:
        host: as the user names it.
        workers: how many it would have.
        wire: to the program that runs there; None = there is none.
        client: the address by which it sees this machine.
        address: that its workers would have; None = not known.
        rank: of the first of them in a run.
        found: what has been found so far.
    """

    host: Host
    workers: int
    wire: ssh.SshWire | None = None
    client: str | None = None
    address: str | None = None
    rank: int = 0
    found: list[Finding] = dataclasses.field(default_factory=list)

    def add(self, *found: Finding) -> None:
        """Notes what was found there."""
        self.found += [dataclasses.replace(one, node=self.host.name) for one in found]

    def ask(self, question: dict[str, Any], timeout: float = _ANSWER_SECONDS) -> dict[str, Any]:
        """The answer to a question, a ConnectionError where the program is gone."""
        assert self.wire is not None
        self.wire.send(question)
        return self.wire.receive(timeout)


def examine_hosts(
    hosts: Sequence[Host],
    workers: int | None,
    network: NetworkConfig,
    ssh_args: Sequence[str] = (),
) -> Iterator[Finding]:
    """What a run of `workers` workers on these hosts would find.

    Args:
        hosts: where workers would run.
        workers: how many; None = one for each slot.
        network: the run's options; `network_mask`, `port` and `checkpoint_dir` are looked at.
        ssh_args: options for ssh.

    Yields:
        Those of this machine, where the master would run, then those of each host; all of one
        machine have its name as `node`.

    Raises:
        InvalidOption: no number of workers, a port that leaves none for some of them, or
            checkpoints of a lone worker.
    """
    slots = sum(host.slots for host in hosts)
    workers = slots if workers is None else whole_number("workers", workers, least=1)
    most = max(host.slots for host in hosts)
    network.of_worker(most - 1)
    refuse_without_others(network, workers)
    if network.checkpoint_dir is not None:  # As in a run; ssh leads to another folder than this.
        folder = os.path.abspath(network.checkpoint_dir)
        network = dataclasses.replace(network, checkpoint_dir=folder)
    counts = _filled([host.slots for host in hosts], workers)
    here = sum(count for host, count in zip(hosts, counts, strict=True) if host.is_here)
    nodes = [
        _Node(host, count or host.slots, rank=after - count)
        for host, count, after in zip(hosts, counts, itertools.accumulate(counts), strict=True)
        if not host.is_here
    ]
    if not nodes:
        yield from _at_here([_slots(hosts, workers, slots)])
        yield from _at_here(examine(workers, network))
        return
    with contextlib.ExitStack() as stack:
        together = stack.enter_context(ThreadPoolExecutor(1 + min(len(nodes), _AT_ONCE)))
        stack.callback(_close, nodes)  # So that nobody waits for an answer any more.
        stack.callback(together.shutdown, wait=False, cancel_futures=True)
        software_here = together.submit(lambda: list(software.findings()))
        list(together.map(lambda node: _connect(node, ssh_args), nodes))
        yield from _at_here([_slots(hosts, workers, slots)])
        try:
            master, why = _master_host(network, nodes)
            doubt = _doubt(network, nodes, master)
        except errors.StromError as error:
            yield from _at_here(software_here.result())
            yield from _at_here([Finding("address", Grade.BAD, str(error))])
            yield from (one for node in nodes for one in node.found)
            return
        marker = stack.enter_context(_marker(network.checkpoint_dir))
        question = {
            "type": "look",
            "network": network.to_json(),
            "master": master,
            "marker": marker,
        }
        list(together.map(lambda node: _guarded(_look, node, question), nodes))
        yield from _at_here(software_here.result())
        yield from _at_here(
            one
            for one in machine.findings(max(here, 1), network.checkpoint_dir)
            if here or one.check == "checkpoints"  # The master alone needs little.
        )
        yield from _at_here([_address(f"{network_path.with_interface(master)}, {why}", doubt)])
        if here:
            yield from _at_here([network_path.ports(here, network, master)])
        _try_ways(nodes, network, master, together)
        for node in nodes:
            _guarded(_talk, node, network, master)
            yield from node.found


def _filled(slots: Sequence[int], workers: int) -> list[int]:
    """How many workers each host gets, in the order of hosts."""
    left, counts = workers, []
    for count in slots:
        counts.append(min(count, left))
        left -= counts[-1]
    return counts


def _at_here(found: Iterable[Finding]) -> Iterator[Finding]:
    return (dataclasses.replace(one, node=HERE) for one in found)


def _slots(hosts: Sequence[Host], workers: int, slots: int) -> Finding:
    named = ", ".join(f"{host.name}:{host.slots}" for host in hosts)
    words = f"{slots} for {workers} worker{'s' * (workers > 1)} ({named})"
    if workers <= slots:
        return Finding("slots", Grade.GOOD, words)
    return Finding("slots", Grade.BAD, words, f"-np {slots}, or more slots or hosts")


def _connect(node: _Node, ssh_args: Sequence[str]) -> None:
    try:
        node.wire, hello = ssh.reach(node.host.name, ssh_args, module=_MODULE)
    except errors.HostUnusable as error:
        words = str(error).removeprefix(f"{node.host.name}: ")
        node.add(Finding("ssh", Grade.BAD, words))
        return
    node.client = client_of(hello)
    seen = f", which sees this machine as {node.client}" if node.client else ""
    node.add(Finding("ssh", Grade.GOOD, f"leads to {hello['host']}{seen}"))


def _close(nodes: Sequence[_Node]) -> None:
    """Ends the programs on all hosts at once: one that hangs takes seconds to be ended."""

    def close(node: _Node) -> None:
        if (wire := node.wire) is not None:
            with contextlib.suppress(ConnectionError):
                wire.send({"type": "stop"})
            wire.close()

    with ThreadPoolExecutor(min(len(nodes), _AT_ONCE)) as closing:
        list(closing.map(close, nodes))


def _guarded(act: Callable[..., None], node: _Node, *arguments: Any) -> None:
    """Does something with a node that is there; that it is gone is a finding."""
    wire = node.wire
    if wire is None:
        return
    try:
        act(node, *arguments)
    except ConnectionError as error:
        why = wire.why_lost(error)
        node.add(Finding("ssh", Grade.BAD, f"the machine, or the way to it, is gone: {why}"))
        wire.close()
        node.wire = None


def _master_host(network: NetworkConfig, nodes: Sequence[_Node]) -> tuple[str, str]:
    """The address of this machine that a run's master would take, and why."""
    node_address = environment.node_address()
    if network.network_mask is None and node_address is None:
        found = seen_address(node.client for node in nodes)
        if found is not None:
            return found, "by which the hosts see this machine"
    host = resolve_address(network, node_address=node_address)
    if network.network_mask is not None:
        return host, f"the one in {network.network_mask}"
    if node_address is not None:
        return host, "KERAS_STROM_IP"
    if host == default_route_address():
        return host, "where the default route leads"
    if parse_ip(host).is_loopback:
        return host, "there is no default route, and no address or several: choose --network-mask"
    return host, "the only one"


def _doubt(network: NetworkConfig, nodes: Sequence[_Node], master: str) -> str | None:
    """Why the hosts may not reach the master; None = they see it there, or somebody has chosen."""
    chosen = network.network_mask or network.master_address or environment.node_address()
    clients = [node.client for node in nodes]
    if chosen is not None or seen_address(clients) is not None:
        return None
    return why_unreachable(clients, master)


def _address(words: str, doubt: str | None) -> Finding:
    return unless("address", words, doubt, f"if workers do not reach it, {ANOTHER_ADDRESS}")


@contextlib.contextmanager
def _marker(checkpoint_dir: str | None) -> Iterator[str | None]:
    """A file in the folder of checkpoints that all hosts have to see, while the context lasts."""
    with contextlib.ExitStack() as stack:
        path = None
        if checkpoint_dir is not None:
            with contextlib.suppress(OSError):  # The finding of this machine says it.
                folder = machine.existing(Path(checkpoint_dir))
                path = stack.enter_context(
                    tempfile.NamedTemporaryFile(dir=folder, prefix=".keras-strom-doctor-")
                ).name
        yield path


def _look(node: _Node, question: dict[str, Any]) -> None:
    """What a machine says of itself, beside what this one has."""
    node.add(_clock(node))
    answer = node.ask({**question, "slots": node.workers}, _LOOK_SECONDS)
    node.address = answer.get("address")
    differing = compare(answer["versions"], software.versions())
    for one in map(Finding.from_json, answer["findings"]):
        node.add(differing if differing is not None and one.check == "versions" else one)


def compare(theirs: dict[str, str], ours: dict[str, str]) -> Finding | None:
    """Versions on a host that are others than here; None = there are none."""
    differ = [
        f"{name} {theirs.get(name, 'is missing')} (here: {ours.get(name, 'none')})"
        for name in {**ours, **theirs}
        if theirs.get(name) != ours.get(name)
    ]
    if not differ:
        return None
    remedy = "install the same versions on every machine: pip install -c constraints.txt"
    grade = Grade.WARNING if _needed(theirs) == _needed(ours) else Grade.BAD
    return Finding("versions", grade, ", ".join(differ), remedy)


def _needed(versions: dict[str, str]) -> list[str | None]:
    """Of versions, those that have to be the same everywhere."""
    return [
        versions["Python"].rpartition(".")[0],
        versions.get("tensorflow") or versions.get("tensorflow-cpu"),
        *map(versions.get, ("keras-strom", "keras")),
    ]


def _clock(node: _Node) -> Finding:
    """How far a machine's clock is from this one's: asked several times, the quickest counts."""
    asked = []
    for _ in range(_CLOCK_QUESTIONS):
        before, sent = time.monotonic(), time.time()
        there = float(node.ask({"type": "clock"})["seconds"])
        round_trip = time.monotonic() - before
        asked.append((round_trip, there - sent - round_trip / 2))
    round_trip, ahead = min(asked)
    return machine.clock(ahead, round_trip / 2, "this machine's")


def _try_ways(
    nodes: Sequence[_Node], network: NetworkConfig, host: str, together: ThreadPoolExecutor
) -> None:
    """Has the workers of all hosts join a master here, from each of their ports, and leave."""
    tried = [node for node in nodes if node.wire is not None and _way_may_pass(node)]
    if not tried:
        return
    firsts = list(itertools.accumulate((node.workers for node in tried), initial=1))
    secret, relay = new_secret(), network_path.for_trial(network)
    try:
        # Of rank 0 there is nobody: nothing travels, and whoever has joined may leave.
        trial = Master(secret, workers=firsts[-1], network=relay, host=host)
    except errors.StromError as error:
        for node in tried:
            node.add(Finding("relay", Grade.BAD, str(error)))
        return
    addresses = {node.address for node in tried}

    def join(node: _Node, first: int) -> None:
        workers = {"first": first, "workers": node.workers}
        question = {**_question("join", network, trial, secret), **workers}
        answer = node.ask(question, _ANSWER_SECONDS + node.workers * _JOIN_SECONDS)
        status = _without(addresses - {node.address}, trial.status())
        found = map(Finding.from_json, answer["findings"])
        views = (_with_the_masters_view(one, status) for one in found)
        node.add(*(_as_in_a_run(one, first, node.rank) for one in views))

    with trial:
        list(together.map(functools.partial(_guarded, join), tried, firsts))


def _way_may_pass(node: _Node) -> bool:
    """Whether a trial of the way would say something else than what was found already."""
    checks = ("address", "ports", "packets", "relay")
    return not any(one.grade is Grade.BAD and one.check in checks for one in node.found)


def _question(kind: str, network: NetworkConfig, trial: Master, secret: bytes) -> dict[str, Any]:
    """Asks for workers that join a trial's master."""
    return {
        "type": kind,
        "network": network.to_json(),
        "join": trial.join_info.to_json(),
        "secret": secret.hex(),
        "seconds": _JOIN_SECONDS,
    }


def _without(addresses: Collection[str | None], status: dict[str, Any]) -> dict[str, Any]:
    """A master's status without those who ask to join from these addresses."""
    joiners = [
        one
        for one in status["counters"]["joiners"]
        if parse_address(one["address"])[0] not in addresses
    ]
    return {**status, "counters": {**status["counters"], "joiners": joiners}}


def _talk(node: _Node, network: NetworkConfig, host: str) -> None:
    """A master and a worker here and a worker there send each other some megabytes."""
    if not _way_may_pass(node):
        return
    secret = new_secret()
    try:
        with contextlib.ExitStack() as stack:
            trial = stack.enter_context(
                Master(secret, workers=2, network=network_path.for_trial(network), host=host)
            )
            own = stack.enter_context(
                Worker(trial.join_info, secret, rank=0, network=without_ports(network), ip=host)
            )
            answer = node.ask(_question("talk", network, trial, secret))
            if answer["type"] == "joined":
                with contextlib.suppress(errors.StromError):  # The other end says it, too.
                    exchange(own)
                assert node.wire is not None
                answer = node.wire.receive(_ANSWER_SECONDS)
            status = trial.status()
            if answer["type"] == "talked":
                answer = node.ask({"type": "leave"})
    except errors.StromError as error:
        node.add(Finding("relay", Grade.BAD, str(error)))
        return
    found = map(Finding.from_json, answer["findings"])
    views = (_with_the_masters_view(one, status) for one in found)
    node.add(*(_as_in_a_run(one, 1, node.rank) for one in views))


def _as_in_a_run(finding: Finding, first: int, rank: int) -> Finding:
    """A finding of a trial, whose workers on a machine begin with `first`, by the run's ranks."""

    def of_run(found: re.Match[str]) -> str:
        number = int(found[1])
        return f"worker {number - first + rank}" if number >= first else found[0]

    words, remedy = (
        re.sub(r"\bworker (\d+)\b", of_run, text) for text in (finding.words, finding.remedy)
    )
    return dataclasses.replace(finding, words=words, remedy=remedy)


def _with_the_masters_view(finding: Finding, status: dict[str, Any]) -> Finding:
    """A finding of the way, with what the master has seen of it."""
    if finding.check != "relay":
        return finding
    if finding.grade is Grade.BAD:
        return dataclasses.replace(finding, remedy=verdict(finding.words, status))
    links = NodeCounters.from_status(status)
    back = max((link.retransmitted for link in links.links), default=0.0)
    words = f"{finding.words} there, {back:.1%} back"
    if finding.grade is Grade.GOOD and (losses := links.losses()):
        return dataclasses.replace(finding, grade=Grade.WARNING, words=words, remedy=losses[0])
    return dataclasses.replace(finding, words=words)
