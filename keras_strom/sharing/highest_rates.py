"""How far learning rates have fallen, which an adaptive threshold follows."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_strom.sharing.optimizers import parts_of


class HighestRates:
    """The highest learning rate so far of each optimizer, in a variable of the strategy's own.

    Optimizers are told apart, for those of a GAN may step with different rates that both stay.
    """

    def __init__(self) -> None:
        self._places: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._latest: weakref.WeakSet[Any] = weakref.WeakSet()
        # A function that is traced must create no variable, so there is one that grows.
        with tf.init_scope(), tf.device("/cpu:0"):
            self._highest = tf.Variable(np.zeros(0, np.float32), trainable=False, shape=[None])

    def rate_left(self, optimizers: Iterable[Any]) -> Any:
        """Notes the learning rates of now, in a graph or eagerly.

        Args:
            optimizers: of the step; none = those of the step before, for a function that was
                traced before announces nothing when it is called again.

        Returns:
            The learning rate over the highest so far, a float32 scalar tensor from 0 to 1; of
            several optimizers the largest. 1 where it is not known, as with a learning rate that is
            a function.
        """
        parts = _parts_of_all(optimizers)
        self._latest = weakref.WeakSet(parts) if parts else self._latest
        left = [self._left(part) for part in self._latest]
        return tf.reduce_max(tf.stack(left)) if left else tf.constant(1.0)

    def of(self, optimizers: Iterable[Any]) -> npt.NDArray[np.float32]:
        """The highest rates of these optimizers' parts, for a checkpoint or a joiner; 0 = none."""
        places = [self._place(part) for part in _parts_of_all(optimizers)]
        highest: npt.NDArray[np.float32] = self._highest.numpy()[places]
        return highest

    def take_over(self, optimizers: Iterable[Any], highest: Sequence[float]) -> None:
        """Takes over what `of` gave on another worker, or earlier on this one."""
        own = self._highest
        for part, rate in zip(_parts_of_all(optimizers), highest, strict=False):
            place = self._place(part)
            own.scatter_nd_update([[place]], [rate])

    def _left(self, part: Any) -> Any:
        known = (keras.Variable, keras.optimizers.schedules.LearningRateSchedule)
        if not isinstance(getattr(part, "_learning_rate", None), known):
            return tf.constant(1.0)
        rate = tf.cast(tf.convert_to_tensor(part.learning_rate), tf.float32)
        place = self._place(part)
        finite = tf.where(tf.math.is_finite(rate), rate, 0.0)
        highest = tf.maximum(self._highest.read_value()[place], finite)
        self._highest.scatter_nd_update([[place]], [highest])
        left = tf.math.divide_no_nan(rate, highest)
        return tf.where((left >= 0) & (highest > 0), left, 1.0)

    def _place(self, part: Any) -> int:
        if part not in self._places:
            with tf.init_scope():
                highest = self._highest.numpy()
                self._places[part] = len(highest)
                self._highest.assign(np.append(highest, np.float32(0)))
        return self._places[part]


def _parts_of_all(optimizers: Iterable[Any]) -> list[Any]:
    return [part for optimizer in optimizers for part in parts_of(optimizer)]
