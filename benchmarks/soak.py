"""`make soak`: jobs of real processes on bad networks, whose nodes are stopped and killed.

Every job has a master and workers in network namespaces of their own. The workers submit updates
through the agents that training uses; at the end every node that was not lost must hold the same
updates, each once and in its origin's order, and the same parameters bit by bit. What went wrong is
listed, and then the exit status is 1. The table tells what the relay gave meanwhile: goodput, the
time from a submit to the poll that gave the update to a worker, processors and memory.

After the jobs the simulator runs more seeds of every kind of job than the tests have time for, and
two long jobs in which memory has to stay flat: thousands of workers are replaced, and a week of
virtual time passes.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Literal

from matplotlib.axes import Axes

from benchmarks import namespaces, pictures, relay_job, report
from benchmarks.other_work import OtherWork
from benchmarks.relay_job import Job, Load, MasterSample

#: Programs that the tests of native code are built with.
PROGRAMS = report.ROOT / "build" / "native"

#: The tests run the seeds before.
FIRST_SEED = 1000
#: In which seeds of the simulator begin.
SIMULATOR_SECONDS = 180.0

#: Of the simulator: how many workers are replaced in one, and the hours of the other.
LONG_JOBS = ("rejoins:10000", "hours:168")

Torment = Literal["", "pause", "kill"]


@dataclasses.dataclass(frozen=True)
class Scenario:
    """One job.

    Attributes:
        name: of its row.
        workers: how many.
        megabits: of every node's line.
        loss: the share of packets that every node loses.
        buffer_bytes: of the switch, for each node.
        updates_per_s: of each worker, 64 KB each.
        together: all workers submit at the same moment.
        max_children: of a node of a tree; 0 = all workers are under the master.
        torment: what one worker suffers after a third of the time: it is killed, or stopped for
            `pause_s`, again and again where it survives that. In a tree it is one that relays.
        pause_s: more than the failure timeout = it is lost.
        failure_timeout_s: after which a silent node counts as dead.
    """

    name: str
    workers: int = 4
    megabits: float = 1000
    loss: float = 0
    buffer_bytes: int = 512 << 10
    updates_per_s: float = 40
    together: bool = False
    max_children: int = 0
    torment: Torment = ""
    pause_s: float = 0
    failure_timeout_s: float = 5

    @property
    def loses_one(self) -> bool:
        """Whether the tormented worker does not come to the end."""
        return self.torment == "kill" or self.pause_s > self.failure_timeout_s


SCENARIOS = (
    Scenario("4 workers, 1 Gbit/s"),
    Scenario("4 workers, 1 Gbit/s, 1 % loss", loss=0.01),
    Scenario("4 workers, 1 Gbit/s, 5 % loss", loss=0.05),
    Scenario(
        "6 workers, 100 Mbit/s, 1 % loss", workers=6, megabits=100, loss=0.01, updates_per_s=16
    ),
    Scenario(
        "8 workers at once, 128 KB of buffer",
        workers=8,
        buffer_bytes=128 << 10,
        updates_per_s=20,
        together=True,
    ),
    Scenario("one of 4 stopped for 2 s again and again", torment="pause", pause_s=2),
    Scenario(
        "one of 4 stopped for 8 s, 1 % loss",
        loss=0.01,
        torment="pause",
        pause_s=8,
    ),
    Scenario("one of 4 killed, 1 % loss", loss=0.01, torment="kill"),
    Scenario(
        "11 workers, one killed, 1 % loss",
        workers=11,
        loss=0.01,
        updates_per_s=10,
        torment="kill",
    ),
    Scenario(
        "9 workers in a tree of 2 children, a relay killed, 1 % loss",
        workers=9,
        loss=0.01,
        updates_per_s=10,
        max_children=2,
        torment="kill",
    ),
)

QUICK_SCENARIOS = (
    Scenario("3 workers, one stopped", workers=3, torment="pause", pause_s=0.3),
    Scenario("3 workers, one killed", workers=3, torment="kill", failure_timeout_s=1),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs every job and the simulator, and shows the report; ends with 1 where anything broke."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=40, help="that each job submits for")
    parser.add_argument(
        "--simulator-seeds", type=int, default=1000, metavar="N", help="at most; 0: no simulator"
    )
    parser.add_argument(
        "--simulator-seconds",
        type=float,
        default=SIMULATOR_SECONDS,
        metavar="N",
        help="that seeds of the simulator begin in (%(default)g)",
    )
    parser.add_argument("--quick", action="store_true", help="seconds, on loopback")
    parser.add_argument("--programs", type=pathlib.Path, default=PROGRAMS, help="their folder")
    parser.add_argument("--output", type=pathlib.Path, default=report.OUTPUT)
    chosen = parser.parse_args(arguments)
    if not chosen.simulator_seconds > 0:  # The simulator takes it for no limit at all.
        parser.error(f"--simulator-seconds={chosen.simulator_seconds}: more than 0")
    reason = None if chosen.quick else namespaces.unavailable()
    if reason is not None:
        sys.exit(f"soak: {reason}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces are taken down
    title = "The relay under torment"
    result = report.Report("soak", title, chosen.output, quick=chosen.quick)
    others = OtherWork()
    soak = Soak(result, chosen.programs, 1.0 if chosen.quick else chosen.seconds)
    for scenario in QUICK_SCENARIOS if chosen.quick else SCENARIOS:
        soak.run(scenario, on_loopback=chosen.quick)
    if chosen.simulator_seeds > 0:
        soak.simulate(chosen.simulator_seeds, chosen.simulator_seconds)
        for long_job in LONG_JOBS:
            soak.simulate_long(long_job)
    soak.draw(chosen.output)
    others.add_row(result)
    result.finish()
    if soak.mistakes:
        sys.exit("\n".join(["soak: what must never happen:", *soak.mistakes]))


@dataclasses.dataclass(frozen=True)
class _End:
    """How a job ended; `victim` is the tormented worker's rank, -1 = none."""

    victim: int
    results: Sequence[dict[str, Any] | None]
    master: MasterSample


