"""A small network of Linux namespaces: nodes around a switch, with a rate, a buffer and a loss.

Every node is a namespace with one interface, 10.77.0.1, 10.77.0.2, ...; a namespace between them
holds a bridge. The bridge sends to each node at the line's rate out of a buffer of its own (`tc
tbf`), and each node loses a share of the packets that arrive (`iptables -m statistic`), data and
acknowledgements alike. Packets are at most 1514 bytes everywhere: segmentation offload is off, or
a lost "packet" would be 64 KB.
"""

from __future__ import annotations

import math
import os
import pathlib
import shutil
import socket
import subprocess
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

#: Bytes that the shaper may send at once; as little as its timers allow.
_BURST_BYTES = 32 << 10

#: A switch has no firewall; a machine's may look at what its bridges forward.
_NO_FIREWALL = """
for call in /proc/sys/net/bridge/bridge-nf-call-*; do
  [ ! -e "$call" ] || echo 0 > "$call" || exit
done
"""

#: Where `ip netns exec` looks for a namespace's own files of /etc.
_FILES = pathlib.Path("/etc/netns")

#: What `tc tbf` counts of a full packet: 1500 bytes and the Ethernet header.
FRAME_BYTES = 1514
#: The most that a UDP datagram in it can carry.
DATAGRAM_BYTES = 1472


def payload_limit(megabits: float) -> float:
    """MB/s that full UDP datagrams can carry on a line of so many Mbit/s."""
    return megabits / 8 * DATAGRAM_BYTES / FRAME_BYTES


def unavailable() -> str | None:
    """Why there can be no namespaces here; None = there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("ip", "tc", "iptables", "ethtool") if shutil.which(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (apt-get install iproute2 iptables ethtool)"
    probe = f"strom-{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if made.returncode != 0:
        return f"`ip netns add` fails: {made.stderr.strip()}"
    run("ip", "netns", "del", probe)
    return None


class Namespaces:
    """Nodes in namespaces of their own; a context manager that always cleans up.

    What a kind of network is made of is `_build`'s, which adds one namespace after the other.

    Args:
        subnet: the first three numbers of the nodes' addresses.
        kind: in the namespaces' names, for a process may have two networks.
    """

    def __init__(self, subnet: str, kind: str = "") -> None:
        self._subnet = subnet
        self._prefix = f"strom-{os.getpid()}{kind}"
        self._made: list[str] = []

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._remove()

    @property
    def names(self) -> list[str]:
        """The namespaces' names."""
        return list(self._made)

    def address(self, node: int) -> str:
        """The node's IPv4 address."""
        return f"{self._subnet}.{node + 1}"

    def inside(self, node: int) -> list[str]:
        """What a command line starts with to run on the node."""
        return ["ip", "netns", "exec", self._name(node)]

    def _build(self) -> None:
        raise NotImplementedError

    def _name(self, which: int | str) -> str:
        return f"{self._prefix}-{which}"

    def _add_namespace(self, which: int | str) -> None:
        run("ip", "netns", "add", self._name(which))
        self._made.append(self._name(which))

    def _remove(self) -> None:
        while self._made:
            name = self._made.pop()
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
            shutil.rmtree(_FILES / name, ignore_errors=True)


