"""For what a `fit` is refused as it begins, or as it trains."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_strom import errors

if TYPE_CHECKING:
    from keras_strom.strategy.generation import Sharing


def refuse_within_another(sharing: Sharing) -> None:
    """A `fit` within a training, to whose end all workers have agreed or have still to agree.

    Raises:
        StromError: names both ways to get there.
    """
    if sharing.generation is not None or sharing.in_fit:
        raise errors.StromError(
            "a training has not ended yet: after a custom loop call strategy.synchronize() before "
            "fit, and call no fit in a callback of another one"
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
    """

    def __init__(self, sharing: Sharing) -> None:
        super().__init__()
        self._sharing = sharing
        self._looks = sharing.environment.size > 1
        self._before: list[np.ndarray] = []

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Looks until an optimizer has stepped, be it after some batches, or something changes.

        Raises:
            UnsupportedModel: something has.
        """
        if not self._looks:
            return
        if self._sharing.step.stepped:
            self._looks, self._before = False, []
            return
        now = [np.array(one) for one in self.model.trainable_variables]
        changed = [not np.array_equal(a, b) for a, b in zip(self._before, now, strict=False)]
        self._before = now
        if any(changed):
            name = self.model.trainable_variables[changed.index(True)].path
            raise errors.UnsupportedModel(
                f"worker {self._sharing.environment.rank}: the model's train_step changes {name} "
                "without an optimizer, so that nothing would be shared; give the gradients to one: "
                "self.optimizer.apply(gradients, variables), or keras.optimizers.SGD's"
            )
