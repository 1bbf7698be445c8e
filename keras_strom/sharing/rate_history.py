"""How far learning rates have risen and fallen, which an adaptive threshold follows."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_strom.sharing.optimizers import parts_of


class RateChange(NamedTuple):
    """Where a learning rate stands; float32 scalar tensors, or numbers.

    Attributes:
        risen: the highest so far over the first one above 0; at least 1.
        left: it over the highest so far, from 0 to 1.
    """

    risen: Any = 1.0
    left: Any = 1.0


class RateHistory:
    """The first and the highest learning rate of each optimizer, in a variable of the strategy's.

    Optimizers are told apart, for those of a GAN may step with different rates that both stay.
    """

    def __init__(self) -> None:
        self._places: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._latest: weakref.WeakSet[Any] = weakref.WeakSet()
        # A function that is traced must create no variable, so there is one that grows.
        with tf.init_scope(), tf.device("/cpu:0"):
            nothing = np.zeros((0, 2), np.float32)
            self._first_and_highest = tf.Variable(nothing, trainable=False, shape=[None, 2])

    def change(self, optimizers: Iterable[Any]) -> RateChange:
        """Notes the learning rates of now, in a graph or eagerly, after the optimizers' step.

        Args:
            optimizers: of the step; none = those of the step before, for a function that was
                traced before announces nothing when it is called again.

        Returns:
            Where they stand; of several optimizers the least change. One that is not known, as a
            learning rate that is a function, has not changed.
        """
        parts = _parts_of_all(optimizers)
        self._latest = weakref.WeakSet(parts) if parts else self._latest
        if not self._latest:
            return RateChange()
        # Outside of a graph each small operation costs as much as a large one.
        is_eager = tf.executing_eagerly()
        changes = [(self._change_now if is_eager else self._change)(p) for p in self._latest]
        risen, left = zip(*changes, strict=True)
        if is_eager:
            return RateChange(min(risen), max(left))
        return RateChange(tf.reduce_min(tf.stack(risen)), tf.reduce_max(tf.stack(left)))

    def of(self, optimizers: Iterable[Any]) -> npt.NDArray[np.float32]:
        """First and highest rates, [parts of these optimizers, 2], for a checkpoint or a joiner.

        0 = not known yet.
        """
        places = [self._place(part) for part in _parts_of_all(optimizers)]
        found: npt.NDArray[np.float32] = self._first_and_highest.numpy()[places]
        return found

    def take_over(self, optimizers: Iterable[Any], rates: npt.NDArray[np.float32]) -> None:
        """Takes over what `of` gave on another worker, or earlier on this one."""
        for part, row in zip(_parts_of_all(optimizers), rates, strict=False):
            place = self._place(part)  # Before the variable is read: it may grow.
            self._first_and_highest.scatter_nd_update([[place]], [row])

    def _change(self, part: Any) -> RateChange:
        rate = _rate_of(part)
        if rate is None:
            return RateChange()
        place = self._place(part)
        first, highest = tf.unstack(self._first_and_highest.read_value()[place])
        known = tf.where(tf.math.is_finite(rate), tf.maximum(rate, 0.0), 0.0)
        first, highest = tf.where(first > 0, first, known), tf.maximum(highest, known)
        self._first_and_highest.scatter_nd_update([[place]], [tf.stack([first, highest])])
        left = tf.math.divide_no_nan(rate, highest)
        return RateChange(
            tf.where(first > 0, tf.math.divide_no_nan(highest, first), 1.0),
            tf.where((left >= 0) & (highest > 0), left, 1.0),
        )

    def _change_now(self, part: Any) -> RateChange:
        """`_change` in NumPy's numbers."""
        rate = _rate_of(part)
        if rate is None:
            return RateChange()
        rate = np.float32(rate.numpy())
        place = self._place(part)
        first, highest = before = self._first_and_highest.numpy()[place]
        known = rate if math.isfinite(rate) and rate > 0 else np.float32(0)
        now = (first if first > 0 else known, max(highest, known))
        if now != tuple(before):
            self._first_and_highest.scatter_nd_update([[place]], [now])
        first, highest = now
        if highest == 0:
            return RateChange()
        return RateChange(float(highest / first), float(rate / highest) if rate >= 0 else 1.0)

    def _place(self, part: Any) -> int:
        if part not in self._places:
            with tf.init_scope():
                rows = self._first_and_highest.numpy()
                self._places[part] = len(rows)
                self._first_and_highest.assign(np.pad(rows, ((0, 1), (0, 0))))
        return self._places[part]


def _rate_of(part: Any) -> Any | None:
    """The learning rate of an optimizer's last step; None = only calling a function tells."""
    rate = getattr(part, "_learning_rate", None)
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        # It has counted the step already.
        rate = rate(tf.maximum(tf.convert_to_tensor(part._iterations) - 1, 0))
    elif not isinstance(rate, keras.Variable):
        return None
    rate = tf.convert_to_tensor(rate)
    return rate if rate.dtype == tf.float32 else tf.cast(rate, tf.float32)


def _parts_of_all(optimizers: Iterable[Any]) -> list[Any]:
    return [part for optimizer in optimizers for part in parts_of(optimizer)]
