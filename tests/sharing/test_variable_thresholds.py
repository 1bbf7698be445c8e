"""A threshold for each variable, against a NumPy model of the step and in two real workers."""

from __future__ import annotations

import json
import logging
import pathlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_strom import codec, errors
from keras_strom.sharing.residual import ResidualClipping, ShakeUp
from keras_strom.sharing.statistics import BY_VARIABLE, LENGTH, StepStatistics
from keras_strom.sharing.threshold import (
    AdaptiveThreshold,
    FixedThreshold,
    TargetDensityThreshold,
    ThresholdAlgorithm,
    initial_state_of,
)
from keras_strom.strategy.monitor import StromMonitor
from keras_strom.strategy.strategy import StromStrategy
from tests.support import message_oracle as oracle
from tests.support.two_workers import results, run_two_workers

SIZES = (40, 7, 3000)
SCRIPT = pathlib.Path(__file__).parents[1] / "support" / "scripts" / "variable_thresholds.py"


class Loop:
    """A strategy, three variables and an optimizer that adds what it is given."""

    def __init__(self, threshold: ThresholdAlgorithm, **options: Any) -> None:
        self.strategy = StromStrategy(
            threshold=threshold, local_apply="encoded", always_encode=True, **options
        )
        with self.strategy.scope():
            self.variables = [
                tf.Variable(tf.zeros(size), name=f"layer_{i}/kernel")
                for i, size in enumerate(SIZES)
            ]
            self.optimizer = keras.optimizers.SGD(1.0)
            self.optimizer.build(self.variables)
        self._trained = self.variables
        self.sharing = self.strategy._sharing
        self.sharing.replica.keep_messages()
        self._step = tf.function(self._update)

    def step(self, updates: list[Any]) -> None:
        """Adds the updates."""
        self._step([-tf.constant(update, tf.float32) for update in updates])

    @property
    def message(self) -> bytes:
        """That of the latest step."""
        message: bytes = self.sharing.replica.message(0)
        return message

    def freeze_all_but_the_first(self) -> None:
        """From now on steps update the first variable alone."""
        self._trained = self.variables[:1]
        self._step = tf.function(self._update)

    def _update(self, gradients: list[tf.Tensor]) -> None:
        pairs = list(zip(gradients, self._trained, strict=False))
        self.strategy.run(lambda: self.optimizer.apply_gradients(pairs))

    @property
    def values(self) -> Any:
        return np.concatenate([variable.numpy() for variable in self.variables])

    @property
    def residual(self) -> Any:
        return self.sharing.replica.read_residual(0, sum(SIZES))


def _updates(random: np.random.Generator) -> list[Any]:
    """Of the three variables, which differ by orders of magnitude."""
    return [
        (random.standard_t(3, size) * magnitude).astype(np.float32)
        for size, magnitude in zip(SIZES, (1e-3, 1e-1, 1e-5), strict=True)
    ]


def _rounded(threshold: Any) -> Any:
    return np.float32(oracle.table_value(float(threshold)))


