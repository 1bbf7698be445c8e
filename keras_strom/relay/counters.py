"""What a node of the relay has counted: `NodeCounters`, and `LinkCounters` for each of its links.

One snapshot of the I/O thread, as `TrainingMaster.counters`, `TrainingWorker.counters` and the ends
in `keras_strom.relay` give it. Bytes are those on the wire without Ethernet's own (headers of IP
and UDP, acknowledgements and retransmits included) and those through shared memory.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

_logger = logging.getLogger("keras_strom")

_DROP = "drop_"
# Less than that says little of a line; congestion control alone costs a percent or two.
_ENOUGH_DATAGRAMS = 1000
_MUCH_LOSS = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traffic:
    """What has gone through one link, or through all links of a node.

    Attributes:
        datagrams_sent, datagrams_received: UDP datagrams.
        bytes_sent, bytes_received: their bytes, IP and UDP headers included, and those through
            shared memory.
        shared_memory_bytes_sent, shared_memory_bytes_received: the latter alone.
        retransmitted_packets: packets that were sent once more.
        messages_sent, messages_received: whole messages.
        messages_voided: messages given up here, because their receiver was too slow.
        drops: why datagrams were thrown away -> how many (only what happened): "malformed",
            "unauthentic" (a forged or damaged packet), "replayed", "wrong_secret", ...
    """

    datagrams_sent: int = 0
    datagrams_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    shared_memory_bytes_sent: int = 0
    shared_memory_bytes_received: int = 0
    retransmitted_packets: int = 0
    messages_sent: int = 0
    messages_received: int = 0
    messages_voided: int = 0
    drops: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def retransmitted(self) -> float:
        """The share of the datagrams sent that were sent once more, 0 to 1."""
        return self.retransmitted_packets / max(1, self.datagrams_sent)

    def _traffic(self) -> str:
        text = f"{_bytes(self.bytes_sent)} sent, {_bytes(self.bytes_received)} received"
        if self.retransmitted_packets:
            text += f", {self.retransmitted:.2%} sent again"
        if self.messages_voided:
            text += f", {self.messages_voided} messages given up"
        if self.drops:
            reasons = ", ".join(f"{name} {count}" for name, count in self.drops.items())
            text += f", dropped: {reasons}"
        return text


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinkCounters(Traffic):
    """One link and how it stood when the snapshot was taken.

    Attributes:
        link: its number, which no other link of the node has had.
        peer: the other end's address.
        transport: "udp" or "shared memory".
        round_trip_seconds: smoothed; 0 before the first sample.
        least_round_trip_seconds: the shortest one seen.
        queued_bytes: of messages that wait or are not yet acknowledged.
        in_flight_packets: sent and not yet acknowledged.
        congestion_window_packets: how many may be.
        grant_packets: how many more the peer has room for.
        datagram_bytes: the largest datagram that is known to pass.
    """

    link: int = 0
    peer: str = ""
    transport: str = "udp"
    round_trip_seconds: float = 0.0
    least_round_trip_seconds: float = 0.0
    queued_bytes: int = 0
    in_flight_packets: int = 0
    congestion_window_packets: int = 0
    grant_packets: int = 0
    datagram_bytes: int = 0

    def __str__(self) -> str:
        text = f"{self.peer}: {self._traffic()}"
        if self.round_trip_seconds:
            text += f", round trip {1e3 * self.round_trip_seconds:.2f} ms"
        if self.queued_bytes:
            text += f", {_bytes(self.queued_bytes)} queued"
        if self.transport != "udp":
            return f"{text}, over {self.transport}"
        return f"{text}, window {self.congestion_window_packets} packets"


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeCounters(Traffic):
    """All that a master or a worker has counted since it started; `links` are those there are now.

    Attributes:
        send_errors: datagrams that the system refused to send.
        receive_buffer_bytes: what it granted of the socket's receive buffer.
        links: one entry a link.

    Example:
        >>> NodeCounters.from_status({"counters": {"bytes_sent": 1200}}).bytes_sent
        1200
    """

    send_errors: int = 0
    receive_buffer_bytes: int = 0
    links: tuple[LinkCounters, ...] = ()

    @classmethod
    def from_status(cls, status: Mapping[str, Any]) -> NodeCounters:
        """Reads them from a node's `status()`."""
        counters = status["counters"]
        links = tuple(_link(link) for link in counters.get("links", ()))
        return cls(links=links, drops=_drops(counters), **_known(cls, counters))

    def log(self, who: str) -> None:
        """Logs them for `who` ("worker 3"), with a warning for each link that loses much."""
        _logger.info("%s's network: %s", who, self)
        for loss in self.losses():
            _logger.warning("%s: %s", who, loss)

    def losses(self) -> list[str]:
        """What to know of links that lose many packets on the way to their peer.

        Each end counts the way from itself, so a line that is bad in one direction only shows at
        one of them.
        """
        return [
            f"{link.retransmitted:.0%} of the packets to {link.peer} had to be sent again: the way "
            "there loses them; is the line bad or shared with much else, or is the peer's receive "
            "buffer small (sysctl net.core.rmem_max)? The other direction is counted there"
            for link in self.links
            if link.datagrams_sent >= _ENOUGH_DATAGRAMS and link.retransmitted > _MUCH_LOSS
        ]

    def __str__(self) -> str:
        """One line for the node; a node of several links gets one more for each."""
        lines = [self._traffic()]
        if self.send_errors:
            lines[0] += f", {self.send_errors} refused by the system"
        if len(self.links) == 1:
            lines[0] += f" ({self.links[0]})"
        else:
            lines += [f"  {link}" for link in self.links]
        return "\n".join(lines)


def _link(counters: Mapping[str, Any]) -> LinkCounters:
    return LinkCounters(
        peer=counters["peer"],
        transport=counters.get("transport", "udp"),
        round_trip_seconds=counters.get("smoothed_round_trip_ns", 0) * 1e-9,
        least_round_trip_seconds=counters.get("least_round_trip_ns", 0) * 1e-9,
        drops=_drops(counters),
        **_known(LinkCounters, counters),
    )


def _known(kind: type[Traffic], counters: Mapping[str, Any]) -> dict[str, Any]:
    """The whole numbers among the fields of `kind`."""
    names = [field.name for field in dataclasses.fields(kind) if field.type == "int"]
    return {name: counters[name] for name in names if name in counters}


def _drops(counters: Mapping[str, Any]) -> dict[str, int]:
    return {
        name.removeprefix(_DROP): count
        for name, count in counters.items()
        if name.startswith(_DROP) and count
    }


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
