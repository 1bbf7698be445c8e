"""`make bench-wan`: the relay on long lines, beside TCP CUBIC and BBR in the same run.

The targets are those of docs/benchmarks.md, by the same names. Two processes for each measurement
(benchmarks/relay_peers.py) in two network namespaces, and the line between them
(benchmarks/wan_line.py): 100 Mbit/s, a queue of two round trips, loss in both directions. Where the
kernel lacks BBR what is compared with it is skipped. Where ngtcp2 is, QUIC stands beside them, for
the look of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import pathlib
import signal
import statistics
import sys
import threading
from collections.abc import Callable, Sequence

from benchmarks import pictures, quic_peers, report, wan_line
from benchmarks.other_work import OtherWork
from benchmarks.quic_peers import QUIC, QuicPeers
from benchmarks.relay import has_bbr
from benchmarks.relay_peers import BBR, PROGRAM, RELAY, TCP, Goodput, Peers, Transport
from benchmarks.wan_line import Line, LongLine, Passed

#: The line of each target that asks for a share of TCP BBR's goodput.
LINES = {
    "wan_20ms": Line(20, 0.001),
    "wan_100ms_loss0": Line(100),
    "wan_100ms_loss01": Line(100, 0.001),
    "wan_100ms_loss1": Line(100, 0.01),
    "wan_200ms_loss1": Line(200, 0.01),
}
#: ... and of those that ask for a fair share: the bounds on either side of a half.
FAIR_LINE = Line(40)
LEAST_SHARE, MOST_SHARE = 0.35, 0.65
#: A queue that could grow long.
QUEUE_LINE = Line(100, queue=8)

#: Every target there is.
TARGETS = {*LINES, "wan_fair_bbr", "wan_fair_cubic", "wan_queue_ms"}

MESSAGE_BYTES = 64 << 10

_COLORS = {
    RELAY: pictures.BLUE,
    TCP: pictures.VERMILION,
    BBR: pictures.ORANGE,
    QUIC: pictures.GREEN,
}


@dataclasses.dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
        rounds: of every comparison.
        warm_up_s: before the seconds that count; a common line takes three times as long.
        seconds: those that count; on a common line twice as many.
    """

    rounds: int = 3
    warm_up_s: float = 5.0
    seconds: float = 8.0


QUICK = Effort(rounds=1, warm_up_s=0.6, seconds=0.4)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures everything and shows the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=Effort.rounds)
    parser.add_argument("--quick", action="store_true", help="a look: every line for a second")
    parser.add_argument("--program", type=pathlib.Path, default=PROGRAM, help="relay_peer")
    parser.add_argument("--output", type=pathlib.Path, default=report.OUTPUT)
    chosen = parser.parse_args(arguments)
    effort = QUICK if chosen.quick else Effort(rounds=chosen.rounds)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces are taken down
    result = report.Report("wan", "Long lines", chosen.output, quick=chosen.quick)
    reason = wan_line.unavailable()
    if reason is not None:
        result.skip_all(TARGETS, reason)
        result.finish()
        return
    others = OtherWork()
    with LongLine(chosen.program.with_name("wan_line")) as line:
        bench = WanBench(result, effort, line, Peers(line, chosen.program))
        bench.alone()
        bench.queue()
        bench.common()
    bench.draw(chosen.output)
    others.add_row(result)
    result.finish()


