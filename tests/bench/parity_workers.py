"""The workers of `parity_cluster`: what each of them does between two exchanges.

A `SharingWorker` ends its steps with those of StromStrategy (`SharedStep`, and below it the native
replica), so thresholds, residuals, local steps and messages are the real ones. Where the model
itself stands is up to the cluster: all workers share one graph, as functions of flat vectors, and
others' messages are added here. So is, with local_apply="full", the residual.
"""

from __future__ import annotations

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_strom import codec
from keras_strom._native.replica import Replica
from keras_strom.flat_space import FlatSpace
from keras_strom.scale import UpdateScale
from keras_strom.step import SharedStep, StepOptions, VariableChange
from tests.bench.parity_tasks import Data, Sharing, Task

Floats = npt.NDArray[np.float32]
Update = Floats | bytes


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
        self._inbox: list[tuple[int, Update]] = []
        self._values = learner.start.copy()

    @property
    def values(self) -> Floats:
        """The parameters, flat."""
        return self._values

    def post(self, due: int, update: Update) -> None:
        """Another worker's update, to be applied before step `due`."""
        self._inbox.append((due, update))

    def receive(self, step: int) -> None:
        """Applies what is due before `step`."""
        due = [update for when, update in self._inbox if when <= step]
        self._inbox = [(when, update) for when, update in self._inbox if when > step]
        if due:
            self._apply(due)

    def step(self, step: int, x: tf.Tensor, y: tf.Tensor) -> Update | None:
        """Trains on one batch; returns what the others get."""
        self._values += self._train(self._values, x, y)
        return None

    def rest(self) -> Update | None:
        """After the last step: what the others have not got yet of the steps before."""
        return None

    def _train(self, values: Floats, x: tf.Tensor, y: tf.Tensor) -> Floats:
        """The optimizer's update."""
        after, self._optimizer = self._learner.step(values, self._optimizer, x, y)
        return after - values

    def _apply(self, updates: list[Update]) -> None:
        for update in updates:
            self._values += update


class DenseWorker(Worker):
    """A worker that sends its whole updates, scaled as StromStrategy does by default."""

    def __init__(self, learner: Learner, workers: int) -> None:
        super().__init__(learner)
        self._scale = UpdateScale(rule="sum", workers=workers, warmup_steps=500)

    def step(self, step: int, x: tf.Tensor, y: tf.Tensor) -> Floats:
        """Trains on one batch; returns what the others get."""
        scale = np.float32(self._scale.at(tf.constant(step, tf.int64)))
        update: Floats = scale * self._train(self._values, x, y)
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
                rule=sharing.update_scale, workers=workers, warmup_steps=sharing.warmup_steps
            ),
            update_clipping=None,
            local_steps=sharing.local_steps,
            local_apply="encoded",  # What makes it "full" is in `step`.
            staleness=None,
            wait_timeout=0.0,
        )
        self._local_steps = sharing.local_steps
        self._is_between_messages = False
        self._is_full = sharing.local_apply == "full"
        self._unsent = np.zeros(self._values.size, np.float32)
        self._replica = Replica()
        self._replica.keep_messages()
        self._step = SharedStep(options, self._replica)
        self._space = FlatSpace()
        with tf.device("/cpu:0"):
            self._variable = tf.Variable(self._values, name="parameters")
        self._space.add(self._variable)
        self._space.touch(self._variable)
        self._replica.extend(self._space.size, self._space.hash())
        self._share = tf.function(self._share_in_graph)

    @property
    def values(self) -> Floats:
        """The parameters, flat."""
        values: Floats = self._variable.numpy()
        return values

    def receive(self, step: int) -> None:
        """Between messages a worker trains by itself, and takes what has come with its next one."""
        if not self._is_between_messages:
            super().receive(step)

    def step(self, step: int, x: tf.Tensor, y: tf.Tensor) -> Update | None:
        """Trains on one batch; returns what the others get."""
        values = self.values
        self._share(tf.constant(values + self._train(values + self._unsent, x, y)))
        self._is_between_messages = (step + 1) % self._local_steps != 0
        if self._is_between_messages:
            return None
        if self._is_full:
            self._unsent = self._replica.read_residual(0, values.size)
        return self._replica.message(0)

    def rest(self) -> Update | None:
        """After the last step: what the others have not got yet of the steps before."""
        message = None
        if self._is_between_messages:
            self._step.share_rest(self._space)
            self._is_between_messages = False
            message = self._replica.message(0)
        totals = self._step.totals
        self.entries, self.bytes = int(totals.count), int(totals.message_bytes)
        return message

    def _share_in_graph(self, after: tf.Tensor) -> None:
        before = tf.raw_ops.ReadVariableOp(resource=self._variable.handle, dtype=tf.float32)
        self._variable.assign(after)
        (entry,) = self._space.participants
        self._step.share([VariableChange(entry, shares=True, since=before)])

    def _apply(self, updates: list[Update]) -> None:
        values = self.values
        for update in updates:
            codec.apply(update, values)
        self._variable.assign(values)


class Learner:
    """A model and its optimizer as functions of vectors, so that K workers share one graph."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._model = task.build()
        self._optimizer = keras.optimizers.Adam(task.learning_rate)
        self._optimizer.build(self._model.trainable_variables)
        self._loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self._shapes = [tuple(v.shape) for v in self._model.trainable_variables]
        self._sizes = [int(np.prod(shape)) for shape in self._shapes]
        self.start = np.concatenate([np.ravel(v) for v in self._model.trainable_variables])
        self.size = int(self.start.size)
        self.optimizer_start = [tf.constant(v.numpy()) for v in self._optimizer.variables]
        self._step = tf.function(self._train)
        self._logits = tf.function(self._predict)

    def step(
        self, values: Floats, optimizer: list[tf.Tensor], x: tf.Tensor, y: tf.Tensor
    ) -> tuple[Floats, list[tf.Tensor]]:
        """The values after one optimizer step, and the optimizer's."""
        after, optimizer = self._step(tf.constant(values), optimizer, x, y)
        return after.numpy(), optimizer

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
        self, values: tf.Tensor, optimizer: list[tf.Tensor], x: tf.Tensor, y: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        variables = [variable.value for variable in self._model.trainable_variables]
        _assign(variables, self._split(values))
        _assign([variable.value for variable in self._optimizer.variables], optimizer)
        with tf.GradientTape() as tape:
            loss = self._loss(y, self._model(x, training=True))
        gradients = tape.gradient(loss, variables)
        self._optimizer.apply(gradients, self._model.trainable_variables)
        after = tf.concat([tf.reshape(variable, [-1]) for variable in variables], 0)
        return after, [tf.identity(variable.value) for variable in self._optimizer.variables]

    def _predict(self, values: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        _assign([v.value for v in self._model.trainable_variables], self._split(values))
        return self._model(x, training=False)

    def _split(self, values: tf.Tensor) -> list[tf.Tensor]:
        parts = tf.split(values, self._sizes)
        return [tf.reshape(part, shape) for part, shape in zip(parts, self._shapes, strict=True)]


def _assign(variables: list[tf.Variable], values: list[tf.Tensor]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
