"""`local_apply="full"`: a worker's model includes its own progress that it has not sent."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest

from keras_strom import checkpointing, errors
from keras_strom.resume import Place
from keras_strom.strategy import StromStrategy
from keras_strom.takeover import hand_over_if_asked
from keras_strom.threshold import FixedThreshold
from tests.option_trainings import ROWS, data, on_two_workers, seeded, table_with_steps
from tests.two_devices import TWO_DEVICES

TAU = np.float32(2e-3)
NEVER = FixedThreshold(100.0)


def _strategy(**options: Any) -> StromStrategy:
    defaults = {
        "threshold": FixedThreshold(float(TAU)),
        "residual_clipping": None,
        "local_apply": "full",
        "always_encode": True,
    }
    return StromStrategy(**{**defaults, **options})


def _batches(x: np.ndarray, y: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(x[i : i + ROWS], y[i : i + ROWS]) for i in range(0, len(x), ROWS)]


def _adam() -> keras.Optimizer:
    return keras.optimizers.Adam(0.01)


def _residuals(strategy: StromStrategy) -> list[np.ndarray]:
    assert strategy._sharing is not None
    return [
        strategy._sharing.replica.read_residual(entry.offset, entry.size).reshape(
            entry.variable.shape
        )
        for entry in strategy._sharing.space.participants
    ]


class Oracle:
    """One worker in float32: x = G + r before each step."""

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        self.shared = [v.numpy().copy() for v in model.trainable_variables]
        self.residuals = [np.zeros_like(value) for value in self.shared]

    def step(self, batch: tuple[np.ndarray, np.ndarray], clip: np.float32 | None = None) -> None:
        variables = self.model.trainable_variables
        before = [v.numpy().copy() for v in variables]
        self.model.train_on_batch(*batch)
        for variable, start, shared, residual in zip(
            variables, before, self.shared, self.residuals, strict=True
        ):
            residual += variable.numpy() - start
            sent = np.where(np.abs(residual) >= TAU, np.sign(residual) * TAU, np.float32(0))
            residual -= sent
            if clip is not None:
                np.clip(residual, -clip, clip, out=residual)
            shared += sent
            variable.assign(shared + residual)


def test_trains_as_the_oracle_says_in_every_bit() -> None:
    oracle = Oracle(seeded(None, _adam))
    strategy = _strategy()
    model = seeded(strategy, _adam)
    x, y = data()
    for batch in _batches(x, y):
        model.train_on_batch(*batch)
        oracle.step(batch)
        for want, got in zip(oracle.model.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(got, want)
    for want, got in zip(oracle.residuals, _residuals(strategy), strict=True):
        np.testing.assert_array_equal(got, want)
        assert got.any()
    assert strategy._sharing is not None
    assert strategy._sharing.step.totals.count > 100
    strategy._sharing.step.show_shared(strategy._sharing.space)
    for want, got in zip(oracle.shared, model.get_weights(), strict=True):
        np.testing.assert_array_equal(got, want)


def test_what_is_never_sent_is_trained_all_the_same() -> None:
    plain, strategy = seeded(None, _adam), _strategy(threshold=NEVER)
    model = seeded(strategy, _adam)
    encoded = seeded(_strategy(threshold=NEVER, local_apply="encoded"), _adam)
    start = plain.get_weights()
    for batch in _batches(*data()):
        for each in (plain, model, encoded):
            each.train_on_batch(*batch)
    for first, want, got, other in zip(
        start, plain.get_weights(), model.get_weights(), encoded.get_weights(), strict=True
    ):
        np.testing.assert_allclose(got, want, atol=1e-5)
        assert np.abs(got - first).max() > 1e-2
        np.testing.assert_array_equal(other, first)


@pytest.mark.parametrize(
    "options",
    [{}, {"devices": TWO_DEVICES}, {"jit_compile": True}, {"local_steps": 4}],
    ids=["one device", "two devices", "compiled", "local steps"],
)
def test_epochs_end_on_what_all_workers_share(options: dict[str, Any]) -> None:
    moved: dict[str, list[bool]] = {"batch": [], "test": [], "epoch": []}

    class Watch(keras.callbacks.Callback):
        def _note(self, when: str) -> None:
            differ = zip(start, self.model.get_weights(), strict=True)
            moved[when].append(any((a != b).any() for a, b in differ))

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self._note("batch")

        def on_test_begin(self, logs: Any = None) -> None:
            self._note("test")

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self._note("epoch")

    strategy = _strategy(threshold=NEVER, **options)
    model = seeded(strategy, _adam)
    start = model.get_weights()
    xy = data()
    model.fit(*xy, batch_size=ROWS, epochs=2, verbose=0, validation_data=xy, callbacks=[Watch()])
    assert moved == {"batch": [True] * 12, "test": [False] * 2, "epoch": [False] * 2}
    for first, last in zip(start, model.get_weights(), strict=True):
        np.testing.assert_array_equal(first, last)
    assert all(residual.any() for residual in _residuals(strategy))


def test_the_progress_that_waits_is_there_again_after_an_epoch() -> None:
    plain, strategy = seeded(None, _adam), _strategy(threshold=NEVER)
    model = seeded(strategy, _adam)
    batches = _batches(*data())
    model.train_on_batch(*batches[0])
    plain.train_on_batch(*batches[0])
    assert strategy._sharing is not None
    strategy._sharing.step.show_shared(strategy._sharing.space)  # As at the end of an epoch.
    start = [value.copy() for value in model.get_weights()]
    model.train_on_batch(*batches[1])
    for first, residual, now in zip(start, _residuals(strategy), model.get_weights(), strict=True):
        np.testing.assert_array_equal(now, first + residual)
    once = [np.abs(a - b).max() for a, b in zip(model.get_weights(), start, strict=True)]
    assert max(once) > 0.015  # Two steps of Adam of 0.01 each.


def test_what_a_failed_fit_has_not_sent_waits_in_the_residual_alone() -> None:
    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 1:
                raise RuntimeError("on purpose")

    strategy = _strategy(threshold=NEVER)
    model = seeded(strategy, _adam)
    start = model.get_weights()
    with pytest.raises(RuntimeError, match="on purpose"):
        model.fit(*data(), batch_size=ROWS, verbose=0, callbacks=[Fails()])
    assert any((a != b).any() for a, b in zip(start, model.get_weights(), strict=True))
    model.fit(*data(), batch_size=ROWS, verbose=0)
    for first, last in zip(start, model.get_weights(), strict=True):
        np.testing.assert_array_equal(first, last)


def test_what_is_assigned_after_a_failed_fit_is_the_start_of_the_next() -> None:
    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            raise RuntimeError("on purpose")

    strategy = _strategy(threshold=NEVER)
    model = seeded(strategy, _adam)
    with pytest.raises(RuntimeError, match="on purpose"):
        model.fit(*data(), batch_size=ROWS, verbose=0, callbacks=[Fails()])
    model.set_weights([np.full_like(value, 0.25) for value in model.get_weights()])
    model.fit(*data(), batch_size=ROWS, verbose=0)
    for value in model.get_weights():
        np.testing.assert_array_equal(value, np.full_like(value, 0.25))


def test_a_part_of_a_checkpoint_has_what_all_workers_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts: list[Any] = []
    monkeypatch.setattr(checkpointing, "leave_part", lambda _, number, part: parts.append(part))
    strategy = _strategy(threshold=NEVER)
    model = seeded(strategy, _adam)
    start = np.concatenate([value.ravel() for value in model.get_weights()])
    saving = checkpointing.Checkpointing(mock.Mock(due=mock.Mock(side_effect=[1, 2])))
    assert strategy._sharing is not None
    for batch in _batches(*data(2)):
        model.train_on_batch(*batch)
        saving.save_if_due(strategy._sharing, model, Place(0, 1), None)
    assert saving._writer is not None
    saving._writer.join()
    (part,) = parts
    np.testing.assert_array_equal(part.arrays["parameters"][: start.size], start)
    assert part.arrays["residuals"].any()


def test_a_replica_for_another_master_has_what_all_workers_share() -> None:
    strategy = _strategy(threshold=NEVER)
    model = seeded(strategy, _adam)
    start = np.concatenate([value.ravel() for value in model.get_weights()])
    model.train_on_batch(*_batches(*data(1))[0])
    worker = mock.Mock(replica_wanted=mock.Mock(return_value=True))
    assert strategy._sharing is not None
    hand_over_if_asked(
        dataclasses.replace(
            strategy._sharing, worker=worker, generation=mock.Mock(layout_size=start.size)
        )
    )
    np.testing.assert_array_equal(worker.hand_over.call_args.args[0], start)
    assert all(residual.any() for residual in _residuals(strategy))


def test_rows_of_an_embedding_keep_their_progress() -> None:
    strategy = _strategy(threshold=NEVER)
    table, step = table_with_steps(strategy)
    for row in (1, 4, 1):
        step(row)
    np.testing.assert_array_equal(table.numpy().sum(axis=1), [0, -4, 0, 0, -2, 0])


@pytest.mark.parametrize("value", ["none", True, None])
def test_another_value_is_refused(value: Any) -> None:
    with pytest.raises(errors.InvalidOption, match="local_apply"):
        _strategy(local_apply=value)


@pytest.mark.parametrize("staleness", [0, 2])
def test_modes_in_which_replicas_go_the_same_way_refuse_it(staleness: int) -> None:
    with pytest.raises(errors.InvalidOption, match="max_staleness=None"):
        _strategy(max_staleness=staleness)


# ------------------------------------------------------------------ two workers


@functools.cache
def _job(local_steps: int) -> list[tuple[dict[str, Any], list[np.ndarray]]]:
    return on_two_workers("None", {"local_apply": "full", "local_steps": local_steps})


@pytest.mark.parametrize("local_steps", [1, 4])
def test_replicas_agree_at_the_end_though_not_in_between(local_steps: int) -> None:
    (first, one), (second, other) = _job(local_steps)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)
    for report in (*first["reports"], *second["reports"]):
        assert report["max_replica_difference"] < 1e-5
        assert report["updates_applied"] > 0
        assert report["residual_mass"] > 0
        assert report["assigned_outside"] == 0
    assert not set(first["hashes"]) & set(second["hashes"])
