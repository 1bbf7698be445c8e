"""How far learning rates have risen and fallen, which an adaptive threshold follows."""

from __future__ import annotations

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
        risen, left = zip(*map(self._change, self._latest), strict=True)
        if tf.executing_eagerly():
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
        if not tf.executing_eagerly():
            first, highest = tf.unstack(self._first_and_highest.read_value()[place])
            now, change = _after(tf, first, highest, rate)
            self._first_and_highest.scatter_nd_update([[place]], [tf.stack(now)])
            return change
        # Outside of a graph each small operation costs as much as a large one.
        first, highest = self._first_and_highest.numpy()[place]
        now, change = _after(np, first, highest, np.float32(rate.numpy()))
        if now != (first, highest):
            self._first_and_highest.scatter_nd_update([[place]], [now])
        return change

    def _place(self, part: Any) -> int:
        if part not in self._places:
            with tf.init_scope():
                rows = self._first_and_highest.numpy()
                self._places[part] = len(rows)
                self._first_and_highest.assign(np.pad(rows, ((0, 1), (0, 0))))
        return self._places[part]


# With tf.debugging.enable_check_numerics no graph may hold an infinity.
_MOST = np.finfo(np.float32).max


def _after(of: Any, first: Any, highest: Any, rate: Any) -> tuple[tuple[Any, Any], RateChange]:
    """The first rate above 0 and the highest once `rate` has come, and where that stands.

    Args:
        of: what computes, numpy or tensorflow.
        first: before; 0 = none.
        highest: likewise.
        rate: any number.
    """
    known = of.where((rate > 0) & (rate <= _MOST), rate, np.float32(0))
    first, highest = of.where(first > 0, first, known), of.maximum(highest, known)
    is_any = highest > 0
    divisors = [of.where(is_any, one, np.float32(1)) for one in (first, highest)]
    risen = of.where(is_any, highest / divisors[0], np.float32(1))
    left = of.where(is_any & (rate >= 0) & (rate <= _MOST), rate / divisors[1], np.float32(1))
    return (first, highest), RateChange(risen, left)


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
