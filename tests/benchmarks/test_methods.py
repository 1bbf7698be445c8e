"""`make bench-methods`: what its rows and targets say of outcomes."""

from __future__ import annotations

import pathlib

import pytest

from benchmarks import methods, report
from benchmarks.tta_training import EASGD, MPCA, STROM, Rate, Training

TRAINING = Training(
    way=STROM,
    task="mlp",
    workers=4,
    seed=1,
    rate=Rate(),
    marks=(20, 40, 60, 80),
    step_seconds=0.1,
)


def outcome(*accuracies: float, pace: float = 1.0) -> methods.Outcome:
    marks = range(1, len(accuracies) + 1)
    return methods.Outcome(
        seconds=tuple(2.0 * pace * mark for mark in marks),
        accuracies=accuracies,
        sent_bytes=tuple(8e6 * mark for mark in marks),
    )


def test_a_row_tells_time_and_bytes_of_a_worker_where_an_accuracy_is_reached() -> None:
    shown = methods.figures(TRAINING, outcome(0.5, 0.86, 0.86, 0.86))
    assert shown["seconds_to_85"] == 4.0
    assert shown["megabytes_to_85"] == 4.0
    assert shown["megabytes"] == 8.0
    assert shown["accuracy"] == pytest.approx(86)
    assert shown["utilisation"] == pytest.approx(7 / 8)
    assert "seconds_to_87" not in shown


def test_the_default_is_judged_where_all_come_in_the_end(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "OUTPUT", tmp_path)
    result = report.Report("methods", "a test")
    outcomes = {
        MPCA: outcome(0.5, 0.7, 0.8, 0.8, 0.8, pace=2),
        STROM: outcome(0.6, 0.85, 0.9, 0.9, 0.9),
        EASGD: outcome(0.5, 0.7, 0.85, 0.85, 0.85),
    }
    methods.judge("methods_k4", outcomes, result)
    (target,) = result.targets
    assert (target.name, target.value, target.goal) == ("methods_k4", 6 / 4, 1)


def test_what_is_kept_is_read_as_it_was() -> None:
    kept = outcome(0.5, 0.9)
    assert methods.Outcome.read(vars(kept)) == kept
