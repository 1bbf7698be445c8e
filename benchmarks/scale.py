"""`make bench-scale`: what one link of a job costs, by the number of workers.

Real nodes and the real codec in virtual time (custom_ops/sim/main/scale.cc): however many workers
there are, all of them together send equally many entries a round, merged on their way or each
update by itself. Some die in the middle. Beside it 64 real processes on the loopback.

A link's cost is the bytes of updates that pass it in a round, both ways, in the mean of those below
the master, from the first update until all have everything. The targets are those of
docs/benchmarks.md, by the same names.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import pictures, relay_job, report
from benchmarks.other_work import OtherWork

PROGRAM = report.ROOT / "build" / "bench" / "native" / "scale"

#: What every cost is compared with, of a job that is otherwise alike.
FEW = 64
ROUNDS = 30
TARGETS = {"link_cost_1024": 1024, "link_cost_32768": 32768}
GOAL = 1.05
#: One worker of so many dies; of those that die every second one has children.
WORKERS_PER_DEATH = 32
#: Of the whole benchmark: what has not ended by then is not measured.
LIMIT_S = 600.0
REAL_WORKERS = 64
_REAL_RATE = 10.0
#: Of the picture's lines.
_COLORS = (pictures.BLUE, pictures.SKY, pictures.GREEN, pictures.VERMILION, pictures.ORANGE)


@dataclasses.dataclass(frozen=True)
class Case:
    """One simulated job.

    Attributes:
        workers: how many.
        merging: whether updates are merged on their way.
        dies: whether one in `WORKERS_PER_DEATH` does.
        rounds: how many steps long updates are made.
        seed: of everything that is drawn.
        values: how many neighbouring thresholds the workers have.
    """

    workers: int
    merging: bool = True
    dies: bool = True
    rounds: int = ROUNDS
    seed: int = 1
    values: int = 1

    @property
    def name(self) -> str:
        """For tables."""
        words = [f"{self.workers} workers", self.kind_name]
        if self.seed > 1:
            words.append(f"seed {self.seed}")
        return ", ".join(words)

    @property
    def kind_name(self) -> str:
        """Of `kind`, for people."""
        words = ["merged" if self.merging else "each by itself"]
        if self.values > 1:
            words.append(f"{self.values} thresholds")
        if not self.dies:
            words.append("nobody dies")
        if self.rounds != ROUNDS:
            words.append(f"{self.rounds} rounds")
        return ", ".join(words)

    @property
    def kind(self) -> tuple[object, ...]:
        """Of jobs of one kind only the number of workers and the seed differ."""
        return self.merging, self.dies, self.rounds, self.values

    def command(self, program: pathlib.Path) -> list[str]:
        """Runs it."""
        keys = {
            "workers": self.workers,
            "merging": int(self.merging),
            "deaths": self.workers // WORKERS_PER_DEATH if self.dies else 0,
            "rounds": self.rounds,
            "seed": self.seed,
            "values": self.values,
        }
        return [str(program), *(f"{key}={value}" for key, value in keys.items())]


@dataclasses.dataclass(frozen=True)
class Effort:
    """What is measured.

    Attributes:
        cases: the simulated jobs, the longest first.
        real_workers: processes of the real job.
        real_seconds: that they make updates for.
    """

    cases: tuple[Case, ...]
    real_workers: int = REAL_WORKERS
    real_seconds: float = 8

    @classmethod
    def whole(cls, most_workers: int) -> Effort:
        """Everything up to so many workers."""
        few = [Case(FEW, seed=seed) for seed in (1, 2, 3)]
        calm = [Case(workers, dies=False) for workers in (1024, 256, FEW)]
        alone = [Case(workers, merging=False) for workers in (256, FEW)]
        thresholds = [Case(workers, values=3, dies=False) for workers in (256, FEW)]
        large = [Case(4096, rounds=6, dies=False), *(Case(1024, seed=seed) for seed in (1, 2, 3))]
        short = Case(FEW, rounds=6, dies=False)
        cases = [*large, *calm, Case(256), *alone, *thresholds, *few, short]
        return cls(tuple(case for case in cases if case.workers <= most_workers))


QUICK = Effort(
    (
        Case(256, rounds=16),
        *(Case(FEW, rounds=16, seed=seed) for seed in (1, 2)),
        Case(FEW, rounds=16, merging=False),
    ),
    real_workers=16,
    real_seconds=2,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures everything and shows the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="up to 256 workers, half a minute")
    parser.add_argument("--most", type=int, default=4096, help="no more workers than these")
    parser.add_argument("--program", type=pathlib.Path, default=PROGRAM, help="scale")
    parser.add_argument("--output", type=pathlib.Path, default=report.OUTPUT)
    chosen = parser.parse_args(arguments)
    if chosen.most < FEW:
        parser.error(f"--most: {FEW} or more")
    if not chosen.program.exists():
        raise FileNotFoundError(f"{chosen.program} is not built; run: make bench-scale")
    effort = QUICK if chosen.quick else Effort.whole(chosen.most)
    result = report.Report("scale", "Many workers", chosen.output, quick=chosen.quick)
    others = OtherWork()
    add_real(result, effort, chosen.program.with_name("relay_node"))
    found = run_all(effort.cases, chosen.program, time.monotonic() + LIMIT_S)
    add(result, effort.cases, found)
    draw(found, result.name, chosen.output)
    others.add_row(result)
    result.finish()


# ------------------------------------------------------------------ in virtual time


def run_all(
    cases: Sequence[Case], program: pathlib.Path, deadline_s: float
) -> dict[Case, dict[str, Any]]:
    """What the program says of each, as many at a time as there are processors.

    Virtual time does not depend on how many run beside each other. What has not ended at the
    deadline is left out.

    Raises:
        RuntimeError: a promise was broken; it says which.
    """
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        answers = pool.map(lambda case: _run(case, program, deadline_s), cases)
        return {
            case: answer for case, answer in zip(cases, answers, strict=True) if answer is not None
        }


def _run(case: Case, program: pathlib.Path, deadline_s: float) -> dict[str, Any] | None:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        return None
    try:
        done = subprocess.run(case.command(program), capture_output=True, text=True, timeout=left_s)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode not in (0, 1) or not done.stdout:
        raise RuntimeError(f"{case.name}: exit status {done.returncode}: {done.stderr.strip()}")
    answer: dict[str, Any] = json.loads(done.stdout)
    if answer["violations"]:
        raise RuntimeError(f"{case.name}, seed {case.seed}: {'; '.join(answer['violations'])}")
    return answer


def cost(answer: dict[str, Any]) -> float:
    """Bytes of updates a round on a link below the master, both ways."""
    link = answer["links"]["master"]
    return float(link["down"]["bytes"] + link["up"]["bytes"])


def mean_cost(
    found: dict[Case, dict[str, Any]], workers: int, like: Case | None = None
) -> float | None:
    """The same in the mean of the seeds, of jobs like this one; None = as `Case` has it."""
    kind = (like or Case(workers)).kind
    costs = [
        cost(answer)
        for case, answer in found.items()
        if case.workers == workers and case.kind == kind
    ]
    return statistics.mean(costs) if costs else None


def add(result: report.Report, cases: Sequence[Case], found: dict[Case, dict[str, Any]]) -> None:
    """Rows and targets."""
    ordered = sorted(found, key=lambda case: (not case.merging, case.workers, not case.dies))
    for case in ordered:
        answer, few = found[case], mean_cost(found, FEW, case)
        master, leaf = answer["links"]["master"], answer["links"]["leaf"]
        result.row(
            case.name,
            group="A link and a round: updates",
            master_down_bytes=master["down"]["bytes"],
            master_up_bytes=master["up"]["bytes"],
            down_messages=master["down"]["messages"],
            up_messages=master["up"]["messages"],
            leaf_down_bytes=leaf["down"]["bytes"],
            leaf_up_bytes=leaf["up"]["bytes"],
            said_again_bytes=answer["links"]["direct"]["up"]["bytes"],
            over_few=None if few is None else cost(answer) / few,
        )
        result.row(
            case.name,
            group="The rest",
            rounds=answer["full_rounds"],
            contents_bytes=answer["published_contents_bytes"],
            leaf_control_bytes_per_s=answer["control"]["leaf_bytes_per_s"],
            master_control_bytes_per_s=answer["control"]["master_bytes_per_s"],
            everywhere_mean_ms=answer["at_all"]["mean_ms"],
            everywhere_max_ms=answer["at_all"]["max_ms"],
            at_another_p50_ms=answer["at_one"]["p50_ms"],
            deaths=answer["deaths"],
            cpu_s=answer["start_cpu_seconds"] + answer["cpu_seconds"],
            memory_gib=answer["peak_memory_bytes"] / 2**30,
        )
    for case in cases:
        if case not in found:
            result.skip(case.name, f"did not end within {LIMIT_S:.0f} s")
    few = mean_cost(found, FEW)
    for name, workers in TARGETS.items():
        many = mean_cost(found, workers)
        if many is not None and few is not None:
            result.target(name, many / few, goal=GOAL, better="lower")
        else:
            result.skip(name, _why_not(workers, cases, found))


def _why_not(workers: int, cases: Sequence[Case], found: dict[Case, dict[str, Any]]) -> str:
    if any(case.workers == workers for case in cases):
        return f"did not end within {LIMIT_S:.0f} s"
    if not found:
        return "nothing was measured"
    most = max(found, key=lambda case: case.workers)
    memory = found[most]["peak_memory_bytes"] / 2**30
    seconds = found[most]["cpu_seconds"] / most.rounds
    return (
        f"not tried: every node has vectors of all workers, so memory and time grow with their "
        f"square, and {most.workers} took {memory:.1f} GiB and {seconds:.1f} s of a processor "
        f"for a round"
    )


# ------------------------------------------------------------------ real processes


def add_real(result: report.Report, effort: Effort, program: pathlib.Path) -> None:
    """The same question to processes on the loopback."""
    workers = effort.real_workers
    for merging, name in (("on", "merged"), ("off", "each by itself")):
        load = relay_job.Load(
            workers=workers,
            seconds=effort.real_seconds,
            message_bytes=2048,
            updates_per_s=_REAL_RATE,
            max_children=8,
            merging=merging,
            elements=1 << 18,
        )
        with relay_job.Job(load, program=program) as job:
            results, master = job.finish()
        mistakes = relay_job.check(results, master)
        if mistakes:
            raise RuntimeError(f"{workers} processes, {name}: {'; '.join(mistakes)}")
        ended = [one for one in results if one is not None]
        steps = statistics.mean(one["submitted"] for one in ended)
        leaves = [one for one in ended if one["status"]["node"]["children"] == 0]
        nodes = [one["status"]["node"] for one in leaves]
        result.row(
            name,
            group=f"{workers} processes on the loopback: a leaf's link and a step",
            messages=statistics.mean(node["updates_received"] for node in nodes) / steps,
            bytes=statistics.mean(node["update_bytes_received"] for node in nodes) / steps,
            leaf_cpu_ms=1000 * statistics.mean(one["cpu_seconds"] for one in leaves) / steps,
            all_cpu_s=sum(one["cpu_seconds"] for one in ended) + master.cpu_s,
            late_p50_ms=statistics.median(one["latency_us"][0] for one in leaves) / 1000,
        )


# ------------------------------------------------------------------ the picture


def draw(found: dict[Case, dict[str, Any]], name: str, output: pathlib.Path) -> None:
    """Bytes and messages of a link by the number of workers, in build/bench/NAME.png.

    A line for each kind of job, of one threshold and the first seed.
    """
    kinds: dict[str, dict[int, dict[str, Any]]] = {}
    for case in sorted(found, key=lambda one: (not one.merging, one.dies, -one.rounds)):
        if case.values == 1 and case.seed == 1:
            kinds.setdefault(case.kind_name, {})[case.workers] = found[case]
    figure, (left, right) = pictures.picture(2)
    byte_ends, message_ends = {}, {}
    for (kind, answers), color in zip(kinds.items(), itertools.cycle(_COLORS)):
        workers = sorted(answers)
        kilobytes = [cost(answers[count]) / 1000 for count in workers]
        messages = [answers[count]["links"]["leaf"]["down"]["messages"] for count in workers]
        for axes, values in ((left, kilobytes), (right, messages)):
            axes.plot(workers, values, color=color, marker="o", linewidth=2)
        byte_ends[kind], message_ends[kind] = (kilobytes[-1], color), (messages[-1], color)
    most = max((case.workers for case in found), default=FEW)
    for axes, ends in ((left, byte_ends), (right, message_ends)):
        axes.set_xscale("log", base=2)
        axes.set_ylim(0, 1.25 * axes.get_ylim()[1])
        pictures.labels(axes, most, ends)
    pictures.caption(left, "Bytes of a link below the master", "workers", "kB a round, both ways")
    pictures.caption(right, "Messages to a leaf", "workers", "messages a round")
    pictures.save(figure, name, output)


if __name__ == "__main__":
    main()
