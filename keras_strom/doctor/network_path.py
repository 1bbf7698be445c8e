"""The address that a run would use here, its ports, and the relay's own packets on it.

A master and two workers of the relay are started, without shared memory, and one worker sends the
other some megabytes: what a firewall, a small MTU or a small buffer does to a run it does to them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping
from typing import Any

from keras_strom import errors
from keras_strom.doctor.finding import Finding, Grade, of_errors
from keras_strom.job import environment
from keras_strom.job.interfaces import interface_addresses
from keras_strom.job.joining import least_mtu, path_mtu
from keras_strom.job.network import (
    NetworkConfig,
    lacking_receive_buffer,
    parse_ip,
    resolve_address,
)
from keras_strom.relay.bytes_relay import Master, Message, Worker, new_secret
from keras_strom.relay.counters import NodeCounters
from keras_strom.runner.launcher import LOOPBACK_MASK
from keras_strom.runner.ports import check_ports

_JOIN_SECONDS = 5.0
_MESSAGES = 512

#: What the workers of a trial send each other.
MESSAGE = bytes(64 << 10)


def findings(workers: int, network: NetworkConfig) -> Iterator[Finding]:
    """Of the network between this machine's workers and a master on it."""
    stays_here = network.network_mask is None
    if stays_here:
        network = dataclasses.replace(network, network_mask=LOOPBACK_MASK)
    try:
        host = resolve_address(network, node_address=environment.node_address())
    except errors.StromError as error:
        yield Finding("address", Grade.BAD, str(error))
        return
    yield _address(host, network, stays_here)
    yield ports(workers, network)
    mtu = packets(host)
    yield mtu
    if mtu.grade is not Grade.BAD:
        yield from _relay(host, network)


def for_trial(network: NetworkConfig) -> NetworkConfig:
    """The options of a relay that carries a trial's bytes: over UDP, with nothing to save."""
    default = NetworkConfig()
    return dataclasses.replace(
        network,
        same_host=False,
        checkpoint_dir=None,
        checkpoint_interval=default.checkpoint_interval,
        checkpoints_kept=default.checkpoints_kept,
    )


def at_port_of(local_rank: int, rank: int, network: NetworkConfig) -> NetworkConfig:
    """The options with which a trial's worker `rank` has the port of a run's `local_rank`.

    It adds its own rank to the port, and the trial's ranks are others than the run's.
    """
    moved = network.port + local_rank - rank
    return dataclasses.replace(network, port=moved) if network.port else network


def _address(host: str, network: NetworkConfig, stays_here: bool) -> Finding:
    words = with_interface(host)
    if stays_here:
        words += ": without --network-mask a run stays on this machine"
    elif parse_ip(host).is_loopback:
        return Finding(
            "address",
            Grade.WARNING,
            f"{words}, which no other machine reaches",
            "a --network-mask of the network that the machines share",
        )
    else:
        words += f", the one in {network.network_mask}"
    return Finding("address", Grade.GOOD, words)


def with_interface(host: str) -> str:
    """An address of this machine, with the interface that has it."""
    names = {str(one.address): one.interface for one in interface_addresses()}
    return f"{host} ({names.get(host, 'unknown')})"


def ports(workers: int, network: NetworkConfig, host: str | None = None) -> Finding:
    """Whether so many workers on this machine would have their ports.

    Args:
        workers: as many as it has.
        network: the run's options.
        host: the address of this machine that they would take; None = what `network` picks.
    """
    return of_errors("ports", lambda: _ports(workers, network, host))


def _ports(workers: int, network: NetworkConfig, host: str | None) -> Finding:
    check_ports(network, workers, host)
    if network.port == 0:
        return Finding("ports", Grade.GOOD, "any free UDP ports: a firewall must let all pass")
    last = network.of_worker(workers - 1).port
    return Finding("ports", Grade.GOOD, f"UDP {network.port} to {last} are free")


