"""Runs custom_ops/bench/relay_peer, one process for each end, and reads what the ends measured."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import statistics
import subprocess
from collections.abc import Sequence
from typing import Any

from benchmarks import report
from benchmarks.namespaces import Namespaces

PROGRAM = report.ROOT / "build" / "bench" / "native" / "relay_peer"

#: Longest that a process may take beyond what it was asked to measure.
_PATIENCE_S = 30.0


@dataclasses.dataclass(frozen=True)
class Transport:
    """What carries the messages.

    Attributes:
        label: its name in the tables.
        kind: "relay", "shared_memory", "tcp" or "tls".
        congestion: TCP's algorithm; "" = the system's.
        gather_bytes: messages wait in TCP's sender until they are so long together; 0 = each goes
            out by itself, in one call of `send`.
    """

    label: str
    kind: str
    congestion: str = ""
    gather_bytes: int = 0


RELAY = Transport("relay", "relay")
SHARED_MEMORY = Transport("relay, shared memory", "shared_memory")
TCP = Transport("TCP CUBIC", "tcp", "cubic")
BBR = Transport("TCP BBR", "tcp", "bbr")
TCP_GATHERED = Transport("TCP CUBIC, 64 KB a send", "tcp", "cubic", gather_bytes=64 << 10)
TLS = Transport("TCP + TLS 1.3", "tls", "cubic")


@dataclasses.dataclass(frozen=True)
class Goodput:
    """What a receiver got, and what it cost.

    Attributes:
        mb_per_s: millions of bytes of whole messages a second.
        messages_per_s: whole messages.
        cpu_s_per_gb: seconds of the processors, all ends together, for 1e9 bytes.
        fairness: Jain's index over the senders; 1 = all got the same.
        retransmits: of the packets that the senders sent, the share that had been sent before.
    """

    mb_per_s: float
    messages_per_s: float
    cpu_s_per_gb: float
    fairness: float
    retransmits: float


@dataclasses.dataclass(frozen=True)
class RoundTrips:
    """Times from asking to having the answer, in microseconds."""

    p50_us: float
    p99_us: float
    count: int


def fairness(rates: Sequence[float]) -> float:
    """Jain's index: 1 when all rates are equal, 1/n when one of n has everything."""
    squares = sum(rate * rate for rate in rates)
    return sum(rates) ** 2 / (len(rates) * squares) if squares else 0.0


