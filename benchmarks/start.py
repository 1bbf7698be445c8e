"""`make bench-start`: how long it takes until workers on Spark train, and what several fits take.

An embedded cluster of two executors, a core each, in a driver of its own for every figure. The
first `run` of an application is compared with what cannot be avoided: `import tensorflow, keras`
in a fresh interpreter, and the first tasks of Python that Spark starts. Later runs of the
application fork their workers from what their executors have imported.

A cross-validation of five fits on scikit-learn's digits is compared with elephas's estimator
(synchronous mode) in its own environment, build/elephas, which .ci/environment sets up; without it
that figure is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import rich.progress
from matplotlib.axes import Axes

from benchmarks import pictures, processes, report

ROUNDS = 3
ELEPHAS = report.ROOT / "build" / "elephas"
TARGETS = {"first_step_cold", "first_step_warm"}
_SECONDS = 1200.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Times everything and shows the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--no-elephas", action="store_true", help="leave out the cross-validation")
    parser.add_argument("--output", type=pathlib.Path, default=report.OUTPUT)
    chosen = parser.parse_args(arguments)
    if chosen.rounds < 1:
        parser.error(f"--rounds={chosen.rounds}: 1 or more")
    result = report.Report("start", "Until workers train", chosen.output)
    figure, axes = pictures.picture(2)
    start(result, chosen.rounds, axes[0])
    if chosen.no_elephas:
        result.skip("crossvalidator_vs_elephas", "--no-elephas")
    elif not (ELEPHAS / "made-of.txt").exists():
        result.skip("crossvalidator_vs_elephas", "there is no build/elephas: make bench-start")
    else:
        cross_validation(result, axes[1])
    pictures.save(figure, "start", chosen.output)
    result.finish()


def start(result: report.Report, rounds: int, axes: Axes) -> None:
    """Compares the first run and later ones with what they cannot avoid."""
    imports, tasks, cold, warm = [], [], [], []
    for _ in rich.progress.track(range(rounds), "Starting"):
        imports.append(import_seconds())
        tasks.append(drive("tasks")["seconds"])
        seconds = drive("runs")
        cold.append(seconds["cold"])
        warm += seconds["warm"]
    figures = {
        "import tensorflow, keras": imports,
        "Spark's first tasks of Python": tasks,
        "run, to the first step": cold,
        "a later run, to the first step": warm,
    }
    medians = {name: statistics.median(seconds) for name, seconds in figures.items()}
    for name, seconds in figures.items():
        result.row(
            name,
            group="Seconds to a first step, two workers",
            seconds=medians[name],
            least=min(seconds),
            most=max(seconds),
        )
    imported, task, first, later = medians.values()
    result.target("first_step_cold", first / (imported + task), goal=1.3, better="lower")
    result.target("first_step_warm", later, goal=2.0, better="lower")
    pictures.caption(axes, "Until both workers have trained a step", "seconds", "")
    draw(axes, medians, [pictures.GREY, pictures.GREY, pictures.BLUE, pictures.ORANGE])


def cross_validation(result: report.Report, axes: Axes) -> None:
    """Compares five fits with elephas's."""
    seconds = {}
    for what, name in (("strom", "StromEstimator"), ("elephas", "elephas")):
        outcome = drive(what, ELEPHAS / "bin" / "python")
        seconds[name] = outcome["seconds"]
        result.row(name, group="Cross-validation on digits, five fits", **outcome)
    ratio = seconds["StromEstimator"] / seconds["elephas"]
    result.target("crossvalidator_vs_elephas", ratio, goal=1.0, better="lower")
    pictures.caption(axes, "Five fits of a cross-validation", "seconds", "")
    draw(axes, seconds, [pictures.ORANGE, pictures.GREY])


def draw(axes: Axes, seconds: dict[str, float], colors: Sequence[str]) -> None:
    """Bars with their names, the first one on top."""
    places = range(len(seconds))[::-1]
    axes.barh(places, list(seconds.values()), color=list(colors), height=0.45)
    axes.set_yticks([])
    axes.set_ylim(-0.4, len(seconds) - 0.4)
    for place, (name, value), color in zip(places, seconds.items(), colors, strict=True):
        pictures.label(axes, 0, place + 0.38, f"{name}: {value:.1f}", color, xytext=(2, 0))


def import_seconds() -> float:
    """What a fresh interpreter takes to import TensorFlow and Keras."""
    begin = time.monotonic()
    code = "import tensorflow, keras"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=variables())
    return time.monotonic() - begin


def drive(what: str, python: pathlib.Path | None = None) -> dict[str, float]:
    """Runs one driver of `start_job` to its end.

    Raises:
        RuntimeError: it failed; its last words follow.
    """
    program = str(python or sys.executable)
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [program, "-m", "benchmarks.start_job", what],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**variables(), "PYSPARK_PYTHON": program},
            cwd=report.ROOT,
        )
        try:
            processes.wait_for(what, [(process, log)], _SECONDS)
        finally:
            processes.stop(process)
        outcome: dict[str, float] = json.loads(processes.last_line(what, log))
    return outcome


def variables() -> dict[str, str]:
    """Of every driver: this tree's benchmarks, and Spark on the loopback."""
    return {**os.environ, "PYTHONPATH": str(report.ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}


if __name__ == "__main__":
    main()
