"""`make bench-relay`: the relay against TCP, plain and under TLS 1.3, in the same run.

The targets are those of docs/benchmarks.md, by the same names.
Two processes for each measurement send the same
messages over each transport in turn, in another order each round; ours is always encrypted. Both
ends run on this machine: on loopback, or in network namespaces joined by a line of 1 Gbit/s that
loses packets (benchmarks/namespaces.py), where TCP's congestion control is CUBIC, and BBR where
the kernel has it.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import pathlib
import signal
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from matplotlib.axes import Axes

from benchmarks import flood, namespaces, pictures, report, stalled_neighbour
from benchmarks.other_work import OtherWork
from benchmarks.relay_peers import (
    BBR,
    PROGRAM,
    RELAY,
    SHARED_MEMORY,
    TCP,
    TCP_GATHERED,
    TLS,
    Goodput,
    Peers,
    RoundTrips,
    Transport,
)

LOSSES = (0.0, 0.01, 0.05)
INCAST_SENDERS = 8
INCAST_BUFFER_BYTES = 128 << 10
GIGABIT = 1000

#: Targets that need a line, and what each asks for.
LINE_TARGETS = {
    "gbit_loss0": 0.93,
    "gbit_loss1": 0.85,
    "gbit_loss5": 0.35,
    "p99_loss1_own": 2.0,
    "p99_loss1_tcp": 0.1,
    "incast_retransmits": 0.05,
    "incast_fairness": 0.9,
    "incast_goodput": 0.9,
}

#: Every target there is.
TARGETS = {
    *LINE_TARGETS,
    "loopback_64k",
    "loopback_1m",
    "small_messages",
    "cpu_per_gb",
    "p50_small",
    "stalled_neighbour_rate",
    "stalled_neighbour_memory",
    "flood_rate",
    "flood_recovery_s",
}

_COLORS = {
    RELAY: pictures.BLUE,
    TCP: pictures.VERMILION,
    BBR: pictures.ORANGE,
    TLS: pictures.PURPLE,
}

Sample = TypeVar("Sample")


@dataclasses.dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
        rounds: of every comparison.
        seconds: that count, of a goodput on loopback; lines take twice as long.
        round_trips: of each measurement on the line; loopback takes three times as many.
        stall_seconds: for which a neighbour is stopped.
        flood_seconds: for which a stranger floods the master.
    """

    rounds: int = 5
    seconds: float = 0.5
    round_trips: int = 400
    stall_seconds: float = 1.5
    flood_seconds: float = 2.0


QUICK = Effort(rounds=1, seconds=0.05, round_trips=20, stall_seconds=0.4, flood_seconds=0.4)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures everything and shows the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=Effort.rounds)
    parser.add_argument("--quick", action="store_true", help="seconds, and loopback only")
    parser.add_argument("--program", type=pathlib.Path, default=PROGRAM, help="relay_peer")
    parser.add_argument("--output", type=pathlib.Path, default=report.OUTPUT)
    chosen = parser.parse_args(arguments)
    effort = QUICK if chosen.quick else Effort(rounds=chosen.rounds)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces are taken down
    result = report.Report("relay", "The relay", chosen.output, quick=chosen.quick)
    others = OtherWork()
    bench = RelayBench(result, effort, chosen.program)
    bench.baselines()
    bench.loopback()
    bench.small_round_trips()
    bench.stalled_neighbour()
    bench.flood()
    reason = "a quick run is on loopback only" if chosen.quick else namespaces.unavailable()
    if reason is None:
        bench.line()
        bench.incast()
        bench.draw(chosen.output)
    else:
        for name in LINE_TARGETS:
            result.skip(name, reason)
    others.add_row(result)
    result.finish()


class Rounds(Generic[Sample]):
    """Samples of several transports, round by round.

    Args:
        samples: for each transport one sample a round.
    """

    def __init__(self, samples: Mapping[Transport, Sequence[Sample]]) -> None:
        self._samples = samples

    def __iter__(self) -> Iterator[Transport]:
        return iter(self._samples)

    def median(self, transport: Transport, value: Callable[[Sample], float]) -> float:
        """The transport's typical value."""
        return statistics.median(value(sample) for sample in self._samples[transport])

    def ratio(self, own: Transport, over: Transport, value: Callable[[Sample], float]) -> float:
        """The median of the rounds' ratios."""
        pairs = zip(self._samples[own], self._samples[over], strict=True)
        return statistics.median(value(one) / value(other) for one, other in pairs)


