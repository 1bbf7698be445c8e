"""Two sites and a long line between them, in network namespaces.

A site is a gateway and hosts behind it. The gateway of site 0 is the master's machine, too: nothing
else of that site is known to site 1. The gateway of site 1 translates addresses and lets nothing in
that has not been asked for, as that of an office does. What goes from site to site goes over one
line (benchmarks/wan_line.py); within a site nothing is slow.
"""

from __future__ import annotations

import pathlib
from types import TracebackType
from typing import TYPE_CHECKING

from benchmarks.namespaces import run
from benchmarks.wan_line import PROGRAM, Line, LongLine

if TYPE_CHECKING:
    from typing_extensions import Self

#: Has the addresses of all hosts and of both ends of the line.
NETWORK_MASK = "10.0.0.0/8"
#: What the line is called in both gateways.
INTERFACE = "line"


class TwoSites:
    """The machines of a job at two sites; a context manager.

    Node 0 is the gateway of site 0, for the master; then come the hosts, those of site 0 first.

    Args:
        hosts: of each site.
        program: custom_ops/bench/wan_line.

    Example:
        >>> with TwoSites(2) as sites:  # doctest: +SKIP
        ...     sites.set_line(Line(100, loss=0.001))
    """

    def __init__(self, hosts: int, program: pathlib.Path = PROGRAM) -> None:
        self._sites = _Sites(hosts, program)

    def __enter__(self) -> Self:
        self._sites.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._sites.__exit__(kind, error, traceback)

    def address(self, node: int) -> str:
        """The node's IPv4 address at its own site; node 0's is that of its end of the line."""
        return self._sites.address(0) if node == 0 else self._sites.host_address(node - 1)

    def inside(self, node: int) -> list[str]:
        """What a command line starts with to run on the node."""
        return self._sites.inside(0) if node == 0 else self._sites.inside_host(node - 1)

    def set_line(self, line: Line) -> None:
        """Makes the line another one."""
        self._sites.set(line)

    def counts(self) -> list[str]:
        """A command line that prints /proc/net/dev of both ends of the line, `INTERFACE`."""
        ends = (" ".join(self._sites.inside(node)) for node in range(2))
        return ["sh", "-c", "; ".join(f"{end} cat /proc/net/dev" for end in ends)]


class _Sites(LongLine):
    """The line's two ends are gateways, with hosts behind them."""

    def __init__(self, hosts: int, program: pathlib.Path) -> None:
        super().__init__(program)
        self._hosts = hosts

    def host_address(self, host: int) -> str:
        site, place = divmod(host, self._hosts)
        return f"10.81.{site}.{place + 2}"

    def inside_host(self, host: int) -> list[str]:
        return ["ip", "netns", "exec", self._name(f"host{host}")]

    def _build(self) -> None:
        super()._build()
        for site in range(2):
            gateway = self.inside(site)
            self._set(site, "net.ipv4.ip_forward=1")
            run(*gateway, "ip", "link", "add", "name", "bridge0", "type", "bridge")
            run(*gateway, "ip", "addr", "add", f"10.81.{site}.1/24", "dev", "bridge0")
            run(*gateway, "ip", "link", "set", "dev", "bridge0", "up")
            for host in range(site * self._hosts, (site + 1) * self._hosts):
                self._add_host(site, host)
        translates = self.inside(1)
        # fmt: off
        run(*translates, "iptables", "-t", "nat", "-A", "POSTROUTING", "-o", INTERFACE,
            "-j", "MASQUERADE")
        run(*translates, "iptables", "-A", "FORWARD", "-i", INTERFACE, "-m", "conntrack",
            "--ctstate", "NEW", "-j", "DROP")
        # fmt: on

    def _add_host(self, site: int, host: int) -> None:
        self._add_namespace(f"host{host}")
        gateway, inside = self.inside(site), self.inside_host(host)
        # fmt: off
        run("ip", "link", "add", "dev", "lan", "netns", self._name(f"host{host}"), "type", "veth",
            "peer", "name", f"port{host}", "netns", self._name(site))
        # fmt: on
        run(*gateway, "ip", "link", "set", "dev", f"port{host}", "master", "bridge0", "up")
        run(*inside, "ip", "link", "set", "dev", "lo", "up")
        run(*inside, "ip", "addr", "add", f"{self.host_address(host)}/24", "dev", "lan")
        # As on the line, and in benchmarks/namespaces.py: a packet is a packet.
        run(*inside, "ethtool", "-K", "lan", "tso", "off", "tx-udp-segmentation", "off")
        run(*inside, "ip", "link", "set", "dev", "lan", "up")
        run(*inside, "ip", "route", "add", "default", "via", f"10.81.{site}.1")
