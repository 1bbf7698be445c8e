"""The end of a step beside a joint model: what it watches, shows, hands over and refuses.

The worker's side is the native one with nobody to exchange with; a stand-in has the joint model.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_strom import EASGD, MPCA, errors
from keras_strom._native.local_model import LocalModel
from keras_strom.method import Method
from keras_strom.sharing.flat_space import FlatSpace
from keras_strom.sharing.pulled_step import PulledStep, PullOptions, _buckets
from keras_strom.sharing.step_trace import MaskedMomenta, StepTrace
from keras_strom.sharing.training_step import JointPlan

#: Elements of the variables: before the joint model, in it, in it, between, in it.
SIZES = (5, 40, 7, 3, 20000)
TRAINED = (1, 2, 4)


class StandIn:
    """Stands for a connection: the master has a joint model of halves."""

    CYCLES = 7
    handle = 0

    def __init__(self) -> None:
        self.asked = 0

    def joint_model(self, size: int) -> np.ndarray:
        self.asked += 1
        return np.full(size, 0.5, np.float32)

    def joint_cycles(self) -> int:
        return self.CYCLES


class Loop:
    """Variables, and steps that change some of them."""

    def __init__(self, method: Method | None = None, compiled: bool = False) -> None:
        self.space = FlatSpace()
        self.variables = [tf.Variable(np.full(n, i, np.float32)) for i, n in enumerate(SIZES)]
        for variable in self.variables:
            self.space.add(variable)
        options = PullOptions(
            method=method or MPCA(), rank=0, workers=2, wait_timeout=5.0, compiled=compiled
        )
        self.step = PulledStep(options, self.space, LocalModel())
        self.worker: Any = StandIn()
        self.optimizer = keras.optimizers.SGD()

    def begin(self, places: tuple[int, ...] = TRAINED) -> Any:
        self.step.begin()
        plan = self.step.plan([self.space.entries[place] for place in places])
        self.step.bind(self.worker)
        return plan

    def run(self, change: Callable[[], None], touched: tuple[int, ...]) -> None:
        """One eager step that says of `touched` that it changes them."""
        trace = StepTrace(self.space, MaskedMomenta(False), by_rows=self.step.by_rows)
        trace.optimizers.append(self.optimizer)
        for place in touched:
            trace.note_update(self.variables[place], None)
        change()
        self.step.close(trace)

    def add(self, place: int) -> Callable[[], None]:
        return lambda: self.variables[place].assign_add(tf.ones([SIZES[place]]))


def test_the_joint_model_is_made_of_ranges_in_which_neighbours_are_one() -> None:
    plan = Loop().begin()
    assert (plan.method.kind, plan.method.phases) == (1, 3)
    assert list(plan.ranges) == [(5, 47), (55, 20000)]


def test_the_next_training_of_the_same_joint_model_goes_on_with_its_cycles() -> None:
    loop = Loop()
    assert (loop.step.cycles, loop.begin().cycles) == (0, 0)
    assert loop.step.cycles == StandIn.CYCLES
    loop.step.ended()
    loop.step.begin()  # Without steps, after a training.
    assert loop.step.cycles == StandIn.CYCLES  # For who saves a backup then.
    assert loop.begin((1, 4)).cycles == 0  # It is another one.
    assert loop.begin().cycles == StandIn.CYCLES


def test_the_cycles_of_a_checkpoint_are_those_of_the_next_training() -> None:
    loop = Loop()
    loop.step.begin_after(40)
    assert loop.step.cycles == 40
    assert loop.begin().cycles == 40
    assert loop.begin().cycles == 0
    with pytest.raises(errors.InvalidOption, match="joint_cycles=-1"):
        loop.step.begin_after(-1)


def test_a_model_that_trains_nothing_has_no_joint_model() -> None:
    loop = Loop()
    assert loop.begin(()) == JointPlan()
    loop.step.show_shared()
    loop.step.finish()
    assert loop.worker.asked == 0


def test_a_model_that_is_too_small_for_its_shards_is_refused() -> None:
    with pytest.raises(errors.UnsupportedModel, match=r"7 trained elements; MPCA\(phases=3\)"):
        Loop().begin((2,))
    Loop(EASGD()).begin((2,))


def test_a_step_counts_where_the_optimizer_has_changed_a_variable() -> None:
    loop = Loop()
    loop.begin()
    loop.run(loop.add(1), touched=(1, 4))
    loop.run(lambda: None, touched=(1, 4))
    assert loop.step.steps == 1
    # Of a step that touches nothing else the large one is watched.
    loop.run(loop.add(4), touched=(4,))
    assert (loop.step.steps, loop.step.stepped) == (2, 2)
    loop.step.begin()
    assert (loop.step.steps, loop.step.stepped) == (2, 0)
    loop.step.count_from(10)
    assert loop.step.steps == 10


@pytest.mark.parametrize("place", TRAINED)
def test_a_function_that_was_traced_before_announces_nothing_and_counts(place: int) -> None:
    loop = Loop()
    loop.begin()
    loop.run(lambda: [loop.add(one)() for one in TRAINED], touched=TRAINED)
    loop.run(loop.add(place), touched=())
    assert loop.step.stepped == 2
    loop.run(lambda: None, touched=())
    assert loop.step.stepped == 2


def test_where_xla_writes_anyway_the_contents_decide() -> None:
    loop = Loop(compiled=True)
    loop.begin()
    one = loop.variables[1]
    loop.run(lambda: one.assign(one + 0), touched=(1,))
    assert loop.step.stepped == 0
    loop.run(loop.add(1), touched=(1,))
    assert loop.step.stepped == 1


def test_without_a_target_nothing_is_pulled() -> None:
    loop = Loop()
    loop.begin()
    loop.run(loop.add(1), touched=(1,))
    np.testing.assert_array_equal(loop.variables[1], np.full(40, 2))
    np.testing.assert_array_equal(loop.variables[4], np.full(20000, 4))


def test_a_pull_by_gradients_changes_none_before_a_target_is_there() -> None:
    loop = Loop(MPCA(penalty="gradient"))
    loop.begin()
    rows = tf.IndexedSlices(tf.constant([2.0]), tf.constant([3]), tf.constant([40]))
    given = [tf.ones([20000]), None, rows, tf.ones([5])]
    variables = [loop.variables[place] for place in (4, 2, 1, 0)]
    pulled = loop.step.penalize(keras.optimizers.SGD(), given, variables)
    assert pulled[1] is None
    assert pulled[3] is given[3]  # It is no part of the joint model.
    np.testing.assert_array_equal(pulled[0], np.ones(20000))
    np.testing.assert_array_equal(pulled[2], 2.0 * (np.arange(40) == 3))


def test_a_pull_between_steps_leaves_gradients_alone() -> None:
    loop = Loop(MPCA())
    loop.begin()
    given = [tf.ones([40])]
    assert loop.step.penalize(keras.optimizers.SGD(), given, [loop.variables[1]]) is given


def test_what_is_trained_and_no_part_of_the_joint_model_is_refused() -> None:
    loop = Loop()
    loop.begin()
    with pytest.raises(errors.UnsupportedModel, match="no part of MPCA's joint model"):
        loop.run(loop.add(3), touched=(3,))


def test_a_step_that_was_traced_for_another_joint_model_is_refused() -> None:
    loop = Loop()
    loop.begin()

    @tf.function
    def step() -> None:
        loop.run(loop.add(1), touched=(1,))

    step()
    loop.begin((1, 4))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"keras-strom -1.*compile the model"):
        step()
    loop.begin()
    step()
    assert loop.step.stepped == 1


def test_the_joint_model_is_shown_and_the_workers_own_comes_back_to_the_bit() -> None:
    loop = Loop()
    loop.begin()
    loop.variables[2].assign(np.array([np.nan, -0.0, 0, 1, 2, 3, 4], np.float32))
    own = [variable.numpy() for variable in loop.variables]
    loop.step.show_shared()
    loop.step.show_shared()
    assert loop.worker.asked == 1
    shown = [variable.numpy() for variable in loop.variables]
    for place, values in enumerate(shown):
        expected = 0.5 if place in TRAINED else place
        np.testing.assert_array_equal(values, np.full(SIZES[place], expected))
    # A master that has come for a lost one gets the worker's own.
    handed = loop.step.values_to_hand_over(between_batches=True)
    np.testing.assert_array_equal(handed.view(np.int32), np.concatenate(own).view(np.int32))
    loop.step.show_own()
    for variable, values in zip(loop.variables, own, strict=True):
        np.testing.assert_array_equal(variable.numpy().view(np.int32), values.view(np.int32))


def test_training_goes_on_from_what_was_assigned_while_the_joint_model_was_shown() -> None:
    loop = Loop()
    loop.begin()
    loop.step.show_shared()
    loop.variables[1].assign(np.full(40, 9, np.float32))
    loop.variables[2].assign(np.full(7, 0.5, np.float32))  # What it has anyway.
    loop.step.show_own()
    np.testing.assert_array_equal(loop.variables[1], np.full(40, 9))
    np.testing.assert_array_equal(loop.variables[2], np.full(7, 2))


def test_training_goes_on_from_the_workers_own_where_the_joint_model_was_swapped_and_back() -> None:
    loop = Loop()
    loop.begin()
    loop.step.show_shared()
    loop.variables[1].assign(np.full(40, 0.5000001, np.float32))  # Within rounding.
    loop.step.show_own(swapped=True)
    np.testing.assert_array_equal(loop.variables[1], np.full(40, 1))


def test_after_the_end_nothing_is_asked_of_the_master() -> None:
    loop = Loop()
    loop.begin()
    loop.step.show_shared()
    loop.step.ended()
    loop.step.show_own()
    loop.step.show_shared()
    assert loop.worker.asked == 1
    np.testing.assert_array_equal(loop.variables[1], np.full(40, 0.5))


def test_a_checkpoint_of_shared_updates_is_refused() -> None:
    step = Loop().step
    assert step.threshold_state == ()
    step.set_threshold_state(())
    assert step.residuals(9).size == 0
    assert step.restore_residuals(np.zeros(0, np.float32))
    assert not step.restore_residuals(np.ones(3, np.float32))
    with pytest.raises(errors.Refused, match=r"shares updates.*method is MPCA\("):
        step.set_threshold_state((1.0,))


def test_a_large_embedding_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop(EASGD())
    table = tf.Variable(tf.zeros([1 << 18, 4]), name="table")
    loop.space.add(table)
    loop.variables.append(table)
    loop.begin((5,))
    for _ in range(2):
        trace = StepTrace(loop.space, MaskedMomenta(False), by_rows=loop.step.by_rows)
        trace.optimizers.append(loop.optimizer)
        gradient = tf.IndexedSlices(tf.ones([1, 4]), tf.constant([7]), tf.constant([1 << 18, 4]))
        trace.note_update(table, gradient)
        table.scatter_sub(gradient)
        with caplog.at_level(logging.WARNING, "keras_strom"):
            loop.step.close(trace)
    (warning,) = caplog.messages
    assert "1.0 million elements" in warning
    assert "method=EASGD exchanges and pulls all of them" in warning
    assert loop.step.stepped == 2


def test_gradients_leave_in_buckets_from_the_last_variables_on() -> None:
    mega = 1 << 20
    assert _buckets([10, 20]) == []
    assert _buckets([mega]) == []  # That comes with the step's end anyway.
    assert _buckets([mega, mega, 5, mega, 100]) == [[3, 4], [1, 2]]
    assert _buckets([5, 10, *[1 << 17] * 5]) == [[5, 6], [3, 4]]
