"""The laws of the joint model's rules: MPCA SGD's (4), (5) and (7) to (9), SparkNet and EASGD.

The NumPy oracle judges: pulls, means, trajectories and targets are its own to the last bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_strom import errors
from keras_strom._native import joint_model as native
from keras_strom._native.joint_model import Floats, JointModel, JointValues
from keras_strom.method import MPCA, MethodKind, MethodNumbers
from tests.support import joint_model_oracle as oracle
from tests.support.joint_model_oracle import JointModelOracle

LARGEST = float(np.finfo(np.float32).max)
SEEDS = st.integers(0, 2**32 - 1)


def mpca(**changes: Any) -> MethodNumbers:
    """The defaults of MPCA SGD."""
    return dataclasses.replace(MPCA().numbers(workers=2), **changes)


def several_magnitudes(random: np.random.Generator, size: int) -> Floats:
    """Values of both signs between 1e-6 and 1e6."""
    magnitudes = 10 ** random.uniform(-6, 6, size)
    return np.asarray(magnitudes * random.choice([-1, 1], size), np.float32)


def assert_same_bits(ours: Floats, expected: Floats) -> None:
    np.testing.assert_array_equal(ours.view(np.uint32), expected.view(np.uint32))


def assert_same_model(model: JointModel, judge: JointModelOracle) -> None:
    ours, expected = model.read(), judge.read()
    for field in dataclasses.fields(JointValues):
        assert_same_bits(getattr(ours, field.name), getattr(expected, field.name))
    assert model.alpha() == judge.alpha()


# ------------------------------------------------------------------ the pull


@given(SEEDS, st.integers(0, 200), st.floats(0, 1, width=32))
def test_a_pull_is_bitwise_numpys(seed: int, size: int, alpha: float) -> None:
    random = np.random.default_rng(seed)
    values = random.integers(0, 2**32, (2, size), dtype=np.uint32).view(np.float32)
    x, target = np.where(np.isfinite(values) & (np.abs(values) < LARGEST / 4), values, 0)
    expected = x.copy()
    oracle.pull(expected, target, alpha)
    native.pull(x, target, alpha)
    assert_same_bits(x, expected)


@pytest.mark.parametrize("size", [1, 15, 16, 17, 65_535, 65_536, 65_537, 200_003])
def test_a_pull_of_any_length_leaves_no_element_out(size: int) -> None:
    random = np.random.default_rng(size)
    x, target = several_magnitudes(random, size), several_magnitudes(random, size)
    expected = x.copy()
    oracle.pull(expected, target, 0.05)
    native.pull(x, target, 0.05)
    assert_same_bits(x, expected)


@given(SEEDS, st.floats(0, 1, width=32))
def test_what_stands_at_its_target_stays_there(seed: int, alpha: float) -> None:
    x = several_magnitudes(np.random.default_rng(seed), 100)
    pulled = x.copy()
    native.pull(pulled, x, alpha)
    assert_same_bits(pulled, x)


def test_a_pull_of_one_assigns() -> None:
    x = np.array([1e30, 1, -0.0, 1e-45], np.float32)
    target = np.array([1, 1e-30, 5, -1e30], np.float32)
    native.pull(x, target, 1)
    assert_same_bits(x, target)


def test_a_pull_of_nothing_keeps_x() -> None:
    x = several_magnitudes(np.random.default_rng(1), 100)
    before = x.copy()
    native.pull(x, -x, 0)
    assert_same_bits(x, before)


@pytest.mark.parametrize(
    ("x", "target"),
    [
        (np.zeros(4), np.zeros(4, np.float32)),
        (np.zeros(8, np.float32)[::2], np.zeros(4, np.float32)),
        (np.zeros(4, np.float32), np.zeros(5, np.float32)),
    ],
    ids=["float64", "not contiguous", "another size"],
)
def test_a_pull_refuses_what_it_cannot_work_on(x: Any, target: Any) -> None:
    with pytest.raises(ValueError, match="pull"):
        native.pull(x, target, 0.5)


# ------------------------------------------------------------------ shards and schedules


@given(st.integers(1, 3), st.integers(0, 1000))
def test_shards_are_equal_and_cut_at_multiples_of_16(phases: int, more: int) -> None:
    size = 16 * phases + more
    model = JointModel(mpca(phases=phases), np.zeros(size, np.float32))
    found = [model.shard(shard) for shard in range(phases)]
    assert found == oracle.shards(size, phases)
    assert [offset for offset, _ in found] == [sum(s for _, s in found[:i]) for i in range(phases)]
    assert sum(own for _, own in found) == size
    assert all(offset % 16 == 0 for offset, _ in found)
    assert max(own for _, own in found) - min(own for _, own in found) < 32
    model.close()


def test_the_schedules_are_those_of_the_design() -> None:
    method = mpca()
    assert [oracle.alpha_of(method, cycle) for cycle in (0, 1, 2)] == [0, 0, 0.5]
    assert oracle.alpha_of(method, 12) == pytest.approx(np.sqrt(0.5 * 0.05))
    assert oracle.alpha_of(method, 22) == oracle.alpha_of(method, 500) == 0.05
    assert oracle.beta_of(method, 0) == 1
    assert oracle.beta_of(method, 10) == pytest.approx(np.sqrt(0.9))
    assert oracle.beta_of(method, 20) == oracle.beta_of(method, 500) == 0.9
    assert [oracle.gamma_of(method, cycle) for cycle in (0, 10, 20, 30)] == [0, 0.35, 0.7, 0.7]
    assert oracle.alpha_of(mpca(alpha=0.0), 12) == 0


def test_the_pull_goes_by_the_shard_that_is_least_far() -> None:
    model = JointModel(mpca(), np.zeros(48, np.float32))
    for shard in (0, 0, 0, 1, 1, 2):
        model.add(model.shard(shard)[0], np.ones(16, np.float32), 3)
        model.update(shard)
    assert model.alpha() == (0.0, 1)
    model.add(32, np.ones(16, np.float32), 3)
    model.update(2)
    assert model.alpha() == (0.5, 2)
    model.close()


# ------------------------------------------------------------------ means, trajectory, target


METHODS: dict[str, Callable[[], MethodNumbers]] = {
    "mpca": mpca,
    "one phase": lambda: mpca(phases=1),
    "two phases": lambda: mpca(phases=2, alpha=0.005),
    "unweighted": lambda: mpca(weighted=0),
    "ahead at once": lambda: mpca(ramp_cycles=0, gamma=2.0, delta=0.0),
    "sparknet": lambda: MethodNumbers(kind=MethodKind.SPARKNET, steps=5),
    "synchronous easgd": lambda: MethodNumbers(
        kind=MethodKind.EASGD_SYNCHRONOUS, phases=1, alpha=0.1, beta=0.9
    ),
}


@pytest.mark.parametrize("name", METHODS)
@given(seed=SEEDS, more=st.integers(0, 50), workers=st.integers(1, 5), cycles=st.integers(1, 30))
def test_cycles_are_bitwise_the_oracles(
    name: str, seed: int, more: int, workers: int, cycles: int
) -> None:
    method, random = METHODS[name](), np.random.default_rng(seed)
    start = several_magnitudes(random, 16 * method.phases + more)
    model, judge = JointModel(method, start), JointModelOracle(method, start)
    for cycle in range(cycles * method.phases):
        shard = cycle % method.phases
        offset, size = model.shard(shard)
        for steps in random.integers(0, 40, workers):
            snapshot = several_magnitudes(random, size)
            model.add(offset, snapshot, int(steps))
            judge.add(offset, snapshot, int(steps))
        model.update(shard)
        judge.update(shard)
    assert_same_model(model, judge)
    model.close()


@given(SEEDS)
def test_snapshots_in_any_order_differ_by_their_last_bit_at_most(seed: int) -> None:
    random = np.random.default_rng(seed)
    snapshots = [(random.normal(size=64).astype(np.float32), int(s)) for s in range(1, 9)]
    start = random.normal(size=64).astype(np.float32)
    found = []
    for order in (range(8), random.permutation(8)):
        model = JointModel(mpca(phases=1), start)
        for place in order:
            model.add(0, *snapshots[place])
        model.update(0)
        found.append(model.read().joint)
        model.close()
    first, second = found
    np.testing.assert_array_max_ulp(first, second, maxulp=1)


@given(SEEDS)
def test_equal_models_have_themselves_as_their_mean(seed: int) -> None:
    random = np.random.default_rng(seed)
    own = several_magnitudes(random, 64)
    for method in (mpca(phases=1), MethodNumbers(kind=MethodKind.SPARKNET, phases=1)):
        model = JointModel(method, random.normal(size=64).astype(np.float32))
        for steps in random.integers(1, 1000, 7):
            model.add(0, own, int(steps))
        model.update(0)
        assert_same_bits(model.read().joint, own)
        model.close()


def test_a_snapshot_counts_by_the_steps_behind_it() -> None:
    found = []
    for weighted in (1, 0):
        model = JointModel(mpca(phases=1, weighted=weighted), np.zeros(16, np.float32))
        model.add(0, np.full(16, 1, np.float32), 30)
        model.add(0, np.full(16, 5, np.float32), 10)
        model.update(0)
        found.append(float(model.read().joint[0]))
        model.close()
    assert found == [2, 3]


@pytest.mark.parametrize("weighted", [0, 1])
def test_a_worker_that_has_not_stepped_adds_nothing(weighted: int) -> None:
    start = np.arange(48, dtype=np.float32)
    method = mpca(weighted=weighted)
    model, without = JointModel(method, start), JointModel(method, start)
    for one in (model, without):
        one.add(0, np.full(16, 7, np.float32), 3)
    model.add(0, np.full(16, 1e6, np.float32), 0)
    model.add(16, np.full(16, 1e6, np.float32), 0)
    for one in (model, without):
        for shard in range(3):
            one.update(shard)
    assert_same_bits(model.read().joint, without.read().joint)
    assert_same_bits(model.read().joint[16:], start[16:])
    assert model.alpha() == without.alpha() == (0.0, 0)  # No cycle of shards 1 and 2.
    for one in (model, without):
        one.close()


def test_what_nobody_trains_keeps_its_bits_over_1000_cycles() -> None:
    random = np.random.default_rng(11)
    start = several_magnitudes(random, 256)
    is_trained = random.random(256) < 0.5
    model = JointModel(mpca(phases=2), start)
    for cycle in range(1000):
        offset, size = model.shard(cycle % 2)
        joint = model.read().joint
        for steps in random.integers(0, 30, 3):
            moved = joint + random.normal(size=256).astype(np.float32) * is_trained
            model.add(offset, moved[offset : offset + size], int(steps))
        model.update(cycle % 2)
    values = model.read()
    for own in (values.joint, values.target):
        assert_same_bits(own[~is_trained], start[~is_trained])
    assert not values.trajectory[~is_trained].any()
    assert (values.joint[is_trained] != start[is_trained]).all()
    model.close()


def test_the_trajectory_of_a_drift_is_its_way_in_a_cycle() -> None:
    steps, drift, delta = 15, 2.0**-10, 0.8
    model = JointModel(mpca(phases=1, alpha=0.0, beta=1.0, delta=delta), np.zeros(16, np.float32))
    for cycle in range(1, 60):
        x = np.full(16, cycle * steps * drift, np.float32)
        for _ in range(8):
            model.add(0, x, steps)
        model.update(0)
        values = model.read()
        assert_same_bits(values.joint, x)
        expected = steps * drift * (1 - delta**cycle)
        np.testing.assert_allclose(values.trajectory, expected, rtol=1e-6)
        ahead = 0.7 * min(cycle - 1, 20) / 20
        np.testing.assert_allclose(values.target, x + ahead * expected, rtol=1e-6)
    model.close()


def test_with_the_whole_mean_and_no_way_ahead_mpca_is_sparknet() -> None:
    random = np.random.default_rng(4)
    start = random.normal(size=100).astype(np.float32)
    both = JointModel(mpca(phases=1, beta=1.0, gamma=0.0), start)
    sparknet = JointModel(MethodNumbers(kind=MethodKind.SPARKNET, phases=1, steps=1), start)
    for _ in range(30):
        for snapshot in random.normal(size=(4, 100)).astype(np.float32):
            both.add(0, snapshot, 1)
            sparknet.add(0, snapshot, 1)
        for model in (both, sparknet):
            model.update(0)
        assert_same_bits(both.read().joint, sparknet.read().joint)
        assert_same_bits(both.read().target, sparknet.read().target)
    both.close()
    sparknet.close()


def test_a_whole_cycle_at_once_is_the_same_of_any_shards() -> None:
    random = np.random.default_rng(6)
    start = random.normal(size=200).astype(np.float32)
    models = [JointModel(mpca(phases=phases), start) for phases in (1, 2, 3)]
    for _ in range(40):
        for snapshot in random.normal(size=(4, 200)).astype(np.float32):
            steps = int(random.integers(0, 20))
            for model in models:
                model.add(0, snapshot, steps)
        for phases, model in enumerate(models, 1):
            for shard in range(phases):
                model.update(shard)
    one, *others = models
    for other in others:
        for field in dataclasses.fields(JointValues):
            assert_same_bits(getattr(other.read(), field.name), getattr(one.read(), field.name))
        assert other.alpha() == one.alpha()
    for model in models:
        model.close()


def test_a_shards_update_leaves_the_others_alone() -> None:
    model = JointModel(mpca(), np.zeros(48, np.float32))
    for offset in (0, 16, 32):
        model.add(offset, np.ones(16, np.float32), 1)
    model.update(1)
    values = model.read()
    assert values.joint.tolist() == values.target.tolist() == [0] * 16 + [1] * 16 + [0] * 16
    model.close()


def test_shards_that_come_in_one_call_count_as_those_that_come_apart() -> None:
    random = np.random.default_rng(2)
    start, snapshot = random.normal(size=(2, 96)).astype(np.float32)
    apart, together = JointModel(mpca(), start), JointModel(mpca(), start)
    together.add(0, snapshot, 4)
    for shard in range(3):
        offset, size = apart.shard(shard)
        apart.add(offset, snapshot[offset : offset + size], 4)
        apart.update(shard)
        together.update(shard)
    assert_same_bits(together.read().joint, apart.read().joint)
    assert_same_bits(apart.read().joint, snapshot)
    apart.close()
    together.close()


# ------------------------------------------------------------------ EASGD


@given(SEEDS)
def test_an_elastic_exchange_keeps_the_sum_of_both(seed: int) -> None:
    random = np.random.default_rng(seed)
    joint, x = random.normal(size=(2, 64)).astype(np.float32)
    alpha = np.float32(0.9 / 8)
    model = JointModel(
        MethodNumbers(kind=MethodKind.EASGD, phases=1, alpha=float(alpha), steps=10), joint
    )
    difference = alpha * (x - joint)
    moved = x.copy()
    native.pull(moved, joint, float(alpha))
    model.move(0, difference)
    assert_same_bits(moved, x - difference)
    assert_same_bits(model.read().joint, joint + difference)
    sums = moved.astype(np.float64) + model.read().joint
    np.testing.assert_allclose(sums, joint.astype(np.float64) + x, atol=1e-6)
    model.close()


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("method", "size", "words"),
    [
        (mpca(phases=4), 96, "phases"),
        (mpca(alpha=1.5), 96, "alpha"),
        (mpca(beta=0.0), 96, "beta"),
        (mpca(gamma=2.5), 96, "gamma"),
        (mpca(delta=1.0), 96, "delta"),
        (mpca(), 47, "shards"),
        (MethodNumbers(kind=MethodKind.UPDATE_SHARING, phases=1), 96, "joint model"),
    ],
    ids=["phases", "alpha", "beta", "gamma", "delta", "too small", "no method"],
)
def test_a_method_out_of_bounds_is_refused_by_name(
    method: MethodNumbers, size: int, words: str
) -> None:
    with pytest.raises(errors.StromError, match=words):
        JointModel(method, np.zeros(size, np.float32))


def test_what_lies_outside_is_refused() -> None:
    model = JointModel(mpca(), np.zeros(48, np.float32))
    with pytest.raises(errors.StromError, match="joint model"):
        model.add(40, np.zeros(9, np.float32), 1)
    with pytest.raises(errors.StromError, match="joint model"):
        model.move(-1, np.zeros(1, np.float32))
    for shard in (-1, 3):
        with pytest.raises(errors.StromError, match="shard"):
            model.update(shard)
    model.close()
    model.close()
    with pytest.raises(errors.StromError):
        model.read()
