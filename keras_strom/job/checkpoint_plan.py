"""What a runner tells its workers of the checkpoints that it makes (`checkpoint_files`)."""

from __future__ import annotations

import dataclasses
import json
import time

from keras_strom import errors


@dataclasses.dataclass(frozen=True)
class CheckpointPlan:
    """What a runner tells its workers.

    Attributes:
        incoming: the folder for their parts.
        interval: seconds from one part to the next.
        begun: `time.monotonic()` of this machine when the job began: part n is due n intervals
            later. Nobody's time of day counts.
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

    def as_here(self, now_there: float) -> CheckpointPlan:
        """The runner's plan by this machine's clock.

        Args:
            now_there: `time.monotonic()` at the runner, as it has just told.
        """
        return dataclasses.replace(self, begun=self.begun + time.monotonic() - now_there)

    def due(self, now: float) -> int:
        """The number of the latest part that is due at `now` (`time.monotonic`); 0 = none yet."""
        return max(0, int((now - self.begun) / self.interval))
