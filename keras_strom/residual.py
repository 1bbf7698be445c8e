"""What bounds the residual, the part of the updates that has not been sent yet."""

from __future__ import annotations

import dataclasses

from keras_strom import errors


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
        if isinstance(self.multiple, bool) or not isinstance(self.multiple, int | float):
            raise errors.InvalidOption(f"multiple={self.multiple!r} must be a number")
        if not 1 <= self.multiple < float("inf"):
            raise errors.InvalidOption(f"multiple={self.multiple!r} must be finite and at least 1")
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise errors.InvalidOption(f"every={self.every!r} must be a whole number, 1 or more")
