"""The workers of `parity_cluster`: what each of them does between two exchanges.

A `SharingWorker` ends its steps with those of StromStrategy (`SharedStep`, and below it the native
replica), so thresholds, residuals, local steps and messages are the real ones. Where the model
itself stands is up to the cluster: all workers share one graph, as functions of flat vectors, and
others' messages are added here.
"""

from __future__ import annotations

import math

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from benchmarks.parity_tasks import Data, Sharing, Task
from keras_strom import codec
from keras_strom._native.replica import Replica
from keras_strom.sharing.flat_space import FlatSpace
from keras_strom.sharing.rate_history import RateChange
from keras_strom.sharing.scale import UpdateScale, warmup_of
from keras_strom.sharing.step import SharedStep, StepOptions
from keras_strom.sharing.threshold import is_per_variable
from keras_strom.sharing.touched import VariableChange

Floats = npt.NDArray[np.float32]
Update = Floats | bytes
#: Adam's state: the two moments, and the steps so far.
Moments = tuple[tf.Tensor, tf.Tensor, tf.Tensor]

# Keras's own.
_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-7


class Worker:
    """A worker that keeps its updates to itself.

    Attributes:
        entries: elements that it has sent, known after `rest`.
        bytes: of what it has sent, counted once for all receivers; likewise.
    """

    def __init__(self, learner: Learner) -> None:
        self.entries = 0
        self.bytes = 0
        self._learner = learner
        self._optimizer = learner.optimizer_start
        self._inbox: list[tuple[int, Floats]] = []
        self._values = learner.start.copy()

    @property
    def values(self) -> Floats:
        """The parameters, flat."""
        return self._values

    def post(self, due: int, update: Floats) -> None:
        """The sum of other workers' updates of one step, to be applied before step `due`."""
        self._inbox.append((due, update))

    def whole(self, update: Update) -> Floats:
        """What an update adds to the parameters, flat."""
        if isinstance(update, np.ndarray):
            return update
        values = np.zeros(self._learner.size, np.float32)
        codec.apply(update, values)
        return values

    def receive(self, step: int) -> None:
        """Applies what is due before `step`."""
        due = [update for when, update in self._inbox if when <= step]
        self._inbox = [(when, update) for when, update in self._inbox if when > step]
        if due:
            self._apply(due)

    def step(self, step: int, x: tf.Tensor, y: tf.Tensor) -> Update | None:
        """Trains on one batch; returns what the others get."""
        self._values += self._train(self._values, x, y).numpy()
        return None

    def rest(self) -> Update | None:
        """After the last step: what the others have not got yet of the steps before."""
        return None

    def _train(self, values: Floats | tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        """The optimizer's update."""
        update, self._optimizer = self._learner.step(values, self._optimizer, x, y)
        return update

    def _apply(self, updates: list[Floats]) -> None:
        for update in updates:
            self._values += update


class DenseWorker(Worker):
    """A worker that sends its whole updates, which add up as StromStrategy's do by default."""

    def __init__(self, learner: Learner, workers: int) -> None:
        super().__init__(learner)
        self._scale = UpdateScale(rule=Sharing().update_scale, workers=workers, warmup_steps=0)

    def step(self, step: int, x: tf.Tensor, y: tf.Tensor) -> Floats:
        """Trains on one batch; returns what the others get."""
        update: Floats = self._train(self._values, x, y).numpy() * np.float32(self._scale.target)
        self._values += update
        self.entries += update.size
        self.bytes += update.nbytes
        return update


class SharingWorker(Worker):
    """A worker of StromStrategy: its messages are those of the codec."""

    def __init__(self, learner: Learner, workers: int, sharing: Sharing) -> None:
        super().__init__(learner)
        options = StepOptions(
            threshold=sharing.threshold,
            clipping=sharing.residual_clipping,
            shake_up=None,
            scale=UpdateScale(
                rule=sharing.update_scale,
                workers=workers,
                warmup_steps=(
                    warmup_of(sharing.local_apply)
                    if sharing.warmup_steps is None
                    else sharing.warmup_steps
                ),
            ),
            update_clipping=None,
            local_steps=sharing.local_steps,
            local_apply=sharing.local_apply,
            staleness=None,
            wait_timeout=0.0,
        )
        self._local_steps = sharing.local_steps
        self._is_between_messages = False
        self._replica = Replica()
        self._replica.keep_messages()
        self._space = FlatSpace()
        self._step = SharedStep(options, self._replica, self._space)
        # The model's own variables only where each has a threshold: one is faster.
        self._sizes = learner.sizes if is_per_variable(sharing.threshold) else [learner.size]
        starts = np.split(self._values, np.cumsum(self._sizes)[:-1])
        with tf.device("/cpu:0"):
            self._variables = [tf.Variable(s, name=f"variable_{i}") for i, s in enumerate(starts)]
        for variable in self._variables:
            self._space.add(variable)
            self._space.touch(variable)
        self._replica.extend(self._space.size)
        self._share = tf.function(self._share_in_graph)

    @property
    def values(self) -> Floats:
        """The parameters, flat."""
        return np.concatenate([variable.numpy() for variable in self._variables])

    def receive(self, step: int) -> None:
        """Between messages a worker trains by itself, and takes what has come with its next one."""
        if not self._is_between_messages:
            super().receive(step)

    def step(self, step: int, x: tf.Tensor, y: tf.Tensor) -> Update | None:
        """Trains on one batch; returns what the others get."""
        values = tf.concat([variable.read_value() for variable in self._variables], axis=0)
        self._share(self._train(values, x, y), self._learner.rate_left(step))
        self._is_between_messages = (step + 1) % self._local_steps != 0
        if self._is_between_messages:
            return None
        return self._replica.message(0)

    def rest(self) -> Update | None:
        """After the last step: what the others have not got yet of the steps before."""
        was_between_messages, self._is_between_messages = self._is_between_messages, False
        self._step.share_rest()  # Then the variables show what all workers share.
        message = self._replica.message(0) if was_between_messages else None
        totals = self._step.totals
        self.entries, self.bytes = int(totals.count), int(totals.message_bytes)
        return message

    def _share_in_graph(self, update: tf.Tensor, rate_left: tf.Tensor) -> None:
        changes = []
        parts = tf.split(update, self._sizes)
        for entry, part in zip(self._space.participants, parts, strict=True):
            before = tf.raw_ops.ReadVariableOp(resource=entry.primary.handle, dtype=tf.float32)
            entry.primary.assign(before + part)
            changes.append(VariableChange(entry, shares=True, since=before))
        self._step.share(changes, RateChange(left=rate_left))

    def _apply(self, updates: list[Floats]) -> None:
        values = self.values
        for update in updates:
            values += update
        parts = np.split(values, np.cumsum(self._sizes)[:-1])
        for variable, part in zip(self._variables, parts, strict=True):
            variable.assign(part)


class Learner:
    """A model and Adam as functions of flat vectors, so that K workers share one graph.

    Adam is written out (its paper's section 2, with epsilon where Keras has it): on flat vectors
    and compiled it takes a third of the time of Keras's.

    Args:
        task: what is learned.
        falls_over: so many steps over which the learning rate falls to 0, by half a cosine; None =
            it stays.
    """

    def __init__(self, task: Task, falls_over: int | None = None) -> None:
        self._task = task
        self._falls_over = falls_over
        self._model = task.build()
        self._loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self._shapes = [tuple(v.shape) for v in self._model.trainable_variables]
        self.sizes = [int(np.prod(shape)) for shape in self._shapes]
        self.start = np.concatenate([np.ravel(v) for v in self._model.trainable_variables])
        self.size = int(self.start.size)
        zeros = tf.zeros(self.size)
        self.optimizer_start: Moments = (zeros, zeros, tf.constant(0.0))
        self._step = tf.function(self._train, jit_compile=True)
        self._logits = tf.function(self._predict, reduce_retracing=True)

    def step(
        self, values: Floats | tf.Tensor, optimizer: Moments, x: tf.Tensor, y: tf.Tensor
    ) -> tuple[tf.Tensor, Moments]:
        """The optimizer's update of the values, and the optimizer after it."""
        update, optimizer = self._step(tf.convert_to_tensor(values), optimizer, x, y)
        return update, optimizer

    def rate_left(self, steps: tf.Tensor | float) -> tf.Tensor:
        """The learning rate after so many steps, as a part of the first one."""
        if self._falls_over is None:
            return tf.constant(1.0)
        done = tf.minimum(tf.cast(steps, tf.float32) / self._falls_over, 1.0)
        return (1 + tf.cos(math.pi * done)) / 2

    def judge(self, values: Floats, data: Data) -> float:
        """Accuracy in percent, or the loss in nats, on the test data."""
        total = 0.0
        flat = tf.constant(values)
        for begin in range(0, len(data.x_test), 500):
            y = data.y_test[begin : begin + 500]
            logits = self._logits(flat, tf.constant(data.x_test[begin : begin + 500]))
            if self._task.by_loss:
                total += float(self._loss(y, logits)) * len(y)
            else:
                total += 100.0 * float(np.sum(np.argmax(logits.numpy(), axis=-1) == y))
        return total / len(data.x_test)

    def _train(
        self, values: tf.Tensor, optimizer: Moments, x: tf.Tensor, y: tf.Tensor
    ) -> tuple[tf.Tensor, Moments]:
        with tf.GradientTape() as tape:
            tape.watch(values)
            loss = self._loss(y, self._call(values, x, training=True))
        gradient = tape.gradient(loss, values)
        first, second, steps = optimizer
        first += (gradient - first) * (1 - _BETA_1)
        second += (tf.square(gradient) - second) * (1 - _BETA_2)
        steps += 1
        unbiased = tf.sqrt(1 - _BETA_2**steps) / (1 - _BETA_1**steps)
        rate = self._task.learning_rate * self.rate_left(steps)
        update = -rate * unbiased * first / (tf.sqrt(second) + _EPSILON)
        return update, (first, second, steps)

    def _predict(self, values: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        return self._call(values, x, training=False)

    def _call(self, values: tf.Tensor, x: tf.Tensor, *, training: bool) -> tf.Tensor:
        parts = tf.split(values, self.sizes)
        variables = [tf.reshape(p, shape) for p, shape in zip(parts, self._shapes, strict=True)]
        others = self._model.non_trainable_variables
        logits, _ = self._model.stateless_call(variables, others, x, training=training)
        return logits
