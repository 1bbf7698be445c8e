"""`make bench-methods`: the methods on one task, with K workers on lines of a given rate.

Each row is a real job in network namespaces (`tta_place`), every worker a machine of its own. All
train the MLP on Fashion-MNIST with their defaults and Adam; steps are slept out to so many
milliseconds that two cores carry all workers. What all workers share is copied at each mark, an end
of `fit`'s epochs, and tried afterwards. Outcomes are kept, so that a run can be gone on with.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import namespaces, pictures, report
from benchmarks.horovod_job import THREADS
from benchmarks.kept import Kept
from benchmarks.methods_averaging import Job
from benchmarks.mpca_real import COLORS, LAST, TITLES, time_to
from benchmarks.processes import last_line, stop, wait_for
from benchmarks.spark_cluster import SparkCluster
from benchmarks.tta_judge import accuracy
from benchmarks.tta_place import BUFFER_BYTES, LINES, Line, Machines, Trained
from benchmarks.tta_training import STROM, WARM_UP_STEPS, Course, Rate, Training, copies_path

#: By Spark alone.
AVERAGING = "averaging"
WAYS = {**TITLES, AVERAGING: "ParameterAveraging"}
_COLORS = {**COLORS, AVERAGING: pictures.BLUE}
_AVERAGING_SECONDS = 1800.0
#: The accuracies, in per cent, to which times are told.
TARGETS = (85, 87)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One job, from the end of its warm-up on.

    Attributes:
        seconds: to each mark.
        accuracies: at each, of what all workers share.
        sent_bytes: by all nodes until each, with all headers.
    """

    seconds: tuple[float, ...]
    accuracies: tuple[float, ...]
    sent_bytes: tuple[float, ...]

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Outcome:
        """Of what JSON gives."""
        return cls(**{name: tuple(value) for name, value in values.items()})

    @property
    def end(self) -> float:
        """The accuracy at the end: the mean of the last ones."""
        return statistics.fmean(self.accuracies[-LAST:])

    def to(self, accuracy: float) -> tuple[float, float]:
        """Seconds, and bytes of all, to an accuracy; infinite where it is never there."""
        return (
            time_to(list(zip(self.seconds, self.accuracies, strict=True)), accuracy),
            time_to(list(zip(self.sent_bytes, self.accuracies, strict=True)), accuracy),
        )


def main() -> None:
    """Runs every method with every number of workers on every line, and shows the report."""
    lines = {line.key: line for line in LINES}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--lines", nargs="+", default=["100mbit", "1gbit"], choices=lines)
    parser.add_argument("--step-ms", type=float, default=100.0, help="steps are slept out to it")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--averaging-steps", type=int, default=400, help="of its slow rounds")
    parser.add_argument("--every", type=int, default=50, help="steps from one copy to the next")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS, help="of training")
    parser.add_argument("--resume", action="store_true", help="run what is not kept yet")
    chosen = parser.parse_args()
    result = report.Report("methods", "The methods on one task")
    settings = list(itertools.product(chosen.workers, [lines[key] for key in chosen.lines]))
    reason = namespaces.unavailable()
    if reason is not None:
        for workers, line in settings:
            result.skip(_target(workers, line), reason)
        return result.finish()
    kept = Kept(report.OUTPUT / "methods.kept.jsonl", Outcome.read, resume=chosen.resume)
    curves: dict[str, dict[str, Outcome]] = {}
    for workers, line in settings:
        title = f"K = {workers}, {line.name}"
        for way in chosen.ways:
            steps = chosen.averaging_steps if way == AVERAGING else chosen.steps
            training = Training(
                way=way,
                task="mlp",
                workers=workers,
                seed=chosen.seed,
                rate=Rate(),
                marks=tuple(range(chosen.every, steps + 1, chosen.every)),
                step_seconds=chosen.step_ms / 1e3,
            )
            outcome = measure(training, line, kept)
            curves.setdefault(title, {})[way] = outcome
            result.row(f"{title}: {WAYS[way]}", **figures(training, outcome))
        if STROM in chosen.ways and len(chosen.ways) > 1:
            judge(_target(workers, line), curves[title], result)
    result.attach(
        "curves",
        {
            title: {WAYS[way]: dataclasses.asdict(one) for way, one in outcomes.items()}
            for title, outcomes in curves.items()
        },
    )
    draw(curves, result)
    kept.tell_origins(result)
    result.finish()


