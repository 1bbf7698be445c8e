"""The benchmark of time to accuracy: its jobs, its curves, what it keeps and what it reports."""

import json
import math
import os
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from benchmarks import (
    namespaces,
    report,
    time_to_accuracy,
    tta_judge,
    tta_picture,
    tta_plan,
    tta_report,
    tta_training,
    tta_tuning,
)
from benchmarks.horovod_training import Traffic
from benchmarks.kept import Kept
from benchmarks.time_to_accuracy import TimeToAccuracy, curves_of
from benchmarks.tta_curves import Compared, Curve, Outcome, Setting, common_target
from benchmarks.tta_place import LINES, UNLIMITED, Line, Machines, Trained
from benchmarks.tta_plan import QUICK, Job, Plan, marks
from benchmarks.tta_training import (
    EXACT_DTYPES,
    HOROVOD,
    HOROVOD_FP16,
    METHODS,
    MIRRORED,
    SILENT,
    STROM,
    UNITS,
    WAYS,
    Course,
    Place,
    Rate,
    Training,
)

SLOW, FAST, LOSSY = LINES


def _outcome(accuracies: tuple[float, ...], step_seconds: float = 1.0) -> Outcome:
    """Of a job that was evaluated every ten steps after the warm-up, and sent 5 bytes a step."""
    steps = tuple(20 + 10 * place for place in range(len(accuracies)))
    seconds = tuple((step - 10) * step_seconds for step in steps)
    return Outcome(steps, seconds, tuple(5.0 * (step - 10) for step in steps), accuracies, 0.0)


def _curve(accuracies: tuple[float, ...], step_seconds: float = 1.0, seed: int = 1) -> Curve:
    return Curve.of(seed, [_outcome(accuracies, step_seconds)])


# ------------------------------------------------------------------ the plan


def test_keras_strom_trains_wholly_on_every_line_and_synchronous_methods_are_put_together() -> None:
    plan = Plan()
    (own,) = plan.of(STROM, "cnn", 2, LOSSY, 1)
    assert (own.line, own.training.copies) == (LOSSY, True)
    learning, timed = plan.of(HOROVOD, "cnn", 4, SLOW, 1)
    assert (learning.line, learning.training.copies) == (UNLIMITED, True)
    assert learning.training.step_seconds == 0
    assert (timed.line, timed.training.copies) == (SLOW, False)
    assert timed.training.marks == (110,)
    assert timed.training.step_seconds == tta_plan.STEP_SECONDS["cnn", 4] > 0
    assert plan.of(HOROVOD, "cnn", 4, SLOW, 2)[1] == timed  # One sample stands for all seeds.
    (whole,) = Plan(whole=True).of(HOROVOD, "cnn", 4, SLOW, 1)
    assert (whole.line, whole.training.copies) == (SLOW, True)
    assert whole.training.step_seconds == timed.training.step_seconds
    (silent,) = plan.of(SILENT, "cnn", 2, SLOW, 1)
    assert silent.line == UNLIMITED


def test_a_job_that_several_lines_need_is_run_once_and_seed_comes_after_seed() -> None:
    jobs = Plan(tasks=["cnn"], workers=[2]).jobs()
    assert len(jobs) == len(set(jobs)) == len({job.key for job in jobs}) == 3 * (3 + 3 + 1) + 3 * 3
    seeds = [job.training.seed for job in jobs]
    assert seeds == sorted(seeds)


def test_words_choose_a_part_of_the_plan() -> None:
    part = Plan().only(["wide", "k4", "100mbit", "keras-strom", "mwms"])
    assert (part.tasks, part.workers, part.lines) == (["wide"], [4], [SLOW])
    assert part.ways == [STROM, MIRRORED]
    # The other methods have a benchmark of their own.
    assert list(Plan().only(["1gbit"]).ways) == [
        way for way in WAYS if way not in (*METHODS, *EXACT_DTYPES)
    ]
    with pytest.raises(ValueError, match="--only wise: one of cnn, wide, k2"):
        Plan().only(["wise"])


