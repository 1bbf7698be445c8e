"""`UpdateClipping`: an update that is much larger than those before it is scaled down."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_strom import errors
from keras_strom.sharing.threshold import FixedThreshold
from keras_strom.sharing.update_clipping import NormHistory, UpdateClipping
from keras_strom.strategy.strategy import StromStrategy

TAU = 1e-2

NO_LIMIT = np.finfo(np.float32).max  # Any update's norm is below.


def _noted(history: NormHistory, *norms: float) -> list[float]:
    """The limit before each norm is noted."""
    limits = []
    for norm in norms:
        limit = history.limit()
        limits.append(float(limit))
        history.note(tf.constant(norm, tf.float64), limit, tf.constant(True))
    return limits


def test_there_is_no_limit_until_the_window_is_full() -> None:
    history = NormHistory(UpdateClipping(multiple=2, window=3))
    assert _noted(history, 1, 100, 2, 3) == [NO_LIMIT, NO_LIMIT, NO_LIMIT, 4]


def test_the_limit_is_a_multiple_of_the_median_of_what_was_shared() -> None:
    history = NormHistory(UpdateClipping(multiple=3, window=3))
    # The 100 counts as the 6 that was left of it, so the limit cannot run away.
    assert _noted(history, 2, 2, 2, 100, 100, 100) == [NO_LIMIT, NO_LIMIT, NO_LIMIT, 6, 6, 18]
    assert history.limited == 3
    history.begin()
    assert history.limited == 0
    assert float(history.limit()) == 18


def test_steps_that_share_nothing_leave_it_alone() -> None:
    history = NormHistory(UpdateClipping(multiple=2, window=2))
    _noted(history, 1, 1)
    history.note(tf.constant(50.0, tf.float64), history.limit(), tf.constant(False))
    assert float(history.limit()) == 2
    assert history.limited == 0


def test_updates_that_were_zero_set_no_limit() -> None:
    history = NormHistory(UpdateClipping(multiple=2, window=2))
    assert _noted(history, 0, 0, 1) == [NO_LIMIT, NO_LIMIT, NO_LIMIT]


@pytest.mark.parametrize("eagerly", [False, True])
def test_an_update_beyond_the_limit_is_scaled_down_and_counted(eagerly: bool) -> None:
    strategy = StromStrategy(
        threshold=FixedThreshold(TAU),
        residual_clipping=None,
        update_clipping=UpdateClipping(multiple=2, window=4),
        always_encode=True,
    )
    with strategy.scope():
        variable = keras.Variable(np.zeros(100), dtype="float32")
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build([variable])

    def step(gradient: Any) -> None:
        strategy.run(lambda: optimizer.apply([gradient], [variable]))

    run = step if eagerly else tf.function(step)
    direction = np.random.default_rng(4).normal(size=100)
    direction = (direction / np.linalg.norm(direction)).astype(np.float32)
    strategy.begin()
    for size in (1, 1, 1, 1, 1.9, 10, 1):  # The limit is 2.
        run(tf.constant(-size * direction))
    report = strategy.synchronize()
    assert report is not None
    assert strategy._sharing is not None
    shared = variable.numpy() + strategy._sharing.replica.read_residual(0, 100)
    np.testing.assert_allclose(shared, (4 + 1.9 + 2 + 1) * direction, atol=1e-5)
    assert report.limited_updates == 1
    assert report.limited_mass == pytest.approx(8 * np.abs(direction).sum(), rel=1e-5)


def test_without_the_option_nothing_is_measured() -> None:
    strategy = StromStrategy(always_encode=True)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
    model.fit(np.ones((8, 3)), np.ones((8, 2)), batch_size=2, verbose=0)
    assert strategy._sharing is not None
    assert strategy._sharing.step.totals.update_norm == 0
    report = strategy.last_report
    assert report is not None
    assert (report.limited_updates, report.limited_mass) == (0, 0)


@pytest.mark.parametrize(
    "options",
    [
        {"multiple": 0.5},
        {"multiple": float("inf")},
        {"multiple": True},
        {"window": 1},
        {"window": 2.5},
    ],
    ids=str,
)
def test_values_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidOption, match=next(iter(options))):
        UpdateClipping(**options)


def test_another_type_is_refused() -> None:
    with pytest.raises(errors.InvalidOption, match="update_clipping=2"):
        StromStrategy(update_clipping=2)  # type: ignore[arg-type]
