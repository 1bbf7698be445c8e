"""Experiment trackers see one run, not one of each worker.

A tracker's callbacks act on the chief alone: those of MLflow, Weights & Biases, Comet and Optuna,
known by the module of their class or of one that it derives from, and what a user names with
`on_chief`. Beside the chief's logs they get each worker's own figures (`WorkerFigures`).

MLflow's autologging replaces `keras.Model.fit`: on the chief it is put around keras-strom's wrap of
`fit`, elsewhere it is off. Where Optuna prunes on one worker, `fit` is pruned on all.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import keras
import numpy as np
import numpy.typing as npt

from keras_strom import errors
from keras_strom.job.environment import is_chief

_logger = logging.getLogger("keras_strom")

# The first part of a module's name.
_TRACKERS = frozenset({"comet_ml", "mlflow", "wandb"})
_SEARCHES = frozenset({"optuna", "optuna_integration"})

_ON_CHIEF = "_keras_strom_on_chief"

# Held, as MLflow's autologging is on again when nobody does.
_silence = contextlib.ExitStack()

# MLflow's names for what replaces `keras.Model.fit`.
_AUTOLOGGED = ("keras", "tensorflow")

# More workers than this are shown as the least, the middle and the largest of their figures.
_SHOWN_WORKERS = 64

_PRUNED = "TrialPruned"

_Callback = TypeVar("_Callback", bound=keras.callbacks.Callback)


def on_chief(callback: _Callback | Callable[[], _Callback]) -> Any:
    """Has a callback act on worker 0 alone, with all workers' figures in the logs of its epochs.

    Callbacks of MLflow, Weights & Biases and Comet need no such mark.

    Args:
        callback: a callback; or what makes one and is called on the chief only, for those that
            cannot be made without a run (`on_chief(WandbMetricsLogger)`).

    Returns:
        The callback, for `fit(callbacks=[...])`; elsewhere than on the chief one that does nothing
        in the place of one that would have to be made.

    Raises:
        InvalidOption: it is neither, or makes something else.

    Example:
        >>> class Reports(keras.callbacks.Callback):
        ...     def on_epoch_end(self, epoch, logs=None):
        ...         print(sorted(logs))
        >>> reports = on_chief(Reports())
    """
    made: Any = callback
    if not isinstance(callback, keras.callbacks.Callback) and callable(callback):
        made = callback() if is_chief() else keras.callbacks.Callback()
    if not isinstance(made, keras.callbacks.Callback):
        raise errors.InvalidOption(
            f"on_chief({callback!r}) must be given a keras.callbacks.Callback, or a function that "
            "returns one"
        )
    setattr(made, _ON_CHIEF, True)
    return made


def is_of_chief(callback: Any) -> bool:
    """Whether a callback tells somebody outside of the job, which is the chief's alone."""
    return hasattr(callback, _ON_CHIEF) or _is_from(callback, _TRACKERS)


def is_search(callback: Any) -> bool:
    """Whether a callback reports to a search for hyperparameters, which may prune the training."""
    return not hasattr(callback, _ON_CHIEF) and _is_from(callback, _SEARCHES)


def _is_from(callback: Any, packages: frozenset[str]) -> bool:
    return any(kind.__module__.partition(".")[0] in packages for kind in type(callback).__mro__)