class Network(Namespaces):
    """Nodes around a switch.

    Args:
        nodes: how many.
        megabits: the rate of the line to each node, in Mbit/s.
        buffer_bytes: what the switch holds for each node before it drops.
        loss: the share of arriving packets that each node loses.
        both_ways: True limits what a node sends, too, before it comes to the switch.
        own_names: True gives each node an /etc/hosts of its own, where this machine's name stands
            for the node's address, as programs want it that ask for their host's.

    Example:
        >>> with Network(2) as network:  # doctest: +SKIP
        ...     subprocess.run([*network.inside(0), "ping", "-c", "1", network.address(1)])
    """

    def __init__(
        self,
        nodes: int,
        *,
        megabits: float = 1000,
        buffer_bytes: int = 512 << 10,
        loss: float = 0,
        both_ways: bool = False,
        own_names: bool = False,
    ) -> None:
        super().__init__("10.77.0")
        self._both_ways = both_ways
        self.nodes = nodes
        self.megabits = megabits
        self.buffer_bytes = buffer_bytes
        self.loss = loss
        self._own_names = own_names

    def counts(self) -> list[str]:
        """A command line that prints the switch's /proc/net/dev.

        Its interface port0, port1, ... receives what that node sends.
        """
        return ["ip", "netns", "exec", self._name("switch"), "cat", "/proc/net/dev"]

    def lift_limit(self) -> None:
        """Makes lines as fast as the machine is, until `set_line` is called."""
        if math.isinf(self.megabits):
            return
        self.megabits = math.inf
        for node in range(self.nodes):
            self._switch("tc", "qdisc", "del", "dev", f"port{node}", "root")
            if self._both_ways:
                run(*self.inside(node), "tc", "qdisc", "del", "dev", "line", "root")

    def set_line(self, *, megabits: float, buffer_bytes: int) -> None:
        """Changes rate and buffer of every line."""
        self.megabits, self.buffer_bytes = megabits, buffer_bytes
        # fmt: off
        limit = (
            "root", "tbf",
            "rate", f"{megabits}mbit", "burst", str(_BURST_BYTES), "limit", str(buffer_bytes),
        )
        # fmt: on
        for node in range(self.nodes):
            self._switch("tc", "qdisc", "replace", "dev", f"port{node}", *limit)
            if self._both_ways:
                run(*self.inside(node), "tc", "qdisc", "replace", "dev", "line", *limit)

    def set_loss(self, loss: float) -> None:
        """Changes the share of packets that every node loses."""
        self.loss = loss
        for node in range(self.nodes):
            run(*self.inside(node), "iptables", "-F", "INPUT")
            if loss > 0:
                # fmt: off
                run(
                    *self.inside(node), "iptables", "-A", "INPUT", "-m", "statistic",
                    "--mode", "random", "--probability", f"{loss:.6f}", "-j", "DROP",
                )
                # fmt: on

    def _build(self) -> None:
        self._add_namespace("switch")
        self._switch("ip", "link", "add", "name", "bridge0", "type", "bridge")
        self._switch("ip", "link", "set", "dev", "bridge0", "up")
        self._switch("sh", "-c", _NO_FIREWALL)
        for node in range(self.nodes):
            self._add_namespace(node)
            if self._own_names:
                self._name_host(node)
            # fmt: off
            run(
                "ip", "link", "add", "dev", "line", "netns", self._name(node), "type", "veth",
                "peer", "name", f"port{node}", "netns", self._name("switch"),
            )
            # fmt: on
            self._switch("ip", "link", "set", "dev", f"port{node}", "master", "bridge0", "up")
            inside = self.inside(node)
            run(*inside, "ip", "link", "set", "dev", "lo", "up")
            run(*inside, "ip", "addr", "add", f"{self.address(node)}/24", "dev", "line")
            run(*inside, "ethtool", "-K", "line", "tso", "off", "tx-udp-segmentation", "off")
            run(*inside, "ip", "link", "set", "dev", "line", "up")
        self.set_line(megabits=self.megabits, buffer_bytes=self.buffer_bytes)
        self.set_loss(self.loss)

    def _name_host(self, node: int) -> None:
        """What `ip netns exec` puts in the place of /etc/hosts."""
        folder = _FILES / self._name(node)
        folder.mkdir(parents=True)
        names = f"127.0.0.1 localhost\n{self.address(node)} {socket.gethostname()}\n"
        (folder / "hosts").write_text(names, encoding="utf-8")

    def _switch(self, *command: str) -> None:
        run("ip", "netns", "exec", self._name("switch"), *command)


def run(*command: str) -> None:
    """Runs a command to its end.

    Raises:
        RuntimeError: it failed; with what it says.
    """
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
