"""Which of `fit`'s callbacks run on a worker that is not the chief.

The chief decides and writes: only its callbacks change the learning rate by what they have seen,
and only they write files, so that workers on one file system never fight over them. So do the
callbacks of experiment trackers (`trackers`). A user's own callback runs everywhere;
`keras_strom.is_chief()` tells it where it is, and `keras_strom.on_chief` keeps it there.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import keras

from keras_strom.job.environment import ClusterEnvironment
from keras_strom.sharing.wrapping import wrap_once
from keras_strom.strategy.fit_failure import words_of
from keras_strom.strategy.monitor import StromMonitor
from keras_strom.strategy.trackers import ReportsOnly, is_of_chief, is_search

if TYPE_CHECKING:
    from keras_strom.strategy.generation import Generation, Sharing

_logger = logging.getLogger("keras_strom")


def _of_keras(*names: str) -> tuple[Any, ...]:
    """Keras's callbacks of these names, of which older releases lack some."""
    return tuple(getattr(keras.callbacks, name) for name in names if hasattr(keras.callbacks, name))


# Those that write somewhere.
_CHIEFS_ALONE = (
    StromMonitor,
    *_of_keras("CSVLogger", "ModelCheckpoint", "OrbaxCheckpoint", "RemoteMonitor", "TensorBoard"),
)

# The attributes of Keras's callbacks that name what they write.
_PATHS = ("filepath", "filename", "directory", "log_dir")

_CHIEF_STOPS = (
    "a callback has set model.stop_training, which the chief (worker 0) alone decides, for all: "
    "this worker trains on"
)

# What callbacks that were left out here would have written, for who then looks for it.
_left_to_the_chief: dict[str, None] = {}

# Those that may write the model between two batches, with `save_freq=` a number.
_WRITERS = _of_keras("BackupAndRestore", "ModelCheckpoint", "OrbaxCheckpoint")


def writers_between_batches(callbacks: Iterable[Any]) -> list[Any]:
    """Those of `callbacks` that are Keras's and may write the model before the epoch is over."""
    return [
        callback
        for callback in callbacks
        if isinstance(callback, _WRITERS) and callback.save_freq not in ("epoch", False)
    ]


def may_write(writer: Any, batch: int) -> bool:
    """Whether one of `writers_between_batches` writes after `batch`, of which it is not told yet.

    True also where that is not Keras's own to say.
    """
    is_due: Any = getattr(writer, "_should_save_on_batch", None)
    methods = (is_due, writer.on_train_batch_end)
    if not all(str(getattr(one, "__module__", "")).startswith("keras.") for one in methods):
        return True
    counters = dict(vars(writer))
    try:
        return bool(is_due(batch))  # It counts the batch, as it will again when it is told.
    finally:
        vars(writer).update(counters)


def off_the_chief(callbacks: Iterable[Any]) -> list[Any]:
    """What stands for the chief's `callbacks` on every other worker, in the same order."""
    kept = []
    for callback in callbacks:
        if isinstance(callback, _CHIEFS_ALONE):
            _note_left_out(callback)
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            kept.append(_OnlyRestores(callback))
        elif isinstance(callback, keras.callbacks.ReduceLROnPlateau):
            kept.append(_OnlyTellsRates())
        elif is_search(callback):
            kept.append(ReportsOnly(callback))
        elif not isinstance(callback, _CHIEFS_ALONE) and not is_of_chief(callback):
            kept.append(callback)
    return kept


def may_leave_epoch(running: Generation, sharing: Sharing) -> bool:
    """Whether `model.stop_training` may end an epoch early: off the chief only where all stop."""
    if sharing.environment.is_chief or running.stop_requested():
        return True
    running.warn_once(_CHIEF_STOPS)
    return False


def early_stoppings(callbacks: Iterable[Any]) -> list[Any]:
    """Those of `callbacks` that are Keras's EarlyStopping."""
    return [one for one in callbacks if isinstance(one, keras.callbacks.EarlyStopping)]


