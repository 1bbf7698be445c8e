"""What bounds or shakes out the residual, the part of the updates that has not been sent yet."""

from __future__ import annotations

import dataclasses

from keras_strom import errors
from keras_strom.checks import check_number, whole_number


@dataclasses.dataclass(frozen=True)
class ResidualClipping:
    """Clips every residual element to ±multiple * tau, once in `every` steps.

    Old progress that waits for long points where the model no longer is; clipping forgets it. What
    is removed is counted and reported (`StromStrategy.last_report`).

    Attributes:
        multiple: of the step's threshold; at least 1.
        every: steps from one clipping to the next.

    Example:
        >>> ResidualClipping(5, every=5).multiple
        5
    """

    multiple: float = 5.0
    every: int = 5

    def __post_init__(self) -> None:
        check_number("multiple", self.multiple)
        if not 1 <= self.multiple < float("inf"):
            raise errors.InvalidOption(f"multiple={self.multiple!r} must be finite and at least 1")
        whole_number("every", self.every, least=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShakeUp:
    """Sends with a smaller threshold once in `every` steps, so that little residuals leave too.

    Each such step sends many more elements. It helps where much waits below tau for long; where
    the threshold fits, it costs accuracy at the same traffic (91.2 % -> 87.9 % at density 1e-3), so
    it is off by default. The threshold algorithm does not see these steps' density, and residual
    clipping keeps its limit in them.

    Attributes:
        every: steps from one to the next; at least 2.
        factor: of the step's threshold; between 0 and 1.

    Example:
        >>> ShakeUp(every=100, factor=0.25).factor
        0.25
    """

    every: int = 100
    factor: float = 0.25

    def __post_init__(self) -> None:
        whole_number("every", self.every, least=1)
        if self.every < 2:
            raise errors.InvalidOption(
                f"every={self.every} would be a smaller threshold in all steps: choose that instead"
            )
        check_number("factor", self.factor)
        if not 0 < self.factor < 1:
            raise errors.InvalidOption(f"factor={self.factor!r} must lie between 0 and 1")
