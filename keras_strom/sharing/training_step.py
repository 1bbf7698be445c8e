"""What ends each training step of a worker that trains with others: the name of both ways to do it.

`SharedStep` shares what the optimizer has changed; `PulledStep` pulls the worker's own model
towards a joint one. A `fit`, checkpoints and late joiners deal with either by this name.
"""

# Moments at which one of the two has nothing to do are no fault.
# ruff: noqa: B027

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_strom import errors
from keras_strom._native.replica import HandedOver
from keras_strom.method import MethodNumbers, check_cycles
from keras_strom.sharing.flat_space import Entry, FlatSpace, ranges_of
from keras_strom.sharing.rate_history import RateHistory
from keras_strom.sharing.step_trace import StepTrace

if TYPE_CHECKING:
    from keras_strom.relay.training_relay import TrainingWorker


class JointPlan(NamedTuple):
    """What `WorkerNode.start` is told of a joint model.

    Attributes:
        method: None = there is none, updates are shared.
        ranges: (offset, size) of the flat space that it consists of, or that is trained.
        cycles: that it has finished already: in an earlier training, or when the checkpoint was
            made from which this one goes on.
    """

    method: MethodNumbers | None = None
    ranges: Sequence[tuple[int, int]] = ()
    cycles: int = 0


class TrainingStep(abc.ABC):
    """The end of a step, in graphs and eagerly, and what a worker's variables show between steps.

    While it trains a worker has values of its own; between steps others may want to see those that
    all share (`show_shared`). Every change between the two goes through this object. What is no
    abstract method does nothing, or has nothing to give, where a way to train has no use for it.

    Args:
        statistics: how many numbers a step tells of itself.
        space: the strategy's variables.
    """

    def __init__(self, statistics: int, space: FlatSpace) -> None:
        self._space = space
        with tf.init_scope(), tf.device("/cpu:0"):
            self._last = _zeros(statistics)
            self._totals = _zeros(statistics)  # Since `begin`; the first one counts steps.
            self._steps_before = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._has_stepped = False

    @property
    @abc.abstractmethod
    def is_replica(self) -> bool:
        """Whether the worker's parameters, less its own progress, are the master's within rounding.

        A difference at the end would tell of a fault then.
        """

    @property
    def has_one_state(self) -> bool:
        """Whether all workers have the same parameters and optimizer's state after every step."""
        return False

    @property
    def _step(self) -> Any:
        """`steps`, in a graph."""
        return self._steps_before + tf.cast(self._totals[0], tf.int64)

    # ------------------------------------------------------------ steps

    def exchange(self, optimizer: Any, gradients: list[Any], variables: list[Any]) -> list[Any]:
        """What takes the place of the gradients that a training step hands its optimizer.

        Args:
            optimizer: the outermost one, about to be applied.
            gradients: those of the loss, or of the loss scaled; None where a variable has none.
            variables: `tf.Variable`s, as many.
        """
        return gradients

    def penalize(self, optimizer: Any, gradients: list[Any], variables: list[Any]) -> list[Any]:
        """The gradients that an optimizer is to get for `variables`, which it is about to change.

        Args:
            optimizer: a part of one that may consist of several.
            gradients: those of the loss, None where a variable has none.
            variables: `tf.Variable`s, as many.
        """
        return gradients

    @abc.abstractmethod
    def close(self, trace: StepTrace) -> None:
        """Ends a step of which `trace` tells what it has changed."""

    @property
    def by_rows(self) -> bool:
        """Whether a step may go by the rows of a variable that its optimizer changes alone."""
        return False

    @property
    def steps(self) -> int:
        """The steps that schedules and messages count, those of generations before too."""
        return int(self._steps_before.numpy()) + self.stepped

    def has_stepped(self) -> bool:
        """Whether any step was made; before each batch it costs nothing once one was."""
        self._has_stepped = self._has_stepped or self.steps > 0
        return self._has_stepped

    @property
    def stepped(self) -> int:
        """Steps of the optimizer since `begin`."""
        return int(self._totals[0].numpy())

    def count_from(self, steps: int) -> None:
        """After `begin`: has `steps` go on from there."""
        self._steps_before.assign(steps)

    @property
    def cycles(self) -> int:
        """Of the joint model, as the master has told last; its schedules go by them. 0 = none."""
        return 0

    def begin_after(self, cycles: int) -> None:
        """Before `plan`: what `cycles` was in the checkpoint from which training goes on.

        Raises:
            InvalidOption: no whole number, or a negative one.
        """
        check_cycles("joint_cycles", cycles)

    def expect(self, steps: int | None, workers: int) -> None:
        """Before a training of so many steps: what is chosen by itself goes by them.

        Args:
            steps: of each worker; None = nobody knows.
            workers: how many train.
        """

    # ------------------------------------------------------------ a generation

    def begin(self) -> None:
        """Starts the counters of a new generation; the cluster's step count goes on."""
        self._steps_before.assign_add(tf.cast(self._totals[0], tf.int64))
        self._totals.assign(tf.zeros_like(self._totals))

    def plan(self, trained: list[Entry]) -> JointPlan:
        """Before the start: what joint model there is to be of the variables that are trained.

        Without one it says which are, so that a worker that trains others is refused.

        Args:
            trained: in flat order, the same on all workers.

        Raises:
            UnsupportedModel: the method cannot train such a model.
        """
        return JointPlan(ranges=ranges_of(trained))

    def extend(self, size: int) -> None:
        """Grows what is kept of the flat space to `size` elements."""

    @abc.abstractmethod
    def bind(self, worker: TrainingWorker) -> None:
        """Once started: from now on steps exchange with the others through `worker`."""

    def begin_own(self, trained: list[Entry]) -> None:
        """Says which variables the next `show_own` is to give what this worker has of its own."""

    def apply(self, entries: list[Entry]) -> None:
        """Adds everything received so far to the variables, outside of a step."""

    @abc.abstractmethod
    def finish(self) -> None:
        """After the last step: hands over what the others have not got yet."""

    def hand_over_all(self) -> HandedOver | None:
        """Between two steps, of a worker that leaves: the others get what they have not got yet.

        Returns:
            What that was; None = there was nothing, or the method has no such thing.
        """
        return None

    def ended(self) -> None:
        """After the result has been installed: training does not go on from own values."""

    # ------------------------------------------------------------ between steps

    def share_rest(self) -> None:
        """At an epoch's end: shares what earlier steps have changed and not shared."""

    @abc.abstractmethod
    def show_shared(self) -> None:
        """Gives the variables the values that all workers share, until `show_own`."""

    @abc.abstractmethod
    def show_own(self, *, swapped: bool = False) -> None:
        """Gives the variables what this worker trains on; cheap where they have it already.

        Args:
            swapped: a callback may have swapped the variables with others and back again, so what
                was assigned since `show_shared` is what they had.
        """

    @abc.abstractmethod
    def end_own(self, *, mid_step: bool = False) -> None:
        """Forgets the worker's own values: training does not go on from them.

        Args:
            mid_step: a step has failed in its middle: what was assigned since the last one, its
                optimizer has written.
        """

    def not_finite(self) -> errors.NotFinite | None:
        """At an epoch's end: what the worker's own values hold that no step has refused."""
        return None

    # ------------------------------------------------------------ what others may ask for

    @property
    def is_between_messages(self) -> bool:
        """Whether variables may hold changes that no other worker has, so that no part is saved."""
        return False

    @abc.abstractmethod
    def values_to_hand_over(self, *, between_batches: bool) -> npt.NDArray[np.float32]:
        """What a master that has come for a lost one goes on from, over the whole flat space.

        Args:
            between_batches: of a `fit`; False = between two trainings.
        """

    @property
    def rate_history(self) -> RateHistory | None:
        """The learning rates so far, where a threshold goes by them."""
        return None

    @property
    def threshold_state(self) -> tuple[float, ...]:
        """The state of the threshold algorithm; empty where there is none."""
        return ()

    @abc.abstractmethod
    def set_threshold_state(self, state: tuple[float, ...]) -> None:
        """Takes over what `threshold_state` was on another worker, or earlier on this one.

        Raises:
            Refused: it is the state of another algorithm, or of another method.
        """

    def residuals(self, size: int) -> npt.NDArray[np.float32]:
        """What this worker has not sent, of flat elements [0, size); empty where all is sent."""
        return np.zeros(0, np.float32)

    @abc.abstractmethod
    def restore_residuals(self, values: npt.NDArray[np.float32]) -> bool:
        """Takes over what `residuals` was earlier; whether it has a place here."""


def _zeros(length: int) -> Any:
    """A variable of so many float64 zeros."""
    return tf.Variable(np.zeros(length), dtype=tf.float64, trainable=False)
