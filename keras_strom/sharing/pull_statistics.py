"""What one training step beside a joint model reports of its pull.

The op StromPull returns a float64 vector (custom_ops/tf/pull_op.cc); this module gives its elements
their names. Most are those of `strom_pull_result` (custom_ops/core/joint/joint_values.h).
"""

from __future__ import annotations

from typing import Any, NamedTuple


class PullStatistics(NamedTuple):
    """One step's figures, scalars of TensorFlow or NumPy alike; all 0 before the first step.

    Attributes:
        stepped: 1 where the optimizer has changed some variable, else 0.
        waited: 1 where training had to wait for the joint model.
        shards: targets, or parts of the joint model, that were installed.
        exchanges: snapshots and differences that were sent since the training began.
        alpha: of this pull; 0 = there was none.
        distance: the sum of (x* - x)^2 before the pull, over what has a target.
        target: the sum of x*^2 over it.
        cycle_steps: own steps between the last two snapshots of a shard, or exchanges.
        cycle_seconds: between them.
        waited_seconds: in exchanges, since the training began.
    """

    stepped: Any
    waited: Any
    shards: Any
    exchanges: Any
    alpha: Any
    distance: Any
    target: Any
    cycle_steps: Any
    cycle_seconds: Any
    waited_seconds: Any

    @property
    def divergence(self) -> float:
        """|x - x*| / |x*| before the pull; 0 where there is no target."""
        return float((self.distance / self.target) ** 0.5) if self.target > 0 else 0.0


#: Length of the vector.
PULL_LENGTH = len(PullStatistics._fields)
