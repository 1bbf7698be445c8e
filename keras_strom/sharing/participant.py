"""What one worker takes part in its job with."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from keras_strom._native.replica import Replica
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.sharing.flat_space import FlatSpace
from keras_strom.sharing.step import SharedStep
from keras_strom.sharing.training_step import TrainingStep

if TYPE_CHECKING:
    from keras_strom.relay.training_relay import TrainingWorker


@dataclasses.dataclass
class Participant:
    """A worker that trains with others, whichever training it is in.

    Attributes:
        environment: this worker's place in the job.
        space: the variables of its strategy.
        step: what ends a training step.
        worker: the connection to the master; None for a lone worker.
        in_fit: whether Keras's `fit` has not returned yet.
    """

    environment: ClusterEnvironment
    space: FlatSpace
    step: TrainingStep
    worker: TrainingWorker | None
    in_fit: bool = dataclasses.field(default=False, kw_only=True)

    @property
    def replica(self) -> Replica:
        """The residuals of a worker that shares updates."""
        assert isinstance(self.step, SharedStep)
        return self.step.replica
