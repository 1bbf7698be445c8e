"""A worker's history as numbers beside the last state, for one that comes after the end.

Such a worker trains nothing and has no history of its own. It asks the master for the state with
which the training has ended; where one was lost, or the job starts workers again that fail
(`max_failures`), that has a history too: that of the chief, or of the lowest rank that has come to
the end. The master averages it over the workers, all others sending zeros; a flag that is averaged
along with it gives the factor to undo the mean.
"""

from __future__ import annotations

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
    return 3 + _NAMES + _COLUMNS * min(epochs, _EPOCHS)


def to_numbers(history: History, epochs: int) -> npt.NDArray[np.float64]:
    """float64 [`length(epochs)`]; what there is no room for is left out, early epochs first.

    Args:
        history: the values of each epoch by name; empty = nothing to say.
        epochs: of the `fit`.
    """
    numbers = np.zeros(length(epochs))
    columns = {name: values for name, values in list(history.items())[:_COLUMNS] if values}
    if not columns:
        return numbers
    rows = min(*(len(values) for values in columns.values()), min(epochs, _EPOCHS), epochs)
    table = np.asarray([values[len(values) - rows :] for values in columns.values()], np.float64)
    numbers[:3] = 1, rows, len(columns)
    numbers[3 : 3 + _NAMES] = text_to_numbers("\n".join(columns), _NAMES)
    numbers[3 + _NAMES : 3 + _NAMES + table.size] = table.ravel()
    return numbers


def of(mean: npt.NDArray[np.float64]) -> dict[str, list[float]]:
    """The history in the mean of all workers' `to_numbers`; empty where nobody has said any.

    Example:
        >>> said = to_numbers({"loss": [2.0, 1.0]}, epochs=2)
        >>> of((said + to_numbers({}, epochs=2)) / 2)
        {'loss': [2.0, 1.0]}
    """
    share = mean[0]
    if not share > 0:
        return {}
    numbers = mean / share
    rows, columns = int(np.rint(numbers[1])), int(np.rint(numbers[2]))
    names = text_of(numbers[3 : 3 + _NAMES]).split("\n")
    table = numbers[3 + _NAMES :][: rows * columns].reshape(columns, rows)
    return {name: values.tolist() for name, values in zip(names, table, strict=False)}
