"""A worker's history as numbers beside the last state, for one that comes after the end.

Such a worker trains nothing and has no history of its own. It asks the master for the state with
which the training has ended; where one was lost, or the job starts workers again that fail
(`max_failures`), that has a history too: that of the chief, or of the lowest rank that has come to
the end. The master averages it over the workers, all others sending zeros; a flag that is averaged
along with it gives the factor to undo the mean.

Of a longer `fit` the last 250 epochs travel; those before them are NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from keras_strom.recovery.endings import text_of, text_to_numbers

# Numbers for all names together, and how many values of an epoch, and of how many epochs.
_NAMES = 256
_COLUMNS = 40
_EPOCHS = 250

History = Mapping[str, Sequence[float]]


def length(epochs: int) -> int:
    """How many numbers the history of a `fit` of so many epochs takes."""
    return 2 + _NAMES + _COLUMNS * (1 + min(epochs, _EPOCHS))


def to_numbers(history: History, epochs: int) -> npt.NDArray[np.float64]:
    """float64 [`length(epochs)`]; what there is no room for is left out, early epochs first.

    How many a name has had is told in any case.

    Args:
        history: the values of each epoch by name, of some perhaps fewer, as of a validation in
            every second epoch; empty = nothing to say.
        epochs: of the `fit`.
    """
    numbers = np.zeros(length(epochs))
    columns = {name: values for name, values in list(history.items())[:_COLUMNS] if values}
    if not columns:
        return numbers
    numbers[:2] = 1, len(columns)
    numbers[2 : 2 + _NAMES] = text_to_numbers("\n".join(columns), _NAMES)
    rows = numbers[2 + _NAMES :].reshape(_COLUMNS, -1)
    for row, values in zip(rows, columns.values(), strict=False):
        kept = values[max(0, len(values) - len(row) + 1) :]
        row[: 1 + len(kept)] = len(values), *kept
    return numbers


def of(mean: npt.NDArray[np.float64]) -> dict[str, list[float]]:
    """The history in the mean of all workers' `to_numbers`; empty where nobody has said any.

    NaN stands for the values that were left out, so that all others stand in their epoch's place.

    Example:
        >>> said = to_numbers({"loss": [2.0, 1.0]}, epochs=2)
        >>> of((said + to_numbers({}, epochs=2)) / 2)
        {'loss': [2.0, 1.0]}
    """
    share = mean[0]
    if not share > 0:
        return {}
    numbers = mean / share
    names = text_of(numbers[2 : 2 + _NAMES]).split("\n")
    rows = numbers[2 + _NAMES :].reshape(_COLUMNS, -1)[: int(np.rint(numbers[1]))]
    found = {}
    for name, row in zip(names, rows, strict=False):
        told = int(np.rint(row[0]))
        values = row[1 : 1 + told].tolist()
        found[name] = [math.nan] * (told - len(values)) + values
    return found
