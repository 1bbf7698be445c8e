"""Threshold algorithms and the scale's warm-up, against NumPy restatements."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_strom import errors
from keras_strom.sharing.rate_history import RateChange
from keras_strom.sharing.residual import ResidualClipping, ShakeUp
from keras_strom.sharing.scale import UpdateScale
from keras_strom.sharing.statistics import LENGTH, StepStatistics
from keras_strom.sharing.step import SharedStep
from keras_strom.sharing.threshold import (
    AdaptiveThreshold,
    FixedThreshold,
    TargetDensityThreshold,
    ThresholdAlgorithm,
)
from keras_strom.strategy.strategy import StromStrategy


def _statistics(count: float, elements: float) -> StepStatistics:
    zero = StepStatistics(*[tf.constant(0.0, tf.float64)] * LENGTH)
    return zero._replace(
        count=tf.constant(count, tf.float64), elements=tf.constant(elements, tf.float64)
    )


def _adaptive_thresholds(algorithm: AdaptiveThreshold, densities: list[float]) -> list[float]:
    """The same rule in NumPy's float32."""
    factor = np.float32(algorithm.factor)
    threshold = np.float32(algorithm.initial)
    thresholds = [threshold]
    for density in densities:
        if density < algorithm.min_density:
            threshold = threshold * factor
        elif density > algorithm.max_density:
            threshold = threshold / factor
        threshold = np.clip(threshold, np.float32(algorithm.minimum), np.float32(algorithm.maximum))
        thresholds.append(threshold)
    return [float(t) for t in thresholds]


def test_adaptive_threshold_follows_the_density_as_in_numpy() -> None:
    algorithm = AdaptiveThreshold(initial=1e-3, minimum=8e-4, maximum=1.2e-3, max_density=5e-3)
    random = np.random.default_rng(1)
    counts = [int(10 ** random.uniform(0, 4)) for _ in range(40)]
    counts += [1] * 20 + [5000] * 30  # to the lower bound, then to the upper one
    state = tuple(tf.constant(s, tf.float32) for s in algorithm.initial_state())
    threshold, state = algorithm.next(state, _statistics(0, 0))
    thresholds = [float(threshold)]
    for count in counts:
        threshold, state = algorithm.next(state, _statistics(count, 100_000))
        thresholds.append(float(threshold))
    assert thresholds == _adaptive_thresholds(algorithm, [c / 100_000 for c in counts])
    assert len(set(thresholds)) > 5
    assert min(thresholds) == np.float32(8e-4)
    assert thresholds[-1] == np.float32(1.2e-3)


@pytest.mark.parametrize("algorithm", [AdaptiveThreshold(), TargetDensityThreshold()])
def test_a_threshold_starts_at_ten_times_the_first_update(
    algorithm: AdaptiveThreshold | TargetDensityThreshold,
) -> None:
    strategy = StromStrategy(threshold=algorithm, always_encode=True, residual_clipping=None)
    with strategy.scope():
        variable = tf.Variable(tf.zeros(10))
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build([variable])
    scale = tf.Variable(0.0)
    replica = strategy._sharing.replica

    @tf.function
    def step() -> None:
        gradient = scale * tf.constant([-10.0, *[0.0] * 9])
        strategy.run(lambda: optimizer.apply_gradients([(gradient, variable)]))

    def unsent_after(update: float) -> float:
        scale.assign(update)
        step()
        return float(replica.read_residual(0, 10)[0])

    assert unsent_after(0.0) == 0.0  # An update of zeros tells nothing.
    assert unsent_after(2e-4) == pytest.approx(2e-3)  # Its mean is 2e-4, and nothing is sent.
    assert unsent_after(1e-5) == pytest.approx(2.1e-3 - 2e-3, rel=1e-3)