class Peers:
    """Starts both ends on loopback, or on the nodes of a network (the receiver is node 0).

    Args:
        network: None = loopback.
        program: built with `cmake -DSTROM_BENCH=ON`.
    """

    def __init__(self, network: Namespaces | None = None, program: pathlib.Path = PROGRAM) -> None:
        if not program.exists():
            raise FileNotFoundError(f"{program} is not built; run: make bench-relay")
        self._network = network
        self._program = program

    def describe(self) -> dict[str, Any]:
        """The program's compiler, flags and OpenSSL version."""
        answer = subprocess.run(
            [str(self._program), "describe"], capture_output=True, text=True, check=True
        )
        description: dict[str, Any] = json.loads(answer.stdout)
        return description

    def goodput(
        self,
        transport: Transport,
        message_bytes: int,
        *,
        seconds: float,
        warm_up: float,
        senders: int = 1,
    ) -> Goodput:
        """Messages one way, as fast as they go.

        Raises:
            RuntimeError: one of the processes failed, or took far longer than it should.
        """
        patience = warm_up + seconds + _PATIENCE_S
        ends = _Ends(patience)
        with ends:
            port = ends.listen(
                self._command(
                    "receive", transport, 0, 0, senders=senders, warm_up=warm_up, seconds=seconds
                )
            )
            for sender in range(senders):
                ends.start(self._command("send", transport, sender + 1, port, bytes=message_bytes))
            received, *sent = ends.results()
        arrivals = received["arrivals"]
        rates = [messages / arrivals["seconds"] for messages in arrivals["messages"]]
        cpu_seconds = arrivals["cpu_seconds"] + sum(result["cpu_seconds"] for result in sent)
        gigabytes = max(1, arrivals["total_messages"]) * message_bytes / 1e9
        return Goodput(
            mb_per_s=sum(rates) * message_bytes / 1e6,
            messages_per_s=sum(rates),
            cpu_s_per_gb=cpu_seconds / gigabytes,
            fairness=fairness(rates),
            retransmits=_retransmits([result["counters"] for result in sent]),
        )

    def round_trips(
        self, transport: Transport, message_bytes: int, *, count: int, seconds: float
    ) -> RoundTrips:
        """Messages to and fro, one at a time, `count` times or until `seconds` have passed.

        Raises:
            RuntimeError: as `goodput`.
        """
        ends = _Ends(seconds + _PATIENCE_S)
        with ends:
            port = ends.listen(self._command("echo", transport, 0, 0))
            ends.start(
                self._command(
                    "ask",
                    transport,
                    1,
                    port,
                    bytes=message_bytes,
                    round_trips=count,
                    seconds=seconds,
                )
            )
            # A TCP end that only echoes may wait long for a goodbye that the line has lost.
            result = ends.last_result()
        times = result["round_trips_us"]
        if len(times) < 2:  # TCP on a line that loses much: the next one takes the rest at least.
            times = [*times, *[1e6 * seconds] * 2]
        percentiles = statistics.quantiles(times, n=100, method="inclusive")
        return RoundTrips(p50_us=percentiles[49], p99_us=percentiles[98], count=len(times))

    def _command(
        self, role: str, transport: Transport, node: int, port: int, **keys: float
    ) -> list[str]:
        words = [*([] if self._network is None else self._network.inside(node))]
        address = "127.0.0.1" if self._network is None else self._network.address(0)
        words += [str(self._program), role, transport.kind, address, str(port)]
        if transport.congestion:
            words.append(f"congestion={transport.congestion}")
        if transport.gather_bytes:
            words.append(f"gather_bytes={transport.gather_bytes}")
        return words + [f"{key}={value}" for key, value in keys.items()]


class _Ends:
    """The processes of one measurement; leaving the context ends what still runs."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._processes: list[subprocess.Popen[str]] = []
        self._commands: list[str] = []

    def __enter__(self) -> _Ends:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def start(self, command: Sequence[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._processes.append(process)
        self._commands.append(" ".join(command))
        return process

    def listen(self, command: Sequence[str]) -> int:
        """Starts the end that listens; returns its port once it can be reached."""
        process = self.start(command)
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(command)}: {process.stderr.read().strip()}")
        port: int = json.loads(line)["port"]
        return port

    def results(self) -> list[dict[str, Any]]:
        """What each process printed last, in the order of their starts; {} for one that did not."""
        # Senders first: a receiver whose senders failed would wait for ever.
        texts = [self._finish(number) for number in reversed(range(len(self._processes)))]
        return [json.loads(text.splitlines()[-1]) if text else {} for text in reversed(texts)]

    def last_result(self) -> dict[str, Any]:
        """What the process that was started last printed last."""
        result: dict[str, Any] = json.loads(self._finish(-1).splitlines()[-1])
        return result

    def _finish(self, number: int) -> str:
        process = self._processes[number]
        try:
            output, errors = process.communicate(timeout=self._patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
            errors += f"no end after {self._patience_s:.0f} s"
        if process.returncode != 0:
            raise RuntimeError(f"{self._commands[number]}: {errors.strip()}")
        return output


def _retransmits(counters: Sequence[dict[str, int]]) -> float:
    again = sum(c.get("retransmitted_packets", c.get("retransmits", 0)) for c in counters)
    packets = sum(c.get("datagrams_sent", c.get("segments", 0)) for c in counters)
    return again / packets if packets else 0.0
