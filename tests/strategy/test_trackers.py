"""Experiment trackers see one run of a job: their callbacks act on the chief alone."""

from __future__ import annotations

import inspect
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_strom
from keras_strom import errors
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.recovery.endings import Endings
from keras_strom.strategy import trackers
from keras_strom.strategy.callbacks import off_the_chief
from keras_strom.strategy.fit import _given
from keras_strom.strategy.fit_failure import raise_if_failed, words_of
from keras_strom.strategy.trackers import WorkerFigures, with_figures
from tests.support.two_workers import launch, results

SCRIPT = Path(__file__).parents[1] / "support" / "scripts" / "trackers.py"


def of_module(module: str, base: type = keras.callbacks.Callback) -> Any:
    """A callback as a package has it."""
    return type("Logger", (base,), {"__module__": module})()


class TrialPruned(Exception):
    """As Optuna calls it."""


@pytest.mark.parametrize(
    "module",
    [
        "mlflow.keras.callback",
        "mlflow.tensorflow.callback",
        "wandb.integration.keras.callbacks.metrics_logger",
        "comet_ml.callbacks._keras",
    ],
)
def test_callbacks_of_trackers_are_known_by_their_module(module: str) -> None:
    own = of_module("__main__", type(of_module(module)))
    assert off_the_chief([of_module(module), own]) == []


def test_a_module_with_a_name_that_begins_alike_is_no_tracker() -> None:
    own = of_module("wandbox.callbacks")
    assert off_the_chief([own]) == [own]


def test_a_callback_of_ones_own_is_kept_on_the_chief_also_after_pickling() -> None:
    callback = keras_strom.on_chief(keras.callbacks.TerminateOnNaN())
    assert isinstance(callback, keras.callbacks.TerminateOnNaN)
    assert off_the_chief([callback, pickle.loads(pickle.dumps(callback))]) == []


def test_what_makes_a_callback_is_called_on_the_chief_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = keras_strom.on_chief(keras.callbacks.TerminateOnNaN)
    assert isinstance(made, keras.callbacks.TerminateOnNaN)
    monkeypatch.setattr(trackers, "is_chief", lambda: False)
    made = keras_strom.on_chief(lambda: pytest.fail("called"))
    assert off_the_chief([made]) == []
    for wrong in (3, "TerminateOnNaN"):
        with pytest.raises(errors.InvalidOption, match="on_chief"):
            keras_strom.on_chief(wrong)  # type: ignore[type-var, arg-type]


