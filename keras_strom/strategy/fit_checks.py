"""For what a training is refused as it begins, or a `fit` as it trains."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_strom import errors

if TYPE_CHECKING:
    from keras_strom.strategy.generation import Sharing


def refuse_within_another(sharing: Sharing) -> None:
    """A `fit`, or a custom loop, within a training to whose end all have agreed or will agree.

    Raises:
        StromError: names both ways to get there.
    """
    if sharing.generation is not None or sharing.in_fit:
        raise errors.StromError(
            "a training has not ended yet: after a custom loop call strategy.synchronize() before "
            "fit or another begin, and call no fit in a callback of another one"
        )


def mark_fit(sharing: Sharing) -> contextlib.ExitStack:
    """Until what is returned is closed `refuse_within_another` refuses."""
    sharing.in_fit = True
    ends = contextlib.ExitStack()
    ends.callback(setattr, sharing, "in_fit", False)
    return ends


class SharesNothing(keras.callbacks.Callback):  # type: ignore[misc]
    """Refuses a `train_step` that changes variables, and has no optimizer do it.

    What is shared is what an optimizer's step leaves. Without one each worker would train for
    itself, and at the end all but the chief's would be lost.

    Args:
        sharing: the training's.

    Attributes:
        last: to come behind every other callback, as this one comes before: what they assign
            between two batches is no part of a step.
    """

    def __init__(self, sharing: Sharing) -> None:
        super().__init__()
        self._sharing = sharing
        self._looks = sharing.environment.size > 1
        self._is_suspect = False  # A batch has gone by without a step of an optimizer.
        self._before: list[np.ndarray] = []
        self.last = keras.callbacks.LambdaCallback(on_train_batch_begin=self._note)

    def _note(self, *_: Any, **__: Any) -> None:
        if self._looks and self._is_suspect:
            self._before = [np.array(one) for one in self.model.trainable_variables]

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Looks until an optimizer has stepped, be it after some batches, or something changes.

        Raises:
            UnsupportedModel: something has.
        """
        if not self._looks:
            return
        self._looks = self._sharing.step.stepped == 0
        before, self._before = self._before, []
        if self._looks and self._is_suspect:
            for variable, value in zip(self.model.trainable_variables, before, strict=False):
                if not np.array_equal(variable, value, equal_nan=True):
                    raise errors.UnsupportedModel(
                        f"worker {self._sharing.environment.rank}: the model's train_step changes "
                        f"{variable.path} without an optimizer, so that nothing would be shared; "
                        "give the gradients to one: self.optimizer.apply(gradients, variables), or "
                        "keras.optimizers.SGD's"
                    )
        self._is_suspect = True
