"""`local_apply="full"`: a worker's model includes its own progress that it has not sent."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest

from keras_strom import errors
from keras_strom.recovery import checkpointing
from keras_strom.recovery.resume import DataPosition, Fit
from keras_strom.recovery.takeover import hand_over_if_asked
from keras_strom.sharing.constraints import Projection
from keras_strom.sharing.residual import ResidualClipping
from keras_strom.sharing.step import SharedStep
from keras_strom.sharing.threshold import FixedThreshold
from keras_strom.strategy import one_fit
from keras_strom.strategy.strategy import StromStrategy
from tests.support.optimizer_oracle import encode
from tests.support.option_trainings import ROWS, data, on_two_workers, seeded, table_with_steps
from tests.support.two_devices import TWO_DEVICES

TAU = np.float32(2e-3)
NEVER = FixedThreshold(100.0)


def _strategy(**options: Any) -> StromStrategy:
    defaults = {
        "threshold": FixedThreshold(float(TAU)),
        "residual_clipping": None,
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


class EachBatch(keras.callbacks.Callback):
    """Keeps the weights after every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[list[np.ndarray]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.weights.append(self.model.get_weights())


def _embedding(strategy: StromStrategy | None) -> keras.Model:
    keras.utils.set_random_seed(7)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = keras.Sequential(
            [
                keras.Input((5,)),
                keras.layers.Lambda(lambda x: keras.ops.cast(10 * keras.ops.abs(x), "int32")),
                keras.layers.Embedding(60, 3),
                keras.layers.Flatten(),
                keras.layers.Dense(2),
            ]
        )
        model.compile(keras.optimizers.SGD(0.5), "mse", jit_compile=False)
    return model


@pytest.mark.parametrize(
    ("build", "options"),
    [
        (functools.partial(seeded, optimizer=_adam), {}),
        (functools.partial(seeded, optimizer=_adam), {"local_steps": 4}),
        (functools.partial(seeded, optimizer=_adam), {"max_staleness": 0}),
        (
            functools.partial(seeded, optimizer=lambda: keras.optimizers.SGD(0.1, momentum=0.9)),
            {"momentum_masking": False},
        ),
        (_embedding, {}),
        (_embedding, {"local_steps": 3}),
    ],
    ids=["Adam", "local steps", "synchronous", "momentum", "rows", "rows in local steps"],
)
def test_one_worker_that_encodes_trains_bit_for_bit_as_plain_keras(
    build: Callable[[StromStrategy | None], keras.Model], options: dict[str, Any]
) -> None:
    strategy = _strategy(**options)
    seen = []
    for model in (build(None), build(strategy)):
        each = EachBatch()
        xy = data()
        model.fit(
            *xy, batch_size=ROWS, epochs=3, shuffle=False, verbose=0, validation_data=xy,
            callbacks=[each],
        )  # fmt: skip
        seen.append(each.weights)
    assert len(seen[0]) == 18
    for want, got in zip(*seen, strict=True):
        for expected, value in zip(want, got, strict=True):
            np.testing.assert_array_equal(value, expected)
    assert strategy.last_report is not None
    assert strategy.last_report.density > 0


def test_what_all_workers_share_is_the_sum_of_what_was_sent() -> None:
    strategy = _strategy()
    model = seeded(strategy, _adam)
    start = [value.copy() for value in model.get_weights()]
    shared = [value.copy() for value in start]
    residuals = [np.zeros_like(value) for value in start]
    plain = seeded(None, _adam)
    for batch in _batches(*data()):
        before = plain.get_weights()
        plain.train_on_batch(*batch)
        model.train_on_batch(*batch)
        for i, (old, new) in enumerate(zip(before, plain.get_weights(), strict=True)):
            shared[i] += encode(residuals[i], new, old, TAU)
    assert strategy._sharing is not None
    assert strategy._sharing.step.totals.count > 100
    for want, got in zip(residuals, _residuals(strategy), strict=True):
        np.testing.assert_array_equal(got, want)
    strategy._sharing.step.show_shared()
    # Computed as x - r, within the rounding of six steps.
    for want, got in zip(shared, model.get_weights(), strict=True):
        np.testing.assert_allclose(got, want, atol=5e-7)


def test_what_is_scaled_or_clipped_is_so_in_the_model_too() -> None:
    clip = 1.5
    strategy = _strategy(
        residual_clipping=ResidualClipping(clip, every=1), update_scale=0.5, warmup_steps=0
    )
    # Of K = 1 workers the scale is what the number says.
    model, plain = seeded(strategy, _adam), seeded(None, _adam)
    residuals = [np.zeros_like(value) for value in plain.get_weights()]
    for batch in _batches(*data()):
        before = [value.copy() for value in model.get_weights()]
        plain.set_weights(before)
        plain.train_on_batch(*batch)
        model.train_on_batch(*batch)
        for i, (old, new) in enumerate(zip(before, plain.get_weights(), strict=True)):
            encode(residuals[i], new, old, TAU, 0.5)
            taken = residuals[i] - np.clip(residuals[i], -clip * TAU, clip * TAU)
            residuals[i] -= taken
            want = old + np.float32(0.5) * (new - old) - taken
            np.testing.assert_allclose(model.get_weights()[i], want, atol=1e-7)
    for want, got in zip(residuals, _residuals(strategy), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-7)
    assert strategy._sharing is not None
    assert strategy._sharing.step.totals.clipped_count > 100


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
    [
        {},
        pytest.param({"devices": TWO_DEVICES}, marks=pytest.mark.jobs),
        {"jit_compile": True},
        {"local_steps": 4},
    ],
    ids=["one device", "two devices", "compiled", "local steps"],
)
def test_epochs_end_on_what_all_workers_share(options: dict[str, Any]) -> None:
    moved: dict[str, list[bool]] = {"batch": [], "test": [], "epoch": []}

    class Watch(keras.callbacks.Callback):
        def _note(self, when: str) -> None:
            differ = zip(start, self.model.get_weights(), strict=True)
            moved[when].append(any(np.abs(a - b).max() > 1e-6 for a, b in differ))

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
        np.testing.assert_allclose(last, first, atol=1e-7)
    assert all(residual.any() for residual in _residuals(strategy))


