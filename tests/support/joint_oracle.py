"""What a joint model is, in NumPy: the pull of a worker, and the master's update of a shard.

The equations are those of the paper, as `keras_strom.MPCA` names them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


def pull(x: Floats, target: Floats, alpha: float) -> Floats:
    """(7): x + alpha (x* - x), each operation rounded to float32."""
    difference = target - x
    return x + np.float32(alpha) * difference


class Shard:
    """One shard at the master; everything is float64 but what travels.

    Args:
        start: the joint model at the start, float32.
        delta: what the trajectory keeps of itself (4).
    """

    def __init__(self, start: Floats, delta: float) -> None:
        self.joint: Doubles = start.astype(np.float64)
        self.trajectory: Doubles = np.zeros_like(self.joint)
        self._delta = delta
        self._sum = np.zeros_like(self.joint)
        self._weight = 0.0

    def add(self, x: Floats, steps: float) -> None:
        """A worker's snapshot, with `steps` steps behind it (9)."""
        self._sum += steps * x.astype(np.float64)
        self._weight += steps

    def update(self, beta: float) -> None:
        """(8), (4): where nobody has stepped, all stays."""
        if self._weight == 0:
            return
        mean = self._sum / self._weight
        new = self.joint + beta * (mean - self.joint)
        self.trajectory = self._delta * self.trajectory + (1 - self._delta) * (new - self.joint)
        self.joint = new
        self._sum, self._weight = np.zeros_like(self._sum), 0.0

    def target(self, gamma: float) -> Floats:
        """(5): where workers are pulled to."""
        return (self.joint + gamma * self.trajectory).astype(np.float32)


def elastic(x: Floats, joint: Floats, alpha: float) -> tuple[Floats, Floats]:
    """EASGD, asynchronous: the worker's model and the joint one after an exchange."""
    difference = (np.float32(alpha) * (x - joint)).astype(np.float32)
    return x - difference, joint + difference


def mean(models: list[Floats]) -> Floats:
    """SparkNet: what takes the place of all models."""
    return np.mean([model.astype(np.float64) for model in models], axis=0).astype(np.float32)
