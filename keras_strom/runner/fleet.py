"""The machines of a job: this one, or hosts that ssh leads to; and the address of its master.

All hosts are tried, at the same time, before anything else starts, and what is wrong with any of
them is said together.
"""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import itertools
import os
import site
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from keras_strom import errors
from keras_strom.job import environment
from keras_strom.job.checkpoint_plan import CheckpointPlan
from keras_strom.job.interfaces import interface_addresses
from keras_strom.job.machine_limits import available_memory
from keras_strom.job.network import (
    HostPort,
    NetworkConfig,
    address_here,
    format_address,
    resolve_address,
)
from keras_strom.runner import ssh
from keras_strom.runner.hosts import Host
from keras_strom.runner.lost_hosts import LostHosts
from keras_strom.runner.places import Machine, Places, Slots, ThisMachine
from keras_strom.runner.remote_machine import RemoteMachine
from keras_strom.runner.wire import Preparation
from keras_strom.runner.work import Function, Script

#: This machine's place among the hosts.
HERE = "localhost"

Item = TypeVar("Item")
Result = TypeVar("Result")

# A worker needs more for itself, whatever it shares with the process that it is forked from.
_LEAST_MEMORY = 64 << 20

#: What helps where the hosts may not reach the master's address.
ANOTHER_ADDRESS = "give --master-address or --network-mask"

# A host that was lost is tried often, so a try is short where nothing answers.
_TRY_AGAIN = ("-o", "ConnectTimeout=10")
_LEAST_PAUSE = 1.0

# The relay takes a peer for dead after one; an agent, which only waits, has some more.
_FAILURE_TIMEOUTS = 3
_MOST_NAMED = 3


def parts_folder(plan: CheckpointPlan | None) -> str:
    """Where a plan has parts of checkpoints go, as machines are told; "" = there are none."""
    return "" if plan is None else plan.incoming


def silence_seconds(network: NetworkConfig) -> float:
    """So long after its last word an agent, or a launcher, is gone."""
    return _FAILURE_TIMEOUTS * network.failure_timeout


class Machines(Protocol):
    """The machines of a job, from entry to exit: a `Fleet`, or those that come to a `Door`."""

    places: Places

    @property
    def is_distant(self) -> bool:
        """Whether there are other machines than this one."""

    @property
    def number_here(self) -> int:
        """How many workers this machine may have."""

    def master_host(self, network: NetworkConfig) -> str | None:
        """The address for the master to bind to; None = what `network` says.

        Raises:
            AddressError: other machines could not reach any.
        """

    def prepare(
        self,
        work: Script | Function | None,
        env: Mapping[str, str],
        network: NetworkConfig,
        plan: Callable[[], CheckpointPlan | None],
    ) -> None:
        """Returns when the job can begin on them.

        Args:
            work: what workers do.
            env: variables for them.
            network: of the job.
            plan: of checkpoints, now and whenever a machine comes later.
        """

    def describe(self, master: HostPort | None) -> str:
        """Who runs where, in a sentence."""


