"""How a job uses the network: `NetworkConfig`, and the choice of an address on each machine.

The same options are the flags of `keras-strom run`. Options of the protocol that this version does
not have yet are refused rather than ignored.
"""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import json
import logging
import math
import re
import socket
from collections.abc import Mapping
from typing import Any

from keras_strom import errors
from keras_strom.checks import check_number, flag, whole_number
from keras_strom.job.interfaces import InterfaceAddress, IPAddress, interface_addresses

HostPort = tuple[str, int]

_MAX_PORT = 65535
# Addresses that are for examples (RFC 5737, RFC 3849): they stand for "somewhere else".
_ELSEWHERE = ("192.0.2.1", "2001:db8::1")
#: Of stores' URLs, known also where somebody has left out the slashes.
STORE_SCHEMES = frozenset(
    (
        *("abfs", "abfss", "dbfs", "file", "gcs", "gs", "hdfs", "s3", "s3a", "s3n", "viewfs"),
        *("wasb", "wasbs"),
    )
)
# Of a store such as gs://bucket or dbfs:/folder, which a file system would take for a folder here.
_URL = re.compile(rf"[a-z][a-z0-9+.-]+:/|(?:{'|'.join(sorted(STORE_SCHEMES))}):", re.IGNORECASE)
# What senders may have under way to one receiver together (core/transport/grants.h).
_LEAST_RECEIVE_BUFFER = 256 << 10

