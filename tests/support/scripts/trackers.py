"""Fits with MLflow, Weights & Biases and Optuna on several workers; results in FOLDER/RANK.json.

    keras-strom run -np 2 tests/support/scripts/trackers.py FOLDER

Everything is told to files below FOLDER; each worker writes what it knows of it to RANK.json.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import keras
import mlflow
import numpy as np
import optuna
import wandb
from optuna_integration import KerasPruningCallback
from wandb.integration.keras import WandbMetricsLogger

import keras_strom

FOLDER = Path(sys.argv[1])
CHIEF = keras_strom.is_chief()
X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def fit(strategy: keras_strom.StromStrategy, *callbacks: Any) -> Any:
    """A small model's `fit`; its loss."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.1), "mse")
    model.fit(
        X, Y, epochs=2, batch_size=4, validation_data=(X, Y), verbose=0, callbacks=[*callbacks]
    )
    return model.evaluate(X, Y, verbose=0)


def prune(strategy: keras_strom.StromStrategy, here: int) -> list[Any]:
    """A study in which the pruner of worker `here` finds every trial hopeless; what it has seen."""
    pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
    if keras_strom.rank() == here:
        pruner = optuna.pruners.ThresholdPruner(upper=0.0)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0), pruner=pruner)
    study.optimize(
        lambda trial: fit(strategy, KerasPruningCallback(trial, "loss")),
        n_trials=1,
    )
    return [[trial.state.name, sorted(trial.intermediate_values)] for trial in study.trials]


def main() -> None:
    """Runs them all."""
    mlflow.set_tracking_uri((FOLDER / "mlruns").as_uri())
    found: dict[str, Any] = {}
    mlflow.keras.autolog(log_models=False, log_datasets=False, silent=True)
    # In lock-step, so that the figures of all workers are there at the end of every epoch.
    strategy = keras_strom.StromStrategy(max_staleness=0)
    seen: list[str] = []
    run = wandb.init(project="p", dir=str(FOLDER), mode="offline") if CHIEF else None
    sees = keras.callbacks.LambdaCallback(on_epoch_end=lambda _, logs: seen.extend(logs))
    fit(strategy, keras_strom.on_chief(WandbMetricsLogger), sees)
    if run is not None:
        found["wandb"] = sorted(run.summary.keys())
        wandb.finish()
    found["own callbacks"] = sorted(set(seen))
    mlflow.keras.autolog(disable=True)
    with mlflow.start_run() if CHIEF else contextlib.nullcontext():
        fit(strategy, mlflow.keras.MlflowCallback())
    mlflow.autolog(log_models=False, silent=True)  # After StromStrategy, too.
    fit(strategy)
    mlflow.autolog(disable=True, silent=True)
    found["pruned by the chief"] = prune(strategy, 0)
    found["pruned elsewhere"] = prune(strategy, 1)
    (FOLDER / f"{keras_strom.rank()}.json").write_text(json.dumps(found))


main()