@pytest.mark.parametrize("per_variable", [False, True])
def test_an_unknown_first_threshold_lets_nothing_through_and_then_lies_within_its_bounds(
    per_variable: bool,
) -> None:
    algorithm = AdaptiveThreshold(minimum=1e-3, maximum=0.5, per_variable=per_variable)
    state = tuple(tf.constant(s, tf.float32) for s in algorithm.initial_state())
    threshold, state = algorithm.next(state, _statistics(0, 0))
    assert float(threshold) == 0.5
    for update, expected in ((1e-9, 1e-3), (1.0, 0.5), (2e-3, 2e-2)):
        statistics = _statistics(0, 100)._replace(
            sum_residual=tf.constant(100 * update, tf.float64)
        )
        first, (known, *_) = algorithm.next(state, statistics)
        assert float(first) == float(known) == pytest.approx(expected)


def test_a_step_uses_the_threshold_that_the_step_before_has_led_to() -> None:
    algorithm = AdaptiveThreshold(initial=1e-3, min_density=0.2, max_density=0.3, factor=0.5)
    strategy = StromStrategy(
        threshold=algorithm, always_encode=True, residual_clipping=None, local_apply="encoded"
    )
    with strategy.scope():
        variable = tf.Variable(tf.zeros(10))
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build([variable])
    gradient = tf.constant([-1.0, *[0.0] * 9])  # every message has density .1, under the band

    @tf.function
    def step() -> None:
        strategy.run(lambda: optimizer.apply_gradients([(gradient, variable)]))

    sums = []
    for _ in range(4):
        step()
        sums.append(float(variable[0]))
    assert sums == pytest.approx([1e-3, 1.5e-3, 1.75e-3, 1.875e-3], rel=1e-6)


def test_adaptive_and_fixed_thresholds_are_algorithms() -> None:
    assert isinstance(AdaptiveThreshold(), ThresholdAlgorithm)
    assert isinstance(FixedThreshold(1e-3), ThresholdAlgorithm)


@pytest.mark.parametrize(
    ("steps", "multiple"), [(8, 1.0), (40, 1.0), (100, 2.5), (400, 10.0), (10_000, 10.0)]
)
def test_a_threshold_that_starts_by_itself_is_lower_in_a_short_training(
    steps: int, multiple: float
) -> None:
    strategy = StromStrategy(always_encode=True)
    assert strategy._sharing is not None
    step = strategy._sharing.step
    step.expect(steps, workers=2)
    assert step.threshold_state[0] == -multiple
    statistics = _statistics(0, 1000)._replace(sum_residual=tf.constant(3.0, tf.float64))
    state = (tf.constant(-multiple), tf.constant(0.0))
    threshold, _ = AdaptiveThreshold(max_density=5e-3).next(state, statistics)
    assert float(threshold) == pytest.approx(multiple * 3e-3)
    step.set_threshold_state((0.02, 0.01, 0.0))
    step.expect(steps, workers=2)  # It has started, and goes on from there.
    assert step.threshold_state[0] == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("steps", "workers", "most"),
    [
        *[(None, 2, 5e-3), (10, 2, 5e-2), (200, 2, 5e-2), (500, 2, 2e-2), (500, 4, 1e-2)],
        *[(2000, 2, 5e-3), (500, 16, 5e-3), (10_000, 1, 5e-3)],
    ],
)
def test_a_short_training_may_send_more_in_each_step(
    steps: int | None, workers: int, most: float
) -> None:
    strategy = StromStrategy(always_encode=True)
    assert strategy._sharing is not None
    step = strategy._sharing.step
    for before in ((-10.0, 5e-3, 0.0), (0.02, 3e-2, -0.5)):  # The second `fit` of a script, too.
        step.set_threshold_state(before)
        step.expect(steps, workers)
        assert step.threshold_state[1:] == pytest.approx((most, before[2]))
    for density, rises in ((0.9 * most, False), (1.1 * most, True)):
        state = tuple(map(tf.constant, (0.02, most, 0.0)))
        threshold, after = AdaptiveThreshold().next(state, _statistics(density * 1e6, 1e6))
        assert (float(threshold) > 0.02) is rises
        assert float(after[1]) == pytest.approx(most)


@pytest.mark.parametrize("options", [{"max_density": 1e-2}, {"per_variable": True}])
def test_a_band_that_is_given_stays_in_a_short_training(options: dict[str, Any]) -> None:
    algorithm = AdaptiveThreshold(**options)
    assert algorithm.state_before(algorithm.initial_state(), 10, 2) == (-1.0, 0.0)


