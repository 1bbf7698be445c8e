"""`make bench-exact`: steps a second of exact mode, beside Horovod, on lines of 1 Gbit/s.

Two and four workers train the demo's CNN and a perceptron of 25.7 million parameters in exact mode
(`StromStrategy(threshold=None)`, float32 and bfloat16) and with Horovod (float32 and fp16), in turn
and round after round. Each worker is on a machine of its own, a network namespace, whose line
carries 1 Gbit/s in each direction. The master of exact mode is on the first worker's machine, where
`keras-strom run --hosts` has it.

Optimizer and batches are the same for all and chosen so that the exchange is most of a step: SGD,
and few pictures a batch, for four workers share this machine's cores. Root alone can do this.
`--task`, `--workers` and `--megabits` look at one model, number of workers or line instead.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import random
import signal
import statistics
import sys
from collections.abc import Mapping, Sequence

import rich.progress

from benchmarks import namespaces, pictures, report
from benchmarks.horovod_place import ENVIRONMENT
from benchmarks.other_work import OtherWork
from benchmarks.tta_place import Line, Machines
from benchmarks.tta_training import (
    EXACT,
    EXACT_BFLOAT16,
    HOROVOD,
    HOROVOD_FP16,
    WARM_UP_STEPS,
    Course,
    Rate,
    Training,
)

#: Of each direction of each machine's line, in Mbit/s.
MEGABITS = 1000
WAYS = (EXACT, EXACT_BFLOAT16, HOROVOD, HOROVOD_FP16)
#: Who is compared with whom: what travels is as long.
PAIRS = {EXACT: HOROVOD, EXACT_BFLOAT16: HOROVOD_FP16}
COLORS = {
    EXACT: pictures.ORANGE,
    EXACT_BFLOAT16: pictures.ORANGE,
    HOROVOD: pictures.BLUE,
    HOROVOD_FP16: pictures.BLUE,
}


@dataclasses.dataclass(frozen=True)
class Task:
    """A model to be trained.

    Attributes:
        name: in names of targets.
        key: of `tta_training`.
        parameters: how many it has, for people.
        batch: pictures of a worker's step.
        steps: that are measured.
        quick_steps: of `--quick`.
    """

    name: str
    key: str
    parameters: str
    batch: int
    steps: int
    quick_steps: int


TASKS = (
    Task("cnn", "cnn", "0.2 million parameters", 16, 200, 60),
    Task("25m", "wide mlp", "25.7 million parameters", 4, 20, 6),
)
WORKERS = (2, 4)
#: At least as many steps a second as Horovod with float32.
GOAL = 1.0

#: Of each task and number of workers, and each way, the steps a second round by round.
Speeds = Mapping[tuple[Task, int], Mapping[str, Sequence[float]]]


def target_name(task: Task, workers: int) -> str:
    """The target's id, on lines of 1 Gbit/s."""
    return f"exact_vs_horovod_1gbit_{task.name}_k{workers}"


#: All that a whole run judges, or says why it does not.
TARGETS = {target_name(task, workers) for task in TASKS for workers in WORKERS}


def has_target(task: Task, workers: int, line: Line) -> bool:
    """Whether so many workers on this line are judged."""
    return target_name(task, workers) in TARGETS and line.megabits == MEGABITS


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains in all ways and shows the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--task", choices=[task.name for task in TASKS], help="one model")
    parser.add_argument("--workers", type=int, help="one number of workers")
    parser.add_argument(
        "--megabits", type=int, default=MEGABITS, help="a line's rate in Mbit/s (%(default)s)"
    )
    parser.add_argument("--output", type=pathlib.Path, default=report.OUTPUT)
    chosen = parser.parse_args(arguments)
    if chosen.rounds < 1:
        parser.error(f"--rounds={chosen.rounds}: 1 or more")
    if chosen.workers is not None and chosen.workers < 2:
        parser.error(f"--workers={chosen.workers}: 2 or more")
    if chosen.megabits < 1:
        parser.error(f"--megabits={chosen.megabits}: 1 or more")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces are taken down
    result = report.Report("exact", "Exact mode beside Horovod", chosen.output, quick=chosen.quick)
    reason = namespaces.unavailable()
    if reason is not None:
        result.skip_all(TARGETS, reason)
        return result.finish()
    others = OtherWork()
    line = line_of(chosen.megabits)
    jobs = [
        (task, workers)
        for task in TASKS
        if chosen.task in (None, task.name)
        for workers in (WORKERS if chosen.workers is None else [chosen.workers])
    ]
    rounds = 1 if chosen.quick else chosen.rounds
    speeds = measure(result, jobs, line, rounds=rounds, quick=chosen.quick)
    add_rows(result, speeds, line)
    draw(speeds, line, result.name, chosen.output)
    others.add_row(result)
    result.finish()


