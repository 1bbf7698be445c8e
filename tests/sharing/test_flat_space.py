"""Places in the flat space: variables without elements have one, and take part in nothing."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import keras_strom
from keras_strom.sharing.flat_space import FlatSpace


def test_no_two_participants_have_the_same_offset() -> None:
    space = FlatSpace()
    empty, first, second = (
        tf.Variable(tf.zeros((0, 3))),
        tf.Variable([1.0, 2.0]),
        tf.Variable([3.0]),
    )
    for variable in (empty, first, second):
        space.add(variable)
        space.touch(variable)
    assert [entry.offset for entry in space.participants] == [0, 2]
    space.train(space.entries_of([empty, second]))
    assert [entry.variable is second for entry in space.trained] == [True]


class WithAnEmptyWeight(keras.layers.Layer):
    """Its first weight has no elements, so the second has the same offset."""

    def build(self, shape: tuple[int, ...]) -> None:
        self.empty = self.add_weight(shape=(0, 3))
        self.kernel = self.add_weight(shape=(shape[-1], 1))

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x @ self.kernel + keras.ops.sum(self.empty)


def test_a_weight_without_elements_is_not_taken_for_one_that_was_assigned() -> None:
    strategy = keras_strom.StromStrategy(always_encode=True)
    random = np.random.default_rng(1)
    x, y = random.normal(size=(32, 4)).astype("f"), random.normal(size=(32, 1)).astype("f")
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), WithAnEmptyWeight()])
    model.compile("adam", "mse", jit_compile=False)
    for _ in range(2):
        before = model.get_weights()[1]
        model.fit(x, y, batch_size=8, epochs=2, verbose=0)
        assert strategy.last_report is not None
        assert strategy.last_report.assigned_outside == 0
        assert (model.get_weights()[1] != before).any()
