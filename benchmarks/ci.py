"""How long `.ci/run` takes, phase by phase: `python -m benchmarks.ci PHASES`, which it calls.

PHASES is a file with a line for each phase that has ended: its seconds, a tab and its name. The
figures are those of one run, on a machine that may have other work; the JSON file says which.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Mapping, Sequence

from benchmarks import pictures, report

NAME = "ci"

#: Of a phase's name, what stands before the first comma: these are what `make test` consists of.
TEST_PHASES = ("Quick tests", "Native tests", "Sanitized native tests", "Python tests")
QUICK_PHASE = "Quick tests"
LAST_PHASE = "Python tests"

#: Minutes on two cores without other work.
CI_GOAL, TEST_GOAL, QUICK_GOAL = 25, 12, 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes the report without showing it: the test runner's line is to stand last."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("phases", type=pathlib.Path)
    parser.add_argument("--output", type=pathlib.Path, default=report.OUTPUT)
    chosen = parser.parse_args(arguments)
    phases = read_phases(chosen.phases.read_text(encoding="utf-8"))
    summary(phases, chosen.output).write()
    draw(phases, chosen.output)


def read_phases(text: str) -> dict[str, float]:
    """Seconds by name, in the order of the file."""
    lines = [line.split("\t", 1) for line in text.splitlines() if line]
    return {name: float(seconds) for seconds, name in lines}


def summary(phases: Mapping[str, float], output: pathlib.Path = report.OUTPUT) -> report.Report:
    """The report: a row for each phase, and a target where all of its phases were run."""
    result = report.Report(NAME, "How long .ci/run takes", output)
    for name, seconds in phases.items():
        result.row(name, seconds=seconds)
    if LAST_PHASE in phases:
        result.target("ci_minutes", sum(phases.values()) / 60, CI_GOAL, "lower")
    if all(name in phases for name in TEST_PHASES):
        tests = sum(phases[name] for name in TEST_PHASES)
        result.target("test_minutes", tests / 60, TEST_GOAL, "lower")
    if QUICK_PHASE in phases:
        result.target("quick_minutes", phases[QUICK_PHASE] / 60, QUICK_GOAL, "lower")
    return result


def draw(phases: Mapping[str, float], output: pathlib.Path) -> pathlib.Path:
    """A bar for each phase, the first one on top."""
    figure, [axes] = pictures.picture(height=0.45 * len(phases) + 1.4)
    minutes = [seconds / 60 for seconds in phases.values()]
    axes.barh(list(phases), minutes, color=pictures.BLUE)
    axes.invert_yaxis()
    for place, value in enumerate(minutes):
        pictures.label(axes, value, place, f"{value:.1f}", pictures.BLUE)
    title = f"{sum(minutes):.0f} minutes of .ci/run"
    pictures.caption(axes, title, "minutes", "")
    return pictures.save(figure, NAME, output)


if __name__ == "__main__":
    main()