_logger = logging.getLogger("keras_strom")
_warned_of_receive_buffer = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Options of the relay, checked when they are made.

    Attributes:
        port: the master's UDP port; 0 = any free one. With a port of its own, the worker of
            local rank r uses port + 1 + r of its machine (see `of_worker`), so that a firewall can
            be opened for just those.
        network_mask: CIDR such as "10.0.0.0/16" that picks the interface on every machine; None =
            the one that leads to the master.
        master_address: "host" or "host:port" where workers reach the master, when that is not the
            address it has itself (address translation, a container). `keras-strom master` listens
            there where it is one of its machine's.
        topology: "plain" puts all workers under the master; "mesh" makes them a tree, in which
            each passes updates on to a few others; "auto" is a tree for more than 32 workers.
        max_children, max_depth: bounds of a tree: of one node's children, the master's too, and of
            the levels below the master.
        merging: "on": the master passes on the sum of several updates as one message, and so do
            workers of a tree on their way to it. That is less for every line and processor from
            some tens of workers on; updates may come up to a few milliseconds later. "off": each
            is passed on by itself. "auto" is on where workers make a tree. It is for asynchronous
            mode without a method that has a joint model; elsewhere "auto" does nothing.
        failure_timeout: seconds of silence after which a peer counts as dead; every other
            time-out of the relay follows from it.
        on_master_loss: "stop" ends the workers with `MasterLost`. "wait" (`keras-strom run`,
            asynchronous mode, `fit`): the master runs in a process of its own, which is started
            again when it is lost; the workers keep what they have, wait for it as long as for each
            other at the start, and training goes on from one worker's replica.
        checkpoint_dir: a folder of the runner's machine, which its workers reach as well, for
            checkpoints of the whole job: a run that finds one there goes on from it, with any
            number of workers. None = none are made.
        checkpoint_interval: seconds from one to the next.
        checkpoints_kept: so many stay.
        same_host: False forbids shared memory between processes of one machine. True uses it
            where both permit it, belong to one user and share a network namespace.

    Raises:
        InvalidOption: a value out of range, or one that would have no effect.

    Example:
        >>> NetworkConfig(network_mask="10.0.0.0/16", failure_timeout=10).port
        0
    """

    port: int = 0
    network_mask: str | None = None
    master_address: str | None = None
    topology: str = "auto"
    max_children: int = 8
    max_depth: int = 5
    merging: str = "auto"
    failure_timeout: float = 5.0
    on_master_loss: str = "stop"
    checkpoint_dir: str | None = None
    checkpoint_interval: float = 600.0
    checkpoints_kept: int = 2
    same_host: bool = True

    def __post_init__(self) -> None:
        _check_port("port", self.port)
        if self.network_mask is not None:
            parse_mask(self.network_mask)
        if self.master_address is not None:
            parse_address(self.master_address, default_port=self.port)
        timeout = self.failure_timeout
        if isinstance(timeout, bool) or not isinstance(timeout, int | float):
            raise errors.InvalidOption(f"failure_timeout={timeout!r} must be a number of seconds")
        if not (math.isfinite(timeout) and 0.1 <= timeout <= 3600):
            raise errors.InvalidOption(
                f"failure_timeout={timeout!r} must lie between 0.1 and 3600 seconds"
            )
        flag("same_host", self.same_host)
        if self.on_master_loss not in ("stop", "wait"):
            raise errors.InvalidOption(
                f'on_master_loss={self.on_master_loss!r} must be "stop" or "wait"'
            )
        self._check_tree()
        self._check_checkpoints()
        self._refuse_what_has_no_effect()

    def _refuse_what_has_no_effect(self) -> None:
        for name in ("checkpoint_interval", "checkpoints_kept"):
            value = getattr(self, name)
            if self.checkpoint_dir is None and value != _DEFAULTS[name]:
                raise errors.InvalidOption(f"{name}={value!r} has no effect without checkpoint_dir")

    def _check_checkpoints(self) -> None:
        folder, interval = self.checkpoint_dir, self.checkpoint_interval
        if folder is not None and (not isinstance(folder, str) or not folder):
            raise errors.InvalidOption(f"checkpoint_dir={folder!r} must be the path of a folder")
        if folder is not None and _URL.match(folder):
            raise errors.InvalidOption(
                f"checkpoint_dir={folder!r} is a URL, and must be the path of a folder: mount that "
                "store on every machine (as /dbfs is on Databricks), and give the path it has there"
            )
        check_number("checkpoint_interval", interval)
        if not 0.1 <= interval < math.inf:
            raise errors.InvalidOption(
                f"checkpoint_interval={interval!r} must be finite and at least 0.1 seconds"
            )
        whole_number("checkpoints_kept", self.checkpoints_kept, least=1)

    def _check_tree(self) -> None:
        if self.topology not in ("auto", "plain", "mesh"):
            raise errors.InvalidOption(
                f'topology={self.topology!r} must be "auto", "plain" or "mesh"'
            )
        for name, least in (("max_children", 2), ("max_depth", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 1000:
                raise errors.InvalidOption(
                    f"{name}={value!r} must be a whole number of {least} to 1000"
                )
        if self.merging not in ("auto", "on", "off"):
            raise errors.InvalidOption(f'merging={self.merging!r} must be "auto", "on" or "off"')

    def refuse_checkpoints(self, why: str) -> None:
        """Raises InvalidOption where `checkpoint_dir` is set, which would have no effect here."""
        if self.checkpoint_dir is not None:
            raise errors.InvalidOption(f"checkpoint_dir={self.checkpoint_dir!r}: {why}")

    @property
    def waits_for_master(self) -> bool:
        """Whether workers outlive their master."""
        return self.on_master_loss == "wait"

    def refuse_waiting(self, why: str) -> None:
        """Raises InvalidOption where `on_master_loss` is "wait", which has no effect here."""
        if self.waits_for_master:
            raise errors.InvalidOption(f'on_master_loss="wait": {why}')

    def refuse_merging(self, why: str) -> None:
        """Raises InvalidOption where `merging` is "on", which has no effect here."""
        if self.merging == "on":
            raise errors.InvalidOption(f'merging="on": {why}')

    def of_script(self, job: NetworkConfig) -> NetworkConfig:
        """The job's options with those in their place that a script gives its own worker, `self`.

        Raises:
            InvalidOption: one of them is of the master, or of whoever runs it.
        """
        given = {name: value for name, value in vars(self).items() if value != _DEFAULTS[name]}
        for name in sorted(given.keys() & _OF_THE_RUNNER):
            if given[name] != getattr(job, name):
                raise errors.InvalidOption(
                    f"{name}={given[name]!r} is an option of the runner (keras-strom run "
                    f"--{name.replace('_', '-')} {given[name]}, or network= of "
                    "keras_strom.spark.run), not of one worker's StromStrategy; this job's is "
                    f"{getattr(job, name)!r}"
                )
        return dataclasses.replace(job, **given)

    def of_worker(self, local_rank: int) -> NetworkConfig:
        """The configuration of one worker, whose `port` is its own."""
        if self.port == 0:
            return self
        port = self.port + 1 + local_rank
        if port > _MAX_PORT:
            raise errors.InvalidOption(
                f"port={self.port} leaves no port for the worker of local rank {local_rank}: it "
                f"would be {port}; choose a lower port"
            )
        master = self.master_address
        if master is not None:  # A port left out there means the master's, not the worker's.
            master = format_address(parse_address(master, default_port=self.port))
        return dataclasses.replace(self, port=port, master_address=master)

    def advertised_master(self, bound: HostPort) -> HostPort:
        """Where workers reach a master that is bound to `bound`."""
        if self.master_address is None:
            return bound
        return parse_address(self.master_address, default_port=bound[1])

    def to_json(self) -> str:
        """The options that differ from the defaults, as a JSON object."""
        changed = {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if value != _DEFAULTS[name]
        }
        return json.dumps(changed, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> NetworkConfig:
        """Reads `to_json`'s text.

        Raises:
            InvalidOption: no JSON object, an unknown option or a bad value.
        """
        try:
            options = json.loads(text)
        except ValueError as error:
            raise errors.InvalidOption(f"{text!r} is no JSON: {error}") from error
        if not isinstance(options, dict):
            raise errors.InvalidOption(f"{text!r} is no JSON object")
        unknown = sorted(set(options) - set(_DEFAULTS))
        if unknown:
            raise errors.InvalidOption(
                f"unknown network option {', '.join(unknown)}; there are {', '.join(_DEFAULTS)}"
            )
        return cls(**options)


# What the master does, and whoever runs it: a worker's own word of them has no effect.
_OF_THE_RUNNER = frozenset(
    (
        *("master_address", "topology", "max_children", "max_depth", "merging", "on_master_loss"),
        *("checkpoint_dir", "checkpoint_interval", "checkpoints_kept"),
    )
)

_DEFAULTS = {field.name: field.default for field in dataclasses.fields(NetworkConfig)}


def check_network(network: object) -> None:
    """Refuses what is no NetworkConfig.

    Raises:
        InvalidOption: it is something else.
    """
    if not isinstance(network, NetworkConfig):
        raise errors.InvalidOption(f"network={network!r} must be a NetworkConfig")


def resolve_address(
    network: NetworkConfig, *, node_address: str | None = None, toward: str | None = None
) -> str:
    """The address of this machine that a node binds to and is reached at.

    In this order: the only address inside `network_mask`; `node_address`; without a mask, the
    address from which packets leave for `toward`.

    Args:
        network: the job's options.
        node_address: KERAS_STROM_IP, the last resort on one machine where the mask does not decide
            (`ClusterEnvironment.ip`, or `environment.node_address()`).
        toward: the master's host; None (the master itself) = where the default route leads.

    Returns:
        An IPv4 or IPv6 literal without brackets.

    Raises:
        AddressError: the mask picks no or several addresses (the message lists the candidates),
            `node_address` is not one of this machine's, or `toward` has no address.
    """
    here = interface_addresses()
    if network.network_mask is not None:
        mask = parse_mask(network.network_mask)
        matches = [one for one in here if one.address.version == mask.version]
        matches = [one for one in matches if one.address in mask]
        if len(matches) == 1:
            return str(matches[0].address)
        if node_address is None:
            raise errors.AddressError(_undecided(network.network_mask, matches, here))
    if node_address is not None:
        return _own_address(node_address, here)
    return source_address(toward)


def bound_address(network: NetworkConfig, *, node_address: str | None, toward: str) -> str:
    """To which of this machine's addresses a worker is bound; "" = the system chooses one.

    As `resolve_address`, where anything has been said of it.
    """
    if network.network_mask is None and node_address is None:
        return ""
    return resolve_address(network, node_address=node_address, toward=toward)


def literal_addresses(host: str) -> list[str]:
    """The addresses of `host`, which may be a literal one already, in the order to try them in.

    Raises:
        AddressError: it has none.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
        return list(dict.fromkeys(str(one[4][0]) for one in found))
    except OSError as error:
        raise errors.AddressError(
            f"the master's host {host!r} has no address here: {error.strerror}"
        ) from error


