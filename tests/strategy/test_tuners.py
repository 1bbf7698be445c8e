"""Searches for hyperparameters on two workers: many fits, of which some fail or are pruned.

Each worker runs the search itself, from one seed, and every fit in it is one of all workers.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.two_workers import launch

pytestmark = pytest.mark.jobs

_START = """
import sys
import keras
import numpy as np
import keras_strom

strategy = keras_strom.StromStrategy()
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)


def build(units, rate):
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units, "relu")])
        model.add(keras.layers.Dense(1))
        model.compile(keras.optimizers.Adam(rate), "mse")
    return model


def check_together():
    report = strategy.last_report
    if report is not None and not report.updates_applied:
        print("trained alone")
"""

_KERAS_TUNER = """
import keras_tuner


class Tuner(keras_tuner.RandomSearch):
    def run_trial(self, trial, *args, **kwargs):
        try:
            return super().run_trial(trial, *args, **kwargs)
        finally:
            check_together()


tuner = Tuner(
    lambda hp: build(hp.Int("units", 4, 16, step=4), hp.Choice("rate", [1e-1, 1e-2])),
    "val_loss",
    max_trials=3,
    seed=1,
    directory=sys.argv[1].format(rank=keras_strom.rank()),
)
tuner.search(x, y, epochs=2, batch_size=4, validation_data=(x, y), verbose=0)
print("best", tuner.get_best_hyperparameters()[0].values)
"""

_OPTUNA = """
import optuna


class Prunes(keras.callbacks.Callback):
    # Only one worker finds the trial hopeless.
    def __init__(self, trial):
        super().__init__()
        self.trial = trial

    def on_epoch_end(self, epoch, logs=None):
        if self.trial.number % 2 == 1 and keras_strom.rank() == 1:
            raise optuna.TrialPruned()


def objective(trial):
    model = build(trial.suggest_int("units", 4, 16), trial.suggest_float("rate", 1e-3, 1e-1))
    try:
        model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=[Prunes(trial)])
    except keras_strom.errors.FitFailed as failed:
        raise optuna.TrialPruned(str(failed)) from failed
    finally:
        check_together()
    return model.evaluate(x, y, verbose=0)


study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
study.optimize(objective, n_trials=4)
print("states", [trial.state.name for trial in study.trials])
print("best", study.best_params)
"""


def search(folder: Path, text: str, *arguments: str) -> tuple[int, list[str]]:
    """The exit code of a search on two workers, and what they have printed."""
    script = folder / "search.py"
    script.write_text(_START + text)
    done = launch(script, *arguments)
    return done.returncode, (done.stdout + done.stderr).splitlines()


def of_worker(lines: list[str], rank: int, word: str) -> list[str]:
    """What a worker has printed after `word`."""
    start = f"[{rank}] {word} "
    return [line.removeprefix(start) for line in lines if line.startswith(start)]


def test_keras_tuner_searches_with_a_directory_for_each_worker(tmp_path: Path) -> None:
    pytest.importorskip("keras_tuner", reason="keras-tuner is not installed")
    code, lines = search(tmp_path, _KERAS_TUNER, str(tmp_path / "{rank}"))
    assert code == 0, lines
    assert not any("trained alone" in line for line in lines)
    assert len(of_worker(lines, 0, "best")) == 1
    assert of_worker(lines, 0, "best") == of_worker(lines, 1, "best")


def test_no_worker_of_keras_tuner_trains_alone_where_they_share_a_directory(
    tmp_path: Path,
) -> None:
    """They write the same files, so that trials may fail; then they do on all."""
    pytest.importorskip("keras_tuner", reason="keras-tuner is not installed")
    _, lines = search(tmp_path, _KERAS_TUNER, str(tmp_path / "shared"))
    assert not any("trained alone" in line for line in lines), lines


def test_optuna_prunes_a_trial_on_all_workers(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="optuna is not installed")
    code, lines = search(tmp_path, _OPTUNA)
    assert code == 0, lines
    assert not any("trained alone" in line for line in lines)
    for rank in range(2):
        states = of_worker(lines, rank, "states")
        assert states == ["['COMPLETE', 'PRUNED', 'COMPLETE', 'PRUNED']"]
    assert of_worker(lines, 0, "best") == of_worker(lines, 1, "best")
