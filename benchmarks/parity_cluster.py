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
import rich.progress
import tensorflow as tf

from benchmarks.parity_tasks import TASKS, Data, Sharing
from benchmarks.parity_workers import DenseWorker, Learner, SharingWorker, Update, Worker
from keras_strom.sharing.threshold import AdaptiveThreshold


class Exchange(enum.Enum):
    """What the workers tell each other of their updates."""

    SHARED = "shared"  # what has reached the threshold, as a message of the codec
    TUNED = "shared, tuned"  # the same with options of the task's own
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
        falls: whether the learning rate falls to 0 over the training, by half a cosine.
    """

    task: str
    exchange: Exchange
    workers: int
    delay: int
    seed: int
    share: float = 1.0
    falls: bool = False


def sharing_of(training: Training) -> Sharing:
    """With which options its workers share.

    Those that are tuned are, where the learning rate falls, of a threshold that does not follow it.

    Raises:
        ValueError: tuned ones are asked for, and the task has none.
    """
    if training.exchange is not Exchange.TUNED:
        return Sharing()
    if training.falls:
        return Sharing(threshold=AdaptiveThreshold(learning_rate_power=0.0))
    tuned = TASKS[training.task].tuned
    if tuned is None:
        raise ValueError(f"the task {training.task} has no options but the defaults")
    return tuned


def train_all(trainings: Collection[Training]) -> Iterator[tuple[Training, Outcome]]:
    """Runs trainings side by side, one a core, each with one thread; gives each as it ends."""
    with concurrent.futures.ProcessPoolExecutor(
        max_workers=len(os.sched_getaffinity(0)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_use_one_thread,
    ) as pool:
        futures = {pool.submit(train, training): training for training in trainings}
        done = concurrent.futures.as_completed(futures)
        for future in rich.progress.track(done, "Training in virtual time", total=len(futures)):
            yield futures[future], future.result()


def _use_one_thread() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def train(training: Training) -> Outcome:
    """Trains in this process."""
    keras.utils.set_random_seed(training.seed)
    task = TASKS[training.task]
    workers, delay = training.workers, training.delay
    rounds = max(1, int(task.examples * training.share) // (workers * task.batch))
    learner = Learner(task, falls_over=rounds if training.falls else None)
    data = task.load()
    team = [_worker(training, learner) for _ in range(workers)]
    batches = [_batches(data, task.batch, training.seed, rank, workers) for rank in range(workers)]
    for step in range(rounds):
        updates = []
        for worker, own in zip(team, batches, strict=True):
            worker.receive(step)
            updates.append(worker.step(step, *next(own)))
        _deliver(team, updates, due=step + delay)
    _deliver(team, [worker.rest() for worker in team], due=rounds + delay)
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


def _worker(training: Training, learner: Learner) -> Worker:
    if training.exchange is Exchange.NOTHING:
        return Worker(learner)
    if training.exchange is Exchange.DENSE:
        return DenseWorker(learner, training.workers)
    return SharingWorker(learner, training.workers, sharing_of(training))


def _deliver(team: list[Worker], updates: list[Update | None], due: int) -> None:
    """Gives each worker the sum of what the others have sent in one step."""
    sent = [None if u is None else w.whole(u) for w, u in zip(team, updates, strict=True)]
    if all(update is None for update in sent):
        return
    total = np.sum([update for update in sent if update is not None], axis=0)
    for worker, own in zip(team, sent, strict=True):
        worker.post(due, total if own is None else total - own)


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