def _undecided(
    mask: str, matches: list[InterfaceAddress], here: tuple[InterfaceAddress, ...]
) -> str:
    what = "several addresses" if matches else "no address"
    candidates = ", ".join(map(str, matches or here)) or "none"
    return (
        f"network_mask={mask} matches {what} of {socket.gethostname()}; candidates: {candidates}; "
        "choose a mask that matches one of them on every machine, or set KERAS_STROM_IP on this one"
    )


def _own_address(text: str, here: tuple[InterfaceAddress, ...]) -> str:
    address = parse_ip(text)
    if address not in {one.address for one in here}:
        raise errors.AddressError(
            f"{text} is not an address of {socket.gethostname()}; it has "
            f"{', '.join(map(str, here)) or 'none'}"
        )
    return str(address)


def source_address(toward: str | None) -> str:
    """The address from which packets leave this machine for the host `toward`.

    Args:
        toward: a host; None = wherever the default route leads, or without one the only address
            that others may know of, or else the loopback one.

    Raises:
        AddressError: there is no way to it.
    """
    if toward is None:
        return default_route_address() or _only_address() or "127.0.0.1"
    try:
        return _routed_from(toward)
    except OSError as error:
        raise errors.AddressError(
            f"no way from {socket.gethostname()} to the master's host {toward}: {error.strerror}"
        ) from error