def measure(training: Training, line: Line, kept: Kept[Outcome]) -> Outcome:
    """One job, unless it is kept."""
    key = f"{training} {line}"
    outcome = kept.get(key)
    if outcome is None:
        if training.way == AVERAGING:
            trained = average(training, line)
        else:
            with Machines(training.workers) as machines:
                trained = machines.train(training, line)
        outcome = Outcome(
            # The mean of the workers' clocks, which are one machine's.
            seconds=_by_mark(statistics.fmean, [course.seconds for course in trained.courses]),
            accuracies=tuple(accuracy(training.task, copy) for copy in trained.copies[0]),
            sent_bytes=_by_mark(max, [course.sent_bytes for course in trained.courses]),
        )
        kept.put(key, outcome)
    return outcome


def average(training: Training, line: Line) -> Trained:
    """The same by ParameterAveraging: a standalone cluster, whose driver is node 0."""
    assert line.megabits is not None, "lines have a rate"
    with (
        namespaces.Network(1 + training.workers) as network,
        SparkCluster(network) as cluster,
        tempfile.TemporaryDirectory(prefix="strom-averaging-") as folder,
        tempfile.TemporaryFile("w+") as words,
    ):
        network.set_line(megabits=line.megabits, buffer_bytes=BUFFER_BYTES)
        job = Job(
            workers=training.workers,
            seed=training.seed,
            rate=training.rate.alone,
            marks=training.marks,
            step_seconds=training.step_seconds,
            master=cluster.master,
            address=network.address(0),
            folder=folder,
            command=tuple(network.counts()),
            interfaces="port",
        )
        own = {"PYTHONPATH": os.fspath(report.ROOT), "PYSPARK_PYTHON": sys.executable}
        process = subprocess.Popen(
            [*network.inside(0), sys.executable, *job.arguments()],
            env={**os.environ, **THREADS, **own, "SPARK_LOCAL_IP": network.address(0)},
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_for(AVERAGING, [(process, words)], _AVERAGING_SECONDS)
        finally:
            stop(process)
        course = Course.from_json(last_line(AVERAGING, words))
        return Trained([course], [np.load(copies_path(folder, 0))])


def _by_mark(
    choose: Callable[[Sequence[float]], float], courses: Sequence[Sequence[float]]
) -> tuple[float, ...]:
    return tuple(choose(of_all) for of_all in zip(*courses, strict=True))


def figures(training: Training, outcome: Outcome) -> dict[str, float]:
    """What a row shows; megabytes are of each worker in both directions."""
    steps = training.marks[-1] - WARM_UP_STEPS
    shown = {
        "utilisation": steps * training.step_seconds / outcome.seconds[-1],
        "accuracy": 100 * outcome.end,
        "megabytes": outcome.sent_bytes[-1] / training.workers / 1e6,
    }
    for target in TARGETS:
        seconds, sent = outcome.to(target / 100)
        if math.isfinite(seconds):
            shown[f"seconds_to_{target}"] = seconds
            shown[f"megabytes_to_{target}"] = sent / training.workers / 1e6
    return shown


def _target(workers: int, line: Line) -> str:
    return f"methods_k{workers}_{line.key}"


def judge(name: str, outcomes: Mapping[str, Outcome], result: report.Report) -> None:
    """The default is no later than the best of the others where all methods come in the end."""
    reached = min(outcome.end for outcome in outcomes.values())
    times = {way: outcome.to(reached)[0] for way, outcome in outcomes.items()}
    first = times.pop(STROM)
    result.target(name, min(times.values()) / first, goal=1, better="higher")


def draw(curves: Mapping[str, Mapping[str, Outcome]], result: report.Report) -> None:
    """Accuracy of what all share against time, one panel a setting."""
    figure, panels = pictures.picture(len(curves), width=4.5, height=4)
    for axes, (title, outcomes) in zip(panels, curves.items(), strict=True):
        for way, outcome in outcomes.items():
            percent = [100 * value for value in outcome.accuracies]
            axes.plot(outcome.seconds, percent, color=_COLORS[way], label=WAYS[way])
        axes.set_ylim(bottom=70)
        axes.legend()
        pictures.caption(axes, title, "seconds", "test accuracy, %")
    pictures.save(figure, result.name)


if __name__ == "__main__":
    main()