def has_stopped_early(stoppings: Iterable[Any], epoch: int) -> bool:
    """Whether one of `early_stoppings` has asked to stop after this epoch; it never does in 0."""
    return epoch > 0 and any(one.stopped_epoch == epoch for one in stoppings)


def agree_to_stop(running: Generation, asked: bool, *, tells: bool) -> bool:
    """Whether the training ends here, where a callback of this worker has `asked` for it or not.

    Args:
        running: the training.
        asked: whether one has.
        tells: whether the user should know that it is not done. Of EarlyStopping it is no news: the
            chief has one too, which asks in its own time.
    """
    stop = running.agree_to_stop(asked) or running.stop_requested()
    if asked and not stop and tells:
        running.warn_once(_CHIEF_STOPS)
    return stop


def explain_missing_file(error: BaseException) -> None:
    """Adds to an error about a file that is not here who has it, where that may be the reason."""
    words = str(error)
    missing = isinstance(error, FileNotFoundError) or "File not found" in words
    written = ", ".join(_left_to_the_chief)
    if missing and written and "keras_strom.is_chief()" not in str(getattr(error, "__notes__", "")):
        note = (
            f"keras-strom: in fit only worker 0 writes files ({written}), this is worker "
            f"{ClusterEnvironment.from_environ().rank}. "
            "Where the workers share no disk, read them on worker 0 alone "
            "(if keras_strom.is_chief(): ...), or have the callbacks write where all can read; the "
            "model in memory has the final weights on every worker"
        )
        if sys.version_info >= (3, 11):
            error.add_note(note)
        else:  # Tracebacks show no notes yet.
            vars(error).setdefault("__notes__", []).append(note)
            _logger.error(note)


def _note_left_out(callback: Any) -> None:
    paths = [str(vars(callback)[name]) for name in _PATHS if vars(callback).get(name)]
    if not paths:
        return
    _left_to_the_chief[f"{type(callback).__name__} {paths[0]}"] = None
    wrap_once(sys, "excepthook", _explained)


def _explained(
    original: Callable[..., object],
    kind: type[BaseException],
    error: BaseException,
    frames: TracebackType | None,
) -> None:
    """In the place of `sys.excepthook`."""
    explain_missing_file(error)
    original(kind, error, frames)


class _OnlyTellsRates(keras.callbacks.Callback):  # type: ignore[misc]
    """ReduceLROnPlateau without the decision: its figures stand in this worker's history, too."""

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is None:
            return
        optimizer = self.model.optimizer
        named = {"learning_rate": optimizer}
        if hasattr(optimizer, "optimizers"):
            named = {f"learning_rate_{one.name}": one for one in optimizer.optimizers}
        for name, one in named.items():
            logs[name] = float(keras.ops.convert_to_numpy(one.learning_rate))


class _OnlyRestores(keras.callbacks.Callback):  # type: ignore[misc]
    """BackupAndRestore without the backup: where a worker sees the chief's, it starts from it too.

    Weights, epoch and learning rate come from the chief in any case; only here a worker finds the
    optimizer's moments.
    """

    def __init__(self, backup: keras.callbacks.BackupAndRestore) -> None:
        super().__init__()
        self._backup = backup

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if ClusterEnvironment.from_environ().attempt == 0:
            self._restore(self._backup, logs)
        elif os.path.isdir(self._backup.backup_dir):
            self._restore_copy(logs)

    def _restore(self, backup: keras.callbacks.BackupAndRestore, logs: Any) -> None:
        backup.set_model(self.model)
        backup.on_train_begin(logs)

    def _restore_copy(self, logs: Any) -> None:
        """In another's place: the chief may be writing these files, and must not find them locked.

        Where the others train already, what is read here is replaced by what they have.
        """
        try:
            with tempfile.TemporaryDirectory() as copied:
                shutil.copytree(self._backup.backup_dir, copied, dirs_exist_ok=True)
                self._restore(keras.callbacks.BackupAndRestore(copied), logs)
        except Exception as error:  # A file of which a part is written fails in many ways.
            _logger.warning(
                "worker %d goes on without the backup in %s: %s",
                ClusterEnvironment.from_environ().rank,
                self._backup.backup_dir,
                words_of(error),
            )
