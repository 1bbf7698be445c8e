"""A job of custom_ops/bench/relay_node processes: a master and workers that submit and poll.

It can be tormented while it runs (a worker stopped, or killed), and `check` says what a relay must
never do: lose, double or reorder an update, or leave replicas that differ.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import namespaces, report
from keras_strom._native.master_node import MERGING

PROGRAM = report.ROOT / "build" / "bench" / "native" / "relay_node"

#: Longest that joining and ending take together, beyond the seconds of training.
_PATIENCE_S = 150.0
_TENTHS_PER_S = 10


@dataclasses.dataclass(frozen=True)
class Load:
    """What every worker does.

    Attributes:
        workers: how many.
        seconds: that they submit for.
        message_bytes: of an update, about.
        updates_per_s: of each worker.
        together: all submit at the same moment, rather than in turn.
        failure_timeout_s: after which a silent peer counts as dead.
        queue_bytes: the cap of a link's queue at the master; None = the default.
        max_children: of any node of a tree; 0 = all workers are under the master.
        merging: as in `NetworkConfig`.
        elements: parameters; updates are shorter where they would not fit.
    """

    workers: int
    seconds: float
    message_bytes: int = 64 << 10
    updates_per_s: float = 20
    together: bool = False
    failure_timeout_s: float = 5
    queue_bytes: int | None = None
    max_children: int = 0
    merging: str = "auto"
    elements: int = 1 << 20


@dataclasses.dataclass(frozen=True)
class MasterSample:
    """The master at one moment.

    Attributes:
        time_s: of the system's monotonic clock.
        status: its counters and state; {} before the first.
        memory_bytes: resident.
        peak_memory_bytes: at its highest so far.
        cpu_s: of the processors so far.
    """

    time_s: float
    status: dict[str, Any]
    memory_bytes: int
    peak_memory_bytes: int
    cpu_s: float

    def queued_bytes(self, rank: int) -> int:
        """What waits for this worker, or is under way to it."""
        for member in self.status["node"]["members"]:
            if member["rank"] == rank:
                return int(member["queued_bytes"])
        return 0

    def relays(self) -> list[int]:
        """Ranks of the workers that pass updates on to others."""
        parents = {member["parent"] for member in self.status["node"]["members"]}
        return sorted(parent for parent in parents if parent >= 0)


@dataclasses.dataclass(frozen=True)
class Flood:
    """What a stranger did (`Job.flood`).

    Attributes:
        begin_s: when its first HELLO with a cookie left, by the system's monotonic clock.
        end_s: when it had sent the last.
        sent: HELLOs.
    """

    begin_s: float
    end_s: float
    sent: int


class Job:
    """The running processes; a context manager that ends what still runs.

    Args:
        load: what the workers do.
        network: None = loopback; otherwise the master is node 0 and worker r node r + 1.
        program: built with `cmake -DSTROM_BENCH=ON`.
    """

    def __init__(
        self,
        load: Load,
        network: namespaces.Network | None = None,
        program: pathlib.Path = PROGRAM,
    ) -> None:
        if not program.exists():
            raise FileNotFoundError(f"{program} is not built; run: make soak (or bench-relay)")
        self.load = load
        self._network = network
        self._program = program
        self._master: subprocess.Popen[str] | None = None
        self._workers: list[subprocess.Popen[str]] = []
        self._port, self._key = 0, ""

    def __enter__(self) -> Job:
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Stops, continues or kills a worker."""
        os.kill(self._workers[rank].pid, number)

    def sample(self) -> MasterSample:
        """Asks the master how it is."""
        assert self._master is not None
        assert self._master.stdin is not None
        self._master.stdin.write("\n")
        self._master.stdin.flush()
        return self._master_sample()

    def flood(self, **keys: float) -> Flood:
        """Somebody without the job's secret floods the master; returns when it has ended.

        Args:
            keys: those of RelayStrangerOptions (custom_ops/bench/relay_stranger.h).
        """
        with self._open("stranger", 0, self._port, {"key": self._key, **keys}) as process:
            assert process.stdout is not None
            process.stdout.readline()  # It has its cookies and begins.
            begin_s = time.monotonic()
            try:
                output, errors = process.communicate(timeout=_PATIENCE_S)
            finally:
                process.kill()
        if process.returncode != 0:
            raise RuntimeError(f"the stranger failed: {errors.strip()}")
        return Flood(begin_s, time.monotonic(), json.loads(output)["sent"])

    def wait_for_training(self) -> None:
        """Returns when updates flow."""
        deadline = time.monotonic() + _PATIENCE_S
        while self.sample().status["node"]["relayed_messages"] == 0:
            if time.monotonic() > deadline:
                raise RuntimeError(f"no update in {_PATIENCE_S:.0f} s; {self._words()}")
            time.sleep(0.02)

    def finish(self) -> tuple[list[dict[str, Any] | None], MasterSample]:
        """Waits for the end; what each worker reported (None = it was killed), and the master."""
        assert self._master is not None
        assert self._master.stdin is not None
        deadline = time.monotonic() + self.load.seconds + _PATIENCE_S
        readers = [_Reader(worker) for worker in self._workers]
        results = [reader.result(deadline) for reader in readers]
        self._master.stdin.close()
        last = self._master_sample()
        self._master.wait(timeout=30)
        return results, last

    def finish_well(self, name: str) -> list[dict[str, Any]]:
        """Waits for the end of a job in which nobody is lost; what each worker reported.

        Raises:
            RuntimeError: something went wrong; it says what, and the job's name.
        """
        results, master = self.finish()
        mistakes = check(results, master)
        if mistakes:
            raise RuntimeError(f"a {name} job: {'; '.join(mistakes)}")
        return [result for result in results if result is not None]

    def _start(self) -> None:
        load = self.load
        keys: dict[str, Any] = {
            "workers": load.workers,
            "max_children": load.max_children,
            "merging": MERGING[load.merging],
            "failure_timeout": load.failure_timeout_s,
        }
        if load.queue_bytes is not None:
            keys["queue_bytes"] = load.queue_bytes
        self._master = self._open("master", 0, 0, keys)
        ready = self._answer()
        self._port, self._key = ready["port"], ready["key"]
        for rank in range(load.workers):
            keys = {
                "key": self._key,
                "rank": rank,
                "size": load.workers,
                "bytes": load.message_bytes,
                "elements": load.elements,
                "rate": load.updates_per_s,
                "seconds": load.seconds,
                "together": int(load.together),
                "failure_timeout": load.failure_timeout_s,
            }
            self._workers.append(self._open("worker", rank + 1, self._port, keys))

    def _open(self, role: str, node: int, port: int, keys: dict[str, Any]) -> subprocess.Popen[str]:
        inside = [] if self._network is None else self._network.inside(node)
        address = "127.0.0.1" if self._network is None else self._network.address(0)
        words = [f"{key}={value}" for key, value in keys.items()]
        return subprocess.Popen(
            [*inside, str(self._program), role, address, str(port), *words],
            stdin=subprocess.PIPE if role == "master" else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _answer(self) -> dict[str, Any]:
        assert self._master is not None
        assert self._master.stdout is not None
        line = self._master.stdout.readline()
        if not line:
            raise RuntimeError(f"the master ended: {self._words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _master_sample(self) -> MasterSample:
        answer = self._answer()
        return MasterSample(
            time_s=answer["time_ns"] / 1e9,
            status=answer["status"],
            memory_bytes=answer["memory_bytes"],
            peak_memory_bytes=answer["peak_memory_bytes"],
            cpu_s=answer["cpu_seconds"],
        )

    def _words(self) -> str:
        """What the processes that have ended said on standard error."""
        self._end()
        ended = [process for process in (self._master, *self._workers) if process is not None]
        texts = [process.stderr.read().strip() for process in ended if process.stderr is not None]
        return "; ".join(text for text in texts if text) or "they said nothing"

    def _end(self) -> None:
        processes = [process for process in (*self._workers, self._master) if process is not None]
        for process in processes:
            if process.poll() is None:
                process.kill()  # a stopped one too
            process.wait()


class _Reader:
    """Reads a worker's output on a thread, so that no worker waits for another one's reader."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._texts = ("", "")
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def result(self, deadline: float) -> dict[str, Any] | None:
        """Its last line; None where it was killed. RuntimeError where it failed or never ended."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            raise RuntimeError("a worker did not come to its end")
        if self._process.returncode == -signal.SIGKILL:
            return None
        output, errors = self._texts
        if self._process.returncode != 0 or not output:
            raise RuntimeError(f"a worker failed: {errors.strip()}")
        result: dict[str, Any] = json.loads(output.splitlines()[-1])
        return result

    def _read(self) -> None:
        self._texts = self._process.communicate()


def check(
    results: Sequence[dict[str, Any] | None], master: MasterSample, lost: Sequence[int] = ()
) -> list[str]:
    """What went wrong; empty when all is well.

    Args:
        results: of `Job.finish`, by rank.
        master: its last sample.
        lost: ranks that were killed or stopped for longer than the failure timeout: they need not
            reach the end, and what they submitted last may be missing everywhere.
    """
    mistakes: list[str] = []
    survivors = [
        result for rank, result in enumerate(results) if result is not None and rank not in lost
    ]
    for rank, result in enumerate(results):
        if rank in lost:
            continue
        if result is None:
            mistakes.append(f"worker {rank} was killed by somebody else")
        elif result["failure"]:
            mistakes.append(f"worker {rank} failed: {result['failure']}")
    for result in survivors:
        name = f"worker {result['rank']}"
        if result["out_of_order"]:
            mistakes.append(f"{name} got {result['out_of_order']} updates out of their order")
        if result["difference"] != 0:
            mistakes.append(f"{name}'s replica differs from the master's by {result['difference']}")
        if result["received"] != master.status["node"]["received"]:
            mistakes.append(f"{name} ends with other updates than the master")
        if result["received"].get(str(result["origin"])) != result["submitted"]:
            mistakes.append(f"{name} submitted {result['submitted']} updates; others are counted")
    if len({result["hash"] for result in survivors}) > 1:
        mistakes.append("replicas differ")
    if not survivors:
        mistakes.append("nobody came to the end")
    return mistakes


def received_between(result: dict[str, Any], begin_s: float, end_s: float) -> float:
    """Updates a second that a worker polled in whole tenths of a second of this time."""
    first = int(begin_s * _TENTHS_PER_S) + 1
    last = int(end_s * _TENTHS_PER_S)
    tenths = result["received_by_tenth"]
    start = result["first_tenth"]
    inside: list[int] = tenths[max(0, first - start) : max(0, last - start)]
    return sum(inside) * _TENTHS_PER_S / max(1, last - first)