def default_route_address() -> str | None:
    """The address from which packets leave this machine by its default route; None without one."""
    for elsewhere in _ELSEWHERE:
        with contextlib.suppress(OSError):
            return _routed_from(elsewhere)
    return None


def _only_address() -> str | None:
    """This machine's address where it has one alone beside the loopback ones: of IPv4, if any."""
    others = {one.address for one in interface_addresses() if not one.address.is_loopback}
    for version in (4, 6):
        found = [str(address) for address in others if address.version == version]
        if found:
            return found[0] if len(found) == 1 else None
    return None


def _routed_from(toward: str) -> str:
    """Connecting a datagram socket sends nothing; the system only looks up the route."""
    family, _, _, _, where = socket.getaddrinfo(toward, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)
        return str(probe.getsockname()[0])


def parse_ip(text: str) -> IPAddress:
    """An IPv4 or IPv6 literal.

    Raises:
        AddressError: it is none.
    """
    try:
        return ipaddress.ip_address(text)
    except ValueError as error:
        raise errors.AddressError(f"{text!r} is no IPv4 or IPv6 address") from error


def parse_mask(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """A CIDR mask such as "10.0.0.0/16"; host bits may be set ("10.0.3.4/16").

    Raises:
        InvalidOption: it is none.
    """
    try:
        return ipaddress.ip_network(text, strict=False)
    except (ValueError, TypeError) as error:
        raise errors.InvalidOption(
            f'network_mask={text!r} is no CIDR mask such as "10.0.0.0/16" or "fd00::/8"'
        ) from error


def parse_address(text: str, *, default_port: int | None = None) -> HostPort:
    """Splits "host:port", "[v6]:port" or, with a default port, a bare "host" or IPv6 literal.

    Raises:
        InvalidOption: the text is none of these.
    """
    if not isinstance(text, str):
        raise errors.InvalidOption(f"{text!r} is no address such as 10.0.2.4:40123")
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif text.startswith("[") and text.endswith("]"):
        host, port = text[1:-1], ""
    elif ":" in host or not colon:
        host, port = text, ""
    must_be_ipv6 = ":" in host or text.startswith("[")
    is_host = _is_ipv6(host) if must_be_ipv6 else _is_name(host)
    if not is_host or any(c.isspace() for c in host):
        raise errors.InvalidOption(f"{text!r} is no address such as 10.0.2.4:40123 or [fd00::4]:9")
    if not port and default_port is not None and not text.endswith(":"):
        return host, default_port
    if not (port.isascii() and port.isdigit() and 0 < int(port) <= _MAX_PORT):
        raise errors.InvalidOption(f"{text!r} needs a port from 1 to {_MAX_PORT} after the host")
    return host, int(port)


def format_address(address: HostPort) -> str:
    """The inverse of `parse_address`: "host:port", brackets around IPv6."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


def _is_name(host: str) -> bool:
    """Whether a resolver can be asked for it, which raises no OSError otherwise."""
    try:
        return bool(host.encode("idna"))
    except UnicodeError:  # A part of it between dots is empty or too long.
        return False


def warn_of_receive_buffer(counters: Mapping[str, Any]) -> None:
    """Warns, once a process, where the system's limit makes packets get lost.

    Args:
        counters: a node's `status()["counters"]`.
    """
    global _warned_of_receive_buffer
    wanted = lacking_receive_buffer(counters)
    if wanted is None or _warned_of_receive_buffer:
        return
    _warned_of_receive_buffer = True
    _logger.warning(
        "%s grants %d KiB of receive buffer to a socket, of %d that were asked for: when several "
        "send at once, packets get lost and are sent again. Raise the limit: sysctl -w "
        "net.core.rmem_max=%d (in a file in /etc/sysctl.d, to keep it)",
        socket.gethostname(),
        int(counters["receive_buffer_bytes"]) >> 10,
        wanted >> 10,
        wanted,
    )


def lacking_receive_buffer(counters: Mapping[str, Any]) -> int | None:
    """How many bytes of receive buffer a node's socket has asked for where it got too few.

    Args:
        counters: a node's `status()["counters"]`.

    Returns:
        None where it got enough.
    """
    wanted = int(counters["receive_buffer_wanted_bytes"])
    enough = int(counters["receive_buffer_bytes"]) >= min(wanted, _LEAST_RECEIVE_BUFFER)
    return None if enough else wanted


def address_here(host: str) -> str | None:
    """The address of this machine that `host` stands for; None = there is none.

    A name's loopback address counts for "localhost" alone: hosts files give one to the machine's
    own name, by which others find it elsewhere.
    """
    try:
        found = [parse_ip(one) for one in literal_addresses(host)]
    except errors.AddressError:
        return None
    here = {one.address for one in interface_addresses()}
    is_name = not _is_ipv6(host) and str(found[0]) != host
    for address in found:
        if address.is_loopback and is_name and host != "localhost":
            continue
        if address in here or (address.is_loopback and address.version == 4):
            return str(address)
    return None


def is_here(host: str) -> bool:
    """Whether the literal address `host` is one of this machine's."""
    return parse_ip(host) in {one.address for one in interface_addresses()}


def _check_port(name: str, port: object) -> None:
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= _MAX_PORT:
        raise errors.InvalidOption(f"{name}={port!r} must be an integer from 0 to {_MAX_PORT}")
