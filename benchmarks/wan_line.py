"""A long line between two network namespaces: delay, jitter, loss, a rate and the queue before it.

Node 0 and node 1 are namespaces with one TUN device each; custom_ops/bench/wan_line stands between
them, for a kernel may lack netem. It counts how long packets from node 1 to node 0 waited in the
queue. TCP's buffers may grow as far as the line needs.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import subprocess
from typing import Any

from benchmarks import namespaces, report

PROGRAM = report.ROOT / "build" / "bench" / "native" / "wan_line"

#: What TCP's windows may grow to.
_TCP_BYTES = 64 << 20

#: A bare Debian has no `sysctl`.
_WRITE = 'echo "$2" > "$1"'


@dataclasses.dataclass(frozen=True)
class Line:
    """What the line does to packets, in either direction.

    Attributes:
        round_trip_ms: without a queue; half of it each way.
        loss: the share of packets that it loses by itself.
        megabits: its rate in Mbit/s, IP headers included.
        queue: what its buffer holds, as a multiple of what the line holds in a round trip.
        jitter_ms: added to the way, uniform; packets overtake each other.
    """

    round_trip_ms: float
    loss: float = 0.0
    megabits: float = 100.0
    queue: float = 2.0
    jitter_ms: float = 0.0

    def command(self) -> str:
        """What the program is told."""
        rate_bytes = self.megabits * 1e6 / 8
        queue_bytes = self.queue * rate_bytes * self.round_trip_ms / 1000
        return (
            f"set delay_ms={self.round_trip_ms / 2} jitter_ms={self.jitter_ms} loss={self.loss} "
            f"rate_bytes={rate_bytes:.0f} queue_bytes={queue_bytes:.0f}"
        )


@dataclasses.dataclass(frozen=True)
class Passed:
    """What went from node 1 to node 0.

    Attributes:
        packets: that found room in the queue.
        dropped: that did not.
        queue_p50_ms: the median of their waits in the queue.
        queue_p99_ms: the 99th percentile.
        late_ms: the most that a packet left after its time, because this machine was busy.
    """

    packets: int
    dropped: int
    queue_p50_ms: float
    queue_p99_ms: float
    late_ms: float


def unavailable() -> str | None:
    """Why there can be no such line here; None = there can."""
    reason = namespaces.unavailable()
    if reason is None and not pathlib.Path("/dev/net/tun").exists():
        return "/dev/net/tun is missing"
    return reason


class LongLine(namespaces.Namespaces):
    """Two nodes and the line between them.

    Args:
        program: custom_ops/bench/wan_line, built with `cmake -DSTROM_BENCH=ON`.

    Raises:
        FileNotFoundError: the program is not built.
        RuntimeError: it ended, or a namespace could not be made.
    """

    def __init__(self, program: pathlib.Path = PROGRAM) -> None:
        if not program.exists():
            raise FileNotFoundError(f"{program} is not built; run: make bench-wan")
        super().__init__("10.78.0", "-wan")
        self._program = program
        self._process: subprocess.Popen[str] | None = None

    def inside(self, node: int) -> list[str]:
        """What a command line starts with to run on the node; all but 0 are node 1."""
        return super().inside(min(node, 1))

    def set(self, line: Line) -> None:
        """Makes the line another one."""
        self._ask(line.command())

    def take(self) -> Passed:
        """What has passed since the last call."""
        answer = self._ask("take")
        return Passed(
            packets=answer["packets"],
            dropped=answer["dropped"],
            queue_p50_ms=answer["queue_p50_us"] / 1000,
            queue_p99_ms=answer["queue_p99_us"] / 1000,
            late_ms=answer["late_us"] / 1000,
        )

    def _build(self) -> None:
        for node in range(2):
            self._add_namespace(node)
        command = [str(self._program), self._name(1), self._name(0)]
        self._process = subprocess.Popen(
            [*command, self.address(1), self.address(0)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._answer()
        for node in range(2):
            for which, begin in (("rmem", 131072), ("wmem", 65536)):
                self._set(node, f"net.ipv4.tcp_{which}=4096 {begin} {_TCP_BYTES}")
            # A later connection must not begin with what an earlier one knew of the line.
            self._set(node, "net.ipv4.tcp_no_metrics_save=1")

    def _set(self, node: int, setting: str) -> None:
        name, value = setting.split("=")
        path = f"/proc/sys/{name.replace('.', '/')}"
        namespaces.run(*self.inside(node), "sh", "-c", _WRITE, "sh", path, value)

    def _ask(self, words: str) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(words + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the line is gone: {process.stderr.read().strip()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _remove(self) -> None:
        if self._process is not None:
            self._process.communicate()  # its input's end is its end
            self._process = None
        super()._remove()
