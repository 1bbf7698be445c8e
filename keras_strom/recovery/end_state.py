"""What a training ends with beside its parameters: numbers whose mean the master keeps.

They are, one after the other: what no optimizer trains (the moving statistics of
BatchNormalization), how many steps each optimizer has made and the learning rates, the optimizers'
moving averages of the parameters, the workers' words of the end (`endings`), and after a generation
without steps the history of the `fit` (`final_history`). A worker that comes after the end asks the
master for them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from keras_strom import errors

# A uint64: the generation's number, which stands before its final state in the master's answer.
_NUMBER_BYTES = 8


def ask_for_it(
    ask: Callable[[float], bytes | None], timeout: float
) -> tuple[int, npt.NDArray[np.float64]]:
    """The number of the generation that has ended last, and its numbers.

    Args:
        ask: asks the master, and waits so many seconds.
        timeout: seconds.

    Returns:
        0 and nothing where nobody knows them.
    """
    try:
        data = ask(timeout)
    except errors.DeadlinePassed:
        data = None
    if data is None:
        return 0, np.zeros(0, np.float64)
    number = int.from_bytes(data[:_NUMBER_BYTES], "little")
    return number, np.frombuffer(data, "<f8", offset=_NUMBER_BYTES)