@pytest.mark.parametrize("workers", [2, 4])
def test_evaluations_are_as_many_for_any_number_of_workers_and_more_at_first(workers: int) -> None:
    epoch = tta_training.steps_per_epoch(workers)
    found = marks(workers, 6)
    assert len(found) == 24
    assert found[:2] == (epoch // 6, epoch // 3)
    assert found[-1] == 6 * epoch
    # Each is the end of one of `fit`'s short epochs.
    training = Training(STROM, "cnn", workers, 1, Rate(), found)
    assert all(mark % tta_training.part_steps(training) == 0 for mark in found)
    assert training.epoch_steps % tta_training.part_steps(training) == 0
    assert marks(workers, 0.5) == found[:3]


# ------------------------------------------------------------------ curves


def test_the_warm_up_counts_as_average_steps() -> None:
    curve = _curve((0.5, 0.6, 0.7), step_seconds=2.0)
    assert curve.seconds == (40, 60, 80)
    assert curve.sent_bytes == (100, 150, 200)
    assert (curve.step_seconds, curve.composed) == (2, False)


def test_a_synchronous_method_has_its_accuracies_by_steps_and_the_time_of_timed_steps() -> None:
    learned = _outcome((0.5, 0.6, 0.7), step_seconds=100.0)
    timed = Outcome((15,), (20.0,), (350.0,), (), 0.0)
    curve = Curve.of(3, [learned, timed])
    assert (curve.seed, curve.composed) == (3, True)
    assert curve.accuracies == learned.accuracies
    assert curve.seconds == (80, 120, 160)
    assert curve.sent_bytes == (1400, 2100, 2800)


def test_a_target_is_reached_when_the_mean_of_three_evaluations_is_there() -> None:
    curve = _curve((0.9, 0.5, 0.7, 0.9, 0.8, 0.7))
    assert curve.smoothed == pytest.approx([-math.inf, -math.inf, 0.7, 0.7, 0.8, 0.8])
    # Half-way between the means at the fourth and the fifth; no sooner than there are three.
    assert curve.seconds_to(0.75) == pytest.approx((curve.seconds[3] + curve.seconds[4]) / 2)
    assert curve.seconds_to(0.65) == curve.seconds[2]
    assert (curve.best, curve.end) == pytest.approx((0.8, 0.8))
    assert curve.seconds_to(0.85) == math.inf


def test_every_run_reaches_the_common_target() -> None:
    curves = {STROM: [_curve((0.91,) * 3), _curve((0.9,) * 3)], SILENT: [_curve((0.8987,) * 3)]}
    assert common_target(curves) == 0.898


def test_workers_that_never_talk_count_as_a_mean_and_as_fast_as_the_slowest() -> None:
    courses = [Course((20, 30), (1.0, 3.0), (5.0, 6.0)), Course((20, 30), (2.0, 2.5), (7.0, 8.0))]
    silent = Outcome.of(SILENT, courses, [[0.8, 0.9], [0.6, 0.7]], 0.5)
    assert silent.seconds == (2.0, 3.0)
    assert silent.accuracies == pytest.approx((0.7, 0.8))
    assert silent.sent_bytes == (0, 0)
    # Of all others the chief speaks, whose copies were made at those times.
    assert Outcome.of(STROM, courses, [[0.8, 0.9]], 0.5).seconds == (1.0, 3.0)


# ------------------------------------------------------------------ running and keeping


class FakeMachines:
    """Ends every job at once."""

    jobs: list[tuple[Training, Line]]

    def __init__(self, failing: str = "") -> None:
        self.jobs = []
        self._failing = failing

    def __call__(self, workers: int) -> Any:
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def train(self, training: Training, line: Line) -> Trained:
        self.jobs.append((training, line))
        if training.way == self._failing:
            raise RuntimeError(f"{training.way} ended with 1: no")
        seconds = tuple(float(mark) for mark in training.marks)
        course = Course(training.marks, seconds, seconds)
        copies = [np.zeros(1, np.float32) for _ in training.marks] if training.copies else []
        return Trained([course] * training.workers, [np.stack(copies)] if copies else [])


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> FakeMachines:
    fake = FakeMachines()
    monkeypatch.setattr(time_to_accuracy, "Machines", fake)
    monkeypatch.setattr(tta_judge, "accuracy", lambda task, copy: 0.8)
    return fake


def _bench(tmp_path: Path, resume: bool) -> tuple[report.Report, TimeToAccuracy]:
    result = report.Report("of-a-test", "of a test", tmp_path)
    kept = Kept(tmp_path / "kept.jsonl", Outcome.from_fields, resume=resume)
    return result, TimeToAccuracy(result, kept)


def test_a_run_that_is_resumed_runs_only_what_is_missing(
    machines: FakeMachines, tmp_path: Path
) -> None:
    jobs = QUICK.jobs()
    _, bench = _bench(tmp_path, resume=False)
    first = bench.run(jobs[:3])
    assert [(job.training, job.line) for job in jobs[:3]] == machines.jobs
    machines.jobs.clear()
    _, bench = _bench(tmp_path, resume=True)
    outcomes = bench.run(jobs)
    assert len(machines.jobs) == len(jobs) - 3
    assert outcomes.keys() == set(jobs)
    assert {job: outcomes[job].accuracies for job in first} == {
        job: outcome.accuracies for job, outcome in first.items()
    }
    compared = curves_of(QUICK, outcomes)
    assert [setting.line for setting in compared] == list(QUICK.lines)
    assert all(list(curves) == list(QUICK.ways) for curves in compared.values())


def test_a_peer_that_fails_is_left_out_with_its_words_and_keras_strom_is_not(
    monkeypatch: pytest.MonkeyPatch, machines: FakeMachines, tmp_path: Path
) -> None:
    result, bench = _bench(tmp_path, resume=False)
    monkeypatch.setattr(machines, "_failing", HOROVOD)
    outcomes = bench.run(QUICK.jobs())
    assert "ended with 1: no" in result.rows[0]["skipped"]
    for curves in curves_of(QUICK, outcomes).values():
        assert list(curves) == [way for way in QUICK.ways if way != HOROVOD]
    monkeypatch.setattr(machines, "_failing", STROM)
    with pytest.raises(RuntimeError, match="keras-strom ended"):
        _bench(tmp_path, resume=False)[1].run(QUICK.jobs())


def test_without_machines_it_says_why_it_cannot_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(namespaces.os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit, match="network namespaces need root"):
        time_to_accuracy.main(["--quick", "--output", os.fspath(tmp_path)])


def test_without_its_environment_the_report_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(time_to_accuracy, "ENVIRONMENT", tmp_path)
    result = report.Report("of-a-test", "of a test", tmp_path)
    assert time_to_accuracy.available(result, Plan()).ways == [STROM, SILENT]
    assert {row["name"] for row in result.rows} == {HOROVOD, HOROVOD_FP16, MIRRORED}
    assert ".ci/horovod/set-up" in json.dumps(result.rows)


# ------------------------------------------------------------------ tuning


def test_a_rate_is_looked_for_until_both_neighbours_are_worse() -> None:
    tried: list[float] = []

    def score(rate: float) -> float:
        tried.append(rate)
        return -abs(math.log(rate / 5e-3))

    assert tta_tuning.climb(score) == 4e-3
    assert tried == [1e-3, 2e-3, 5e-4, 4e-3, 8e-3]


def test_tuning_is_on_a_seed_that_is_not_reported(machines: FakeMachines, tmp_path: Path) -> None:
    result, bench = _bench(tmp_path, resume=False)
    tta_tuning.tune(result, Plan(tasks=["cnn"], workers=[2]), bench.run)
    assert {training.seed for training, _ in machines.jobs} == {tta_tuning.SEED}
    assert Plan().seeds < tta_tuning.SEED
    assert {line for _, line in machines.jobs} == {UNLIMITED}
    best = [row["name"] for row in result.rows if row["best"]]
    assert best == [
        "keras-strom, 0.001",
        "Horovod, 0.001",
        f"{MIRRORED}, 0.001",
        f"{SILENT}, 0.001",
    ]


def test_fp16_compression_takes_the_rate_of_the_method_that_it_compresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tta_plan, "RATES", {("cnn", 2, HOROVOD): Rate(2e-3, 1)})
    assert tta_plan.rate_of("cnn", 2, HOROVOD_FP16) == Rate(2e-3, 1)
    assert tta_plan.rate_of("cnn", 2, STROM) == Rate()


