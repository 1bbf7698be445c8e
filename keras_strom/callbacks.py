"""Which of `fit`'s callbacks run on a worker that is not the chief.

The chief decides and writes: only its callbacks change the learning rate by what they have seen,
and only they write files, so that workers on one file system never fight over them. A user's own
callback runs everywhere; `keras_strom.is_chief()` tells it where it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras

from keras_strom.monitor import StromMonitor

# Those that write somewhere, or whose decision the chief's is for all.
_CHIEFS_ALONE = (
    StromMonitor,
    *(
        getattr(keras.callbacks, name)
        for name in (
            "CSVLogger",
            "ModelCheckpoint",
            "OrbaxCheckpoint",
            "ReduceLROnPlateau",
            "RemoteMonitor",
            "TensorBoard",
        )
        if hasattr(keras.callbacks, name)
    ),
)


# Those that may write the model between two batches, with `save_freq=` a number.
_WRITERS = tuple(
    getattr(keras.callbacks, name)
    for name in ("BackupAndRestore", "ModelCheckpoint", "OrbaxCheckpoint")
    if hasattr(keras.callbacks, name)
)


def writes_between_batches(callback: Any) -> bool:
    """Whether a callback of Keras may write the model before the epoch is over."""
    return isinstance(callback, _WRITERS) and callback.save_freq not in ("epoch", False)


def off_the_chief(callbacks: Iterable[Any]) -> list[Any]:
    """What stands for the chief's `callbacks` on every other worker, in the same order."""
    kept = []
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            kept.append(_OnlyRestores(callback))
        elif not isinstance(callback, _CHIEFS_ALONE):
            kept.append(callback)
    return kept


class _OnlyRestores(keras.callbacks.Callback):  # type: ignore[misc]
    """BackupAndRestore without the backup: where a worker sees the chief's, it starts from it too.

    Weights, epoch and learning rate come from the chief in any case; only here a worker finds the
    optimizer's moments.
    """

    def __init__(self, backup: keras.callbacks.BackupAndRestore) -> None:
        super().__init__()
        self._backup = backup

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._backup.set_model(self.model)
        self._backup.on_train_begin(logs)
