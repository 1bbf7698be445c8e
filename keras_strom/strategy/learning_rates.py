"""With which learning rates the workers of a `fit` go on after an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from keras_strom.sharing.progress import Progress

#: The mean of what several workers give, and how many they are.
Averaged = tuple[npt.NDArray[np.float64], int]
Average = Callable[[npt.NDArray[np.float64]], Averaged]


def follows_schedule(callbacks: Iterable[Any]) -> bool:
    """Whether a schedule among these callbacks sets the rates of this worker's epochs.

    It may go by the rate that it finds, which has to be that of the same epoch then.
    """
    return any(isinstance(one, keras.callbacks.LearningRateScheduler) for one in callbacks)


def share(models: Iterable[Any], average: Average, *, is_chief: bool, follows: bool) -> None:
    """Gives every worker the learning rates of the chief, which a callback may have changed.

    In asynchronous mode those are the chief's latest, whichever epoch it is in.

    Args:
        models: those that train.
        average: the mean of what all workers give.
        is_chief: whether this worker is the one.
        follows: whether it takes the chief's; all have to call this.
    """
    for model in models:
        progress = Progress(model)
        rates = np.asarray(progress.learning_rates(), np.float64)
        if not rates.size:
            continue
        averaged, _ = average(np.append(rates, 1.0) * float(is_chief))
        if averaged[-1] > 0 and follows and not is_chief:
            progress.set_learning_rates((averaged[:-1] / averaged[-1]).tolist())
