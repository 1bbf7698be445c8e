"""`make bench-mpca`: its machines keep the methods' laws, its optimizer is Keras's own."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import keras
import numpy as np
import pytest

from benchmarks import mpca, mpca_methods, mpca_tasks, report
from benchmarks.mpca_methods import (
    DenseSynchronous,
    Easgd,
    Machine,
    Mpca,
    ParameterServer,
    Pulls,
    Single,
    SparkNet,
    Trial,
)
from benchmarks.mpca_paper import RESULTS, SETTINGS
from benchmarks.mpca_tasks import Adam, Crew, Data, Floats, Task
from benchmarks.mpca_training import METHODS, Curve, Training, Trainings, train
from keras_strom._native.joint_model import JointModel

_RANDOM = np.random.default_rng(5)
_X = _RANDOM.normal(size=(4000, 6)).astype(np.float32)
_Y = _RANDOM.integers(0, 3, len(_X)).astype(np.int32)
SMALL = Task("small", "small", (6, 8, 3), 4, 1e-2, lambda: Data(_X, _Y, _X[:64], _Y[:64]))
R110, R152, VGGA = SETTINGS.values()
RIVALS = ("sparknet", "easgd")


def trial(setting: str = "r110", slow: int = 0) -> Trial:
    return Trial(SMALL, SETTINGS[setting], seed=3, workers=8, slow=slow)


def alone(rank: int, steps: int) -> Floats:
    """What worker `rank` has after so many steps by itself."""
    crew = Crew(SMALL, 8, seed=3)
    for _ in range(steps):
        crew.step(range(8))
    own: Floats = crew.values[rank]
    return own


# ------------------------------------------------------------------ tasks


def test_the_gradient_is_that_of_the_loss() -> None:
    crew = Crew(SMALL, 2, seed=1)
    start = crew.values[1].astype(np.float64)
    gradient = crew.gradients(range(1, 2))[0].copy()
    x, y = mpca_tasks.Batches(SMALL, 2, seed=1).take(range(1, 2))

    def loss(values: np.ndarray) -> float:
        (kernel, bias), (last, last_bias) = SMALL.views(values[None])
        logits = (np.maximum(x @ kernel + bias, 0) @ last + last_bias)[0]
        logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        penalty = mpca_tasks.L2 * float(values @ values)
        return penalty - float(np.mean(logs[np.arange(len(logs)), y[0]]))

    for place in range(0, SMALL.size, 7):
        step = np.zeros(SMALL.size)
        step[place] = 1e-5
        slope = (loss(start + step) - loss(start - step)) / 2e-5
        assert gradient[place] == pytest.approx(slope, abs=2e-4)


def test_adam_is_keras_own() -> None:
    values = _RANDOM.normal(size=(2, 40)).astype(np.float32)
    variables = [keras.Variable(own) for own in values]
    optimizers = [keras.optimizers.Adam(1e-2) for _ in variables]
    adam = Adam(2, 40, 1e-2)
    for _ in range(20):
        gradients = _RANDOM.normal(size=(2, 40)).astype(np.float32)
        for optimizer, variable, gradient in zip(optimizers, variables, gradients, strict=True):
            optimizer.apply([gradient], [variable])
        adam.step(range(2), values, gradients)
    np.testing.assert_allclose(values, [np.asarray(v) for v in variables], atol=2e-6)


def test_workers_have_batches_of_their_own_and_the_same_in_every_method() -> None:
    batches = mpca_tasks.Batches(SMALL, 8, seed=3)
    seen = [set[tuple[float, ...]]() for _ in range(8)]
    for _ in range(200):  # More than one pass.
        x, _ = batches.take(range(8))
        for rank in range(8):
            seen[rank] |= {tuple(row) for row in x[rank]}
    assert all(len(own) == len(_X) // 8 for own in seen)
    assert len(set.union(*seen)) == len(_X)
    np.testing.assert_array_equal(
        mpca_tasks.Batches(SMALL, 8, seed=3).take(range(2, 4))[0],
        mpca_tasks.Batches(SMALL, 8, seed=3).take(range(8))[0][2:4],
    )


# ------------------------------------------------------------------ methods


def test_without_a_pull_every_worker_trains_as_by_itself() -> None:
    machine = Mpca(trial(), Pulls(alpha=0.0))
    machine.advance(20.0)
    done = machine._done[0]
    assert done > 150
    np.testing.assert_array_equal(machine.crew.values[5], alone(5, done))


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        # What tick n-2 has collected is prepared in tick n-1, which has ended when tick n begins.
        ("r110", "r0 r1 p0 r2 p1 r0 p2 r1 p0 r2 p1 r0"),
        # Of two phases preparing is between ticks.
        ("vgga", "r0 p0 r1 p1 r0 p0 r1 p1 r0 p0 r1 p1 r0"),
    ],
)
def test_ticks_go_as_the_design_says(
    setting: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace: list[str] = []

    class Noted(JointModel):
        def add(self, offset: int, values: Floats, steps: int) -> None:
            shards = [self.shard(number)[0] for number in range(SETTINGS[setting].phases)]
            trace.append(f"r{shards.index(offset)}")
            super().add(offset, values, steps)

        def update(self, shard: int) -> None:
            trace.append(f"p{shard}")
            super().update(shard)

    monkeypatch.setattr(mpca_methods, "JointModel", Noted)
    machine = Mpca(trial(setting), Pulls(0.01))
    machine.advance(6.5 / SETTINGS[setting].phases * SETTINGS[setting].cycle_seconds)
    # Consecutive ones are one event, of eight workers.
    events = [event for place, event in enumerate(trace) if trace[place - 1 : place] != [event]]
    assert " ".join(events) == expected


def test_a_target_is_installed_three_ticks_after_its_snapshot() -> None:
    machine = Mpca(trial(), Pulls(0.01))
    tick = R110.cycle_seconds / 3
    start = machine.crew.values[0].copy()
    machine.advance(2.5 * tick)
    np.testing.assert_array_equal(machine._targets[0], start)
    machine.advance(3.5 * tick)
    offset, size = machine._shards[0]
    assert (machine._targets[0, offset : offset + size] != start[offset : offset + size]).any()
    np.testing.assert_array_equal(machine._targets[0, offset + size :], start[offset + size :])


def test_ticks_do_not_fall_on_steps() -> None:
    for setting in SETTINGS.values():
        ticks = np.arange(3000) * setting.cycle_seconds / setting.phases
        ticks += mpca_methods._TICK_OFFSET * setting.step_seconds
        parts = np.mod(ticks / setting.step_seconds, 1)
        assert np.minimum(parts, 1 - parts).min() > 1e-6


def test_sparknets_workers_are_equal_after_a_round() -> None:
    machine = SparkNet(trial())
    machine.advance(2 * 6.7)
    for values in machine.crew.values:
        np.testing.assert_array_equal(values, machine.joint)
    assert (machine.joint != SMALL.start(3)).any()


def test_easgds_workers_and_model_move_as_one() -> None:
    """An exchange keeps x_i + x~: with no training between them the sum of all stays."""
    task = dataclasses.replace(SMALL, learning_rate=0.0)
    machine = Easgd(dataclasses.replace(trial(), task=task))
    machine.crew.values += _RANDOM.normal(size=machine.crew.values.shape).astype(np.float32)
    before = machine.crew.values.sum(axis=0) + machine.joint
    distance = np.abs(machine.crew.values - machine.joint).mean()
    machine.advance(60.0)
    under_way = sum(machine._sent.values(), np.zeros(SMALL.size, np.float32))
    after = machine.crew.values.sum(axis=0) + machine.joint + under_way
    np.testing.assert_allclose(after, before, atol=1e-4)
    assert np.abs(machine.crew.values - machine.joint).mean() < distance / 3


def test_one_line_serves_one_worker_at_a_time() -> None:
    machine = Easgd(trial("vgga"))
    machine._events = [(1.0, "ask", rank) for rank in range(8)]
    machine.advance(1.0)
    ends = sorted(when for when, event, _ in machine._events if event == "exchange")
    np.testing.assert_allclose(np.diff(ends), VGGA.transfer_seconds)


def test_a_server_steps_at_every_push() -> None:
    machine = ParameterServer(trial())
    period = R110.ring_seconds
    machine.advance(10.001 * period)
    assert (
        machine._pushed == 80 - 7
    )  # The first step of each ends later than that of the one before.
    twin = ParameterServer(trial())
    while twin._pushed < machine._pushed:
        twin.advance(twin._pushes[0][0])
    np.testing.assert_array_equal(machine.joint, twin.joint)


def test_a_synchronous_step_has_the_mean_of_all_gradients() -> None:
    machine = DenseSynchronous(trial())
    machine.advance(R110.ring_seconds)
    crew = Crew(SMALL, 8, seed=3)
    expected = crew.values[:1].copy()
    mean = crew.gradients(range(8)).mean(axis=0, keepdims=True)
    Adam(1, SMALL.size, SMALL.learning_rate).step(range(1), expected, mean)
    np.testing.assert_array_equal(machine.joint, expected[0])


def test_slow_workers_step_half_as_often() -> None:
    machine = Mpca(trial(slow=3), Pulls(0.05))
    machine.advance(50.0)
    fast, slow = machine._done[0], machine._done[7]
    assert machine._done == [fast] * 5 + [slow] * 3
    assert fast / 2 <= slow <= fast / 2 + 1


@pytest.mark.parametrize("setting", SETTINGS)
def test_utilisations_are_near_the_papers(setting: str) -> None:
    seconds = 40 * SETTINGS[setting].cycle_seconds
    machines: dict[str, Machine] = {
        "sparknet": SparkNet(trial(setting)),
        "easgd": Easgd(trial(setting)),
        "mpca": Mpca(trial(setting), Pulls(0.01)),
    }
    for way, machine in machines.items():
        machine.advance(seconds)
        paper = RESULTS[setting][way].utilisation
        assert machine.utilisation(seconds) == pytest.approx(paper, rel=0.05)


@pytest.mark.parametrize("make", [Single, SparkNet, Easgd, ParameterServer, DenseSynchronous])
def test_when_a_machine_is_asked_changes_nothing(make: type[Machine]) -> None:
    at_once, often = make(trial()), make(trial())
    at_once.advance(40.0)
    for seconds in range(1, 41):
        often.advance(float(seconds))
    np.testing.assert_array_equal(at_once.joint, often.joint)


# ------------------------------------------------------------------ curves and the report


def test_a_curve_gets_there_between_evaluations() -> None:
    curve = Curve([10, 20, 30, 40], 1.0)
    assert curve.smooth == [10, 15, 20, 30]
    assert curve.end == 30
    assert curve.part_until(10) == 0.25
    assert curve.part_until(25) == 0.875
    assert curve.part_until(31) is None


def test_a_training_is_the_same_whenever_it_runs() -> None:
    training = Training("teacher", "r110", "mpca", 1, cycles=5, evaluations=3, pulls=Pulls(0.05))
    assert train(training) == train(training)


@pytest.mark.parametrize(
    ("there", "words"),
    [
        ({"mpca", "easgd"}, "1.00"),
        ({"mpca"}, "at least 1.50"),
        ({"easgd"}, "at most 0.67"),
        (set(), "unknown"),
    ],
)
def test_a_ratio_is_a_bound_on_the_side_that_is_known(
    there: set[str], words: str, tmp_path: Path
) -> None:
    result = report.Report("mpca", "", tmp_path)
    trainings = Trainings(tmp_path / "kept", resume=False, processes=1)
    extent = mpca.Extent(1, {"r110": 10}, alphas=(0.05,), evaluations=6)
    bench = mpca.Comparison(result, trainings, extent)
    bench._alphas = {(task, "r110"): 0.05 for task in mpca_tasks.TASKS}
    for task in mpca_tasks.TASKS:
        for way in ("mpca", "easgd", "sparknet"):
            arrives = way in {*there, "sparknet"}
            curve = Curve([10.0, *[50.0 if arrives else 20.0] * 5], 1.0)
            (training,) = bench._several(task, "r110", way)
            bench._curves[training] = curve
    assert bench._times_in_words("r110", "easgd") == words
    assert bench._times_in_words("r110", "mpca") == "1.00"
    bench._add_ratios("r110")
    assert all(target.value == 0.0 for target in result.targets) == ("mpca" not in there)


def test_the_quick_benchmark_has_the_designs_ids(tmp_path: Path) -> None:
    mpca.main(["--quick"], tmp_path)
    found = json.loads((tmp_path / "mpca-quick.json").read_text())
    goals = {target["name"]: target["goal"] for target in found["targets"]}
    # The others' utilisations cannot miss: they are assumed.
    names = {f"mpca_utilisation_easgd_{setting}" for setting in SETTINGS}
    names |= {f"mpca_order_{setting}" for setting in SETTINGS}
    ratios = {f"mpca_ratio_{w}_{s}" for w in RIVALS for s in ("r110", "r152")}
    assert set(goals) == names | ratios | {"mpca_straggler", "mpca_weighted", "mpca_gamma"}
    found_ratios = [goals[f"mpca_ratio_{w}_{s}"] for s in ("r110", "r152") for w in RIVALS]
    assert found_ratios == [1.11, 0.9, 1.12, 0.98]
    assert goals["mpca_straggler"] == 1.25
    table = [row for row in found["rows"] if "table 2" in row["group"]]
    assert len(table) == len(SETTINGS) * len(METHODS)
    for row in table:
        simulated = row["name"] == mpca.TITLES["easgd"]
        assert (row["utilisation"] is None) != simulated
        assert (row["assumed_utilisation"] is None) == simulated
    assert (tmp_path / "mpca-quick.png").stat().st_size > 10_000
    assert len(found["curves"]) > 40