def _followed(lefts: list[float], density: float, **options: Any) -> list[float]:
    """The thresholds from 0.01, while so much of the learning rate is left."""
    algorithm = AdaptiveThreshold(initial=0.01, max_density=1e-2, **options)
    state = tuple(map(tf.constant, algorithm.initial_state()))
    thresholds = []
    for left in lefts:
        statistics = _statistics(density * 1e6, 1e6)._replace(
            rate=RateChange(left=tf.constant(left))
        )
        threshold, state = algorithm.next(state, statistics)
        thresholds.append(float(threshold))
    return thresholds


def test_a_threshold_stays_to_the_bit_while_the_learning_rate_does() -> None:
    assert set(_followed([1.0] * 5, density=1e-3)) == {float(np.float32(0.01))}


def test_a_threshold_falls_with_the_square_root_of_the_learning_rate_and_rises_with_it() -> None:
    left = [1.0, 0.99, 0.98, 0.97, 1.0]
    expected = [0.01 * part**0.5 for part in left]
    assert _followed(left, density=1e-3) == pytest.approx(expected, rel=1e-5)
    stays = _followed(left, density=1e-3, learning_rate_power=0.0)
    assert set(stays) == {float(np.float32(0.01))}


def test_a_threshold_falls_by_what_the_band_leaves_room_for() -> None:
    falls = _followed([0.1] * 300, density=4e-3)
    assert falls[:3] == pytest.approx([0.01 * np.exp(-0.006 * t) for t in (1, 2, 3)], rel=1e-4)
    assert falls[-1] == pytest.approx(0.01 * 0.1**0.5, rel=1e-4)
    assert _followed([0.0] * 2000, density=4e-3)[-1] == pytest.approx(1e-4, rel=1e-3)
    assert _followed([0.1] * 5, density=9.99e-3)[-1] == pytest.approx(0.01, rel=1e-3)  # No room.


def test_a_threshold_that_its_minimum_has_held_rises_by_no_more_than_it_fell() -> None:
    restarts = _followed(([1.0] + [0.0] * 200) * 3 + [1.0], density=1e-3, minimum=4e-3)
    assert restarts[200::201] == pytest.approx([4e-3] * 3, rel=1e-3)
    assert restarts[::201] == pytest.approx([0.01] * 4, rel=1e-3)


def test_a_threshold_that_is_measured_at_a_low_learning_rate_is_none_to_be_lowered() -> None:
    algorithm = AdaptiveThreshold()
    state = tuple(map(tf.constant, algorithm.initial_state()))
    low = {"rate": RateChange(left=tf.constant(0.1))}
    _, state = algorithm.next(state, _statistics(0, 0)._replace(**low))
    update = _statistics(0, 100)._replace(sum_residual=tf.constant(0.1, tf.float64), **low)
    first, state = algorithm.next(state, update)
    later, _ = algorithm.next(state, _statistics(1, 1000)._replace(**low))
    assert float(first) == float(later) == pytest.approx(1e-2)


@pytest.mark.parametrize(
    ("initial", "power", "rises"), [(None, 0.5, 1), (0.01, 0.5, 0), (None, 0, 0)]
)
def test_a_measured_threshold_rises_with_the_learning_rate(
    initial: float | None, power: float, rises: int
) -> None:
    algorithm = AdaptiveThreshold(initial=initial, max_density=1e-2, learning_rate_power=power)
    state = tuple(map(tf.constant, algorithm.initial_state()))
    thresholds = []
    for step, risen in enumerate((1.0, 2.0, 3.0, 4.0, 4.0)):
        statistics = _statistics(1e3, 1e6) if step else _statistics(0, 0)
        statistics = statistics._replace(
            sum_residual=statistics.count, rate=RateChange(risen=tf.constant(risen))
        )
        threshold, state = algorithm.next(state, statistics)
        thresholds.append(float(threshold))
    # The second one is measured by the first update, and the third knows of both rises since.
    expected = [0.01 * factor**rises for factor in (1, 3, 4, 4)]
    assert thresholds[1:] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("options", [{}, {"max_density": 1e-2}])