@pytest.mark.parametrize("factor", [None, 0.5])
def test_a_training_is_that_of_the_rule_in_numpy(factor: float | None) -> None:
    """Every step's message, values and residuals, bit for bit; with shake-ups and clipping too."""
    algorithm = AdaptiveThreshold(
        initial=1e-3, min_density=0.05, max_density=0.2, factor=0.75, per_variable=True
    )
    shakes = None if factor is None else ShakeUp(every=4, factor=factor)
    loop = Loop(algorithm, shake_up=shakes, residual_clipping=ResidualClipping(2, every=3))
    random = np.random.default_rng(5)
    thresholds = [np.float32(1e-3)] * 3
    last: list[Any] = [None] * 3
    values = [np.zeros(size, np.float32) for size in SIZES]
    residuals = [np.zeros(size, np.float32) for size in SIZES]
    tables = 0
    for step in range(12):
        shakes_now = shakes is not None and (step + 1) % 4 == 0
        updates = _updates(random)
        loop.step(updates)
        for i, update in enumerate(updates):
            moved = thresholds[i] if last[i] is None else _next(algorithm, thresholds[i], *last[i])
            tau = _rounded(moved * np.float32(factor if shakes_now else 1.0))
            changed = (values[i] + update) - values[i]
            residuals[i] += changed
            sent = np.where(np.abs(residuals[i]) >= tau, np.copysign(tau, residuals[i]), 0)
            sent = sent.astype(np.float32)
            residuals[i] -= sent
            values[i] += sent
            if (step + 1) % 3 == 0:
                limit = np.float32(2.0) / np.float32(factor if shakes_now else 1.0) * tau
                residuals[i] = np.clip(residuals[i], -limit, limit)
            if not shakes_now:
                thresholds[i], last[i] = moved, (np.count_nonzero(sent), len(sent))
        np.testing.assert_array_equal(loop.values, np.concatenate(values))
        np.testing.assert_array_equal(loop.residual, np.concatenate(residuals))
        header, count, _ = oracle.decode(loop.message)
        assert count == codec.read(loop.message).count
        tables += len(header.runs) == 3
    state = loop.sharing.step.threshold_state[::2]  # The learning rate has not moved them.
    # Powers may differ in the last bit; what is sent is rounded far more coarsely.
    np.testing.assert_allclose(state, thresholds, rtol=1e-6)
    assert len(set(thresholds)) == 3
    assert tables > 5


def _next(algorithm: AdaptiveThreshold, threshold: Any, count: int, elements: int) -> Any:
    """The rule in NumPy's float32."""
    density = count / elements
    factor = np.float32(algorithm.factor)
    if density > algorithm.max_density:
        return threshold / factor
    if density >= algorithm.min_density:
        return threshold
    patience = np.clip(np.float32(elements * algorithm.max_density), np.float32(0.25), 1)
    return threshold * ((threshold * factor) / threshold) ** patience


def test_layers_of_other_magnitudes_are_sent_where_one_threshold_sends_one() -> None:
    """The effect that it is for: with one threshold the third variable never reaches it."""
    sent = {}
    for per_variable in (False, True):
        algorithm = AdaptiveThreshold(per_variable=per_variable, initial=1e-2)
        loop = Loop(algorithm, residual_clipping=ResidualClipping())
        random = np.random.default_rng(6)
        counts = np.zeros(3)
        for _ in range(150):
            loop.step(_updates(random))
            _, _, sums = oracle.decode(loop.message)
            parts = np.split(sums, np.cumsum(SIZES)[:-1])
            counts += [np.count_nonzero(part) for part in parts]
        sent[per_variable] = counts / (150 * np.array(SIZES))
    assert sent[False][2] == 0
    assert sent[True][2] > 1e-4
    assert sent[True][0] < sent[False][0] / 2


def test_variables_that_a_step_leaves_alone_keep_their_threshold() -> None:
    loop = Loop(AdaptiveThreshold(initial=1e-3, per_variable=True, factor=0.5))
    zeros = [np.zeros(size, np.float32) for size in SIZES]
    for _ in range(3):
        loop.step([np.ones(SIZES[0], np.float32), *zeros[1:]])
    by_path = loop.sharing.step.last_by_variable
    assert set(by_path) == {f"layer_{i}/kernel:0" for i in range(3)}
    assert set(by_path["layer_0/kernel:0"]) == set(BY_VARIABLE)
    before = loop.sharing.step.threshold_state
    loop.freeze_all_but_the_first()
    loop.step([np.ones(SIZES[0], np.float32), *zeros[1:]])
    assert loop.sharing.step.threshold_state[0] == 2 * before[0]  # All of it was sent.
    assert loop.sharing.step.threshold_state[1:] == before[1:]