def test_a_search_hears_of_every_epoch_and_leaves_pruning_to_the_chief() -> None:
    reported: list[Any] = []

    class Prunes(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            reported.append((epoch, logs))
            raise TrialPruned

    (kept,) = off_the_chief([of_module("optuna_integration.keras.keras", Prunes)])
    kept.on_epoch_end(3, {"loss": 1.0})
    assert reported == [(3, {"loss": 1.0})]


@pytest.mark.parametrize("attempt", [0, 1])
def test_a_replaced_worker_opens_no_backup_that_the_chief_may_be_writing(
    attempt: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def read(callback: keras.callbacks.BackupAndRestore, logs: Any) -> None:
        folders.append(Path(callback.backup_dir))
        assert (folders[-1] / "latest.weights.h5").read_text() == "half of it"
        raise OSError("file is truncated")

    (tmp_path / "latest.weights.h5").write_text("half of it")
    backup = keras.callbacks.BackupAndRestore(tmp_path)
    folders: list[Path] = []
    monkeypatch.setattr(keras.callbacks.BackupAndRestore, "on_train_begin", read)
    here = ClusterEnvironment(attempt=attempt)
    monkeypatch.setattr(ClusterEnvironment, "from_environ", lambda: here)
    (kept,) = off_the_chief([backup])
    kept.set_model(keras.Sequential())
    if attempt == 0:
        with pytest.raises(OSError, match="truncated"):
            kept.on_train_begin({})
        assert folders == [tmp_path]
    else:
        kept.on_train_begin({})
        assert "file is truncated" in caplog.text
        assert tmp_path not in folders
        assert not folders[0].exists()


def test_a_fit_that_was_pruned_elsewhere_is_pruned_here(monkeypatch: pytest.MonkeyPatch) -> None:
    optuna = types.ModuleType("optuna")
    optuna.TrialPruned = TrialPruned  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "optuna", optuna)

    def failed(error: Exception) -> errors.FitFailed:
        with pytest.raises(errors.FitFailed) as caught:
            raise_if_failed(Endings(failed=(1,), cause=words_of(error)))
        return caught.value

    pruned = trackers.pruned_elsewhere(failed(TrialPruned("at (epoch) 3.")))
    assert isinstance(pruned, TrialPruned)
    assert str(pruned) == "at (epoch) 3."
    assert trackers.pruned_elsewhere(failed(ValueError("TrialPruned"))) is None
    assert trackers.pruned_elsewhere(ValueError("TrialPruned")) is None


def test_figures_of_every_worker_travel_in_a_mean() -> None:
    sent = [WorkerFigures(r, 3).to_numbers(10.0 * r, 0.5 + r) for r in (0, 2)]
    found = WorkerFigures(0, 3).of(np.mean(sent, axis=0))
    assert found == {
        "worker_0/loss": pytest.approx(0.0),
        "worker_0/step_seconds": pytest.approx(0.5),
        "worker_2/loss": pytest.approx(20.0),
        "worker_2/step_seconds": pytest.approx(2.5),
    }


def test_figures_of_very_many_workers_are_summed_up() -> None:
    sent = [WorkerFigures(r, 1000).to_numbers(float(r), 1.0) for r in range(1000)]
    found = WorkerFigures(0, 1000).of(np.mean(sent, axis=0))
    assert len(found) == 6
    assert found["workers/loss_median"] == pytest.approx(499.5)
    assert found["workers/loss_max"] == pytest.approx(999.0)


def test_trackers_alone_see_the_figures_of_all_workers() -> None:
    seen: list[list[str]] = []

    class Sees(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seen.append(sorted(logs))

    figures = WorkerFigures(0, 2)
    figures.found = {"worker_1/loss": 1.0}
    ours = with_figures([Sees(), of_module("wandb.keras", Sees), Sees()], figures)
    logs = {"loss": 2.0}
    for callback in ours:
        callback.on_epoch_end(0, logs)
    assert seen == [["loss"], ["loss", "worker_1/loss"], ["loss"]]


def test_a_worker_measures_its_own_steps() -> None:
    figures = WorkerFigures(1, 2)
    figures.begin_epoch(10)
    own = figures.of(figures.end_epoch(14, 0.25))
    assert own["worker_1/loss"] == 0.25
    assert own["worker_1/step_seconds"] > 0
    assert np.isnan(figures.of(figures.end_epoch(10, None))["worker_1/loss"])


def test_a_wrap_around_fit_may_add_callbacks_by_name() -> None:
    def wrapped(self: Any, x: Any, *, epochs: int = 1, callbacks: Any = None) -> None:
        """As Keras's own."""

    bound = inspect.signature(wrapped).bind("model", [1], callbacks=["ours"])
    bound.apply_defaults()
    assert _given(bound) == {"x": [1], "callbacks": ["ours"]}


@pytest.mark.jobs
def test_mlflow_wandb_and_optuna_see_one_run_of_two_workers(tmp_path: Path) -> None:
    for name in ("mlflow", "optuna_integration", "wandb"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    env = {
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "WANDB_SILENT": "true",
    }
    done = launch(SCRIPT, str(tmp_path), options=("--max-failures", "1"), env=env)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-4000:]
    chiefs, others = results(tmp_path)
    figures = {"worker_0/loss", "worker_1/loss", "worker_1/step_seconds", "strom/density"}
    runs = [path.parent for path in (tmp_path / "mlruns").glob("*/*/meta.yaml")]
    assert len(runs) == 3
    for run in runs:
        metrics = [path for path in (run / "metrics").rglob("*") if path.is_file()]
        assert {path.relative_to(run / "metrics").as_posix() for path in metrics} > figures
    assert len(list(tmp_path.glob("wandb/offline-run-*"))) == 1
    assert {f"epoch/{name}" for name in figures} < set(chiefs["wandb"])
    assert not figures & set(others["own callbacks"]) - {"strom/density"}
    assert chiefs["own callbacks"] == others["own callbacks"]
    for found in (chiefs, others):
        assert found["pruned by the chief"] == [["PRUNED", [0]]]
        assert found["pruned elsewhere"] == [["COMPLETE", [0, 1]]]