class ReportsOnly(keras.callbacks.Callback):  # type: ignore[misc]
    """A search's callback elsewhere than on the chief: it reports, and leaves pruning to the chief.

    So the searches of all workers, each with its own study, have seen the same of every trial.
    """

    def __init__(self, callback: Any) -> None:
        super().__init__()
        self._callback = callback

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Reports the epoch."""
        try:
            self._callback.on_epoch_end(epoch, logs)
        except Exception as error:
            if not is_pruning(error):
                raise


def is_pruning(error: BaseException) -> bool:
    """Whether an exception says that a trial is not worth more epochs."""
    return any(kind.__name__ == _PRUNED for kind in type(error).__mro__)


def pruned_elsewhere(error: BaseException) -> BaseException | None:
    """What stands for a `fit` that has failed as it was pruned on another worker.

    Args:
        error: how `fit` has ended.

    Returns:
        Optuna's own exception, so that a study counts the trial as pruned on every worker; None
        where it is something else.
    """
    optuna = sys.modules.get("optuna")
    if optuna is None or not isinstance(error, errors.FitFailed):
        return None
    found = re.search(rf"on worker \d+ \({_PRUNED}:? ?(.*?)\), and so on all workers", str(error))
    return None if found is None else optuna.TrialPruned(found[1])


class WorkerFigures:
    """Each worker's own figures of an epoch, which travel beside what is averaged at its end.

    The master averages them like everything else: each worker sends zeros in the places of all
    others, and a flag that gives the factor to undo the mean.

    Args:
        rank: whose they are.
        workers: K.

    Attributes:
        found: all workers' of the latest epoch that has ended, by names for a tracker.
    """

    _NAMES = ("loss", "step_seconds")

    def __init__(self, rank: int, workers: int) -> None:
        self._rank = rank
        self._workers = workers
        self._began = 0.0, 0  # When an epoch has, and after how many steps.
        self.found: dict[str, float] = {}

    def begin_epoch(self, steps: int) -> None:
        """Notes the time; `steps` has the worker made before."""
        self._began = time.monotonic(), steps

    def end_epoch(self, steps: int, loss: Any) -> npt.NDArray[np.float64]:
        """This worker's own as numbers; before anything is averaged.

        Args:
            steps: that it has made by now.
            loss: its own of the epoch; anything but a number counts as NaN.
        """
        began, before = self._began
        made = steps - before
        seconds = (time.monotonic() - began) / made if made else 0.0
        return self.to_numbers(loss if isinstance(loss, float) else math.nan, seconds)

    def to_numbers(self, loss: float, step_seconds: float) -> npt.NDArray[np.float64]:
        """float64 [3 K]: flags, losses, times.

        Args:
            loss: the worker's own of the epoch.
            step_seconds: the mean time from one of its steps to the next.
        """
        numbers = np.zeros((1 + len(self._NAMES), self._workers))
        numbers[:, self._rank] = 1, loss, step_seconds
        return numbers.ravel()

    def of(self, mean: npt.NDArray[np.float64]) -> dict[str, float]:
        """The figures in the mean of what all workers have sent, by names for a tracker.

        Example:
            >>> sent = [WorkerFigures(r, 2).to_numbers(float(r), 0.5) for r in range(2)]
            >>> WorkerFigures(0, 2).of((sent[0] + sent[1]) / 2)["worker_1/loss"]
            1.0
        """
        flags, *rows = mean.reshape(1 + len(self._NAMES), self._workers)
        ranks = np.flatnonzero(flags > 0)
        found: dict[str, float] = {}
        for name, row in zip(self._NAMES, rows, strict=True):
            values = row[ranks] / flags[ranks]
            if self._workers <= _SHOWN_WORKERS:
                found |= {
                    f"worker_{r}/{name}": float(v) for r, v in zip(ranks, values, strict=True)
                }
            elif values.size:
                low, middle, high = np.min(values), np.median(values), np.max(values)
                found |= {
                    f"workers/{name}_min": float(low),
                    f"workers/{name}_median": float(middle),
                    f"workers/{name}_max": float(high),
                }
        return found


def with_figures(callbacks: Sequence[Any], figures: WorkerFigures) -> list[Any]:
    """Puts callbacks around the trackers', so that these alone see all workers' figures.

    Args:
        callbacks: of `fit`, in their order.
        figures: of the `fit`.
    """
    found: list[Any] = []
    for callback in callbacks:
        if is_of_chief(callback):
            found += [_Shows(figures), callback, _Hides(figures)]
        else:
            found.append(callback)
    return found


class _Shows(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self, figures: WorkerFigures) -> None:
        super().__init__()
        self._figures = figures

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs.update(self._figures.found)


class _Hides(_Shows):
    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        for name in self._figures.found if logs is not None else ():
            logs.pop(name, None)  # type: ignore[union-attr]


@contextlib.contextmanager
def autologging_apart() -> Iterator[None]:
    """While `fit` is wrapped: takes MLflow's autologging off, and puts it around the wrap.

    It keeps the `fit` that it has found, so it would go past a wrap that comes later.
    """
    utils = _autologging()
    if utils is None:
        yield
        return
    found = {
        name: dict(utils.AUTOLOGGING_INTEGRATIONS[name])
        for name in _AUTOLOGGED
        if not utils.get_autologging_config(name, "disable", True)
    }
    integrations: dict[str, Any] = {
        name: vars(sys.modules[f"mlflow.{name}"])["autolog"] for name in found
    }
    for autolog in integrations.values():
        autolog(disable=True)
    try:
        yield
    finally:
        for name, autolog in integrations.items():
            known = inspect.signature(autolog).parameters
            autolog(**{key: value for key, value in found[name].items() if key in known})


def silence_autologging() -> None:
    """Elsewhere than on the chief: MLflow's autologging starts no run in this process.

    Whatever calls `mlflow.autolog()` afterwards, and whenever. Where MLflow comes first after
    `StromStrategy`, that is too late for a `fit` which has begun; see `warn_of_late_autologging`.
    """
    utils = _autologging()
    if utils is not None and not utils._AUTOLOGGING_GLOBALLY_DISABLED:
        _silence.enter_context(utils.disable_autologging())


def warn_of_late_autologging(rank: int) -> None:
    """Elsewhere than on the chief, in `fit`: where MLflow has begun a run for it, says so."""
    utils = _autologging()
    if utils is not None and not utils._AUTOLOGGING_GLOBALLY_DISABLED:
        silence_autologging()
        logs = any(not utils.autologging_is_disabled(name) for name in _AUTOLOGGED)
        if logs and sys.modules["mlflow"].active_run() is not None:
            _logger.warning(
                "worker %d: MLflow logs this fit as a run of its own, beside the chief's: import "
                "mlflow before StromStrategy is made",
                rank,
            )


def _autologging() -> Any:
    """MLflow's module of autologging, where the program has imported MLflow."""
    found: Any = sys.modules.get("mlflow.utils.autologging_utils")
    needed = ("AUTOLOGGING_INTEGRATIONS", "_AUTOLOGGING_GLOBALLY_DISABLED", "disable_autologging")
    return found if found is not None and all(hasattr(found, one) for one in needed) else None
