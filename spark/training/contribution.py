"""What a worker adds to a round of parameter averaging, and how contributions are added up.

Values are weighed by the examples that a worker has trained on, so that a round of one SGD step is
a step on all its examples, however unequal the workers' shares are. A contribution leaves its
worker as it is, in float32; sums are made in float64, in which equal values add up without an
error: what no worker has changed stays as it was bit by bit, and workers that all did the same give
what one gives.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..runner.timeline import Phase

Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contribution:
    """A worker's values after a round, or the sum of several workers'.

    Attributes:
        rank: the worker's; of a sum the lowest.
        examples: how many it has trained or been evaluated on.
        values: of the variables; in a sum, numbers are float64 and weighed by the examples. What
            cannot be averaged (whole numbers, Booleans) is that of `rank`.
        counts: what the metrics have counted; they just add up.
        logs: what the last step of the user's own has returned; in a sum weighed by the examples.
            None = Keras's own step.
        phases: what the workers did, and when.
        is_sum: whether `values` are weighed.

    Example:
        >>> one = Contribution(rank=0, examples=3, values=(np.float32([1.0]),))
        >>> other = Contribution(rank=1, examples=1, values=(np.float32([5.0]),))
        >>> add(one, other).means()
        [array([2.])]
    """

    rank: int
    examples: int
    values: Sequence[Array]
    counts: Sequence[Array] = ()
    logs: Mapping[str, float] | None = None
    phases: tuple[Phase, ...] = ()
    is_sum: bool = False

    def means(self) -> list[Array]:
        """The values' averages over all examples, float64; what is not averaged as it is."""
        if not self.is_sum:
            return list(self.values)
        return [one / self.examples if is_averaged(one) else one for one in self.values]

    def mean_logs(self) -> Mapping[str, float] | None:
        """The logs' averages over all examples."""
        if self.logs is None or not self.is_sum:
            return self.logs
        return {name: value / self.examples for name, value in self.logs.items()}


def add(one: Contribution | None, other: Contribution | None) -> Contribution | None:
    """The sum of two contributions, for Spark's `treeAggregate`; None is nothing."""
    if one is None or other is None:
        return one or other
    first, second = sorted((one, other), key=lambda contribution: contribution.rank)
    return Contribution(
        rank=first.rank,
        examples=first.examples + second.examples,
        values=[
            a + b if is_averaged(a) else a
            for a, b in zip(_weighed(first), _weighed(second), strict=True)
        ],
        counts=add_counts(first.counts, second.counts),
        logs=_add_logs(first, second),
        phases=(*first.phases, *second.phases),
        is_sum=True,
    )


def add_counts(one: Sequence[Array], other: Sequence[Array]) -> Sequence[Array]:
    """What metrics have counted here and there; an empty one is nothing."""
    return [a + b for a, b in zip(one, other, strict=True)] if one and other else one or other


def is_averaged(array: Array) -> bool:
    """Whether an average of such values makes sense: not of whole numbers, which count or name."""
    # The kind of bfloat16, which NumPy itself does not know, is that of raw bytes.
    return array.dtype.kind == "f" or array.dtype.name in ("bfloat16", "float8_e4m3fn")


def _weighed(contribution: Contribution) -> Sequence[Array]:
    if contribution.is_sum:
        return contribution.values
    return [
        one.astype(np.float64) * contribution.examples if is_averaged(one) else one
        for one in contribution.values
    ]


def _add_logs(one: Contribution, other: Contribution) -> Mapping[str, float] | None:
    """Of what both have: a step need not return the same each time."""
    if one.logs is None or other.logs is None:
        return None
    weights = [1 if each.is_sum else each.examples for each in (one, other)]
    return {
        name: weights[0] * value + weights[1] * other.logs[name]
        for name, value in one.logs.items()
        if name in other.logs
    }