@pytest.mark.parametrize("told", [True, False])
def test_training_goes_on_from_the_own_progress_after_somebody_has_looked(told: bool) -> None:
    plain, strategy = seeded(None, _adam), _strategy(threshold=NEVER)
    model = seeded(strategy, _adam)
    batches = _batches(*data())
    start = model.get_weights()
    sharing = strategy._sharing
    assert sharing is not None
    model.train_on_batch(*batches[0])
    plain.train_on_batch(*batches[0])
    own = model.get_weights()
    sharing.step.show_shared()  # As at the end of an epoch.
    for first, shown in zip(start, model.get_weights(), strict=True):
        np.testing.assert_array_equal(shown, first)
    if told:
        sharing.step.show_own()
        for want, got in zip(own, model.get_weights(), strict=True):
            np.testing.assert_array_equal(got, want)
    model.train_on_batch(*batches[1])
    plain.train_on_batch(*batches[1])
    # A step that nothing has announced takes its gradients where the variables are.
    tolerance = 0 if told else 0.02
    for want, got in zip(plain.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(got, want, atol=tolerance, rtol=0)
    once = [np.abs(a - b).max() for a, b in zip(model.get_weights(), start, strict=True)]
    assert max(once) > 0.015  # Two steps of Adam of 0.01 each.


@pytest.mark.parametrize("looked_at_again", [False, True])
def test_training_goes_on_from_what_a_callback_assigns_at_an_epochs_end(
    looked_at_again: bool,
) -> None:
    class Assign(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch > 0:
                return
            for value in (0.5, 0.25):  # The second may lie where G has lain.
                self.model.set_weights([np.full_like(v, value) for v in self.model.get_weights()])
            if looked_at_again:  # As for a part of a checkpoint.
                assert strategy._sharing is not None
                strategy._sharing.step.show_shared()

    strategy = _strategy(threshold=NEVER)
    model = seeded(strategy, _adam)
    model.fit(*data(), batch_size=ROWS, epochs=2, verbose=0, callbacks=[Assign()])
    for value in model.get_weights():
        np.testing.assert_allclose(value, np.full_like(value, 0.25), atol=1e-7)
    assert strategy.last_report is not None
    assert strategy.last_report.assigned_outside == len(model.get_weights())


def test_a_frozen_layer_stays_what_all_workers_share() -> None:
    strategy = _strategy(threshold=NEVER)
    model = seeded(strategy, _adam)
    model.fit(*data(), batch_size=ROWS, verbose=0)
    assert all(residual.any() for residual in _residuals(strategy))
    model.layers[0].trainable = False
    model.compile("sgd", "mse", jit_compile=False)
    start, each = model.get_weights(), EachBatch()
    model.fit(*data(), batch_size=ROWS, verbose=0, callbacks=[each])
    for weights in each.weights:
        np.testing.assert_array_equal(weights[0], start[0])
        assert (weights[2] != start[2]).any()


@pytest.mark.parametrize("on_epoch", [False, True])
def test_training_goes_on_from_the_own_progress_where_averages_were_swapped_in(
    on_epoch: bool,
) -> None:
    averaging = functools.partial(keras.optimizers.Adam, 0.01, use_ema=True, ema_momentum=0.5)
    seen = []
    for strategy in (None, _strategy(threshold=NEVER)):
        model, each = seeded(strategy, averaging), EachBatch()
        swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=on_epoch)
        model.fit(
            *data(), batch_size=ROWS, epochs=3, verbose=0, shuffle=False, validation_data=data(1),
            callbacks=[each, swap],
        )  # fmt: skip
        seen.append(each.weights)
    for plain, encoded in zip(*seen, strict=True):
        for one, other in zip(plain, encoded, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
    assert strategy is not None
    assert strategy.last_report is not None
    assert strategy.last_report.assigned_outside == 0


@pytest.mark.parametrize("on_epoch", [False, True])
@pytest.mark.parametrize("devices", [None, pytest.param(TWO_DEVICES, marks=pytest.mark.jobs)])
def test_others_get_no_moving_averages_in_the_parameters_place(
    on_epoch: bool, devices: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in validation nor, with `swap_on_epoch`, while an epoch's end is waited for."""
    averaging = functools.partial(keras.optimizers.Adam, 0.1, use_ema=True)
    swaps = keras.callbacks.SwapEMAWeights(swap_on_epoch=on_epoch)
    model = seeded(_strategy(devices=devices), averaging)
    swapped: list[str] = []

    def look(where: str, projection: Any) -> None:
        if not swaps._ema_weights_in_model:
            return
        trained = [variable.value for variable in model.trainable_variables]
        averages = [v.value for v in model.optimizer._model_variables_moving_average]
        before = [variable.numpy() for variable in (*trained, *averages)]
        with projection.lifted():
            swapped.append(where)
            for now, want in zip((*averages, *trained), before, strict=True):
                np.testing.assert_allclose(now.numpy(), want, atol=1e-5)
        for now, want in zip((*trained, *averages), before, strict=True):
            np.testing.assert_allclose(now.numpy(), want, atol=1e-5)

    class AtAnEpochsEnd(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            look("epoch's end", projections[-1])

    def donate(_participant: Any, _fit: Any, _place: Any, projection: Any) -> None:
        projections.append(projection)
        look("validation", projection)

    projections: list[Any] = []
    monkeypatch.setattr(one_fit, "donate_if_asked", donate)
    callbacks = [swaps, AtAnEpochsEnd()]
    model.fit(*data(), epochs=2, verbose=0, validation_data=data(1), callbacks=callbacks)
    assert set(swapped) == {"validation", *["epoch's end"] * on_epoch}


class Buffers(keras.callbacks.Callback):
    """Keeps where the variables of another model lie after every batch."""

    def __init__(self, other: keras.Model) -> None:
        super().__init__()
        self._other = other
        self.places: list[list[int]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        values = [variable.value.read_value() for variable in self._other.variables]
        arrays = [np.frombuffer(memoryview(value), np.uint8) for value in values]
        self.places.append([array.__array_interface__["data"][0] for array in arrays])


def test_variables_that_steps_leave_alone_are_not_copied() -> None:
    strategy = _strategy()
    earlier, later = seeded(strategy, _adam), seeded(strategy, _adam)
    earlier.fit(*data(), batch_size=ROWS, verbose=0)
    buffers = Buffers(earlier)
    later.fit(*data(), batch_size=ROWS, verbose=0, callbacks=[buffers])
    assert len(buffers.places) > 2
    assert all(places == buffers.places[0] for places in buffers.places)


@pytest.mark.parametrize("writer", [keras.callbacks.ModelCheckpoint, None])
def test_a_file_written_in_mid_epoch_has_what_all_workers_share(
    writer: type[keras.callbacks.ModelCheckpoint] | None, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "{epoch}.weights.h5"
    strategy = _strategy(threshold=NEVER)
    model, each = seeded(strategy, _adam), EachBatch()
    start = model.get_weights()
    callbacks: list[Any] = [each]
    if writer is not None:
        callbacks += [writer(str(file), save_weights_only=True, save_freq=2)]
    model.fit(*data(3), batch_size=ROWS, verbose=0, callbacks=callbacks)
    plain, plain_each = seeded(None, _adam), EachBatch()
    plain.fit(*data(3), batch_size=ROWS, verbose=0, callbacks=[plain_each], shuffle=False)
    if writer is None:
        assert all((a != b).any() for a, b in zip(each.weights[-1], start, strict=True))
        return
    plain.load_weights(str(file).format(epoch=1))
    for first, saved in zip(start, plain.get_weights(), strict=True):
        np.testing.assert_array_equal(saved, first)


WEIGHTS = functools.partial(keras.callbacks.ModelCheckpoint, save_weights_only=True)


class WritesByItself(keras.callbacks.ModelCheckpoint):
    """Of a user who has another rule for when to write."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.save_weights(self.filepath)


@pytest.mark.parametrize(
    ("writer", "save_freq", "batches"),
    [
        (WEIGHTS, 3, [2, 5]),
        (WEIGHTS, 100, []),
        (keras.callbacks.BackupAndRestore, 3, [2, 5]),
        (WritesByItself, 100, list(range(8))),
    ],
)
def test_what_all_workers_share_is_shown_after_the_batches_that_are_written_alone(
    writer: Any,
    save_freq: int,
    batches: list[int],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    strategy = _strategy()
    model, each = seeded(strategy, _adam), EachBatch()
    shown: list[int] = []
    show_shared = SharedStep.show_shared

    def note(step: SharedStep) -> None:
        shown.append(len(each.weights))
        show_shared(step)

    monkeypatch.setattr(SharedStep, "show_shared", note)
    file = writer(str(tmp_path / "w.weights.h5"), save_freq=save_freq)
    model.fit(*data(8), batch_size=ROWS, verbose=0, callbacks=[each, file])
    assert [batch for batch in shown if batch < len(each.weights)] == batches


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
    for _ in range(2):
        for first, last in zip(start, model.get_weights(), strict=True):
            np.testing.assert_allclose(last, first, atol=1e-7)
        assert all(residual.any() for residual in _residuals(strategy))
        model.fit(*data(), batch_size=ROWS, verbose=0)
    for first, last in zip(start, model.get_weights(), strict=True):
        np.testing.assert_allclose(last, first, atol=1e-7)


class CutShort(keras.Sequential):
    """Fails in its fifth step, once the optimizer has stepped."""

    def __init__(self) -> None:
        super().__init__([keras.Input((5,)), keras.layers.Dense(2)])
        self.steps = 0

    def train_step(self, given: Any) -> Any:
        logs = super().train_step(given)
        self.steps += 1
        if self.steps == 5:
            raise RuntimeError("on purpose")
        return logs


@pytest.mark.parametrize("options", [{}, {"max_staleness": 0}, {"local_steps": 2}])
def test_a_fit_that_fails_within_a_step_adds_no_residual_to_what_all_share(
    options: dict[str, Any],
) -> None:
    strategy = _strategy(threshold=NEVER, **options)
    with strategy.scope():
        keras.utils.set_random_seed(3)
        model = CutShort()
        model.compile(keras.optimizers.SGD(0.01), "mse", run_eagerly=True)
    start = model.get_weights()
    with pytest.raises(RuntimeError, match="on purpose"):
        model.fit(*data(), batch_size=ROWS, shuffle=False, verbose=0)
    left = model.get_weights()
    progress = max(np.abs(residual).max() for residual in _residuals(strategy))
    for first, last in zip(start, left, strict=True):
        np.testing.assert_allclose(last, first, atol=progress / 2)  # At most the step itself.
    model.fit(*data(), batch_size=ROWS, shuffle=False, verbose=0)
    for first, last in zip(left, model.get_weights(), strict=True):
        np.testing.assert_allclose(last, first, atol=1e-6)


def test_a_step_that_is_refused_leaves_nothing_behind() -> None:
    strategy = _strategy(threshold=NEVER)
    model = seeded(strategy, _adam)
    start = model.get_weights()
    x, y = data()
    y[ROWS + 1] = np.nan
    callbacks = [keras.callbacks.TerminateOnNaN()]
    history = model.fit(x, y, batch_size=ROWS, shuffle=False, verbose=0, callbacks=callbacks)
    assert np.isnan(history.history["loss"]).all()
    for _ in range(2):
        assert strategy.last_report is not None
        assert strategy.last_report.assigned_outside == 0
        for first, last in zip(start, model.get_weights(), strict=True):
            np.testing.assert_allclose(last, first, atol=1e-7)
        model.fit(*data(), batch_size=ROWS, verbose=0)


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
        np.testing.assert_allclose(value, np.full_like(value, 0.25), atol=1e-7)


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
        saving.save_if_due(strategy._sharing, Fit(1, model, per_epoch=None), DataPosition(0, 1))
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
    projection = Projection(model, strategy._sharing.space)
    sharing = dataclasses.replace(strategy._sharing, worker=worker)
    hand_over_if_asked(sharing, start.size, projection)
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


# ------------------------------------------------------------------ two workers


@functools.cache
def _job(mode: str, local_steps: int) -> list[tuple[dict[str, Any], list[np.ndarray]]]:
    return on_two_workers(mode, {"local_steps": local_steps})


@pytest.mark.jobs
@pytest.mark.parametrize("mode", ["None", "0", "2"])
@pytest.mark.parametrize("local_steps", [1, 4])
def test_replicas_agree_at_the_end_though_not_in_between(mode: str, local_steps: int) -> None:
    (first, one), (second, other) = _job(mode, local_steps)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)
    for report in (*first["reports"], *second["reports"]):
        assert report["max_replica_difference"] < (1e-5 if mode == "None" else 1e-7)
        assert report["updates_applied"] > 0
        assert report["residual_mass"] > 0
        assert report["assigned_outside"] == 0
    assert not set(first["hashes"]) & set(second["hashes"])
    # What all share at an epoch's end is the same to the bit where the order of updates is.
    assert len(first["shared"]) == 3
    assert mode != "0" or first["shared"] == second["shared"]
