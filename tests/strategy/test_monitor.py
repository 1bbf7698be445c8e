"""What `StromMonitor` adds to the logs, and what it warns of."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_strom import errors
from keras_strom.sharing.threshold import FixedThreshold, TargetDensityThreshold
from keras_strom.strategy import fit_failure
from keras_strom.strategy import monitor as monitor_module
from keras_strom.strategy.callbacks import off_the_chief
from keras_strom.strategy.monitor import PERCENTILES, StromMonitor, percentile_table, residual_norm
from keras_strom.strategy.strategy import StromStrategy

NAMES = {
    "strom/density",
    "strom/threshold",
    "strom/compression",
    "strom/residual_norm",
    "strom/staleness",
    "strom/bytes_sent",
    "strom/peers",
}


def _strategy(threshold: float = 1e-3, **options: Any) -> StromStrategy:
    return StromStrategy(
        threshold=FixedThreshold(threshold),
        residual_clipping=None,
        always_encode=True,
        **options,
    )


def _fit(
    strategy: StromStrategy,
    callbacks: list[Any] | None = None,
    steps: int = 8,
    hidden: int = 7,
    rate: float = 0.05,
) -> Any:
    with strategy.scope():
        layers = keras.layers.Dense(hidden), keras.layers.Dense(1)
        model = keras.Sequential([keras.Input((5,)), *layers])
        model.compile(keras.optimizers.SGD(rate), "mse")
    random = np.random.default_rng(3)
    x = random.normal(size=(4 * steps, 5)).astype(np.float32)
    history = model.fit(
        x,
        x.sum(axis=1, keepdims=True),
        batch_size=4,
        epochs=2,
        verbose=0,
        shuffle=False,
        callbacks=callbacks,
    )
    return history.history


def test_every_fit_has_the_figures_in_its_logs() -> None:
    strategy = _strategy()
    logs = _fit(strategy)
    assert set(logs) >= NAMES
    assert all(len(logs[name]) == 2 for name in NAMES)
    report = strategy.last_report
    assert report is not None
    assert np.mean(logs["strom/density"]) == pytest.approx(report.density)
    assert logs["strom/threshold"] == [pytest.approx(1e-3)] * 2
    sharing = strategy._sharing
    assert sharing is not None
    residual = np.concatenate(
        [sharing.replica.read_residual(e.offset, e.size) for e in sharing.space.participants]
    )
    assert logs["strom/residual_norm"][-1] == pytest.approx(np.linalg.norm(residual), rel=1e-5)
    total = 4 * report.steps * report.parameters / report.message_bytes
    assert min(logs["strom/compression"]) <= total <= max(logs["strom/compression"])
    assert logs["strom/peers"] == logs["strom/bytes_sent"] == logs["strom/staleness"] == [0, 0]


def test_the_norm_of_a_huge_residual_is_finite() -> None:
    strategy = _strategy()
    _fit(strategy)
    sharing = strategy._sharing
    assert sharing is not None
    sharing.replica.write_residual(0, np.full(35, 1e25, np.float32))
    assert residual_norm(sharing) == pytest.approx(1e25 * 35**0.5, rel=1e-5)


def test_figures_are_those_of_the_model_that_is_trained() -> None:
    strategy = _strategy()
    _fit(strategy)
    sharing = strategy._sharing
    assert sharing is not None
    sharing.replica.write_residual(0, np.full(35, 1e25, np.float32))  # It has diverged.
    logs = _fit(strategy)
    report = strategy.last_report
    assert report is not None
    assert report.parameters == 50
    assert report.residual_mass < 1e3
    assert max(logs["strom/residual_norm"]) < 1e3


def test_callbacks_of_the_user_find_them_whatever_their_place() -> None:
    seen: list[set[str]] = []
    first = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(set(logs)))
    _fit(_strategy(), [first, StromMonitor()])
    assert all(names >= NAMES for names in seen)
    assert len(seen) == 2


def test_the_logs_can_be_left_as_they_are() -> None:
    assert not NAMES & set(_fit(_strategy(), [StromMonitor(logs=False)]))


def test_tensorboard_gets_figures_and_a_histogram(tmp_path: pathlib.Path) -> None:
    _fit(_strategy(encoding_debug_mode=True), [StromMonitor(log_dir=tmp_path)])
    tags: dict[str, set[int]] = {}
    for file in tmp_path.iterdir():
        for record in tf.data.TFRecordDataset(str(file)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                tags.setdefault(value.tag, set()).add(event.step)
    assert set(tags) >= NAMES | {"strom/log2_residual_over_threshold"}
    assert sum(tag.endswith("/p99.9") for tag in tags) == 4
    assert tags["strom/density"] == {0, 1}


def test_encoding_debug_mode_logs_percentiles_of_every_variable(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "keras_strom"):
        _fit(_strategy(encoding_debug_mode=True))
    tables = [r.getMessage() for r in caplog.records if "|residual|" in r.getMessage()]
    assert len(tables) == 2
    assert "after epoch 1, threshold 1.0e-03" in tables[0]
    assert all(f"p{percent:g}" in tables[0] for percent in PERCENTILES)
    assert sum("kernel" in line or "bias" in line for line in tables[0].splitlines()) == 4


def test_a_table_has_a_line_for_each_variable() -> None:
    table = percentile_table(0, 1e-3, {"a": np.arange(5.0), "long/name": np.ones(5)}, {})
    assert [line.split()[0] for line in table.splitlines()[2:]] == ["a", "long/name"]
    table = percentile_table(0, 1e-3, {"a": np.arange(5.0), "b": np.ones(5)}, {"b": 2.5e-4})
    assert [line.split()[-1] for line in table.splitlines()[1:]] == ["tau", "4.0e+00", "2.5e-04"]


@pytest.mark.parametrize(
    ("threshold", "steps", "words"),
    [(1e3, 120, "no element has reached"), (1e-8, 8, "of all elements were sent in each step")],
)
def test_a_density_stuck_at_either_end_is_warned_about_once(
    threshold: float, steps: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    _fit(_strategy(threshold), steps=steps, hidden=7000, rate=1e-4)
    warned = [r for r in caplog.records if words in r.getMessage()]
    assert len(warned) == 1
    assert "AdaptiveThreshold(initial=...)" in warned[0].getMessage()


def test_a_dense_message_that_goes_into_a_packet_is_not_warned_about(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _fit(_strategy(1e-8))
    assert "of all elements were sent" not in caplog.text


@pytest.mark.parametrize(
    ("sending", "others", "words"),
    [
        (3.0, 0.0, "waited 30 % of the time for the network to take its updates, 15 ms of each"),
        (0.0, 6.0, "waited 60 % of the time for the other workers' updates, 30 ms of each step's"),
        (0.5, 0.5, None),
    ],
)
def test_steps_too_short_for_the_network_are_warned_about_once(
    sending: float, others: float, words: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = _strategy()
    _fit(strategy)
    assert strategy._sharing is not None
    monitor = StromMonitor()
    monitor.attach(strategy._sharing)
    start = dataclasses.replace(monitor_module._Snapshot.of(strategy._sharing), clock=100.0)
    end = dataclasses.replace(start, clock=110.0, sending_seconds=sending, others_seconds=others)
    for _ in range(2):
        monitor._warn_of_waiting(start, end, steps=200)
    warned = [r.getMessage() for r in caplog.records if "training waited" in r.getMessage()]
    assert len(warned) == (words is not None)
    if words is not None:
        assert words in warned[0]
        assert "local_steps" in warned[0]


@pytest.mark.parametrize("notices", [[], ["worker 1 was lost: silent", "worker 1 is back"]])
def test_updates_that_come_late_after_a_cut_are_not_warned_about(
    notices: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    strategy = _strategy()
    _fit(strategy)
    sharing = strategy._sharing
    assert sharing is not None
    monitor = StromMonitor()
    monitor.attach(sharing)
    monitor._staleness_before = 1.0
    start = monitor_module._Snapshot.of(sharing)
    end = dataclasses.replace(start, cuts=sum(map(fit_failure.tells_of_cut, notices)))
    monitor._warn(monitor._figures(start, end) | {"staleness": 40.0}, start, end)
    assert ("40 steps late" in caplog.text) == (not notices)


def test_only_the_chief_has_one() -> None:
    assert off_the_chief([StromMonitor()]) == []


def test_the_file_of_a_fit_that_raises_is_closed(tmp_path: pathlib.Path) -> None:
    class Fails(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
            raise ValueError("no more")

    monitor = StromMonitor(log_dir=tmp_path)
    with pytest.raises(ValueError, match="no more"):
        _fit(_strategy(), [monitor, Fails()])
    assert monitor._writer is None
    _fit(_strategy(), [monitor])
    assert monitor._writer is None


@pytest.mark.parametrize("options", [{"log_dir": 3}, {"logs": "yes"}])
def test_options_that_are_not_understood_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidOption):
        StromMonitor(**options)


def test_the_target_density_is_reached_and_kept() -> None:
    algorithm = TargetDensityThreshold(density=2e-2, initial=0.5)
    strategy = StromStrategy(threshold=algorithm, always_encode=True, residual_clipping=None)
    with strategy.scope():
        model = keras.Sequential([keras.Input((40,)), keras.layers.Dense(100, use_bias=False)])
        model.compile(keras.optimizers.SGD(0.05), "mse")
    random = np.random.default_rng(5)
    x = random.normal(size=(2400, 40)).astype(np.float32)
    y = random.normal(size=(2400, 100)).astype(np.float32)
    history = model.fit(x, y, batch_size=8, epochs=4, verbose=0).history
    assert history["strom/density"][-1] == pytest.approx(2e-2, rel=0.25)
    assert history["strom/threshold"][-1] < 0.1


def test_a_target_network_may_be_assigned_during_training() -> None:
    class WithTarget(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.main = keras.layers.Dense(1)
            self.target = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.main(x) + 0.0 * self.target(x)

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x))
            trained = self.main.trainable_variables
            self.optimizer.apply(tape.gradient(loss, trained), trained)
            return {"loss": loss}

    class Follow(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.target.set_weights(self.model.main.get_weights())

    strategy = _strategy()
    with strategy.scope():
        model = WithTarget()
        model.compile(keras.optimizers.SGD(0.05), "mse")
    x = np.random.default_rng(3).normal(size=(32, 5)).astype(np.float32)
    model.fit(x, x[:, :1], batch_size=4, verbose=0, callbacks=[Follow()])
    assert strategy.last_report is not None
    assert strategy.last_report.steps == 8
    assert strategy.last_report.assigned_outside == 0