class RelayBench:
    """The parts of the benchmark; each adds its rows and targets to the report."""

    def __init__(self, result: report.Report, effort: Effort, program: pathlib.Path) -> None:
        self._report = result
        self._effort = effort
        self._program = program
        self._loopback = Peers(program=program)
        self._build = self._loopback.describe()
        self._transports = [RELAY, SHARED_MEMORY, TCP] + ([TLS] if self._build["tls"] else [])
        self._on_lines = [RELAY, TCP] + ([BBR] if has_bbr() else [])
        self._goodputs: dict[Transport, list[float]] = {}
        self._tails: dict[Transport, list[tuple[float, float]]] = {}

    def baselines(self) -> None:
        """How the transports were built and are used."""
        build = f"{self._build['compiler']}, {self._build['flags']}"
        how = {
            RELAY: (build, "Endpoint on an IoLoop, AES-128-GCM, at most 4 MiB queued or under way"),
            SHARED_MEMORY: (build, "the same, but a ring between processes of one machine"),
            TCP: (build, "blocking, TCP_NODELAY, one send a message, received in its place"),
            TCP_GATHERED: (build, "the same, but 64 KB of messages a send; of 1 KB only"),
            BBR: (build, "as TCP CUBIC; on lines only"),
            TLS: (f"{build}, {self._build['openssl']}", "as TCP CUBIC, TLS_AES_128_GCM_SHA256"),
        }
        for transport, (built, use) in how.items():
            command = f"relay_peer receive|send|echo|ask {transport.kind} ADDRESS PORT"
            if transport.congestion:
                command += f" congestion={transport.congestion}"
            if transport.gather_bytes:
                command += f" gather_bytes={transport.gather_bytes}"
            self._report.row(
                transport.label, group="Builds and use", build=built, use=use, command=command
            )
        self._report.skip(
            "Aeron", "its Python client does not build here; see docs/internals/transport.md"
        )

    def loopback(self) -> None:
        """Messages of 64 KB, 1 MB and 1 KB one way, both processes on this machine."""
        seconds = self._effort.seconds
        sizes = {"64 KB": 64 << 10, "1 MB": 1 << 20, "1 KB": 1 << 10}
        results: dict[str, Rounds[Goodput]] = {}
        for name, message_bytes in sizes.items():
            # Small messages alone are too short for a send each.
            gathered = [TCP_GATHERED] if message_bytes < TCP_GATHERED.gather_bytes else []
            transports = [*self._transports, *gathered]
            rounds = self._goodput(self._loopback, transports, message_bytes, seconds)
            results[name] = rounds
            for transport in rounds:
                self._report.row(
                    f"{name}, {transport.label}",
                    group="Loopback, one way",
                    mb_per_s=rounds.median(transport, _mb_per_s),
                    messages_per_s=rounds.median(transport, _messages_per_s),
                    cpu_s_per_gb=rounds.median(transport, _cpu_s_per_gb),
                )
        # Of TCP with one send a message; the row of TCP that gathers stands beside it.
        small = results["1 KB"].ratio(RELAY, TCP, _messages_per_s)
        self._report.target("small_messages", small, goal=2)
        if TLS not in self._transports:
            for target in ("loopback_64k", "loopback_1m", "cpu_per_gb"):
                self._report.skip(target, "built without OpenSSL's libssl.a (libssl-dev)")
            return
        for target, name in (("loopback_64k", "64 KB"), ("loopback_1m", "1 MB")):
            self._report.target(target, results[name].ratio(RELAY, TLS, _mb_per_s), goal=0.6)
        cpu = results["64 KB"].ratio(RELAY, TLS, _cpu_s_per_gb)
        self._report.target("cpu_per_gb", cpu, goal=3, better="lower")

    def small_round_trips(self) -> None:
        """1 KB to and fro, on loopback."""
        count = 3 * self._effort.round_trips
        rounds = self._round_trips(self._loopback, self._transports, 1 << 10, count)
        for transport in rounds:
            self._report.row(
                transport.label,
                group="Loopback, 1 KB to and fro",
                p50_us=rounds.median(transport, _p50_us),
                p99_us=rounds.median(transport, _p99_us),
            )
        self._report.target("p50_small", rounds.ratio(RELAY, TCP, _p50_us), 2.5, "lower")

    def stalled_neighbour(self) -> None:
        """One of the master's four workers is stopped; the others must not feel it."""
        program = self._program.with_name("relay_node")
        stalls = [
            stalled_neighbour.measure(program, self._effort.stall_seconds)
            for _ in range(self._effort.rounds)
        ]
        rate = statistics.median(stall.rate for stall in stalls)
        queue = statistics.median(stall.queue for stall in stalls)
        self._report.row(
            f"{self._effort.stall_seconds:.1f} s",
            group="One of four workers stopped, on loopback",
            rate_of_the_others=rate,
            queue_of_its_cap=queue,
            cap_mb=stalled_neighbour.QUEUE_BYTES / 1e6,
        )
        self._report.target("stalled_neighbour_rate", rate, goal=0.95)
        self._report.target("stalled_neighbour_memory", queue, goal=1, better="lower")

    def flood(self) -> None:
        """A stranger floods the master; the workers must not feel it."""
        program = self._program.with_name("relay_node")
        kinds = {"the same HELLO": 1, "different HELLOs": flood.DIFFERENT}
        rates, recoveries = [], []
        for kind, hellos in kinds.items():
            floods = [
                flood.measure(program, self._effort.flood_seconds, hellos)
                for _ in range(self._effort.rounds)
            ]
            rates.append(statistics.median(one.rate for one in floods))
            recoveries.append(statistics.median(one.recovery_s for one in floods))
            self._report.row(
                kind,
                group="HELLOs with valid cookies from a stranger, on loopback",
                rate_of_updates=rates[-1],
                recovery_s=recoveries[-1],
                hellos_per_s=statistics.median(one.sent_per_s for one in floods),
            )
        self._report.target("flood_rate", min(rates), goal=0.8)
        self._report.target("flood_recovery_s", max(recoveries), goal=0.5, better="lower")

    def line(self) -> None:
        """64 KB one way, and to and fro, on a line of 1 Gbit/s that loses packets."""
        tails: dict[float, Rounds[RoundTrips]] = {}
        with namespaces.Network(2, megabits=GIGABIT) as network:
            peers = Peers(network, self._program)
            for loss in LOSSES:
                network.set_loss(loss)
                seconds = 2 * self._effort.seconds
                rounds = self._goodput(peers, self._on_lines, 64 << 10, seconds)
                self._add_line(loss, rounds)
                tails[loss] = self._tail(loss, peers)
        calm, lossy = (tails[loss].median(RELAY, _p99_us) for loss in (0.0, 0.01))
        self._line_target("p99_loss1_own", lossy / calm, "lower")
        # The better of TCP's algorithms is the one to beat.
        others = [tails[0.01].ratio(RELAY, tcp, _p99_us) for tcp in self._on_lines[1:]]
        self._line_target("p99_loss1_tcp", max(others), "lower")

    def incast(self) -> None:
        """Eight senders to one receiver behind a small buffer."""
        with namespaces.Network(
            INCAST_SENDERS + 1, megabits=GIGABIT, buffer_bytes=INCAST_BUFFER_BYTES
        ) as network:
            peers = Peers(network, self._program)
            seconds = 2 * self._effort.seconds
            rounds = self._goodput(peers, self._on_lines, 64 << 10, seconds, senders=INCAST_SENDERS)
        limit = namespaces.payload_limit(GIGABIT)
        for transport in rounds:
            self._report.row(
                transport.label,
                group="8 senders to one at 1 Gbit/s, 128 KB of buffer",
                mb_per_s=rounds.median(transport, _mb_per_s),
                of_line=rounds.median(transport, _mb_per_s) / limit,
                fairness=rounds.median(transport, _fairness),
                retransmits=rounds.median(transport, _retransmits),
            )
        self._line_target("incast_goodput", rounds.median(RELAY, _mb_per_s) / limit)
        self._line_target("incast_fairness", rounds.median(RELAY, _fairness))
        self._line_target("incast_retransmits", rounds.median(RELAY, _retransmits), "lower")

    def _add_line(self, loss: float, rounds: Rounds[Goodput]) -> None:
        limit = namespaces.payload_limit(GIGABIT)
        for transport in rounds:
            goodput = rounds.median(transport, _mb_per_s)
            self._goodputs.setdefault(transport, []).append(goodput)
            self._report.row(
                f"{loss:.0%} loss, {transport.label}",
                group="1 Gbit/s, 64 KB one way",
                mb_per_s=goodput,
                of_line=goodput / limit,
                cpu_s_per_gb=rounds.median(transport, _cpu_s_per_gb),
                retransmits=rounds.median(transport, _retransmits),
            )
        share = rounds.median(RELAY, _mb_per_s) / limit
        self._line_target(f"gbit_loss{100 * loss:.0f}", share)

    def _tail(self, loss: float, peers: Peers) -> Rounds[RoundTrips]:
        rounds = self._round_trips(peers, self._on_lines, 64 << 10, self._effort.round_trips)
        for transport in rounds:
            p50, p99 = (rounds.median(transport, value) for value in (_p50_us, _p99_us))
            self._tails.setdefault(transport, []).append((p50, p99))
            self._report.row(
                f"{loss:.0%} loss, {transport.label}",
                group="1 Gbit/s, 64 KB to and fro",
                p50_us=p50,
                p99_us=p99,
            )
        return rounds

    def _line_target(self, name: str, value: float, better: report.Better = "higher") -> None:
        self._report.target(name, value, LINE_TARGETS[name], better)

    # -------------------------------------------------------------- measuring

    def _goodput(
        self,
        peers: Peers,
        transports: Sequence[Transport],
        message_bytes: int,
        seconds: float,
        senders: int = 1,
    ) -> Rounds[Goodput]:
        def measure(transport: Transport) -> Goodput:
            return peers.goodput(
                transport, message_bytes, seconds=seconds, warm_up=seconds / 2, senders=senders
            )

        return self._interleave(transports, measure)

    def _round_trips(
        self, peers: Peers, transports: Sequence[Transport], message_bytes: int, count: int
    ) -> Rounds[RoundTrips]:
        def measure(transport: Transport) -> RoundTrips:
            return peers.round_trips(transport, message_bytes, count=count, seconds=4)

        return self._interleave(transports, measure)

    def _interleave(
        self, transports: Sequence[Transport], measure: Callable[[Transport], Sample]
    ) -> Rounds[Sample]:
        samples: dict[Transport, list[Sample]] = {transport: [] for transport in transports}

        def run(transport: Transport) -> None:
            samples[transport].append(measure(transport))

        variants = {one.label: functools.partial(run, one) for one in transports}
        report.interleave(variants, rounds=self._effort.rounds, warm_ups=0)
        return Rounds(samples)

    # -------------------------------------------------------------- the picture

    def draw(self, output: pathlib.Path) -> None:
        """Goodput by loss, and round trips, in build/bench/relay.png."""
        figure, (left, right) = pictures.picture(2)
        self._draw_goodput(left)
        self._draw_tails(right)
        pictures.save(figure, self._report.name, output)

    def _draw_goodput(self, axes: Axes) -> None:
        pictures.caption(axes, "64 KB messages on a line of 1 Gbit/s", "packets lost", "MB/s")
        limit = namespaces.payload_limit(GIGABIT)
        axes.axhline(limit, color=pictures.GREY, linewidth=1.2, linestyle="--")
        pictures.label(axes, 0, limit, "the line", pictures.GREY, xytext=(0, 8))
        places = range(len(LOSSES))
        for transport, goodputs in self._goodputs.items():
            color = _COLORS[transport]
            axes.plot(places, goodputs, color=color, marker="o", linewidth=2)
            pictures.label(axes, places[-1], goodputs[-1], transport.label, color)
        axes.set_xticks(places, [f"{loss:.0%}" for loss in LOSSES])
        axes.set_ylim(0, None)

    def _draw_tails(self, axes: Axes) -> None:
        pictures.caption(
            axes, "64 KB to and fro: median, and 99th percentile above", "packets lost", "ms"
        )
        width = 0.8 / len(self._tails)
        for number, (transport, tails) in enumerate(self._tails.items()):
            for place, (p50, p99) in enumerate(tails):
                x = place + (number - (len(self._tails) - 1) / 2) * width
                color = _COLORS[transport]
                axes.bar(x, p99 / 1000, width * 0.9, color=color, alpha=0.35)
                axes.bar(x, p50 / 1000, width * 0.9, color=color)
                if place == 0:
                    pictures.label(
                        axes, x, p99 / 1000, transport.label, color, rotation=90, va="bottom",
                        ha="center", xytext=(0, 4),
                    )  # fmt: skip
        axes.set_yscale("log")
        axes.set_xticks(range(len(LOSSES)), [f"{loss:.0%}" for loss in LOSSES])


def has_bbr() -> bool:
    """Whether TCP BBR is there."""
    path = pathlib.Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
    try:
        return "bbr" in path.read_text(encoding="utf-8").split()
    except OSError:
        return False


def _mb_per_s(sample: Goodput) -> float:
    return sample.mb_per_s


def _messages_per_s(sample: Goodput) -> float:
    return sample.messages_per_s


def _cpu_s_per_gb(sample: Goodput) -> float:
    return sample.cpu_s_per_gb


def _fairness(sample: Goodput) -> float:
    return sample.fairness


def _retransmits(sample: Goodput) -> float:
    return sample.retransmits


def _p50_us(sample: RoundTrips) -> float:
    return sample.p50_us


def _p99_us(sample: RoundTrips) -> float:
    return sample.p99_us


if __name__ == "__main__":
    main()
