"""The rules of MPCA SGD in NumPy, from the paper's equations (4) to (9) alone.

The native joint model is judged by this second implementation: it is slow, computes in float64,
keeps x~ and v~ in float32 and shares nothing with the native one. What it takes and gives is what
`keras_strom._native.joint_model` does, so one test can ask both.
"""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from keras_strom._native.joint_model import JointValues
from keras_strom.method import MethodKind, MethodNumbers

Floats = npt.NDArray[np.float32]

#: Shards begin at multiples of it.
GRAIN = 16


def shards(size: int, phases: int) -> list[tuple[int, int]]:
    """(offset, size) of each shard: equal ranges cut at multiples of 16; the last has the rest."""
    cuts = [size // GRAIN * shard // phases * GRAIN for shard in range(phases)] + [size]
    return [(begin, end - begin) for begin, end in itertools.pairwise(cuts)]


def beta_of(method: MethodNumbers, cycle: int) -> float:
    """The weight of a cycle's mean (8): from 1 to `beta`, by equal factors."""
    return float(method.beta ** _ramp(cycle, method.ramp_cycles))


def gamma_of(method: MethodNumbers, cycle: int) -> float:
    """How many cycles ahead the target lies (5): from 0 to `gamma`, by equal steps."""
    return float(method.gamma * _ramp(cycle, method.ramp_cycles))


def alpha_of(method: MethodNumbers, cycle: int) -> float:
    """The pull (7): none for `free_cycles`, then from `start_alpha` to `alpha` by equal factors."""
    if cycle < method.free_cycles or method.alpha == 0:
        return 0.0
    left = 1 - _ramp(cycle - method.free_cycles, method.start_cycles)
    return float(method.alpha * (method.start_alpha / method.alpha) ** left)


def _ramp(cycle: int, cycles: int) -> float:
    return min(cycle, cycles) / cycles if cycles else 1.0


def pull(x: Floats, target: Floats, alpha: float) -> None:
    """(7): x += alpha (target - x), every operation rounded to float32."""
    if alpha == 1:
        x[...] = target
        return
    difference = target - x
    difference *= np.float32(alpha)
    x += difference


class JointModelOracle:
    """x~, v~ and t of every shard, and what has been added since its last update."""

    def __init__(self, method: MethodNumbers, start: Floats) -> None:
        self._method = method
        self._is_mpca = method.kind == MethodKind.MPCA
        self._shards = shards(start.size, max(1, method.phases))
        self._joint = start.astype(np.float32)
        self._trajectory = np.zeros(start.size, np.float32)
        self._target = self._joint.copy()
        self._sum = np.zeros(start.size)
        self._weight = np.zeros(start.size)
        self._cycles = [0] * len(self._shards)

    def shard(self, shard: int) -> tuple[int, int]:
        """Where it lies: offset and size."""
        return self._shards[shard]

    def add(self, offset: int, values: Floats, steps: int) -> None:
        """(9): a worker's snapshot counts as often as steps lie behind it, or once."""
        where = slice(offset, offset + values.size)
        weight = steps if self._is_mpca else 1
        if not self._method.weighted:
            weight = min(weight, 1)
        self._sum[where] += weight * values.astype(np.float64)
        self._weight[where] += weight

    def move(self, offset: int, difference: Floats) -> None:
        """EASGD: x~ += difference."""
        self._joint[offset : offset + difference.size] += difference

    def update(self, shard: int) -> None:
        """(9), (8), (4), (5), in this order; nothing where nobody has stepped.

        beta and gamma are those of the cycles that the shard had finished before.
        """
        offset, size = self._shards[shard]
        where = slice(offset, offset + size)
        stepped = self._weight[where] > 0
        if not stepped.any():
            return
        method, cycle = self._method, self._cycles[shard]
        old = self._joint[where].astype(np.float64)
        mean = np.where(stepped, self._sum[where] / np.where(stepped, self._weight[where], 1), old)
        beta = beta_of(method, cycle) if self._is_mpca else self._beta_of_others()
        new = mean if beta == 1 else old + beta * (mean - old)
        velocity = self._trajectory[where].astype(np.float64)
        if self._is_mpca:
            velocity = method.delta * velocity + (1 - method.delta) * (new - old)
        self._joint[where] = new
        self._trajectory[where] = velocity
        self._cycles[shard] = cycle + 1
        gamma = gamma_of(method, cycle) if self._is_mpca else 0.0
        joint = self._joint[where].astype(np.float64)
        self._target[where] = joint + gamma * self._trajectory[where].astype(np.float64)
        self._sum[where] = self._weight[where] = 0

    def read(self) -> JointValues:
        """Copies of x~, v~ and x*."""
        return JointValues(self._joint.copy(), self._trajectory.copy(), self._target.copy())

    def alpha(self) -> tuple[float, int]:
        """The pull that is due, and the cycles that every shard has finished."""
        cycle = min(self._cycles)
        return (alpha_of(self._method, cycle) if self._is_mpca else self._method.alpha), cycle

    def _beta_of_others(self) -> float:
        return 1.0 if self._method.kind == MethodKind.SPARKNET else self._method.beta
