"""`make bench-horovod`: the same training through Horovod on Spark, and through keras-strom.

Two workers train one CNN on Fashion-MNIST through `horovod.spark.run`, `keras_strom.spark.run` and,
without Spark, TensorFlow's MultiWorkerMirroredStrategy, in turn, round after round; one process of
plain Keras trains beside them. As root each worker and the driver are on a machine of their own, a
network namespace, joined by lines of 100 Mbit/s and of 1 Gbit/s; otherwise all is on loopback.

What is compared is a step. All pictures are seen once, and the model is tried, where that does not
take minutes for nothing: a synchronous step on a slow line lasts as long as its bytes need, the
hundredth like the fiftieth, and what it learns it learns on a fast line too.

Horovod is optional: .ci/horovod/set-up builds it where that works. It and TensorFlow's strategy
need Keras 2, so a worker of theirs is as fast as plain tf_keras at best.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import random
import signal
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

import rich.progress
from matplotlib.axes import Axes

from benchmarks import namespaces, pictures, report
from benchmarks.horovod_place import ENVIRONMENT, WORKERS, Place
from benchmarks.horovod_training import (
    ALONE,
    ALONE_TF_KERAS,
    HOROVOD,
    MIRRORED,
    STEPS,
    STROM,
    WARM_UP_STEPS,
    Trained,
    Training,
)
from benchmarks.other_work import OtherWork
from benchmarks.spark_cluster import SparkCluster

SLOW = "100 Mbit/s"
LINES_MBIT = {SLOW: 100, "1 Gbit/s": 1000}
LOOPBACK = "loopback"
#: Who trains alone needs no line.
NO_LINE = ""
#: Fewer than `STEPS`, by line and way: a synchronous way on a slow line, and one that is alone.
FEWER_STEPS = {
    (SLOW, HOROVOD): 100,
    (SLOW, MIRRORED): 50,
    (NO_LINE, ALONE): 150,
    (NO_LINE, ALONE_TF_KERAS): 150,
}
#: What the switch holds for a node before it drops, as a switch in an office does.
BUFFER_BYTES = 512 << 10

#: The design's: messages are at least so many times smaller than the parameters.
SMALLER = 30

TOGETHER = (STROM, HOROVOD, MIRRORED)
COLORS = {STROM: pictures.ORANGE, HOROVOD: pictures.BLUE, MIRRORED: pictures.GREY}

#: Of each line, and each way on it, the outcomes round by round.
Outcomes = Mapping[str, Mapping[str, Sequence[Trained]]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs all jobs and shows the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS, help="of each worker, at most")
    parser.add_argument("--loopback", action="store_true", help="no namespaces, even as root")
    parser.add_argument("--output", type=pathlib.Path, default=report.OUTPUT)
    chosen = parser.parse_args(arguments)
    if chosen.rounds < 1:
        parser.error(f"--rounds={chosen.rounds}: 1 or more")
    if not WARM_UP_STEPS < chosen.steps <= STEPS:
        parser.error(f"--steps={chosen.steps}: more than {WARM_UP_STEPS}, and no more than {STEPS}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces are taken down
    result = report.Report("horovod", "Beside Horovod", chosen.output)
    others = OtherWork()
    reason = "told to stay on loopback" if chosen.loopback else namespaces.unavailable()
    if reason is not None:
        result.skip("lines of 100 Mbit/s and 1 Gbit/s", reason)
    outcomes = measure(result, chosen.steps, chosen.rounds, lines=reason is None)
    add_rows(result, outcomes)
    draw(outcomes, chosen.output)
    others.add_row(result)
    result.finish()


def available(result: report.Report) -> list[str]:
    """The ways that can be gone here; says why others cannot."""
    here = [STROM, ALONE]
    if (ENVIRONMENT / "made-of.txt").exists():
        here += [MIRRORED, ALONE_TF_KERAS]
    else:
        result.skip(MIRRORED, "there is no tf_keras: .ci/horovod/set-up")
    if (ENVIRONMENT / "horovod-of.txt").exists():
        here.append(HOROVOD)
    else:
        result.skip(HOROVOD, "it is not built: .ci/horovod/set-up, build/logs/horovod-build.log")
    return here


def measure(
    result: report.Report, steps: int, rounds: int, *, lines: bool
) -> dict[str, dict[str, list[Trained]]]:
    """Trains in all ways that are available; says which of the others' failed here, and how."""
    outcomes: dict[str, dict[str, list[Trained]]] = {}
    failed: set[tuple[str, str]] = set()
    with contextlib.ExitStack() as stack:
        if lines:
            # Horovod's Gloo takes the address of the host's name, whatever interface it is told.
            network = stack.enter_context(namespaces.Network(1 + WORKERS, own_names=True))
            place = Place.network(network, stack.enter_context(SparkCluster(network)))
        else:
            place = Place.loopback()
        jobs = all_jobs(available(result), list(LINES_MBIT) if lines else [LOOPBACK])
        for line, way in jobs:
            outcomes.setdefault(line, {})[way] = []
        for line, way in rich.progress.track(list(schedule(rounds, jobs)), "Training"):
            if (line, way) in failed:
                continue
            if line in LINES_MBIT:
                network.set_line(megabits=LINES_MBIT[line], buffer_bytes=BUFFER_BYTES)
            try:
                outcomes[line][way].append(place.run(way, training_of(line, way, steps)))
            except RuntimeError as error:
                if way in (STROM, ALONE):
                    raise
                failed.add((line, way))
                del outcomes[line][way]
                result.skip(f"{way}, {line or 'alone'}", str(error))
    return outcomes


