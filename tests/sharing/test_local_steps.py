"""`local_steps`: several steps of the optimizer go into one message."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import pytest

from keras_strom import errors
from keras_strom.sharing.residual import ShakeUp
from keras_strom.sharing.threshold import FixedThreshold
from keras_strom.strategy.strategy import StromStrategy
from tests.support.option_trainings import ROWS, data, on_two_workers, seeded, table_with_steps
from tests.support.two_devices import TWO_DEVICES

TAU = np.float32(2e-3)
H = 4
# Six batches an epoch: after the fourth, at the epoch's end, after the eighth and the twelfth.
ROUNDS = (4, 2, 2, 4)


def _strategy(**options: Any) -> StromStrategy:
    defaults = {
        "threshold": FixedThreshold(float(TAU)),
        "residual_clipping": None,
        "momentum_masking": False,
        "local_steps": H,
        "local_apply": "encoded",  # "full" is that of tests/sharing/test_local_apply.py.
        "always_encode": True,
    }
    return StromStrategy(**{**defaults, **options})


class Oracle:
    """One worker: rounds of plain Keras steps, and what each round shares, in float32."""

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        self.residuals = [np.zeros(v.shape, np.float32) for v in model.trainable_variables]
        self.sent = 0

    def round(self, batches: Iterable[tuple[np.ndarray, np.ndarray]]) -> None:
        variables = self.model.trainable_variables
        start = [v.numpy().copy() for v in variables]
        for batch in batches:
            self.model.train_on_batch(*batch)
        signs = []
        for variable, before, residual in zip(variables, start, self.residuals, strict=True):
            residual += variable.numpy() - before
            signs.append(np.where(np.abs(residual) >= TAU, np.sign(residual), np.float32(0)))
            residual -= signs[-1] * TAU
        left = [np.abs(r[s != 0]) for r, s in zip(self.residuals, signs, strict=True)]
        count = sum(part.size for part in left)
        self.sent += count
        total = sum(float(one) for part in left for one in part)
        value = np.float32(float(TAU) + total / count) if count else TAU
        for variable, before, residual, sign in zip(
            variables, start, self.residuals, signs, strict=True
        ):
            residual -= sign * (value - TAU)
            variable.assign(before + sign * value)


OPTIMIZERS: dict[str, Callable[[], keras.Optimizer]] = {
    "SGD": lambda: keras.optimizers.SGD(0.02, momentum=0.9),
    "Adam": lambda: keras.optimizers.Adam(0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_trains_as_the_oracle_says_in_every_bit(name: str) -> None:
    oracle = Oracle(seeded(None, OPTIMIZERS[name]))
    strategy = _strategy()
    model = seeded(strategy, OPTIMIZERS[name])
    x, y = data()
    model.fit(x, y, batch_size=ROWS, epochs=2, shuffle=False, verbose=0)
    batches = [(x[i : i + ROWS], y[i : i + ROWS]) for _ in range(2) for i in range(0, len(x), ROWS)]
    for steps in ROUNDS:
        oracle.round(batches[:steps])
        batches = batches[steps:]
    assert oracle.sent > 100
    assert strategy._sharing is not None
    for entry, want, waits in zip(
        strategy._sharing.space.participants,
        oracle.model.trainable_variables,
        oracle.residuals,
        strict=True,
    ):
        np.testing.assert_array_equal(entry.variable.numpy(), want.numpy())
        residual = strategy._sharing.replica.read_residual(entry.offset, entry.size)
        np.testing.assert_array_equal(residual, waits.ravel())
    report = strategy.last_report
    assert report is not None
    assert (report.steps, report.messages) == (12, len(ROUNDS))
    size = sum(v.size for v in oracle.residuals)
    assert report.density == pytest.approx(oracle.sent / size / len(ROUNDS))


def test_between_messages_a_worker_trains_as_plain_keras_does() -> None:
    plain, strategy = seeded(None, OPTIMIZERS["Adam"]), _strategy()
    model = seeded(strategy, OPTIMIZERS["Adam"])
    x, y = data()
    assert strategy._sharing is not None
    for step in range(1, H):
        batch = x[ROWS * step : ROWS * (step + 1)], y[ROWS * step : ROWS * (step + 1)]
        plain.train_on_batch(*batch)
        model.train_on_batch(*batch)
        for want, got in zip(plain.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(want, got)
    totals = strategy._sharing.step.totals
    assert (totals.stepped, totals.shared, totals.count) == (H - 1, 0, 0)
    assert not strategy._sharing.replica.read_residual(0, 40).any()
    assert strategy._sharing.step.is_between_messages
    model.train_on_batch(x[:ROWS], y[:ROWS])
    assert strategy._sharing.step.totals.shared == 1
    assert not strategy._sharing.step.is_between_messages


@pytest.mark.parametrize(
    "options",
    [pytest.param({"devices": TWO_DEVICES}, marks=pytest.mark.jobs), {"jit_compile": True}],
    ids=["two devices", "compiled"],
)
def test_other_ways_to_run_a_step_share_the_same(options: dict[str, Any]) -> None:
    shared = []
    for more in ({}, options):
        strategy = _strategy(threshold=FixedThreshold(0.5), **more)  # sends nothing
        model = seeded(strategy, OPTIMIZERS["SGD"])
        model.fit(*data(), batch_size=ROWS, epochs=2, shuffle=False, verbose=0)
        report = strategy.last_report
        assert report is not None
        assert (report.steps, report.messages) == (12, len(ROUNDS))
        assert strategy._sharing is not None
        shared.append(strategy._sharing.replica.read_residual(0, strategy._sharing.space.size))
    np.testing.assert_allclose(shared[1][:66], shared[0][:66], rtol=1e-3, atol=1e-5)


def test_rows_of_an_embedding_that_local_steps_change_are_shared() -> None:
    strategy = _strategy(local_steps=2, threshold=FixedThreshold(10.0))
    table, step = table_with_steps(strategy)
    for row in (1, 4):
        step(row)
    assert strategy._sharing is not None
    residual = strategy._sharing.replica.read_residual(0, 12).reshape(6, 2)
    np.testing.assert_array_equal(residual.sum(axis=1), [0, -2, 0, 0, -2, 0])
    assert not table.numpy().any()


def test_the_momentum_of_what_a_message_sends_is_masked() -> None:
    strategy = _strategy(momentum_masking="auto")
    model = seeded(strategy, OPTIMIZERS["SGD"])
    x, y = data(1)
    for _ in range(H - 1):
        model.train_on_batch(x, y)
        assert all(m.numpy().all() for m in model.optimizer.momentums)
    model.train_on_batch(x, y)
    assert strategy._sharing is not None
    cleared = sum(int((m.numpy() == 0).sum()) for m in model.optimizer.momentums)
    assert cleared == strategy._sharing.step.last.count > 0


def test_a_look_at_the_model_before_the_last_local_step_sends_nothing() -> None:
    """`evaluate` runs under the strategy too, with the number of the step that is to come."""

    class Looks(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == H - 2:
                self.model.evaluate(*data(), verbose=0)
                messages.append(strategy._sharing.step.totals.shared)
            if batch == H - 1:
                messages.append(strategy._sharing.step.totals.shared)

    messages: list[float] = []
    strategy = _strategy()
    model = seeded(strategy, OPTIMIZERS["SGD"])
    model.fit(*data(), batch_size=ROWS, verbose=0, callbacks=[Looks()])
    assert messages == [0, 1]


def test_what_a_failed_fit_has_not_shared_is_the_start_of_the_next() -> None:
    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 1:
                raise RuntimeError("on purpose")

    strategy = _strategy(threshold=FixedThreshold(10.0))
    model = seeded(strategy, OPTIMIZERS["SGD"])
    with pytest.raises(RuntimeError, match="on purpose"):
        model.fit(*data(), batch_size=ROWS, verbose=0, callbacks=[Fails()])
    start = model.get_weights()
    model.fit(*data(), batch_size=ROWS, verbose=0)
    for want, got in zip(start, model.get_weights(), strict=True):
        np.testing.assert_array_equal(want, got)  # Nothing reached the threshold.
    report = strategy.last_report
    assert report is not None
    assert report.steps == 6


@pytest.mark.parametrize("every", [4, 6])
def test_shake_ups_between_messages_are_refused(every: int) -> None:
    with pytest.raises(errors.InvalidOption, match=r"2, 3, \.\.\. times local_steps=4"):
        _strategy(shake_up=ShakeUp(every=every))
    _strategy(shake_up=ShakeUp(every=8))


@pytest.mark.parametrize("value", [0, 1.5, True, None])
def test_another_value_is_refused(value: Any) -> None:
    with pytest.raises(errors.InvalidOption, match="local_steps"):
        _strategy(local_steps=value)


# ------------------------------------------------------------------ two workers

# With the other options that change what is shared.
OPTIONS = {
    "local_steps": H,
    "local_apply": "encoded",
    "momentum_masking": True,
    "update_clipping": {"multiple": 1.1, "window": 2},
}


@functools.cache
def _job(mode: str, repetition: int = 0) -> list[tuple[dict[str, Any], list[np.ndarray]]]:
    return on_two_workers(mode, OPTIONS)


@pytest.mark.jobs
@pytest.mark.parametrize("mode", ["None", "0"])
def test_replicas_agree_at_the_end(mode: str) -> None:
    (first, one), (second, other) = _job(mode)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)
    for report in (*first["reports"], *second["reports"]):
        assert report["max_replica_difference"] < 1e-5
        assert report["updates_applied"] > 0
        assert report["density"] > 0
    # Six batches an epoch; two epochs, then one.
    assert [r["messages"] for r in first["reports"]] == [4, 2]
    assert sum(r["limited_updates"] for r in first["reports"]) > 0


@pytest.mark.jobs
def test_synchronous_replicas_have_the_same_bits_after_every_message_and_only_then() -> None:
    first, second = (worker["hashes"] for worker, _ in _job("0"))
    same = [step for step in range(12) if first[step] == second[step]]
    assert same == [3, 7, 11]


@pytest.mark.jobs
def test_two_synchronous_runs_give_the_same_bits() -> None:
    for (_, one), (_, other) in zip(_job("0"), _job("0", repetition=1), strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)
