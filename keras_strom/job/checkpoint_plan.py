"""What a runner tells its workers of the checkpoints that it makes (`checkpoint_files`)."""

from __future__ import annotations

import dataclasses
import json

from keras_strom import errors


@dataclasses.dataclass(frozen=True)
class CheckpointPlan:
    """What a runner tells its workers.

    Attributes:
        incoming: the folder for their parts.
        interval: seconds from one part to the next.
        begun: the runner's clock when the job began, in seconds since 1970: part n is due n
            intervals later, which needs clocks that agree to a part of the interval.
        restore: the checkpoint to go on from; None = begin anew.
    """

    incoming: str
    interval: float
    begun: float
    restore: str | None = None

    def to_json(self) -> str:
        """The text for the worker's environment."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> CheckpointPlan:
        """Reads `to_json`'s text.

        Raises:
            InvalidOption: it is something else.
        """
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise errors.InvalidOption(f"no plan of checkpoints: {error}") from error

    def due(self, now: float) -> int:
        """The number of the latest part that is due at `now`; 0 = none yet."""
        return max(0, int((now - self.begun) / self.interval))
