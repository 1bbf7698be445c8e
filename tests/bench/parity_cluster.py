"""K workers in virtual time: real models, the real codec, and a delay in place of a network.

All workers are equally fast and take turns. What one sends in step t the others apply before their
step t + delay; at the end everybody gets what is still under way. Only the transport is made up:
updates, residuals, thresholds and messages are those of a training step of StromStrategy.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import enum
import multiprocessing
import os
from collections.abc import Collection, Iterator

import keras
import numpy as np
import numpy.typing as npt
import rich.progress
import tensorflow as tf

from keras_strom import codec
from keras_strom.residual import ResidualClipping
from keras_strom.scale import UpdateScale
from keras_strom.statistics import LENGTH, StepStatistics
from keras_strom.threshold import AdaptiveThreshold
from tests.bench.parity_tasks import TASKS, Data, Task

Floats = npt.NDArray[np.float32]


class Exchange(enum.Enum):
    """What the workers tell each other of their updates."""

    SHARED = "shared"  # what has reached the threshold, as a message of the codec
    DENSE = "dense asynchronous"  # everything, as it is
    NOTHING = "no communication"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a training ended.

    Attributes:
        figure: accuracy in percent or loss in nats; with NOTHING the mean over the workers.
        raw: elements over entries sent; 1 where everything is sent, 0 where nothing is.
        coded: float32 bytes over bytes sent; likewise.
        rounds: steps of each worker.
    """

    figure: float
    raw: float
    coded: float
    rounds: int


@dataclasses.dataclass(frozen=True)
class Training:
    """One training, which is as long as the task says: its examples are divided among the workers.

    Attributes:
        task: its name.
        exchange: what is exchanged.
        workers: K.
        delay: steps until a message is applied, at least 1.
        seed: of the initial weights and the order of the examples; equal for all methods.
        share: of the task's examples.
    """

    task: str
    exchange: Exchange
    workers: int
    delay: int
    seed: int
    share: float = 1.0


def train_all(trainings: Collection[Training]) -> dict[Training, Outcome]:
    """Runs trainings side by side, one a core, each with one thread; shows how far they are."""
    outcomes = {}
    with concurrent.futures.ProcessPoolExecutor(
        max_workers=len(os.sched_getaffinity(0)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_use_one_thread,
    ) as pool:
        futures = {pool.submit(train, training): training for training in trainings}
        done = concurrent.futures.as_completed(futures)
        for future in rich.progress.track(done, "Training in virtual time", total=len(futures)):
            outcomes[futures[future]] = future.result()
    return outcomes


def _use_one_thread() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def train(training: Training) -> Outcome:
    """Trains in this process."""
    keras.utils.set_random_seed(training.seed)
    task = TASKS[training.task]
    workers, delay = training.workers, training.delay
    learner = Learner(task)
    data = task.load()
    team = [Worker(learner, training.exchange, workers) for _ in range(workers)]
    rounds = max(1, int(task.examples * training.share) // (workers * task.batch))
    batches = [_batches(data, task.batch, training.seed, rank, workers) for rank in range(workers)]
    for step in range(rounds):
        for worker, own in zip(team, batches, strict=True):
            worker.receive(step)
            update = worker.step(step, *next(own))
            for other in team:
                if other is not worker and update is not None:
                    other.post(step + delay, update)
    for worker in team:
        worker.receive(rounds + delay)
    judged = team if training.exchange is Exchange.NOTHING else team[:1]
    entries = sum(worker.entries for worker in team)
    sent = sum(worker.bytes for worker in team)
    elements = learner.size * rounds * workers
    return Outcome(
        figure=float(np.mean([learner.judge(worker.values, data) for worker in judged])),
        raw=elements / entries if entries else 0.0,
        coded=4 * elements / sent if sent else 0.0,
        rounds=rounds,
    )


def _batches(
    data: Data, batch: int, seed: int, rank: int, workers: int
) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    """Worker `rank`'s batches for ever: of each pass every K-th example, in an order of its own."""
    generator = np.random.default_rng([seed, rank])
    mine = np.arange(rank, len(data.x), workers)
    while True:
        order = generator.permutation(mine)
        for begin in range(0, len(order) - batch + 1, batch):
            rows = order[begin : begin + batch]
            yield tf.constant(data.x[rows]), tf.constant(data.y[rows])


class Worker:
    """One replica: its values, its optimizer's, its residual, and what it has been sent."""

    def __init__(self, learner: Learner, exchange: Exchange, workers: int) -> None:
        self._learner = learner
        self._exchange = exchange
        self._optimizer = learner.optimizer_start
        self._residual = np.zeros(learner.size, np.float32)
        self._threshold = Threshold()
        self._clipping = ResidualClipping()
        # What StromStrategy does by default; nobody adds up what nobody sends.
        rule = 1.0 if exchange is Exchange.NOTHING else "sum"
        peers = 1 if exchange is Exchange.NOTHING else workers
        self._scale = UpdateScale(rule=rule, workers=peers, warmup_steps=500)
        self._inbox: list[tuple[int, Floats | bytes]] = []
        self.values = learner.start.copy()
        self.entries = 0
        self.bytes = 0

    def post(self, due: int, update: Floats | bytes) -> None:
        """Another worker's update, to be applied before step `due`."""
        self._inbox.append((due, update))

    def receive(self, step: int) -> None:
        """Applies what is due before `step`."""
        while self._inbox and self._inbox[0][0] <= step:
            _, update = self._inbox.pop(0)
            if isinstance(update, bytes):
                codec.apply(update, self.values)
            else:
                self.values += update

    def step(self, step: int, x: tf.Tensor, y: tf.Tensor) -> Floats | bytes | None:
        """Trains on one batch; returns what the others get."""
        after, self._optimizer = self._learner.step(self.values, self._optimizer, x, y)
        scale = np.float32(self._scale.at(tf.constant(step, tf.int64)))
        update: Floats = scale * (after - self.values)
        if self._exchange is not Exchange.SHARED:
            self.values += update
            if self._exchange is Exchange.NOTHING:
                return None
            self.entries += update.size
            self.bytes += update.nbytes
            return update
        tau = self._threshold.next()
        message = codec.encode(update, self._residual, tau)
        codec.apply(message.bytes, self.values)
        if (step + 1) % self._clipping.every == 0:
            limit = np.float32(self._clipping.multiple * tau)
            np.clip(self._residual, -limit, limit, out=self._residual)
        self._threshold.note(message.count, update.size)
        self.entries += message.count
        self.bytes += len(message.bytes)
        return message.bytes


class Threshold:
    """The strategy's default algorithm, one worker's."""

    _algorithm = AdaptiveThreshold()
    _next = tf.function(_algorithm.next)

    def __init__(self) -> None:
        self._state: tuple[tf.Tensor, ...] = tuple(
            map(tf.constant, self._algorithm.initial_state())
        )
        self._last = StepStatistics(*[tf.constant(0.0, tf.float64)] * LENGTH)

    def next(self) -> float:
        """Tau of the step at hand."""
        tau, self._state = self._next(self._state, self._last)
        return float(tau)

    def note(self, count: int, elements: int) -> None:
        """What the step has sent."""
        self._last = self._last._replace(
            count=tf.constant(count, tf.float64), elements=tf.constant(elements, tf.float64)
        )


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