def test_local_steps_send_a_mean_for_each_variable() -> None:
    loop = Loop(FixedThreshold({"layer_0": 1e-3, "": 1e-5}), local_steps=2)
    random = np.random.default_rng(7)
    for _ in range(4):
        loop.step(_updates(random))
    _, _, sums = oracle.decode(loop.message)
    rows = loop.sharing.step.last_by_variable
    parts = np.split(sums, np.cumsum(SIZES)[:-1])
    for i, part in enumerate(parts):
        row = rows[f"layer_{i}/kernel:0"]
        assert set(np.abs(part[part != 0])) == {np.float32(row["value"])}
        assert row["value"] > row["threshold"] == _rounded(1e-3 if i == 0 else 1e-5)


def test_a_small_variable_does_not_send_in_half_of_the_steps() -> None:
    algorithm = AdaptiveThreshold(per_variable=True)
    random = np.random.default_rng(8)
    zero = StepStatistics(*[tf.constant(0.0, tf.float64)] * LENGTH)
    elements = tf.constant([10.0, 1e6], tf.float64)
    sent = 0
    state: Any = (tf.constant([1e-3, 1e-3]), tf.constant([0.0, 0.0]))
    count = 0
    for _ in range(600):
        last = zero._replace(count=tf.constant([count, 1e3], tf.float64), elements=elements)
        threshold, state = algorithm.next(state, last)
        count = int(np.count_nonzero(np.abs(random.normal(0, 1e-4, 10)) >= threshold[0]))
        sent += count > 0
    assert 30 < sent < 200
    assert float(threshold[1]) == np.float32(1e-3)  # within the band


def test_state_of_each_variable_goes_to_another_worker() -> None:
    donor = Loop(AdaptiveThreshold(per_variable=True))
    random = np.random.default_rng(9)
    for _ in range(5):
        donor.step(_updates(random))
    state = donor.sharing.step.threshold_state
    assert len(state) == 6
    taker = Loop(AdaptiveThreshold(per_variable=True))
    taker.sharing.step.set_threshold_state(state)  # Before its first step.
    assert taker.sharing.step.threshold_state == state
    taker.sharing.step.set_threshold_state(state[::2])  # Of an earlier version.
    assert taker.sharing.step.threshold_state == state
    with pytest.raises(errors.Refused, match="has 6 values of state, this one's 3"):
        Loop(AdaptiveThreshold()).sharing.step.set_threshold_state(state)
    with pytest.raises(errors.Refused, match="has 1 values of state, this one's 6"):
        taker.sharing.step.set_threshold_state((1e-3,))


def test_the_first_pattern_found_in_a_path_gives_the_threshold() -> None:
    algorithm = FixedThreshold({"^layer_1/": 1e-4, "kernel$": 1e-3})
    assert initial_state_of(algorithm, "layer_1/kernel") == (1e-4,)
    assert initial_state_of(algorithm, "layer_2/kernel") == (1e-3,)
    with pytest.raises(errors.InvalidOption, match=r"none of .* is found in 'layer_2/bias'"):
        initial_state_of(algorithm, "layer_2/bias")


def test_what_no_optimizer_changes_needs_no_pattern() -> None:
    """Workers agree on more than parameters, such as the epoch at which they begin."""
    loop = Loop(FixedThreshold({"^layer_0/": 1e-4, "^layer_": 1e-3}))
    loop.sharing.space.add(tf.Variable([0.0], trainable=False))
    assert loop.sharing.step.threshold_state == (0.0,) * 4  # As before any step.
    loop.step(_updates(np.random.default_rng(4)))
    expected = [1e-4, 1e-3, 1e-3, 0.0]
    np.testing.assert_allclose(loop.sharing.step.threshold_state, expected, rtol=1e-6)
    with pytest.raises(errors.InvalidOption, match=r"none of .* is found in 'layer_1/kernel:0'"):
        Loop(FixedThreshold({"layer_0": 1e-4})).step(_updates(np.random.default_rng(4)))