def test_a_state_of_before_learning_rates_were_followed_is_taken_over(
    options: dict[str, Any],
) -> None:
    strategy = StromStrategy(threshold=AdaptiveThreshold(**options), always_encode=True)
    assert strategy._sharing is not None
    step = strategy._sharing.step
    earlier = (0.02, *([3e-2] if not options else []))
    step.set_threshold_state(earlier)
    assert step.threshold_state == pytest.approx((*earlier, 0.0))


@pytest.mark.parametrize("power", [-0.1, 1.5, float("nan"), "sqrt", True])
def test_a_power_of_the_learning_rate_lies_between_0_and_1(power: Any) -> None:
    with pytest.raises(errors.InvalidOption, match="learning_rate_power"):
        AdaptiveThreshold(learning_rate_power=power)


@pytest.mark.parametrize(
    ("options", "steps"),
    [({}, 0), ({"local_apply": "encoded"}, 500), ({"warmup_steps": 7}, 7)],
    ids=["full", "encoded", "given"],
)
def test_a_scale_warms_up_by_itself_only_without_full_progress(
    options: dict[str, Any], steps: int
) -> None:
    strategy = StromStrategy(always_encode=True, **options)
    assert strategy._sharing is not None
    assert strategy._sharing.step._options.scale.warmup_steps == steps


@pytest.mark.parametrize("rule", ["auto", "sum", "sqrt", "mean", 0.7])
@pytest.mark.parametrize("workers", [1, 3, 16, 64])
@pytest.mark.parametrize("warmup_steps", [0, 10])
def test_scale_warms_up_from_the_mean_as_in_numpy(
    rule: str | float, workers: int, warmup_steps: int
) -> None:
    scale = UpdateScale(rule=rule, workers=workers, warmup_steps=warmup_steps)
    auto = 0.25 if workers == 64 else 1.0
    target = {"auto": auto, "sum": 1.0, "sqrt": workers**-0.5, "mean": 1 / workers}.get(rule, rule)
    for step in (0, 1, 5, 10, 1000):
        progress = 1.0 if warmup_steps == 0 else step / warmup_steps
        expected = target * min(1.0, 1 / workers + (1 - 1 / workers) * progress)
        assert float(scale.at(tf.constant(step, tf.int64))) == pytest.approx(expected, rel=1e-6)


def test_residual_clipping_takes_effect_every_so_many_steps() -> None:
    strategy = StromStrategy(
        threshold=FixedThreshold(1e-3),
        residual_clipping=ResidualClipping(2, every=3),
        always_encode=True,
    )
    with strategy.scope():
        variable = tf.Variable(tf.zeros(4))
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build([variable])

    @tf.function
    def step() -> None:
        strategy.run(lambda: optimizer.apply_gradients([(-tf.fill([4], 0.01), variable)]))

    residuals = []
    for _ in range(6):
        step()
        residuals.append(float(strategy._sharing.replica.read_residual(0, 4)[0]))
    assert residuals == pytest.approx([0.009, 0.018, 0.002, 0.011, 0.02, 0.002], rel=1e-4)
    totals = strategy._sharing.step.totals
    assert totals.clipped_count == 8
    assert totals.clipped_mass == pytest.approx(4 * (0.025 + 0.027), rel=1e-4)


@pytest.mark.parametrize(
    "make",
    [
        lambda: FixedThreshold(0),
        lambda: FixedThreshold(float("inf")),
        lambda: FixedThreshold("1e-3"),
        lambda: AdaptiveThreshold(factor=1.0),
        lambda: AdaptiveThreshold(min_density=0.1, max_density=0.01),
        lambda: AdaptiveThreshold(initial=2.0),
        lambda: TargetDensityThreshold(density=1.5),
        lambda: TargetDensityThreshold(gain=0),
        lambda: TargetDensityThreshold(initial=2.0),
        lambda: ResidualClipping(0.5),
        lambda: ResidualClipping(5, every=0),
        lambda: ShakeUp(every=1),
        lambda: ShakeUp(every=2.5),
        lambda: ShakeUp(factor=1.0),
        lambda: StromStrategy(shake_up=3),
        lambda: UpdateScale(rule="max", workers=2, warmup_steps=0),
        lambda: UpdateScale(rule=-1.0, workers=2, warmup_steps=0),
        lambda: UpdateScale(rule="sum", workers=2, warmup_steps=-1),
    ],
)
def test_values_out_of_range_are_refused(make: object) -> None:
    with pytest.raises(errors.InvalidOption):
        make()  # type: ignore[operator]


