"""Which callbacks stand around those of a `fit`, and which of these run here.

One stands before all others, which averages at the end of each epoch before validation, then a
`StromMonitor`, and one after all others, which begins the generation, settles whether training
stops and with which learning rate it goes on, and has the workers agree once more when a callback
may have assigned weights at the very end. On a worker that is not the chief, callbacks that write
or decide are left out (`callbacks`).
"""

from __future__ import annotations

import contextlib
from typing import Any

import keras

from keras_strom.strategy.callbacks import off_the_chief
from keras_strom.strategy.fit_checks import SharesNothing
from keras_strom.strategy.generation import Sharing
from keras_strom.strategy.learning_rates import follows_schedule
from keras_strom.strategy.monitor import StromMonitor
from keras_strom.strategy.one_fit import Training
from keras_strom.strategy.status_reports import Reporter, reports_of
from keras_strom.strategy.trackers import warn_of_late_autologging, with_figures


def put_around(
    arguments: dict[str, Any],
    training: Training,
    sharing: Sharing,
    restore: contextlib.ExitStack,
) -> None:
    """Puts our callbacks around the user's; `restore` takes them out of a user's own list."""
    given = arguments["callbacks"]
    users = listed(given)
    monitored = _monitored(users, sharing, training, restore)
    training.follows_schedule = follows_schedule(monitored)
    swappers = [one for one in users if isinstance(one, keras.callbacks.SwapEMAWeights)]
    training.projection.swappers = swappers
    training.shows_epochs |= any(not isinstance(one, StromMonitor) for one in monitored)
    reports = reports_of(sharing.environment)
    reporters = [] if reports is None else [Reporter(reports)]
    refuses = SharesNothing(sharing)
    ours = [refuses, _First(training), *monitored, *reporters, _Last(training), refuses.last]
    if isinstance(given, keras.callbacks.CallbackList):
        for callback in ours:
            if callback not in users:
                callback.set_model(arguments["self"])
                callback.set_params({**given.params, "epochs": arguments["epochs"]})
        restore.callback(vars(given).update, callbacks=users, _async_train=given._async_train)
        given.callbacks, given._async_train = ours, False  # Ours follow batches as they end.
    else:
        arguments["callbacks"] = ours


def _monitored(
    users: list[Any], sharing: Sharing, training: Training, restore: contextlib.ExitStack
) -> list[Any]:
    """The callbacks that run here, a monitor before those that read the logs."""
    monitors = [callback for callback in users if isinstance(callback, StromMonitor)]
    others = [callback for callback in users if callback not in monitors]
    monitors = monitors or [StromMonitor()]
    if not sharing.environment.is_chief:
        warn_of_late_autologging(sharing.environment.rank)
        monitors = [monitor.off_the_chief() for monitor in monitors]
        others = off_the_chief(others)
    elif sharing.environment.size > 1:
        others = with_figures(others, training.figures)
    for monitor in monitors:
        monitor.attach(sharing)
        restore.callback(monitor.close)  # Where `fit` raises Keras tells no callback.
    return [*monitors, *others]


def listed(callbacks: Any) -> list[Any]:
    """The callbacks given to `fit` one by one."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    return list(keras.tree.flatten(callbacks or []))


def may_assign_at_the_end(callback: Any) -> bool:
    """Whether a callback's `on_train_end` may change weights, each worker's in its own way.

    Of Keras's own callbacks only EarlyStopping does; a user's own may do anything.
    """
    method = callback.on_train_end
    if not str(method.__module__).startswith("keras."):
        return True
    return bool(getattr(callback, "restore_best_weights", False))


def validates(arguments: dict[str, Any]) -> bool:
    """Whether `fit` is given data to validate with."""
    return arguments["validation_data"] is not None or bool(arguments["validation_split"])


class _First(keras.callbacks.Callback):  # type: ignore[misc]
    """Before every other callback."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self._training = training

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._training.begin_epoch(epoch, self.params["epochs"])

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._training.begin_batch(batch)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._training.logs.note_step(logs)
        self._training.show_shared(batch)

    def on_test_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._training.help_others()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._training.close_epoch()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._training.close_epoch()
        self._training.logs.put_averages(logs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._training.logs.put_averages(logs)


class _Last(keras.callbacks.Callback):  # type: ignore[misc]
    """After every other callback."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self._training = training

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._training.within_batch = True

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._training.end_batch(batch, logs)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._training.begin(self.params["epochs"], self.params.get("steps"))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._training.note_history(logs)
        self._training.settle_stop()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._training.end()
