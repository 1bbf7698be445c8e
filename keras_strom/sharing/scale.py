"""How the updates of K workers add up: what the sender multiplies its update by."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import tensorflow as tf

from keras_strom import errors
from keras_strom.checks import whole_number

_RULES = ("auto", "sum", "sqrt", "mean")

# Whole steps of how many workers add up at most, by "auto": what benchmarks have shown to help.
_MOST_WHOLE = 16

# Steps of the warm-up where nobody says how many.
_ENCODED_WARMUP = 500


def warmup_of(local_apply: str) -> int:
    """The warm-up's steps by default, with "full" or "encoded" local progress."""
    return 0 if local_apply == "full" else _ENCODED_WARMUP


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdateScale:
    """s(t) = S min(1, 1/K + (1 - 1/K) t / warmup_steps), applied before the residual.

    Early updates are large and point the same way on all workers; where a worker's model has not
    its own progress but what all share alone (`local_apply="encoded"`), their sum can diverge, and
    the warm-up starts from their mean. With "full" it only costs accuracy, with however many
    workers.

    What counts is how many updates are under way, K times the steps by which they are late: beyond
    16 or so their sum overshoots. "auto" reckons with one step; where they come two steps late, 8/K
    learns more.

    Attributes:
        rule: S: "auto" is min(1, 16/K), "sum" 1, "sqrt" 1/sqrt(K), "mean" 1/K, or a positive
            number itself.
        workers: K.
        warmup_steps: steps until S is reached; 0 = from the start.

    Example:
        >>> UpdateScale(rule="mean", workers=4, warmup_steps=0).target
        0.25
    """

    rule: str | float
    workers: int
    warmup_steps: int

    def __post_init__(self) -> None:
        if isinstance(self.rule, str):
            if self.rule not in _RULES:
                raise errors.InvalidOption(
                    f"update_scale={self.rule!r} must be one of {', '.join(_RULES)}, or a number"
                )
        elif isinstance(self.rule, bool) or not isinstance(self.rule, int | float):
            raise errors.InvalidOption(f"update_scale={self.rule!r} must be a string or a number")
        elif not 0 < self.rule < float("inf"):
            raise errors.InvalidOption(f"update_scale={self.rule!r} must be positive and finite")
        whole_number("warmup_steps", self.warmup_steps, least=0)

    @property
    def target(self) -> float:
        """S, the scale after the warm-up."""
        if isinstance(self.rule, str):
            factors = {
                "auto": min(1.0, _MOST_WHOLE / self.workers),
                "sum": 1.0,
                "sqrt": 1 / math.sqrt(self.workers),
                "mean": 1 / self.workers,
            }
            return factors[self.rule]
        return float(self.rule)

    def at(self, step: Any) -> Any:
        """s(t) as a float32 scalar tensor for the int64 scalar tensor `step` = t."""
        if self.warmup_steps == 0 or self.workers == 1:
            return tf.constant(self.target, tf.float32)
        start = 1 / self.workers
        progress = tf.cast(step, tf.float32) / self.warmup_steps
        return self.target * tf.minimum(1.0, start + (1 - start) * progress)