def packets(host: str) -> Finding:
    """Whether the system lets a join's packets through to `host`."""
    mtu, least = path_mtu(host), least_mtu(host)
    if mtu is None:
        return Finding("packets", Grade.WARNING, f"the system does not say how long {host} takes")
    if mtu >= least:
        return Finding("packets", Grade.GOOD, f"of {mtu} bytes pass")
    return Finding(
        "packets",
        Grade.BAD,
        f"of {mtu} bytes pass, and a join needs {least}",
        "raise the MTU of the interface or tunnel (ip link set dev ... mtu 1500)",
    )


def _relay(host: str, network: NetworkConfig) -> Iterator[Finding]:
    """What the relay does at this address: round trip, rate, loss, and the socket's buffer."""
    secret = new_secret()
    network = for_trial(network)
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        try:
            master = stack.enter_context(Master(secret, workers=2, network=network, host=host))
            sender, receiver = (
                stack.enter_context(
                    Worker(
                        master.join_info,
                        secret,
                        rank=rank,
                        network=network,
                        ip=host,
                        join_timeout=_JOIN_SECONDS,
                    )
                )
                for rank in range(2)
            )
            joined = time.monotonic() - started
            rate = _rate(sender, receiver)
        except errors.StromError as error:
            yield Finding("relay", Grade.BAD, str(error))
            return
        status = sender.status()
    yield traffic(status, joined, rate)
    yield receive_buffer(status)


def _rate(sender: Worker, receiver: Worker) -> float:
    """Bytes a second from one worker to the other."""
    started = time.monotonic()
    for _ in range(_MESSAGES):
        sender.submit(MESSAGE)
    receive(receiver, _MESSAGES, _JOIN_SECONDS)
    return _MESSAGES * len(MESSAGE) / (time.monotonic() - started)


def receive(worker: Worker, wanted: int, patience: float) -> None:
    """Polls until so many messages have come.

    Raises:
        DeadlinePassed: none came for `patience` seconds.
    """
    received = 0
    while received < wanted:
        received += len(some(worker, patience, received))


def some(worker: Worker, patience: float, before: int) -> list[Message]:
    """Polls until there are messages.

    Args:
        worker: gets them.
        patience: seconds.
        before: how many have come before, for the error's words.

    Raises:
        DeadlinePassed: none came for `patience` seconds.
    """
    messages = worker.poll(timeout=patience)
    if not messages:
        counted = f"{before} messages came, and then none" if before else "no message came"
        raise errors.DeadlinePassed(f"{counted} for {patience:g} s")
    return messages


def traffic(status: Mapping[str, Any], joined: float, rate: float) -> Finding:
    """How a worker's packets got to the master and back.

    Args:
        status: the worker's.
        joined: seconds that its join took.
        rate: bytes a second that it exchanged with others.
    """
    counted = NodeCounters.from_status(status)
    link, losses = counted.links[0], counted.losses()  # In a tree there may be others.
    words = (
        f"UDP passes both ways: joined in {1e3 * joined:.0f} ms, round trip "
        f"{1e3 * link.least_round_trip_seconds:.2f} ms, {_megabytes(rate)} MB/s, "
        f"{link.retransmitted:.1%} sent again"
    )
    if losses:
        return Finding("relay", Grade.WARNING, words, losses[0])
    return Finding("relay", Grade.GOOD, words)


def _megabytes(rate: float) -> str:
    return f"{rate / 1e6:.0f}" if rate >= 1e7 else f"{rate / 1e6:.2g}"


def receive_buffer(status: Mapping[str, Any]) -> Finding:
    """Whether a node's socket, whose `status` this is, got the buffer it asked for."""
    counters = status["counters"]
    granted = int(counters["receive_buffer_bytes"])
    wanted = lacking_receive_buffer(counters)
    words = f"the system grants a socket {granted >> 10} KiB"
    if wanted is None:
        return Finding("receive buffer", Grade.GOOD, words)
    return Finding(
        "receive buffer",
        Grade.WARNING,
        f"{words} of the {wanted >> 10} KiB asked for: when several send at once, packets get lost "
        "and are sent again",
        f"sysctl -w net.core.rmem_max={wanted} (in a file in /etc/sysctl.d, to keep it)",
    )
