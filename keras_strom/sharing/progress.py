"""Where a training stands, beside its weights: what the chief decides and every worker takes over.

When `fit` begins these are the first epoch (BackupAndRestore may have moved it), how many steps
have been shared and the optimizers have made, and their learning rates; at the end of each epoch
the learning rates, which ReduceLROnPlateau or another callback of the chief may have changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_strom.sharing.optimizers import learning_rates_of, parts_of

# Counts travel as float32 beside the weights; split at 2^20 they are exact up to 2^44.
_SPLIT = 1 << 20


def first_epoch_of(model: Any) -> int | None:
    """The epoch at which a model's `fit` is to begin; None = where its caller says."""
    epoch: int | None = model._initial_epoch
    return epoch


def begin_fit_at(model: Any, epoch: int | None) -> None:
    """Has a model's `fit` begin at `epoch`, as Keras's own BackupAndRestore does."""
    model._initial_epoch = epoch


def _count_of(optimizer: Any) -> Any:
    """The variable that counts an optimizer's steps, or the batches of one that accumulates.

    `iterations` of the latter is computed from it.
    """
    accumulates = getattr(optimizer, "gradient_accumulation_steps", None)
    return optimizer._iterations if accumulates else optimizer.iterations


def count_otherwise(optimizer: Any, batches: int) -> None:
    """Has an optimizer count so many batches more, or less where they are negative.

    Args:
        optimizer: any of Keras.
        batches: of which each is a step; gradients accumulated so far belong to another count and
            are dropped.
    """
    for rule in parts_of(optimizer) if batches else []:
        count = _count_of(rule)
        count.assign(max(0, int(count.numpy()) + batches))
        for gradients in getattr(rule, "_accumulated_gradients", None) or []:
            gradients.assign(np.zeros(gradients.shape))


class Progress:
    """The progress of one model's training.

    Args:
        model: a compiled Keras model.

    Example:
        >>> Progress(model).start_values(initial_epoch=3, shared_steps=0)  # doctest: +SKIP
        array([0.e+00, 3.e+00, 0.e+00, 0.e+00, 0.e+00, 7.e+01, 1.e-03], dtype=float32)
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._optimizers = parts_of(getattr(model, "optimizer", None))

    def start_values(self, initial_epoch: int, shared_steps: int) -> npt.NDArray[np.float32]:
        """First epoch, shared steps, each optimizer's steps, learning rates; float32, exact."""
        counts = [first_epoch_of(self._model) or initial_epoch, shared_steps]
        counts += [int(_count_of(optimizer).numpy()) for optimizer in self._optimizers]
        halves = [half for count in counts for half in divmod(count, _SPLIT)]
        return np.asarray([*halves, *self.learning_rates()], np.float32)

    def install_start(self, values: npt.NDArray[np.float32]) -> tuple[int, int]:
        """Takes over what `start_values` gave on the chief; first epoch and shared steps."""
        end = 2 * (2 + len(self._optimizers))
        counts = [int(high) * _SPLIT + int(low) for high, low in values[:end].reshape(-1, 2)]
        begin_fit_at(self._model, counts[0])
        for optimizer, steps in zip(self._optimizers, counts[2:], strict=True):
            _count_of(optimizer).assign(steps)
        self.set_learning_rates(values[end:].tolist())
        return counts[0], counts[1]

    def batches_a_step(self) -> int:
        """How many batches go into one step of the optimizer, which accumulates gradients."""
        steps = [getattr(o, "gradient_accumulation_steps", None) for o in self._optimizers]
        return max([1, *(int(number) for number in steps if number)])

    def is_between_steps(self) -> bool:
        """Whether no optimizer holds gradients that it has accumulated for its next step."""
        counts = [
            (int(_count_of(o).numpy()), int(number))
            for o in self._optimizers
            if (number := getattr(o, "gradient_accumulation_steps", None))
        ]
        return all(count % number == 0 for count, number in counts)

    def learning_rates(self) -> list[float]:
        """Of each optimizer; none for one that follows a schedule, which needs no word of it."""
        return [float(rate.numpy()) for rate in self._rates]

    def set_learning_rates(self, rates: Sequence[float]) -> None:
        """The inverse of `learning_rates`; rates that are equal already are left alone."""
        for variable, rate in zip(self._rates, rates, strict=True):
            if np.float32(variable.numpy()) != np.float32(rate):
                variable.assign(rate)

    @property
    def _rates(self) -> list[Any]:
        return learning_rates_of(getattr(self._model, "optimizer", None))

    def standing(self) -> list[float]:
        """Each optimizer's steps, or batches where it accumulates, and the learning rates."""
        counts = [float(_count_of(optimizer).numpy()) for optimizer in self._optimizers]
        return [*counts, *self.learning_rates()]

    def install_standing(self, values: Sequence[float]) -> None:
        """Takes over the mean of other workers' `standing`; of counts the nearest."""
        for optimizer, count in zip(self._optimizers, values, strict=False):
            _count_of(optimizer).assign(round(count))
        self.set_learning_rates(values[len(self._optimizers) :])


def standing_of(models: Sequence[Any]) -> npt.NDArray[np.float64]:
    """How far the optimizers of all models have come (`Progress.standing`), model by model."""
    return np.asarray([value for m in models for value in Progress(m).standing()], np.float64)


def install_standing(models: Sequence[Any], values: npt.NDArray[np.float64]) -> None:
    """Takes over the mean of other workers' `standing_of`; more values may follow."""
    for model in models:
        progress = Progress(model)
        size = len(progress.standing())
        if values.size < size:
            return
        progress.install_standing(values[:size].tolist())
        values = values[size:]