# ------------------------------------------------------------------ the report


def _compared() -> Compared:
    """At 100 Mbit/s keras-strom takes half of the steps, in a tenth of the time each."""
    curves = {
        STROM: [_curve((0.9, 0.9, 0.9, 0.9, 0.9), 0.1), _curve((0.9,) * 5, 0.1, seed=2)],
        HOROVOD: [_curve((0.5, 0.6, 0.9, 0.9, 0.9), 1.0), _curve((0.5, 0.6, 0.9, 0.9, 0.9), 1.0)],
        HOROVOD_FP16: [_curve((0.5, 0.6, 0.9, 0.9, 0.902), 0.5)],
    }
    return {Setting("wide", 2, SLOW): curves, Setting("wide", 4, SLOW): curves}


def test_targets_are_against_the_better_variant_of_a_peer(tmp_path: Path) -> None:
    result = report.Report("of-a-test", "of a test", tmp_path)
    compared = _compared()
    tta_report.add(result, compared, [_outcome((0.5,))])
    tta_picture.draw(compared, "of-a-test", tmp_path)
    targets = {target.name: target for target in result.targets}
    # Nearly 60 steps of 0.5 s against 40 steps of 0.1 s.
    assert targets["tta_100mbit_horovod"].value == pytest.approx(59.93 * 0.5 / (40 * 0.1), rel=1e-3)
    assert targets["tta_100mbit_horovod"].goal == 10
    assert targets.keys() == {
        "tta_100mbit_horovod",
        "tta_100mbit_horovod_k4",
        "end_accuracy_gap",
    }
    gap = targets["end_accuracy_gap"]
    assert (gap.value, gap.met) == (pytest.approx(0.002 / 3), True)
    skipped = {row["name"] for row in result.rows if row["group"] == "Skipped"}
    assert skipped == {"tta_100mbit_mwms", "tta_100mbit_mwms_k4"}
    result.write()
    curves = json.loads(result.path.read_text())["curves"]
    assert len(curves) == 2 * 5
    assert curves[0]["accuracies"] == [0.9] * 5
    assert (tmp_path / "of-a-test.png").exists()


