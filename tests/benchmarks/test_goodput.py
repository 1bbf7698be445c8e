"""What goodput counts: steps that were made again, and those at both ends, count for nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import goodput
from benchmarks.goodput import Steps, mass_lost, useful_rate
from benchmarks.hits import Kill
from benchmarks.report import Report
from keras_strom import errors


def steps(rank: int, attempt: int, first: int, *moments: float, left: float | None = None) -> Steps:
    made = tuple((moment, first + i, 0.5 * (first + i)) for i, moment in enumerate(moments))
    return Steps(rank, attempt, made, left)


def test_each_step_of_a_rank_counts_once_between_the_start_of_all_and_the_first_end() -> None:
    calm = steps(0, 0, 1, 0, 1, 2, 3, 4, 5, 6)
    late = steps(1, 0, 1, 1, 2, 3, 4, 5, 6, 7)
    assert useful_rate([calm, late]) == 2.0
    # Killed after its third step, it makes the third again, and is away for a second.
    killed, again = steps(1, 0, 1, 1, 2, 3), steps(1, 1, 3, 5, 6, 7)
    assert useful_rate([calm, killed, again]) == pytest.approx((5 + 3) / 5)
    drained = steps(1, 1, 4, 5, 6, 7)
    assert useful_rate([calm, killed, drained]) == pytest.approx((5 + 4) / 5)


def test_a_job_in_which_nobody_made_steps_beside_others_has_no_useful_ones() -> None:
    assert useful_rate([]) == 0.0
    assert useful_rate([steps(0, 0, 1), steps(1, 0, 1)]) == 0.0
    assert useful_rate([steps(0, 0, 1, 5), steps(1, 0, 1, 5)]) == 0.0
    assert useful_rate([steps(0, 0, 1, 1, 2), steps(1, 0, 1, 3, 4)]) == 0.0


def test_why_a_job_failed_is_told_where_nobody_made_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise errors.WorkerFailed(1, "a host", "no such module")

    monkeypatch.setattr(goodput, "launch", fail)
    result = Report("chaos", "Training while workers are killed", tmp_path)
    goodput.add_goodput(result, workers=2, seconds=1, every=1000)
    assert not [target for target in result.targets if target.name.startswith("goodput")]
    reasons = {row["name"]: row.get("skipped") for row in result.rows}
    assert "no such module" in reasons["goodput_kills"]
    assert "no such module" in reasons["goodput_drains"]


def test_what_a_worker_had_not_sent_is_lost_unless_it_has_drained() -> None:
    processes = [steps(0, 0, 1, 0, 1), steps(1, 0, 1, 0, 1, 2), steps(1, 1, 4, 4, left=0.0)]
    assert mass_lost(processes, [Kill(2.5, 1, 0)]) == 1.5
    assert mass_lost(processes, [Kill(2.5, 1, 1)]) == 0.0


def test_a_worker_that_was_struck_before_its_first_step_was_noted_counts_for_nothing() -> None:
    """It says that it trains before it notes its step, of which it may write half a line."""
    processes = [steps(0, 0, 1, 0, 1), steps(1, 0, 1)]
    assert mass_lost(processes, [Kill(0.5, 0, 1), Kill(0.5, 1, 0)]) == 0.0
