"""How a training has ended, as its workers tell each other with their last state.

Each worker's words travel as numbers beside the state that is averaged at the end, so that all get
the same of everybody: flags of each rank, and the words of one that has failed. The master averages
these numbers. Where one of K workers has sent a text and the others zeros, the mean is the text
divided by K; a flag that is averaged along with it gives the factor to undo that.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

# Words of a failure: so many numbers of so many bytes each, which float64 holds exactly.
_WORDS = 48
_BYTES = 6
# Of each rank.
_FLAGS = 4


@dataclasses.dataclass(frozen=True)
class Ending:
    """What one worker says of a training's end.

    Attributes:
        follows: whether its weights may change afterwards, so that all have to take the chief's.
        failure: how `fit` has failed on it; "" = it has not.
        not_finite: whether it ends the training because an update was not finite.
    """

    follows: bool = False
    failure: str = ""
    not_finite: bool = False

    def to_numbers(self, rank: int, workers: int) -> npt.NDArray[np.float64]:
        """float64 [`end_state_length(workers)`]."""
        flags = np.zeros((_FLAGS, workers))
        flags[:, rank] = True, self.follows, bool(self.failure), self.not_finite
        return np.concatenate([flags.ravel(), text_to_numbers(self.failure, _WORDS)])


def text_to_numbers(text: str, room: int) -> npt.NDArray[np.float64]:
    """The beginning of a text in `room` numbers, zeros where there is none."""
    data = text.encode("utf-8", "replace")[: room * _BYTES].ljust(room * _BYTES, b"\0")
    parts = [data[i : i + _BYTES] for i in range(0, len(data), _BYTES)]
    return np.asarray([int.from_bytes(part, "little") for part in parts], np.float64)


def text_of(numbers: npt.NDArray[np.float64]) -> str:
    """The inverse of `text_to_numbers`."""
    data = b"".join(int(number).to_bytes(_BYTES, "little") for number in np.rint(numbers))
    return data.rstrip(b"\0").decode("utf-8", "replace")


def end_state_length(workers: int) -> int:
    """How many numbers `workers` need to tell each other of their end."""
    return _FLAGS * workers + _WORDS


@dataclasses.dataclass(frozen=True)
class Endings:
    """What all workers have said.

    Attributes:
        present: the ranks that have come to this end, ascending.
        follows: whether one of them may change its weights.
        failed: the ranks on which `fit` has failed, ascending.
        cause: how it has failed, where that is one.
        not_finite: the ranks whose update was not finite, ascending.
    """

    present: tuple[int, ...] = ()
    follows: bool = False
    failed: tuple[int, ...] = ()
    cause: str = ""
    not_finite: tuple[int, ...] = ()

    @classmethod
    def of(cls, mean: npt.NDArray[np.float64], workers: int) -> Endings:
        """The inverse of the mean of all workers' `Ending.to_numbers`.

        Example:
            >>> bad = Ending(failure="ValueError: bad data").to_numbers(rank=1, workers=2)
            >>> Endings.of((bad + Ending().to_numbers(0, 2)) / 2, workers=2).cause
            'ValueError: bad data'
        """
        flags = mean[: _FLAGS * workers].reshape(_FLAGS, workers)
        present, follows, failed, not_finite = (
            tuple(int(rank) for rank in np.flatnonzero(row > 0)) for row in flags
        )
        cause = ""
        if len(failed) == 1:
            cause = text_of(mean[_FLAGS * workers :] / flags[0, failed[0]])
        return cls(present, bool(follows), failed, cause, not_finite)