def test_rows_name_the_target_the_ratio_and_where_the_seconds_are_from(tmp_path: Path) -> None:
    result = report.Report("of-a-test", "of a test", tmp_path)
    tta_report.add(result, _compared(), [])
    own, other, _ = (row for row in result.rows if "2 workers" in row["group"] and "runs" in row)
    assert (own["name"], own["times_as_long"], own["put_together"]) == (STROM, 1, False)
    assert "100 Mbit/s: to an accuracy of 0.900" in own["group"]
    assert (own["s_to_target"], own["runs"]) == (pytest.approx(4.0), 2)
    assert (other["times_as_long"], other["rate"]) == (pytest.approx(15), "0.001 x 2")
    assert "100 ms" in tta_report.title(Setting("wide", 4, SLOW))


# ------------------------------------------------------------------ what a worker does


@pytest.fixture
def few_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes 2 x 64 of them, so that an epoch of two workers is one step."""
    load = tta_training.pictures
    monkeypatch.setattr(tta_training, "pictures", lambda split, count: load(split, 2 * 64))


@pytest.mark.jobs
def test_who_trains_alone_copies_at_every_mark_and_no_step_is_shorter_than_told(
    few_pictures: None, tmp_path: Path
) -> None:
    training = Training(SILENT, "cnn", 2, 1, Rate(), (12, 14, 16), step_seconds=0.2)
    place = Place(1, os.fspath(tmp_path), Traffic())
    course = Course.from_json(tta_training.train_silent(training, place).to_json())
    assert course.steps == (12, 14, 16)
    # Six steps, less what passes between the end of one and the look at the clock.
    assert course.seconds[-1] > 3 * 0.2
    copies = np.load(tta_training.copies_path(os.fspath(tmp_path), 1))
    assert copies.shape == (3, 225034)
    assert not np.array_equal(copies[0], copies[1])


def test_a_copy_is_judged_as_the_model_that_it_is_of(monkeypatch: pytest.MonkeyPatch) -> None:
    keras.utils.set_random_seed(4)
    model = tta_training.compiled(keras, "cnn", keras.optimizers.SGD())
    load = tta_judge.pictures
    monkeypatch.setattr(tta_judge, "pictures", lambda split, count: load(split, 500))
    copy = np.concatenate([np.ravel(weight) for weight in model.get_weights()])
    _, expected = model.evaluate(*load("t10k", 500), batch_size=500, verbose=0)
    assert tta_judge.accuracy("cnn", copy) == pytest.approx(expected)


def test_the_larger_model_has_at_least_two_million_parameters() -> None:
    sizes = {
        task: tta_training.compiled(keras, task, keras.optimizers.SGD()).count_params()
        for task in UNITS
    }
    assert sizes == {"cnn": 225_034, "wide": 2_080_906}
    assert all(f"{size:,}" in tta_report.TITLES[task] for task, size in sizes.items())


@pytest.mark.jobs
@pytest.mark.skipif(namespaces.unavailable() is not None, reason="needs network namespaces")
def test_two_workers_of_keras_strom_train_on_machines_of_their_own() -> None:
    training = Training(STROM, "cnn", 2, 1, Rate(), (14, 28))
    with Machines(2) as machines:
        trained = machines.train(training, FAST)
    assert [course.steps for course in trained.courses] == [(14, 28)] * 2
    assert all(course.sent_bytes[1] > 0 for course in trained.courses)
    (copies,) = trained.copies
    assert copies.shape == (2, 225034)
    assert Job(training, FAST).key != Job(training, SLOW).key
