"""Bounds the norm of an update by that of the updates before it, where workers lag far behind.

Both the option and its state: the latest norms live in a variable that belongs to the strategy.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from keras_strom import errors
from keras_strom.checks import check_number, whole_number


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdateClipping:
    """Scales down an update whose norm exceeds a multiple of the median of this worker's latest.

    Where updates are applied many steps late, the sum of those under way can overshoot, gradients
    grow, and so do the next updates. This breaks the circle on each worker by itself: with a delay
    of 4 steps and workers of uneven speed, training that otherwise collapsed recovered. A lasting
    change of the norm, such as another learning rate brings, is followed within a few windows.
    Unlike an optimizer's `clipnorm` it needs no scale of the gradients, and it bounds what is sent.

    The norm is the Euclidean one over all variables of a step. Until `window` steps have been taken
    nothing is clipped. What is taken off is counted and reported (`StromStrategy.last_report`).

    Attributes:
        multiple: of the median; at least 1.
        window: how many of the latest updates the median is taken of; at least 2.

    Example:
        >>> UpdateClipping(multiple=3).window
        50
    """

    multiple: float = 2.0
    window: int = 50

    def __post_init__(self) -> None:
        check_number("multiple", self.multiple)
        if not 1 <= self.multiple < float("inf"):
            raise errors.InvalidOption(f"multiple={self.multiple!r} must be finite and at least 1")
        whole_number("window", self.window, least=2)


class NormHistory:
    """The norms of the latest updates, as they were shared.

    Args:
        clipping: the option; None = nothing is measured.
    """

    def __init__(self, clipping: UpdateClipping | None) -> None:
        self._clipping = clipping
        if clipping is not None:
            self._norms = tf.Variable(np.zeros(clipping.window), trainable=False)
            self._count = tf.Variable(0, dtype=tf.int64, trainable=False)
            self._limited = tf.Variable(0, dtype=tf.int64, trainable=False)

    def limit(self) -> Any:
        """What the norm of the next update may be, a float32 scalar tensor; 0 = not measured."""
        if self._clipping is None:
            return tf.constant(0.0)
        median = tf.sort(self._norms)[self._clipping.window // 2]
        # Where most updates were zero there is no measure either.
        known = (self._count >= self._clipping.window) & (median > 0)
        # No infinity, which tf.debugging.enable_check_numerics would refuse.
        limit = tf.where(known, self._clipping.multiple * median, np.finfo(np.float32).max)
        return tf.cast(limit, tf.float32)

    def note(self, norm: Any, limit: Any, shared: Any) -> None:
        """After a step: `norm` is what was measured under `limit`; kept where `shared` is true."""
        if self._clipping is None:
            return
        limit = tf.cast(limit, tf.float64)
        place = tf.range(self._clipping.window, dtype=tf.int64)
        replaced = shared & (place == self._count % self._clipping.window)
        self._norms.assign(tf.where(replaced, tf.minimum(norm, limit), self._norms))
        self._count.assign_add(tf.cast(shared, tf.int64))
        self._limited.assign_add(tf.cast(shared & (norm > limit), tf.int64))

    def begin(self) -> None:
        """Starts counting anew; the norms stay."""
        if self._clipping is not None:
            self._limited.assign(0)

    @property
    def limited(self) -> int:
        """How many updates have been scaled down since `begin`."""
        return 0 if self._clipping is None else int(self._limited.numpy())