class Soak:
    """Runs scenarios and gathers their rows.

    Args:
        result: gets the rows.
        programs: the folder of relay_node and simulator.
        seconds: that each job submits for.
    """

    def __init__(self, result: report.Report, programs: pathlib.Path, seconds: float) -> None:
        self.mistakes: list[str] = []
        self._report = result
        self._programs = programs
        self._seconds = seconds
        self._latencies: list[tuple[str, float, float]] = []

    def run(self, scenario: Scenario, *, on_loopback: bool = False) -> None:
        """One job from the join to the verification."""
        load = Load(
            workers=scenario.workers,
            seconds=self._seconds + scenario.pause_s,
            updates_per_s=scenario.updates_per_s,
            together=scenario.together,
            failure_timeout_s=scenario.failure_timeout_s,
            max_children=scenario.max_children,
        )
        try:
            end = self._run_job(scenario, load, on_loopback)
        except RuntimeError as error:
            self._note(scenario.name, [str(error)])
            return
        lost = [end.victim] if scenario.loses_one else []
        mistakes = relay_job.check(end.results, end.master, lost)
        self._note(scenario.name, mistakes)
        self._add(scenario, load, end, mistakes)

    def simulate(self, seeds: int, seconds: float) -> None:
        """The simulator's seeds after those of the tests, as many as begin in so many seconds.

        Each seed is of every kind of job, on both kinds of links, so that none is left out.
        """
        last = FIRST_SEED + seeds - 1
        chosen = ("--seeds", f"{FIRST_SEED}-{last}", "--jobs", "all", "--seconds", f"{seconds:g}")
        lines = self._simulator(*chosen)
        name = f"every kind of job, seeds from {FIRST_SEED}"
        self._report.row(name, group="Simulator", result=lines[-1])

    def simulate_long(self, job: str) -> None:
        """A long job of the simulator: what nodes held at its beginning, and at its end."""
        lines = self._simulator("--long", job)
        self._report.row(job, group="Simulator", result="; ".join(lines))

    def _simulator(self, *arguments: str) -> list[str]:
        done = subprocess.run(
            [str(self._programs / "simulator"), *arguments], capture_output=True, text=True
        )
        lines = (done.stdout + done.stderr).strip().splitlines() or ["it said nothing"]
        if done.returncode != 0:
            self._note("simulator", lines)
        return lines

    def _run_job(self, scenario: Scenario, load: Load, on_loopback: bool) -> _End:
        program = self._programs / "relay_node"
        if on_loopback:
            with Job(load, program=program) as job:
                return self._torment(scenario, job)
        with (
            namespaces.Network(
                scenario.workers + 1,
                megabits=scenario.megabits,
                buffer_bytes=scenario.buffer_bytes,
                loss=scenario.loss,
            ) as network,
            Job(load, network, program) as job,
        ):
            return self._torment(scenario, job)

    def _note(self, where: str, mistakes: Sequence[str]) -> None:
        for mistake in mistakes:
            self.mistakes.append(f"{where}: {mistake}")
            self._report.row(
                str(len(self.mistakes)), group="What must never happen", where=where, what=mistake
            )

    def _torment(self, scenario: Scenario, job: Job) -> _End:
        victim = -1
        if scenario.torment:
            job.wait_for_training()
            time.sleep(self._seconds / 3)
            relays = job.sample().relays()
            victim = relays[0] if relays else scenario.workers - 1
        if scenario.torment == "kill":
            job.signal(victim, signal.SIGKILL)
        elif scenario.torment == "pause":
            times = 1 if scenario.loses_one else int(self._seconds / 3 / (2 * scenario.pause_s))
            for number in range(max(1, times)):
                time.sleep(scenario.pause_s if number else 0)
                job.signal(victim, signal.SIGSTOP)
                time.sleep(scenario.pause_s)
                job.signal(victim, signal.SIGCONT)
        results, master = job.finish()
        return _End(victim, results, master)

    def _add(
        self,
        scenario: Scenario,
        load: Load,
        end: _End,
        mistakes: Sequence[str],
    ) -> None:
        """The rows: the worst worker's figures, the tormented one's aside."""
        everybody = [result for result in end.results if result is not None]
        workers = [
            result for result in everybody if result["rank"] != end.victim and result["latency_us"]
        ]
        p50, p99, worst = (
            max((worker["latency_us"][which] / 1000 for worker in workers), default=0.0)
            for which in range(3)
        )
        self._latencies.append((scenario.name, p50, p99))
        self._report.row(
            scenario.name,
            group="Updates of 64 KB: from a submit to the poll that gave it to another worker",
            updates=sum(worker["submitted"] for worker in everybody),
            mb_per_s=min(
                (worker["bytes_received"] / 1e6 / load.seconds for worker in workers), default=0.0
            ),
            p50_ms=p50,
            p99_ms=p99,
            longest_ms=worst,
            mistakes=len(mistakes),
        )
        counters = end.master.status["counters"]
        processors = [worker["cpu_seconds"] / load.seconds for worker in everybody]
        memory = [worker["peak_memory_bytes"] / 1e6 for worker in everybody]
        self._report.row(
            scenario.name,
            group="Its cost: shares of one processor, memory, packets sent again by the master",
            worker_cpu=statistics.mean(processors) if processors else 0.0,
            master_cpu=end.master.cpu_s / load.seconds,
            worker_mb=max(memory, default=0.0),
            master_mb=end.master.peak_memory_bytes / 1e6,
            retransmits=counters["retransmitted_packets"] / max(1, counters["datagrams_sent"]),
        )

    # -------------------------------------------------------------- the picture

    def draw(self, output: pathlib.Path) -> None:
        """Latency of each job, in build/bench/soak.png."""
        figure, (axes,) = pictures.picture(width=10, height=0.55 * len(self._latencies) + 1.4)
        self._draw_latencies(axes)
        pictures.save(figure, self._report.name, output)

    def _draw_latencies(self, axes: Axes) -> None:
        pictures.caption(
            axes, "From a submit to another worker's poll: median and 99th percentile", "ms", ""
        )
        for place, (_, p50, p99) in enumerate(reversed(self._latencies)):
            axes.barh(place, p99, 0.7, color=pictures.BLUE, alpha=0.35)
            axes.barh(place, p50, 0.7, color=pictures.BLUE)
            pictures.label(axes, p99, place, f"{p50:.1f} / {p99:.1f}", pictures.BLUE)
        names = [name for name, _, _ in reversed(self._latencies)]
        axes.set_yticks(range(len(names)), names)
        axes.set_xscale("log")


if __name__ == "__main__":
    main()
