"""`make bench-mpca-real`: the methods as real jobs, on lines of a given rate.

Workers and master are processes in network namespaces, each on a line of its own
(`namespaces`). They train the MLP on Fashion-MNIST with `StromStrategy(method=...)`; steps
are slept out to so many seconds that two cores carry all workers. Nothing is evaluated meanwhile:
the chief copies what it sees at each mark, an end of `fit`'s epochs, which is the joint model (of
update sharing what all workers share), and the copies are tried afterwards. As in `make bench-mpca`
the learning rate of the methods with a joint model is so high that noise limits them, which a mean
of models lowers. How much of the time workers compute is measured without marks, at which the joint
model comes over the line.

The default line is that of ResNet-152 in the paper, so slow for the model's size: M / (2.36 c).
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics

from benchmarks import namespaces, pictures, report
from benchmarks.tta_judge import accuracy
from benchmarks.tta_place import Line, Machines, Trained
from benchmarks.tta_training import (
    EASGD,
    METHODS,
    MPCA,
    SPARKNET,
    STROM,
    WARM_UP_STEPS,
    Rate,
    Training,
)

TITLES = {MPCA: "MPCA SGD", EASGD: "EASGD", SPARKNET: "SparkNet", STROM: "update sharing"}
COLORS = {
    MPCA: pictures.ORANGE,
    EASGD: pictures.SKY,
    SPARKNET: pictures.GREEN,
    STROM: pictures.BLACK,
}
#: As the paper orders them at the end.
ORDER = (MPCA, EASGD, SPARKNET)
MODEL_BYTES = 4 * 1_068_810
#: Adam's, of those; update sharing has Keras's.
NOISY = Rate(5e-3)
WIDE_ELEMENTS = 25_692_554
#: M / (B c) of ResNet-152.
MISMATCH = 2.36
#: A cycle of a large model: K, Mbit/s of each line, and a step that two cores carry for all.
STAR = 4
STAR_MEGABITS = 1000.0
STAR_STEP_SECONDS = 0.6
STAR_MARKS = (50, 100, 150, 200)
#: Of the accuracies, those by whose mean an end is judged.
LAST = 3


def main() -> None:
    """Runs every method on one line, and shows the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--step-ms", type=float, default=200.0, help="steps are slept out to it")
    parser.add_argument("--megabits", type=float, help="of each line; as in the paper")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--timed-steps", type=int, default=200, help="of the jobs without marks")
    parser.add_argument("--every", type=int, default=40, help="steps from one copy to the next")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--curves-only", action="store_true", help="no cycle of a large model")
    parser.add_argument("--name", default="mpca_real", help="of the report")
    chosen = parser.parse_args()
    reason = namespaces.unavailable()
    result = report.Report(chosen.name, "Methods as real jobs")
    if reason is not None:
        for target in ("mpca_real_order", "mpca_real_utilisation", "mpca_cycle_star"):
            result.skip(target, reason)
        return result.finish()
    step = chosen.step_ms / 1e3
    megabits = chosen.megabits or 8e-6 * MODEL_BYTES / (MISMATCH * step)
    line = Line(f"{megabits:.0f} Mbit/s", "line", megabits)
    curves: dict[str, list[tuple[float, float]]] = {}
    with Machines(chosen.workers) as machines:
        for way in TITLES:
            training = Training(
                way=way,
                task="mlp",
                workers=chosen.workers,
                seed=chosen.seed,
                rate=NOISY if way in METHODS else Rate(),
                marks=tuple(range(chosen.every, chosen.steps + 1, chosen.every)),
                step_seconds=step,
            )
            timed = dataclasses.replace(training, marks=(chosen.timed_steps,), copies=False)
            used = utilisation(timed, machines.train(timed, line))
            curves[way] = measure(training, machines, line, used, result)
    if not chosen.curves_only:
        measure_cycle(result)
    result.attach("curves", {TITLES[way]: curve for way, curve in curves.items()})
    judge(curves, result)
    draw(curves, result, f"K = {chosen.workers}, {line.name}, {chosen.step_ms:g} ms a step")
    result.finish()