def training_of(line: str, way: str, steps: int) -> Training:
    """What a worker does of at most so many steps; a model that has seen less is not tried."""
    fewer = FEWER_STEPS.get((line, way), STEPS)
    return Training(steps=min(steps, fewer), judged=fewer == STEPS)


def all_jobs(ways: Sequence[str], lines: Sequence[str]) -> list[tuple[str, str]]:
    """Every way on every line, and those alone once."""
    together = [(line, way) for line in lines for way in TOGETHER if way in ways]
    return together + [(NO_LINE, way) for way in ways if way not in TOGETHER]


def schedule(rounds: int, jobs: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """The jobs of each round, in another order each time."""
    shuffle = random.Random(1).shuffle
    for _ in range(rounds):
        order = list(jobs)
        shuffle(order)
        yield from order


# ------------------------------------------------------------------ what is shown


def add_rows(result: report.Report, outcomes: Outcomes) -> None:
    """A row for each way on each line, and the target."""
    for line, ways in outcomes.items():
        seconds = _step_seconds(ways)
        for way, rounds in ways.items():
            judged = [one.accuracy for one in rounds if one.accuracy is not None]
            together = {} if line == NO_LINE else _together(ways, seconds, way)
            result.row(
                way,
                group=f"Two workers, {line}" if line != NO_LINE else "One process",
                ms_a_step=seconds.median(way) * 1e3,
                **together,
                accuracy=statistics.median(judged) if judged else None,
                steps=rounds[0].steps,
            )
    for line, ways in outcomes.items():
        dense = next((way for way in (HOROVOD, MIRRORED) if way in ways), None)
        if dense is not None:
            ratio = _megabytes(ways[dense]) / _megabytes(ways[STROM])
            name = f"times_less_{line.replace(' ', '_').replace('/', '_')}"
            result.target(name, ratio, goal=SMALLER)


def _together(
    ways: Mapping[str, Sequence[Trained]], seconds: report.Timings, way: str
) -> dict[str, float]:
    """Columns of those who train together."""
    return {
        "s_an_epoch": seconds.median(way) * STEPS,
        "mb_a_step": _megabytes(ways[way]),
        "times_as_long": seconds.speedup(STROM, over=way),
    }


def draw(outcomes: Outcomes, output: pathlib.Path) -> None:
    """Milliseconds and megabytes of a step, in build/bench/horovod.png."""
    lines = {line: ways for line, ways in outcomes.items() if line != NO_LINE}
    figure, (times, megabytes) = pictures.picture(2, width=6.5, height=1 + 1.4 * len(lines))
    _draw_bars(times, lines, "A step of two workers", "ms", _milliseconds)
    _draw_bars(megabytes, lines, "Sent by all nodes in a step", "MB", _megabytes)
    megabytes.set_xscale("log")
    megabytes.set_yticklabels([])
    pictures.save(figure, "horovod", output)


def _draw_bars(
    axes: Axes,
    lines: Outcomes,
    title: str,
    unit: str,
    figure_of: Callable[[Sequence[Trained]], float],
) -> None:
    pictures.caption(axes, title, unit, "")
    groups = [
        [
            pictures.Bar(f"{way}, {line}", figure_of(ways[way]), COLORS[way])
            for way in TOGETHER
            if way in ways
        ]
        for line, ways in lines.items()
    ]
    pictures.bars(axes, groups)


def _step_seconds(ways: Mapping[str, Sequence[Trained]]) -> report.Timings:
    return report.Timings(
        {way: [one.step_seconds for one in rounds] for way, rounds in ways.items()}
    )


def _milliseconds(rounds: Sequence[Trained]) -> float:
    return statistics.median(one.step_seconds for one in rounds) * 1e3


def _megabytes(rounds: Sequence[Trained]) -> float:
    return statistics.median(one.step_bytes for one in rounds) / 1e6


if __name__ == "__main__":
    main()
