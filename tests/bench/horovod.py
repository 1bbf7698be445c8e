"""`make bench-horovod`: the same training through Horovod on Spark, and through keras-strom.

Two workers train one CNN on Fashion-MNIST through `horovod.spark.run`, `keras_strom.spark.run` and,
without Spark, TensorFlow's MultiWorkerMirroredStrategy, in turn, round after round; one process of
plain Keras trains beside them. As root each worker and the driver are on a machine of their own, a
network namespace, joined by lines of 100 Mbit/s and of 1 Gbit/s; otherwise all is on loopback.

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

from tests.bench import namespaces, pictures, report
from tests.bench.horovod_place import ENVIRONMENT, WORKERS, Place
from tests.bench.horovod_training import (
    ALONE,
    ALONE_TF_KERAS,
    HOROVOD,
    MIRRORED,
    STROM,
    Trained,
    Training,
)
from tests.bench.other_work import OtherWork
from tests.bench.spark_cluster import SparkCluster

LINES_MBIT = {"100 Mbit/s": 100, "1 Gbit/s": 1000}
LOOPBACK = "loopback"
#: Who trains alone needs no line.
NO_LINE = ""
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
    parser.add_argument("--epochs", type=int, default=Training.epochs)
    parser.add_argument("--pictures", type=int, default=Training.pictures)
    parser.add_argument("--loopback", action="store_true", help="no namespaces, even as root")
    parser.add_argument("--output", type=pathlib.Path, default=report.OUTPUT)
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces are taken down
    result = report.Report("horovod", "Beside Horovod", chosen.output)
    others = OtherWork()
    reason = "told to stay on loopback" if chosen.loopback else namespaces.unavailable()
    if reason is not None:
        result.skip("lines of 100 Mbit/s and 1 Gbit/s", reason)
    training = Training(epochs=chosen.epochs, pictures=chosen.pictures)
    outcomes = measure(result, training, chosen.rounds, lines=reason is None)
    add_rows(result, outcomes, training)
    draw(outcomes, training, chosen.output)
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
    result: report.Report, training: Training, rounds: int, *, lines: bool
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
                outcomes[line][way].append(place.run(way, training))
            except RuntimeError as error:
                if way in (STROM, ALONE):
                    raise
                failed.add((line, way))
                del outcomes[line][way]
                result.skip(f"{way}, {line or 'alone'}", str(error))
    return outcomes


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


def add_rows(result: report.Report, outcomes: Outcomes, training: Training) -> None:
    """A row for each way on each line, and the target."""
    for line, ways in outcomes.items():
        for way, rounds in ways.items():
            seconds = _epoch_seconds(rounds)
            together = {"mb_an_epoch": _megabytes(rounds, training)} if line != NO_LINE else {}
            result.row(
                way,
                group=f"Two workers, {line}" if line != NO_LINE else "One process",
                seconds_an_epoch=seconds,
                examples_per_s=training.pictures / seconds,
                fit_seconds=statistics.median(one.fit_seconds for one in rounds),
                accuracy=statistics.median(one.accuracy for one in rounds),
                **together,
            )
    for line, ways in outcomes.items():
        dense = next((way for way in (HOROVOD, MIRRORED) if way in ways), None)
        if dense is not None:
            ratio = _megabytes(ways[dense], training) / _megabytes(ways[STROM], training)
            name = f"times_less_{line.replace(' ', '_').replace('/', '_')}"
            result.target(name, ratio, goal=SMALLER)


def draw(outcomes: Outcomes, training: Training, output: pathlib.Path) -> None:
    """Seconds and megabytes of an epoch, in build/bench/horovod.png."""
    lines = {line: ways for line, ways in outcomes.items() if line != NO_LINE}
    figure, (seconds, megabytes) = pictures.picture(2, width=6.5, height=1 + 1.4 * len(lines))
    _draw_bars(seconds, lines, "An epoch with two workers", "s", _epoch_seconds)
    _draw_bars(
        megabytes, lines, "Sent by all nodes in an epoch", "MB", lambda r: _megabytes(r, training)
    )
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
    places, names = [], []
    height = 0.0
    for line, ways in reversed(lines.items()):
        for way in reversed([way for way in TOGETHER if way in ways]):
            value = figure_of(ways[way])
            axes.barh(height, value, 0.8, color=COLORS[way])
            pictures.label(axes, value, height, f"{value:.3g}", COLORS[way])
            places.append(height)
            names.append(f"{way}, {line}")
            height += 1
        height += 0.6
    axes.set_yticks(places, names)
    axes.margins(x=0.15)


def _epoch_seconds(rounds: Sequence[Trained]) -> float:
    return statistics.median(seconds for one in rounds for seconds in one.epoch_seconds)


def _megabytes(rounds: Sequence[Trained], training: Training) -> float:
    """Of an epoch."""
    return statistics.median(one.sent_bytes for one in rounds) / training.epochs / 1e6


if __name__ == "__main__":
    main()