def utilisation(training: Training, trained: Trained) -> float:
    """The share of the time that steps would take if nobody waited for anything."""
    steps = training.marks[-1] - WARM_UP_STEPS
    seconds = statistics.fmean(course.last_step_seconds for course in trained.courses)
    return steps * training.step_seconds / seconds


def measure(
    training: Training, machines: Machines, line: Line, used: float, result: report.Report
) -> list[tuple[float, float]]:
    """One job: (seconds, accuracy) at each mark; adds its row."""
    trained = machines.train(training, line)
    # The mean of the workers' clocks, which are one machine's.
    seconds = [
        statistics.fmean(course.seconds[i] for course in trained.courses)
        for i in range(len(training.marks))
    ]
    accuracies = [accuracy(training.task, copy) for copy in trained.copies[0]]
    sent = max(course.sent_bytes[-1] for course in trained.courses)
    result.row(
        TITLES[training.way],
        seconds=seconds[-1],
        utilisation=used,
        accuracy=100 * statistics.fmean(accuracies[-LAST:]),
        megabytes=sent / 1e6,
    )
    return list(zip(seconds, accuracies, strict=True))


def measure_cycle(result: report.Report) -> None:
    """How long 98 MiB take from one snapshot of a shard to the next, beside the least it could be.

    Each cycle brings the model of every worker over the master's line once, and once back. Steps
    are as light as may be, so that two cores carry four workers and both ends of the line.
    """
    training = Training(
        way=MPCA,
        task="wide mlp",
        workers=STAR,
        seed=1,
        rate=Rate(),
        marks=STAR_MARKS,
        step_seconds=STAR_STEP_SECONDS,
        copies=False,
        batch=1,
        optimizer="SGD",
    )
    with Machines(STAR) as machines:
        trained = machines.train(training, Line("1 Gbit/s", "line", STAR_MEGABITS))
    seconds = statistics.median(
        seconds for course in trained.courses for seconds in course.cycle_seconds[1:]
    )
    least = STAR * 4 * WIDE_ELEMENTS / (STAR_MEGABITS * 1e6 / 8)
    result.row("a cycle of 98 MiB, K = 4, 1 Gbit/s", seconds=seconds, least_seconds=least)
    result.target("mpca_cycle_star", seconds / least, goal=1.15, better="lower")


def judge(curves: dict[str, list[tuple[float, float]]], result: report.Report) -> None:
    """The targets: the order of times to what SparkNet ends with, and MPCA's utilisation.

    A pair of which neither gets there does not hold.
    """
    target = statistics.fmean(value for _, value in curves[SPARKNET][-LAST:])
    times = [time_to(curves[way], target) for way in ORDER]
    ends = [statistics.fmean(value for _, value in curves[way][-LAST:]) for way in ORDER]
    pairs = [(0, 1), (1, 2), (0, 2)]
    holds = [
        math.isfinite(times[a]) and times[a] <= times[b] and ends[a] >= ends[b] for a, b in pairs
    ]
    result.target("mpca_real_order", statistics.fmean(holds), goal=1, better="higher")
    used = next(row["utilisation"] for row in result.rows if row["name"] == TITLES[MPCA])
    result.target("mpca_real_utilisation", used, goal=0.97, better="higher")


def time_to(curve: list[tuple[float, float]], target: float) -> float:
    """Seconds to an accuracy; infinite where it is never there."""
    return next((seconds for seconds, value in curve if value >= target), float("inf"))


def draw(curves: dict[str, list[tuple[float, float]]], result: report.Report, title: str) -> None:
    """Accuracy of what the chief sees, against time."""
    figure, (axes,) = pictures.picture(1, width=6.5, height=4)
    for way, curve in curves.items():
        axes.plot(*zip(*curve, strict=True), color=COLORS[way], label=TITLES[way])
    axes.legend()
    pictures.caption(axes, title, "seconds", "test accuracy")
    pictures.save(figure, result.name)


if __name__ == "__main__":
    main()