def test_a_shake_up_sends_what_the_threshold_holds_back() -> None:
    """Of eight steps two are shake-ups; the threshold lets nothing through in the others."""
    strategy = StromStrategy(
        threshold=FixedThreshold(10.0),
        residual_clipping=ResidualClipping(1, every=4),
        shake_up=ShakeUp(every=4, factor=1e-4),
        always_encode=True,
    )
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, use_bias=False)])
        model.compile(keras.optimizers.SGD(0.5), "mse")
    random = np.random.default_rng(2)
    x = random.normal(size=(32, 6)).astype(np.float32)
    y = 10 * random.normal(size=(32, 4)).astype(np.float32)
    model.fit(x, y, batch_size=4, verbose=0, shuffle=False)
    report = strategy.last_report
    assert report is not None
    assert report.steps == 8
    assert report.density == pytest.approx(2 / 8, rel=0.1)  # nearly every element, twice
    assert report.shaken_mass == pytest.approx(8 * 24 * report.density * 1e-3)
    assert report.threshold == 10  # what the others used
    assert report.clipped_elements == 0  # the limit is that of the whole threshold


def test_a_threshold_algorithm_does_not_see_shake_ups() -> None:
    seen = []

    class Recording(FixedThreshold):
        def next(self, state: object, statistics: StepStatistics) -> object:
            tf.py_function(lambda t: seen.append(float(t)), [statistics.threshold], [])
            return super().next(state, statistics)

    strategy = StromStrategy(
        threshold=Recording(1.0), shake_up=ShakeUp(every=2, factor=0.5), always_encode=True
    )
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4)])
        model.compile("sgd", "mse", run_eagerly=True)
    model.fit(np.ones((16, 6)), np.ones((16, 4)), batch_size=4, verbose=0)
    assert set(seen) == {0.0, 1.0}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1e-3])
def test_a_threshold_that_is_no_positive_number_ends_the_training_in_words(value: float) -> None:
    class Wrong(FixedThreshold):
        def next(self, state: object, statistics: StepStatistics) -> object:
            return tf.constant(value, tf.float32), ()

    strategy = StromStrategy(threshold=Wrong(1.0), always_encode=True)
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4)])
        model.compile("sgd", "mse")
    with pytest.raises(errors.StromError, match=r"the threshold is -?(nan|inf|0\.0).*over 0"):
        model.fit(np.ones((4, 6)), np.ones((4, 4)), verbose=0)


@pytest.mark.parametrize("per_variable", [False, True])
def test_a_new_optimizer_begins_with_a_threshold_of_its_own_and_nothing_that_waits(
    per_variable: bool,
) -> None:
    strategy = StromStrategy(
        always_encode=True, threshold=AdaptiveThreshold(per_variable=per_variable)
    )
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
    x = np.random.default_rng(1).normal(size=(64, 4)).astype(np.float32)
    y = np.sum(x, axis=1, keepdims=True)

    def train(rate: float | None) -> tuple[float, float]:
        """The last threshold, and what waits; with a new Adam unless `rate` is None."""
        if rate is not None:
            model.compile(keras.optimizers.Adam(rate), "mse")
        model.fit(x, y, batch_size=8, epochs=2, verbose=0)
        assert strategy._sharing is not None
        step = strategy._sharing.step
        assert isinstance(step, SharedStep)
        return max(step.thresholds), float(np.abs(step.residuals(49)).sum())

    for rate in (1e-1, 1e-5):
        thresholds, waiting = zip(train(rate), train(None), strict=True)
        for threshold, mass in zip(thresholds, waiting, strict=True):
            assert rate / 50 < threshold < rate * 50
            assert 0 < mass < 49 * rate * 50