def test_a_layer_that_was_frozen_has_the_threshold_of_its_path() -> None:
    strategy = StromStrategy(
        threshold=FixedThreshold({"bias$": 1e-4, "": 1e-2}), always_encode=True
    )
    with strategy.scope():
        base, head = keras.layers.Dense(3), keras.layers.Dense(2)
        model = keras.Sequential([keras.Input((4,)), base, head])
        base.trainable = False
        model.compile("sgd", "mse")
    x, y = np.ones((16, 4), np.float32), np.ones((16, 2), np.float32)
    model.fit(x, y, verbose=0)
    base.trainable = True
    model.compile("sgd", "mse")
    model.fit(x, y, verbose=0)
    rows = strategy._sharing.step.last_by_variable
    assert len(rows) == 4
    for path, row in rows.items():
        expected = 1e-4 if path.endswith("bias") else 1e-2
        assert row["threshold"] == pytest.approx(expected, rel=1 / 256), path


@pytest.mark.parametrize(
    "make",
    [
        lambda: AdaptiveThreshold(per_variable=1),  # type: ignore[arg-type]
        lambda: TargetDensityThreshold(per_variable="yes"),  # type: ignore[arg-type]
        lambda: FixedThreshold({}),
        lambda: FixedThreshold({"a": 0.0}),
        lambda: FixedThreshold({"(": 1e-3}),
        lambda: FixedThreshold({3: 1e-3}),  # type: ignore[dict-item]
    ],
)
def test_options_that_are_not_understood_are_refused(make: Any) -> None:
    with pytest.raises(errors.InvalidOption):
        make()


def test_a_threshold_that_is_no_positive_number_names_its_variable() -> None:
    class Wrong(AdaptiveThreshold):
        def next(self, state: Any, statistics: StepStatistics) -> Any:
            return tf.constant([1.0, 0.0, 1.0]), state

    with pytest.raises(tf.errors.OpError, match=r"threshold of 'layer_1/kernel:0' is 0\.0"):
        Loop(Wrong(per_variable=True)).step(_updates(np.random.default_rng(1)))


def test_fit_logs_the_range_of_thresholds_and_each_variables(
    caplog: pytest.LogCaptureFixture, tmp_path: pathlib.Path
) -> None:
    strategy = StromStrategy(
        threshold=FixedThreshold({"bias": 1e-4, "": 1e-2}),
        always_encode=True,
        encoding_debug_mode=True,
    )
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, name="first")])
        model.compile("adam", "mse")
    random = np.random.default_rng(3)
    with caplog.at_level(logging.INFO, "keras_strom"):
        history = model.fit(
            random.normal(size=(64, 6)),
            random.normal(size=(64, 4)),
            verbose=0,
            callbacks=[StromMonitor(log_dir=tmp_path)],
        ).history
    assert history["strom/threshold_min"] == [pytest.approx(1e-4, rel=1 / 256)]
    assert history["strom/threshold_max"] == [pytest.approx(1e-2, rel=1 / 256)]
    assert history["strom/threshold"] == [pytest.approx((1e-4 + 1e-2) / 2, rel=1 / 256)]
    (table,) = [r.getMessage() for r in caplog.records if "|residual|" in r.getMessage()]
    assert [line.split()[-1] for line in table.splitlines()[1:]] == ["tau", "1.0e-02", "1.0e-04"]


@pytest.mark.jobs
@pytest.mark.parametrize("staleness", [None, 0])
def test_two_workers_hold_the_same_bits(staleness: int | None, tmp_path: pathlib.Path) -> None:
    """The parameters of a real job: what each sends with its own table, both apply."""
    run_two_workers(SCRIPT, str(tmp_path), json.dumps(staleness))
    workers = results(tmp_path)
    assert workers[0]["values"] == workers[1]["values"]
    for worker in workers:
        assert worker["applied"] > 50
        assert worker["difference"] <= (1e-6 if staleness is None else 0)
        assert len(set(worker["thresholds"])) > 2
        assert worker["loss"][-1] < worker["loss"][0]