def line_of(megabits: int) -> Line:
    """What leads to every machine."""
    name = f"{megabits / 1000:g} Gbit/s" if megabits >= 1000 else f"{megabits} Mbit/s"
    return Line(name, f"{megabits}mbit", megabits)


def available(result: report.Report) -> list[str]:
    """The ways that can be gone here; says why others cannot."""
    if (ENVIRONMENT / "horovod-of.txt").exists():
        return list(WAYS)
    why = "Horovod is not built: .ci/horovod/set-up, build/logs/horovod-build.log"
    result.skip_all(TARGETS, why)
    return [EXACT, EXACT_BFLOAT16]


def measure(
    result: report.Report,
    jobs: Sequence[tuple[Task, int]],
    line: Line,
    *,
    rounds: int,
    quick: bool,
) -> dict[tuple[Task, int], dict[str, list[float]]]:
    """Trains each task with so many workers in all ways, in another order each round.

    A way of Horovod's that fails once is left out for this task and number of workers, with its
    last words as a reason. The file has what was measured after each round.
    """
    ways = available(result)
    speeds: dict[tuple[Task, int], dict[str, list[float]]] = {job: {} for job in jobs}
    kept = {f"{task.name}_k{workers}": speeds[task, workers] for task, workers in jobs}
    result.attach("steps_a_second", kept)
    order = [(task, workers, way) for task, workers in jobs for way in ways]
    failed: set[tuple[Task, int, str]] = set()
    shuffle = random.Random(1).shuffle
    most = max(workers for _, workers in jobs)
    with (
        Machines(most, driver_beside=True, both_ways=True) as machines,
        rich.progress.Progress() as progress,
    ):
        bar = progress.add_task("Training", total=rounds * len(order))
        for _ in range(rounds):
            shuffle(order)
            for task, workers, way in order:
                progress.advance(bar)
                if (task, workers, way) in failed:
                    continue
                steps = task.quick_steps if quick else task.steps
                try:
                    trained = machines.train(training_of(task, workers, way, steps), line)
                except RuntimeError as error:
                    if way not in PAIRS.values():
                        raise
                    failed.add((task, workers, way))
                    speeds[task, workers].pop(way, None)
                    result.skip(f"{way}, {workers} workers, {task.parameters}", str(error))
                    if way == HOROVOD and has_target(task, workers, line):
                        result.skip(target_name(task, workers), "Horovod has failed, see above")
                    continue
                speed = min(steps_a_second(course) for course in trained.courses)
                speeds[task, workers].setdefault(way, []).append(speed)
            result.write()
    return speeds


def training_of(task: Task, workers: int, way: str, steps: int) -> Training:
    """What a worker does."""
    return Training(
        way=way,
        task=task.key,
        workers=workers,
        seed=1,
        rate=Rate(alone=1e-2),
        marks=(WARM_UP_STEPS + steps,),
        copies=False,
        batch=task.batch,
        optimizer="SGD",
    )


def steps_a_second(course: Course) -> float:
    """Of one worker, after the warm-up."""
    return (course.steps[-1] - WARM_UP_STEPS) / course.last_step_seconds


def add_rows(result: report.Report, speeds: Speeds, line: Line) -> None:
    """A row for each way, and the targets that lines of this rate have."""
    for (task, workers), ways in speeds.items():
        timings = report.Timings({way: [1 / one for one in ways[way]] for way in ways})
        for way in WAYS:
            if way not in ways:
                continue
            rival = PAIRS.get(way)
            result.row(
                way,
                group=f"{workers} workers, {task.parameters}, {line.name}",
                steps_a_second=1 / timings.median(way),
                ms_a_step=timings.median(way) * 1e3,
                times_as_fast=timings.speedup(way, over=rival) if rival in ways else None,
            )
        if HOROVOD in ways and has_target(task, workers, line):
            name = target_name(task, workers)
            result.target(name, timings.speedup(EXACT, over=HOROVOD), goal=GOAL)


def draw(speeds: Speeds, line: Line, name: str, output: pathlib.Path) -> None:
    """Milliseconds of a step, in build/bench/NAME.png."""
    tasks = list(dict.fromkeys(task for task, _ in speeds))
    figure, axes = pictures.picture(len(tasks), width=6.5, height=4)
    for one, task in zip(axes, tasks, strict=True):
        pictures.caption(one, f"A step, {task.parameters}, {line.name}", "ms", "")
        groups = [
            [
                pictures.Bar(
                    f"{way}, {workers} workers",
                    round(1e3 / statistics.median(ways[way]), 1),
                    COLORS[way],
                )
                for way in WAYS
                if way in ways
            ]
            for (one_task, workers), ways in speeds.items()
            if one_task == task
        ]
        pictures.bars(one, groups)
    pictures.save(figure, name, output)


if __name__ == "__main__":
    main()
