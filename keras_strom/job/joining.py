"""What a join that did not work means, in words that say where to look.

Each side knows half. A worker knows whether the master's RETRY has come (something answers) and
then its WELCOME (it believes us). The master knows whose HELLOs it has heard, and who came back
with the RETRY's cookie. So a worker whose packets arrive but that hears nothing can be told from
one whose packets are lost by whoever sees both: `verdict` takes the worker's words and the
master's status. The runners have both; a failure's words reach them as a traceback.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from keras_strom import errors
from keras_strom.job.network import (
    HostPort,
    format_address,
    literal_addresses,
    parse_address,
    source_address,
)

_Joined = TypeVar("_Joined")

# The HELLO is the largest packet of a join: 1200 bytes and the headers of IP and UDP.
_LEAST_MTU = {socket.AF_INET: 1228, socket.AF_INET6: 1248}
# <bits/in.h>: what the socket module does not name.
_IP_MTU = {
    socket.AF_INET: (socket.IPPROTO_IP, 14),
    socket.AF_INET6: (socket.IPPROTO_IPV6, 24),
}

_PORT_ASKED_FROM = re.compile(r"\(asked from UDP port (\d+)\)")
# In UdpSocket::Refusal's words (custom_ops/net/udp_socket.cc).
_NOT_SENT = re.compile(r"(?:a firewall on this machine|this machine cannot send)[^()]*\([^()]*\)")
_HEARS_NOTHING = re.compile(
    r"(?P<who>\S.*) hears nothing from the master at (?P<master>\S+) \(it asked from UDP "
    r"(?P<own>\S+)\)"
)


def at_first_that_answers(host: str, join: Callable[[str], _Joined]) -> _Joined:
    """What `join` gives of the first address of the master's host at which something answers.

    A name may have several, of IPv6 and IPv4, and the master is bound to one.

    Raises:
        AddressError: the host has none.
        What `join` raises of the last one, or of one that answers.
    """
    *others, last = literal_addresses(host)
    for address in others:
        with contextlib.suppress(errors.Unreachable, errors.AddressError):
            return join(address)
    return join(last)


@contextlib.contextmanager
def explained(who: str, master: HostPort, own_address: str = "") -> Iterator[None]:
    """Says of a failed join who could not reach whom, and what to do.

    Args:
        who: "worker 3".
        master: where it looks for its master.
        own_address: what the worker is bound to; "" = wherever packets leave for the master.
    """
    try:
        yield
    except errors.Unreachable as error:
        raise errors.Unreachable(_unreachable(who, master, own_address, str(error))) from None
    except errors.SecretRejected:
        raise errors.SecretRejected(
            f"{who} cannot join the master at {format_address(master)}: something answers there "
            "but does not accept the secret, the job id or the master's public key; give every "
            "worker the credentials of its own job"
        ) from None


def verdict(failure: str, status: Mapping[str, Any]) -> str:
    """What a worker's failure to reach its master means, given what the master has seen.

    Args:
        failure: the worker's error or traceback.
        status: the master's `status()`.

    Returns:
        One sentence with what to check; "" where the failure is another one.
    """
    found = _HEARS_NOTHING.search(failure)
    if found is None or _NOT_SENT.search(failure):
        return ""
    who, master = found["who"].rpartition(": ")[2], found["master"]
    own_host, own_port = parse_address(found["own"])
    joiners = {
        parse_address(one["address"]): one["progress"]
        for one in status.get("counters", {}).get("joiners", ())
    }
    master_host, master_port = parse_address(master)
    if (own_host, own_port) in joiners:
        return (
            f"{who}'s packets reach the master, but the master's answers do not reach {who}: is "
            f"UDP {own_port} open inbound on {own_host}, and UDP {master_port} open outbound on "
            f"{master_host}?"
        )
    # Another worker of the same machine may be heard, too, and have the same trouble.
    strangers = [
        format_address(address)
        for address, progress in joiners.items()
        if progress == "heard" and address[0] != own_host
    ]
    if strangers:
        return (
            f"the master heard no packet from {own_host}, but some from {', '.join(strangers)} "
            f"that its answers did not reach: is there address translation between {who} and the "
            "master that does not let answers through?"
        )
    return (
        f"{who}'s packets do not reach the master at {master}: is UDP {master_port} open inbound "
        f"on {master_host}, and UDP {own_port} open outbound on {own_host}, "
        f"{_or_long_packets(own_host)}?" + (" Other workers' packets do arrive." if joiners else "")
    )


def path_mtu(host: str) -> int | None:
    """The longest packet that the system believes gets to `host`, IP header included."""
    try:
        family, _, _, _, where = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(where)  # Sends nothing.
            return probe.getsockopt(*_IP_MTU[socket.AddressFamily(family)])
    except OSError:
        return None


def least_mtu(host: str) -> int:
    """The length of a join's largest packet to the literal address `host`, IP header included."""
    return _LEAST_MTU[socket.AF_INET6 if ":" in host else socket.AF_INET]


def _unreachable(who: str, master: HostPort, own_address: str, words: str) -> str:
    own = own_address or source_address(master[0])
    asked = _PORT_ASKED_FROM.search(words)
    port = int(asked[1]) if asked else 0
    text = (
        f"{who} hears nothing from the master at {format_address(master)} (it asked from UDP "
        f"{format_address((own, port))}); "
    )
    if refused := _NOT_SENT.search(words):
        return text + refused[0]
    mtu, least = path_mtu(master[0]), least_mtu(own)
    if mtu is not None and mtu < least:
        return text + (
            f"the way there takes packets of {mtu} bytes only and a join needs {least}: raise the "
            "MTU of the interface or tunnel (ip link set dev ... mtu 1500)"
        )
    return text + (
        f"is the master running there, is UDP {master[1]} open inbound on {master[0]}, and UDP "
        f"{port} on {own}, {_or_long_packets(own)}?"
    )


def _or_long_packets(host: str) -> str:
    """What a firewall or tunnel may do of which the system knows nothing."""
    return f"or does the way drop packets of {least_mtu(host)} bytes, as a tunnel may"
