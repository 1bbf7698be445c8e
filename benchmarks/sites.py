"""`make bench-sites`: one model, trained by two sites with a long line between them.

Four workers, two at each site, train the demo's CNN with all defaults, as on one local network: the
second site is 100 ms away, over 100 Mbit/s that lose one packet in a thousand, behind a gateway
that translates addresses (benchmarks/two_sites.py). Nobody there can be reached from outside, and
all that its workers need is the master's port. Beside it the same job on a line of 0.2 ms and
1 Gbit/s, gateway and all.

Four workers share this machine's processors, so every step takes at least one constant time: who is
done earlier sleeps. The targets are those of docs/benchmarks.md, by the same names. Needs root.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import signal
import statistics
import sys
from collections.abc import Sequence

from benchmarks import pictures, report, wan_line
from benchmarks.other_work import OtherWork
from benchmarks.tta_judge import accuracy
from benchmarks.tta_place import Jobs, Trained
from benchmarks.tta_training import STROM, WARM_UP_STEPS, Rate, Training, steps_per_epoch
from benchmarks.two_sites import INTERFACE, NETWORK_MASK, TwoSites
from benchmarks.wan_line import PROGRAM, Line

HOSTS = 2
WORKERS = 2 * HOSTS
NEAR = Line(0.2, megabits=1000, queue=16)
FAR = Line(100, loss=0.001)
NAMES = {NEAR: "0.2 ms, 1 Gbit/s", FAR: "100 ms, 100 Mbit/s, 0.1 % lost"}
TARGETS = {"sites_step", "sites_accuracy_gap"}

#: What a step of all four workers at once takes on two cores, and somewhat more.
STEP_SECONDS = 0.1
_COLORS = {NEAR: pictures.BLUE, FAR: pictures.VERMILION}


@dataclasses.dataclass(frozen=True)
class Effort:
    """How long to train.

    Attributes:
        seeds: 1 to so many.
        epochs: of all pictures, by all workers together.
        step_seconds: no step is shorter.
    """

    seeds: int = 3
    epochs: int = 4
    step_seconds: float = STEP_SECONDS

    def training(self, seed: int) -> Training:
        """What every worker does."""
        marks = tuple(steps_per_epoch(WORKERS) * (1 + i) for i in range(self.epochs))
        return Training(STROM, "cnn", WORKERS, seed, Rate(), marks, step_seconds=self.step_seconds)


QUICK = Effort(seeds=1, epochs=1, step_seconds=0.0)


@dataclasses.dataclass(frozen=True)
class Measured:
    """One job.

    Attributes:
        step_ms: of the slowest worker, in the mean from the warm-up to the last mark.
        line_bytes: that went over the line for each step of a worker, either way, headers included.
        accuracies: on the test pictures, mark by mark.
        parameters: of the model.
    """

    step_ms: float
    line_bytes: float
    accuracies: tuple[float, ...]
    parameters: int

    @classmethod
    def of(cls, training: Training, trained: Trained) -> Measured:
        """What a job's workers tell of it."""
        steps = training.marks[-1] - WARM_UP_STEPS
        seconds = max(course.seconds[-1] for course in trained.courses)
        copies = trained.copies[0]
        return cls(
            step_ms=seconds / steps * 1000,
            line_bytes=trained.courses[0].sent_bytes[-1] / steps,
            accuracies=tuple(accuracy(training.task, copy) for copy in copies),
            parameters=copies.shape[1],
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains on both lines in turn and shows the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, one epoch")
    parser.add_argument("--seeds", type=int, help="1 to so many; otherwise 3")
    parser.add_argument("--program", type=pathlib.Path, default=PROGRAM, help="wan_line")
    parser.add_argument("--output", type=pathlib.Path, default=report.OUTPUT)
    chosen = parser.parse_args(arguments)
    effort = QUICK if chosen.quick else Effort()
    if chosen.seeds is not None:
        if chosen.seeds < 1:
            parser.error("--seeds: 1 or more")
        effort = dataclasses.replace(effort, seeds=chosen.seeds)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces are taken down
    result = report.Report("sites", "Two sites", chosen.output, quick=chosen.quick)
    reason = wan_line.unavailable()
    if reason is not None:
        result.skip_all(TARGETS, reason)
        result.finish()
        return
    others = OtherWork()
    found: dict[Line, list[Measured]] = {NEAR: [], FAR: []}
    sites = TwoSites(HOSTS, chosen.program)
    with Jobs(sites, NETWORK_MASK, INTERFACE) as jobs:
        for seed in range(1, effort.seeds + 1):
            training = effort.training(seed)
            for line, measured in found.items():
                sites.set_line(line)
                measured.append(Measured.of(training, jobs.run(training)))
    add(result, found)
    draw(found, result.name, chosen.output)
    others.add_row(result)
    result.finish()


def add(result: report.Report, found: dict[Line, list[Measured]]) -> None:
    """Rows and targets."""
    for line, measured in found.items():
        full = 4 * measured[0].parameters
        line_bytes = statistics.mean(one.line_bytes for one in measured)
        result.row(
            NAMES[line],
            group=f"{WORKERS} workers at two sites, the demo's CNN, the line between them",
            step_ms=statistics.median(one.step_ms for one in measured),
            accuracy=statistics.mean(one.accuracies[-1] for one in measured),
            least_accuracy=min(one.accuracies[-1] for one in measured),
            line_kb_per_step=line_bytes / 1000,
            parameters_kb=full / 1000,
        )
    pairs = list(zip(found[FAR], found[NEAR], strict=True))
    slower = statistics.median(far.step_ms / near.step_ms for far, near in pairs)
    result.target("sites_step", slower, goal=1.02, better="lower")
    gap = statistics.mean(near.accuracies[-1] - far.accuracies[-1] for far, near in pairs)
    result.target("sites_accuracy_gap", gap, goal=0.003, better="lower")


def draw(found: dict[Line, list[Measured]], name: str, output: pathlib.Path) -> None:
    """Test accuracy by epoch, in build/bench/NAME.png."""
    figure, (axes,) = pictures.picture(width=9)
    pictures.caption(axes, "Two sites, two workers at each", "epochs", "test accuracy")
    for line, measured in found.items():
        color = _COLORS[line]
        for one in measured:
            epochs = range(1, 1 + len(one.accuracies))
            axes.plot(epochs, one.accuracies, color=color, marker="o", linewidth=1.5)
    ends = {
        NAMES[line]: (measured[-1].accuracies[-1], _COLORS[line])
        for line, measured in found.items()
    }
    pictures.labels(axes, epochs[-1], ends)
    pictures.save(figure, name, output)


if __name__ == "__main__":
    main()