class Fleet:
    """The machines of one job, from entry to exit; a host that was lost may come back.

    Args:
        hosts: none = this machine alone.
        workers: of the job.
        ssh_args: options for ssh.
        silence: so many seconds without a sign of life do not end an ssh.
        warm_start: workers are forked from a process that has imported TensorFlow once.
        tell: shows a line.

    Raises:
        HostUnusable: on entry, some hosts cannot be used; in a line each.
        NotEnoughSlots: on entry, there are more workers than slots, or than this machine's memory
            can hold.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        workers: int,
        *,
        ssh_args: Sequence[str] = (),
        silence: float = 0.0,
        warm_start: bool = False,
        drain_file: str | None = None,
        tell: Callable[[str], object] = lambda _: None,
    ) -> None:
        hosts = hosts or (Host("localhost", workers),)
        own = [host for host in hosts if host.is_here]  # Several names may be this machine's.
        here = Host(HERE, sum(host.slots for host in own))
        self._hosts = tuple(
            here if host.is_here else host
            for host in hosts  # Whose order ranks go by.
            if not host.is_here or host is own[0]
        )
        self._workers = workers
        self._ssh_args = ssh_args
        self._silence = silence
        self._warm_start = warm_start
        self._drain_file = drain_file
        self._tell = tell
        self._clients: list[str | None] = []
        self._remote: list[RemoteMachine] = []
        self._lost = LostHosts(self._enter_again, max(silence, _LEAST_PAUSE))
        self._lock = threading.Lock()  # Guards the list of machines, and whether they are closed.
        self._doubts: set[str] = set()  # What has been told of lost hosts that answer.
        self._prepare: Callable[[RemoteMachine], None]
        self.places: Places

    def __enter__(self) -> Fleet:
        """Opens all hosts, those that only stand by for others too."""
        slots = sum(host.slots for host in self._hosts)
        if self._workers > slots:  # Nothing is asked of any host where that cannot be right.
            raise errors.NotEnoughSlots(
                f"{self._workers} workers need as many slots, and the hosts have {slots} "
                f"({', '.join(f'{host.name}:{host.slots}' for host in self._hosts)})"
            )
        _check_memory(self._workers_here())
        distant = [host for host in self._hosts if host.name != HERE]
        try:
            opened = dict(zip(distant, _at_once(self._open, distant), strict=True))
        except BaseException:
            self.close("the job has not started")
            raise
        self._clients = [client for _, client in opened.values()]
        machines: dict[Host, Machine] = {host: machine for host, (machine, _) in opened.items()}
        here = ThisMachine(warm_start=self._warm_start)
        self._slots = self.places = Slots(
            [(machines.get(host, here), host.slots) for host in self._hosts], self._workers
        )
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close("" if kind is None else "the job has ended")

    @property
    def is_distant(self) -> bool:
        """Whether there are other machines than this one."""
        return bool(self._remote)

    @property
    def number_here(self) -> int:
        """How many workers this machine may have."""
        return sum(host.slots for host in self._hosts if host.name == HERE)

    def master_host(self, network: NetworkConfig) -> str | None:
        """The address of this machine by which the others reach it, for the master to bind to.

        None = what `network` and KERAS_STROM_IP say, or where the default route leads; of the last
        there is a warning, for the hosts see another.

        Raises:
            AddressError: they could not reach it.
        """
        decided = network.network_mask is not None or environment.node_address() is not None
        if decided or not self._remote or self._workers == 1:
            return None
        if (seen := seen_address(self._clients)) is not None:
            return seen
        if network.master_address is not None:
            told, _ = network.advertised_master(("", 0))
            return address_here(told)
        fallback = resolve_address(network)
        if doubt := why_unreachable(self._clients, fallback):
            self._tell(f"{doubt}; if workers do not reach it, {ANOTHER_ADDRESS}")
        return fallback

    def prepare(
        self,
        work: Script | Function | None,
        env: Mapping[str, str],
        network: NetworkConfig,
        plan: Callable[[], CheckpointPlan | None],
    ) -> None:
        """Returns when all other machines have what the job needs.

        Raises:
            HostUnusable: some lack something; in a line each.
        """
        if not self._remote:
            return
        assert work is not None
        payload = b""
        preparation = Preparation(
            folders=environment.working_folders(),
            env=env,
            warm_start=self._warm_start,
            network=network.to_json(),
            size=self._workers,
            drain_file=self._drain_file or "",
            silence=silence_seconds(network),
        )
        if isinstance(work, Script):
            preparation = dataclasses.replace(
                preparation, script=work.path, arguments=work.arguments
            )
        else:
            payload = work.payload
            env = {**env, "PYTHONPATH": own_paths(env.get("PYTHONPATH", ""))}
            preparation = dataclasses.replace(preparation, function=len(payload), env=env)
        slots = {host.name: host.slots for host in self._hosts}

        def prepare(machine: RemoteMachine) -> None:
            of_machine = dataclasses.replace(
                preparation, slots=slots[machine.name], parts_folder=parts_folder(plan())
            )
            machine.prepare(of_machine, payload)

        self._prepare = prepare
        _at_once(prepare, self._remote)

    def describe(self, master: HostPort | None) -> str:
        """Who runs where, in a sentence."""
        where = [
            f"{_workers(ranks)} on {machine.name}" for machine, ranks in self._slots.by_machine()
        ]
        way = "" if master is None else f"; they reach the master at {format_address(master)} (UDP)"
        return ", ".join(where) + way

    def close(self, reason: str) -> None:
        """Ends whatever has been started elsewhere; "" = the job has ended well."""
        self._lost.close()
        with self._lock:
            machines = list(self._remote)
        _at_once(lambda machine: machine.close(reason), machines)

    def _workers_here(self) -> int:
        """How many workers this machine gets at the start, when hosts are filled in order."""
        before = itertools.takewhile(lambda host: host.name != HERE, self._hosts)
        left = self._workers - sum(host.slots for host in before)
        return max(0, min(left, self.number_here))

    def _open(self, host: Host) -> tuple[RemoteMachine, str | None]:
        machine, hello = self._connect(host.name)
        self._remote.append(machine)
        return machine, client_of(hello)

    def _connect(self, name: str, *options: str) -> tuple[RemoteMachine, dict[str, object]]:
        args = (*self._ssh_args, *options)  # Of two for the same, ssh takes the first.
        machine, hello = ssh.connect(name, args, self._tell, self._silence)

        def lose() -> None:
            if not machine.leaves:
                self._lost.seek(name)

        machine.when_lost = lose
        return machine, hello

    def _enter_again(self, name: str) -> None:
        """Has a host that was lost take part again.

        Raises:
            HostUnusable: it does not answer, or lacks what the job needs, which is told.
        """
        try:
            machine = self._connect_again(name)
        except errors.HostUnusable as error:
            self._tell_of(error)
            raise
        with self._lock:
            is_over = self._lost.is_over
            if not is_over:
                self._remote.append(machine)
        if is_over:
            machine.close("the job has ended")
            return
        self._tell(f"{name} answers again")
        self._slots.answers_again(machine)

    def _connect_again(self, name: str) -> RemoteMachine:
        machine, _ = self._connect(name, *_TRY_AGAIN)
        try:
            self._prepare(machine)
        except errors.HostUnusable:
            machine.close("it cannot be used")
            raise
        return machine

    def _tell_of(self, error: errors.HostUnusable) -> None:
        """Says once why a host that answers cannot be used."""
        words = str(error)
        if not (self._lost.is_over or ssh.is_away(error) or words in self._doubts):
            self._doubts.add(words)
            self._tell(f"{words}; it is tried again")


def _check_memory(workers: int) -> None:
    """Refuses more workers than this machine can have: it would be gone before the last has come.

    Raises:
        NotEnoughSlots: they need more memory than is free, however little each takes.
    """
    available = available_memory()
    if available is None or workers * _LEAST_MEMORY <= available:
        return
    raise errors.NotEnoughSlots(
        f"{workers} workers on {socket.gethostname()} need {workers * _LEAST_MEMORY / 2**30:.2f} "
        f"GiB of memory at the very least, and {available / 2**30:.2f} GiB are free there, which "
        f"hold {available // _LEAST_MEMORY} at most: ask for fewer (-np, num_proc=, or slots of "
        "the hosts), or free memory"
    )


def own_paths(given: str) -> str:
    """PYTHONPATH for a function's workers elsewhere: where this process finds the user's modules.

    What Python and its packages bring each machine has itself.

    Args:
        given: the user's own, which comes first.
    """
    installed = tuple(
        os.path.join(folder, "")
        for folder in (sys.prefix, sys.base_prefix, site.getusersitepackages())
    )
    own = [path for path in sys.path if path and not os.path.join(path, "").startswith(installed)]
    return os.pathsep.join(dict.fromkeys(filter(None, [given, *own])))


def seen_address(clients: Iterable[str | None]) -> str | None:
    """The first of the addresses by which others see this machine that is one of its own.

    By the loopback interface it sees itself alone, as a host under another of its names; so that
    counts only where no host is another machine.
    """
    seen = [one for one in clients if one is not None]
    from_elsewhere = [one for one in seen if not ipaddress.ip_address(one).is_loopback]
    own = {str(one.address) for one in interface_addresses()}
    return next((one for one in from_elsewhere or seen if one in own), None)


def why_unreachable(clients: Iterable[str | None], host: str) -> str | None:
    """Why other machines may not reach the master, by none of whose addresses they see it.

    Args:
        clients: by which they see this machine; None = not known.
        host: where its master listens.

    Returns:
        A warning; None where no other machine sees any address.

    Raises:
        AddressError: it listens where only this machine reaches it.
    """
    known = [one for one in clients if one is not None]
    seen = [one for one in dict.fromkeys(known) if not ipaddress.ip_address(one).is_loopback]
    if not seen:
        return None
    words = (
        f"the hosts see this machine as {', '.join(seen[:_MOST_NAMED])}, which is none of its "
        "addresses (address translation, a jump host, or a link-local one)"
    )
    if ipaddress.ip_address(host).is_loopback:
        raise errors.AddressError(
            f"{words}, and no default route picks one of its own: {ANOTHER_ADDRESS}"
        )
    return f"{words}, so the master takes {host}"


def client_of(hello: Mapping[str, object]) -> str | None:
    """The address by which a host sees this machine, as its ssh server has said."""
    return _address(hello.get("client"))


def _at_once(act: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """The results of all; that some cannot be used is said of all together."""
    results: dict[int, Result] = {}
    failures: dict[int, BaseException] = {}

    def run(number: int, item: Item) -> None:
        try:
            results[number] = act(item)
        except BaseException as error:
            failures[number] = error

    # Daemons: whoever presses Ctrl+C does not wait for a host that says nothing.
    threads = [threading.Thread(target=run, args=one, daemon=True) for one in enumerate(items)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    unusable = [error for _, error in sorted(failures.items())]
    if unusable and all(isinstance(error, errors.HostUnusable) for error in unusable):
        raise errors.HostUnusable("\n".join(dict.fromkeys(map(str, unusable))))
    for error in unusable:
        raise error
    return [results[number] for number in range(len(items))]


def _address(text: object) -> str | None:
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(str(text).partition("%")[0]))
    return None


def _workers(ranks: Sequence[int]) -> str:
    """Contiguous ranks in words."""
    if len(ranks) == 1:
        return f"worker {ranks[0]}"
    return f"workers {ranks[0]} to {ranks[-1]}"