class WanBench:
    """The parts of the benchmark; each adds its rows and targets to the report."""

    def __init__(self, result: report.Report, effort: Effort, line: LongLine, peers: Peers) -> None:
        self._report = result
        self._effort = effort
        self._line = line
        self._peers = peers
        self._quic = QuicPeers(line)
        self._transports = [RELAY, TCP] + ([BBR] if has_bbr() else [])
        self._goodputs: dict[Transport, list[float]] = {}

    def alone(self) -> None:
        """One sender on each line, over each transport in turn."""
        reason = quic_peers.unavailable()
        if reason is not None:
            self._report.skip(QUIC.label, reason)
        transports = [*self._transports, *([QUIC] if reason is None else [])]
        for name, line in LINES.items():
            self._line.set(line)
            samples = self._rounds(self._goodput, transports)
            for transport, goodputs in samples.items():
                megabits = statistics.median(_megabits(sample) for sample, _ in goodputs)
                self._goodputs.setdefault(transport, []).append(megabits)
                self._report.row(
                    f"{_name(line)}, {transport.label}",
                    group="100 Mbit/s, a queue of two round trips, one sender",
                    mbit_per_s=megabits,
                    retransmits=_retransmits([one for one, _ in goodputs]),
                    queue_p50_ms=statistics.median(passed.queue_p50_ms for _, passed in goodputs),
                    line_late_ms=max(passed.late_ms for _, passed in goodputs),
                )
            if BBR not in samples:
                self._report.skip(name, "the kernel has no BBR")
                continue
            ratios = [
                _megabits(own) / max(_megabits(other), 1e-9)
                for (own, _), (other, _) in zip(samples[RELAY], samples[BBR], strict=True)
            ]
            self._report.target(name, statistics.median(ratios), goal=0.95)

    def queue(self) -> None:
        """How long the queue gets where the buffer would hold eight round trips."""
        line = QUEUE_LINE
        self._line.set(line)
        samples = self._rounds(self._goodput, self._transports)
        for transport, goodputs in samples.items():
            self._report.row(
                transport.label,
                group="100 Mbit/s, 100 ms, a buffer of eight round trips, after the start",
                mbit_per_s=statistics.median(_megabits(sample) for sample, _ in goodputs),
                queue_p50_ms=statistics.median(passed.queue_p50_ms for _, passed in goodputs),
                queue_p99_ms=statistics.median(passed.queue_p99_ms for _, passed in goodputs),
            )
        waits = statistics.median(passed.queue_p99_ms for _, passed in samples[RELAY])
        value = waits / line.round_trip_ms
        self._report.target("wan_queue_ms", value, goal=1.5, better="lower")

    def common(self) -> None:
        """Two senders at once on one line, the relay and TCP."""
        self._line.set(FAIR_LINE)
        for name, rival in (("wan_fair_bbr", BBR), ("wan_fair_cubic", TCP)):
            if rival not in self._transports:
                self._report.skip(name, "the kernel has no BBR")
                continue
            pairs = [self._beside(rival) for _ in range(self._effort.rounds)]
            shares = [own / max(own + other, 1e-9) for own, other in pairs]
            share = statistics.median(shares)
            self._report.row(
                f"relay and {rival.label}",
                group="100 Mbit/s, 40 ms, a queue of two round trips, two senders",
                relay_mbit_per_s=statistics.median(own for own, _ in pairs),
                tcp_mbit_per_s=statistics.median(other for _, other in pairs),
                share=share,
                least_share=min(shares),
                most_share=max(shares),
            )
            # A share of too much misses the target as one of too little does.
            nearest = min(share, LEAST_SHARE + MOST_SHARE - share)
            self._report.target(name, nearest, goal=LEAST_SHARE)

    def draw(self, output: pathlib.Path) -> None:
        """Goodput by line, in build/bench/wan.png."""
        figure, (axes,) = pictures.picture(width=9)
        pictures.caption(axes, "One sender on a line of 100 Mbit/s", "round trip, loss", "Mbit/s")
        places = range(len(LINES))
        for transport, goodputs in self._goodputs.items():
            axes.plot(places, goodputs, color=_COLORS[transport], marker="o", linewidth=2)
        axes.set_xticks(places, [_name(line) for line in LINES.values()])
        axes.set_ylim(0, 100)
        ends = {
            transport.label: (goodputs[-1], _COLORS[transport])
            for transport, goodputs in self._goodputs.items()
        }
        pictures.labels(axes, places[-1], ends)
        pictures.save(figure, self._report.name, output)

    # -------------------------------------------------------------- measuring

    def _rounds(
        self,
        measure: Callable[[Transport], tuple[Goodput, Passed]],
        transports: Sequence[Transport],
    ) -> dict[Transport, list[tuple[Goodput, Passed]]]:
        samples: dict[Transport, list[tuple[Goodput, Passed]]] = {
            transport: [] for transport in transports
        }

        def run(transport: Transport) -> None:
            samples[transport].append(measure(transport))

        variants = {one.label: functools.partial(run, one) for one in transports}
        report.interleave(variants, rounds=self._effort.rounds, warm_ups=0)
        return samples

    def _goodput(self, transport: Transport) -> tuple[Goodput, Passed]:
        # What waited during the start is taken away in the midst of the measurement.
        start = threading.Timer(self._effort.warm_up_s, self._line.take)
        start.start()
        seconds, warm_up = self._effort.seconds, self._effort.warm_up_s
        if transport == QUIC:
            goodput = self._quic.goodput(seconds=seconds, warm_up=warm_up)
        else:
            goodput = self._peers.goodput(
                transport, MESSAGE_BYTES, seconds=seconds, warm_up=warm_up
            )
        start.join()
        return goodput, self._line.take()

    def _beside(self, rival: Transport) -> tuple[float, float]:
        """Mbit/s of the relay and of TCP, which begin together."""
        found: dict[Transport, float] = {}

        def measure(transport: Transport) -> None:
            goodput = self._peers.goodput(
                transport,
                MESSAGE_BYTES,
                seconds=2 * self._effort.seconds,
                warm_up=3 * self._effort.warm_up_s,
            )
            found[transport] = _megabits(goodput)

        threads = [threading.Thread(target=measure, args=(one,)) for one in (RELAY, rival)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if len(found) < len(threads):
            raise RuntimeError(f"the relay beside {rival.label}: one of them failed, see above")
        return found[RELAY], found[rival]


def _retransmits(samples: Sequence[Goodput]) -> float | None:
    """The median share; None where the transport does not tell."""
    known = [sample.retransmits for sample in samples if not math.isnan(sample.retransmits)]
    return statistics.median(known) if known else None


def _megabits(sample: Goodput) -> float:
    return sample.mb_per_s * 8


def _name(line: Line) -> str:
    return f"{line.round_trip_ms:g} ms, {100 * line.loss:g} %"


if __name__ == "__main__":
    main()
