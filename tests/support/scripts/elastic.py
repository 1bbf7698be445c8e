"""A worker trains a small model, and may fail on purpose; it writes what it has at the end.

Run by tests/recovery/test_elastic.py: elastic.py OUTPUT_FOLDER JOB
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_strom
from benchmarks.update_accounts import Account
from keras_strom._native.library import array_hash
from keras_strom.sharing.step import SharedStep
from tests.support import emulated_gpu, faults

CLASSES = 4
TEST_ROWS = 512
DEADLINE = 200.0

#: Bounds of a node's memory : ring and hold each, what is received and not taken, and
#: what waits for one neighbour.
RING_BYTES = 64 << 20
INBOX_BYTES = 512 << 20
QUEUE_BYTES = 32 << 20


@dataclasses.dataclass(frozen=True)
class Job:
    """What each worker does.

    Attributes:
        seed: of weights and shuffling.
        rows: of the training data, of all workers.
        batch: rows of a batch.
        epochs: of each fit.
        initial_epoch: at which each fit begins.
        fits: one after the other.
        pause: seconds after each batch.
        hurries: no pause any more when those that join late have come.
        period: seconds that a batch takes, the rest being slept; 0 = as long as it does.
        hold_at: from so many batches on, each batch lasts until a worker that joins late has come,
            or asks for this worker's state; None = nobody waits.
        joins: how many such workers there will be.
        after_the_end: whether those wait until another worker has ended.
        waits_at_end: whether the callbacks at the end of training wait for such workers, and they
            for these.
        norm: whether the model's inputs, around 3, are normalised by moving statistics.
        late: this rank begins when worker 0 holds, and is one that joins late.
        hidden: the units of the model's hidden layers.
        as_on_spark: workers are not told that those that fail are started again.
        method: of the strategy, by name (MPCA, SparkNet, EASGD); "" = updates are shared.
        options: of the method.
        sharing: options of the strategy where updates are shared.
        gpus: these ranks, such as "02", train on an emulated GPU.
    """

    seed: int = 0
    rows: int = 1920
    batch: int = 16
    epochs: int = 4
    initial_epoch: int = 0
    fits: int = 1
    pause: float = 0.0
    hurries: bool = False
    period: float = 0.0
    hold_at: int | None = None
    joins: int = 1
    after_the_end: bool = False
    waits_at_end: bool = False
    norm: bool = False
    late: int | None = None
    hidden: tuple[int, ...] = (32,)
    as_on_spark: bool = False
    method: str = ""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    sharing: dict[str, Any] = dataclasses.field(default_factory=dict)
    gpus: str = ""

    def strategy(self) -> keras_strom.StromStrategy:
        """What each worker trains with."""
        method = getattr(keras_strom, self.method)(**self.options) if self.method else None
        return keras_strom.StromStrategy(method=method, **self.sharing)


@dataclasses.dataclass(frozen=True)
class Trains:
    """A worker that has trained its first batch.

    Attributes:
        pid: of its process.
        seconds: since it was ready to call `fit`.
    """

    pid: int
    seconds: float

    def write(self, path: Path) -> None:
        """Leaves it in a file, which is whole as soon as it is there."""
        half = path.with_name(f"half-{path.name}")
        half.write_text(json.dumps(dataclasses.asdict(self)))
        half.rename(path)

    @classmethod
    def read(cls, path: Path) -> Trains:
        """What `write` has left there."""
        return cls(**json.loads(path.read_text()))


class Record(keras.callbacks.Callback):  # type: ignore[misc]
    """The epochs and batches of this process, in order.

    Attributes:
        states: where all workers have one state, its hash by the optimizer's steps.
    """

    def __init__(self) -> None:
        super().__init__()
        self.batches: dict[int, int] = {}
        self.states: dict[int, int] = {}
        self.iterations: list[int] = []
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        self.batches[epoch] = 0
        self.iterations.append(int(self.model.optimizer.iterations.numpy()))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches[self._epoch] += 1
        if self.model.distribute_strategy._sharing.step.has_one_state:
            optimizer = self.model.optimizer
            values = [v.numpy() for v in (*self.model.trainable_variables, *optimizer.variables)]
            bits = np.concatenate([np.frombuffer(value.tobytes(), np.uint8) for value in values])
            self.states[int(optimizer.iterations.numpy())] = array_hash(bits)


class Connection(keras.callbacks.Callback):  # type: ignore[misc]
    """What is known of this worker's connection.

    Attributes:
        memory: the largest share of a bound on its memory that was seen in use.
        account: the updates that this worker holds after the last steps that it has shared; None =
            it has shared none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.memory = 0.0
        self.account: dict[str, Any] | None = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        connection = self.model.distribute_strategy._sharing.worker
        self.memory = max(self.memory, share_of_bounds(connection.status()))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        sharing = self.model.distribute_strategy._sharing
        # After the last epoch, when all have finished: a generation without steps may follow.
        if sharing.generation is None and hasattr(sharing.last_report, "updates_applied"):
            account = Account.of(sharing.worker.status(), sharing.last_report.updates_applied)
            self.account = dataclasses.asdict(account)


def share_of_bounds(status: dict[str, Any]) -> float:
    """How much of the bound that is nearest to being full a worker or master uses; 1 = all."""
    node = status["node"]
    ring = (node["ring_bytes"] + node["held_bytes"]) / (2 * RING_BYTES)
    inbox = status.get("inbox_bytes", 0) / INBOX_BYTES
    neighbours = [*node["neighbours"], *node.get("members", [])]
    queued = [one["queued_bytes"] / QUEUE_BYTES for one in neighbours]
    return float(max([ring, inbox, *queued]))


class Timed(keras.callbacks.Callback):  # type: ignore[misc]
    """Has each batch take as long, and notes when which step of its rank has been made.

    Lines of a file steps-RANK-ATTEMPT: the time, the step's number, the residual's mass after it.
    """

    def __init__(self, period: float, folder: str) -> None:
        super().__init__()
        rank, attempt = keras_strom.rank(), os.environ["KERAS_STROM_ATTEMPT"]
        self._path = Path(folder, f"steps-{rank}-{attempt}")
        self._period = period
        self._due = 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        now = time.monotonic()
        step = self.model.distribute_strategy._sharing.step
        with self._path.open("a") as file:
            file.write(f"{now} {step.steps} {step.last.sum_residual}\n")
        self._due = max(self._due + self._period, now)
        time.sleep(self._due - now)


class Pace(keras.callbacks.Callback):  # type: ignore[misc]
    """Has the others of a job train until those that are to join late have come.

    A worker that has trained its first batch says so in a file trains-RANK-ATTEMPT.
    """

    def __init__(self, job: Job, folder: str) -> None:
        super().__init__()
        self._job = job
        self._folder = Path(folder)
        self._steps = 0
        self._ready = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._steps += 1
        rank, attempt = keras_strom.rank(), int(os.environ["KERAS_STROM_ATTEMPT"])
        if self._steps == 1:
            trains = Trains(os.getpid(), time.monotonic() - self._ready)
            trains.write(self._folder / f"trains-{rank}-{attempt}")
        if self._job.pause and not (self._job.hurries and self._all_have_come()):
            time.sleep(self._job.pause)
        if self._job.hold_at is not None and self._steps >= self._job.hold_at:
            (self._folder / f"holds-{rank}").touch()
            connection = self.model.distribute_strategy._sharing.worker
            deadline = time.monotonic() + DEADLINE
            while not (self._all_have_come() or connection.donation_wanted()):
                if connection.status()["failure"]:
                    return  # The next step says so.
                if time.monotonic() > deadline:
                    raise TimeoutError("nobody has joined")
                time.sleep(0.05)

    def on_train_begin(self, logs: Any = None) -> None:
        rank, attempt = keras_strom.rank(), os.environ["KERAS_STROM_ATTEMPT"]
        (self._folder / f"begins-{rank}-{attempt}").touch()

    def on_train_end(self, logs: Any = None) -> None:
        if self._job.waits_at_end and os.environ["KERAS_STROM_ATTEMPT"] == "0":
            (self._folder / f"ends-{keras_strom.rank()}").touch()
            wait_for(str(self._folder), "begins-*-1")

    def _all_have_come(self) -> bool:
        found = [path.name.split("-")[1:] for path in self._folder.glob("trains-*")]
        late = [rank for rank, attempt in found if attempt != "0" or int(rank) == self._job.late]
        return len(late) >= self._job.joins


def wait_for(folder: str, pattern: str) -> None:
    """Waits until another worker has left such a file."""
    deadline = time.monotonic() + DEADLINE
    while not list(Path(folder).glob(pattern)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody has left {pattern}")
        time.sleep(0.02)


def data(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points around CLASSES centres."""
    centres = np.random.default_rng(0).normal(size=(CLASSES, 8))
    random = np.random.default_rng(seed)
    y = random.integers(0, CLASSES, rows)
    x = centres[y] + 0.7 * random.normal(size=(rows, 8))
    return x.astype("float32"), y


def build(hidden: Sequence[int] = Job.hidden, norm: bool = False) -> keras.Model:
    """A classifier whose optimizer has state."""
    layers: list[Any] = [keras.layers.Dense(units, "relu") for units in hidden]
    if norm:
        layers.insert(0, keras.layers.BatchNormalization(momentum=0.8))
    model = keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(CLASSES)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])
    return model


def train(job: Job, folder: str) -> dict[str, Any]:
    """Trains and says how it went."""
    attempt = int(os.environ["KERAS_STROM_ATTEMPT"])
    if job.as_on_spark:
        del os.environ["KERAS_STROM_MAX_FAILURES"]
    if job.after_the_end and attempt > 0:
        wait_for(folder, "*.json")  # A result.
    if job.waits_at_end and attempt > 0:
        wait_for(folder, "ends-*")
    if job.late == keras_strom.rank():
        wait_for(folder, "holds-0")
    if str(keras_strom.rank()) in job.gpus:
        emulated_gpu.load(kernels=True)
    keras.utils.set_random_seed(job.seed + keras_strom.rank())
    with job.strategy().scope():
        model = build(job.hidden, job.norm)
    x, y = data(job.rows, seed=1)
    if job.norm:
        x += 3
    fits = []
    pace, connection = Pace(job, folder), Connection()
    timed = [Timed(job.period, folder)] if job.period else []
    for number in range(job.fits):
        record = Record()
        history = model.fit(
            x,
            y,
            batch_size=job.batch,
            initial_epoch=job.initial_epoch,
            epochs=job.initial_epoch + job.epochs,
            verbose=0,
            callbacks=[record, pace, connection, *timed, *faults.callbacks(number)],
        )
        fits.append(
            {
                "epochs": history.epoch,
                # None of a worker that has come for the last epoch's end alone.
                "losses": len(history.history.get("loss", ())),
                "alphas": history.history.get("strom/alpha", []),
                "batches": list(record.batches.items()),
                "iterations": record.iterations,
                "states": list(record.states.items()),
            }
        )
    moved = [float(v.numpy().mean()) for v in model.non_trainable_variables if "mean" in v.name]
    test_x, test_y = data(TEST_ROWS, seed=2)
    _, accuracy = model.evaluate(test_x + 3 * job.norm, test_y, verbose=0)
    return {
        "attempt": attempt,
        "fits": fits,
        "steps": int(model.optimizer.iterations.numpy()),
        "accuracy": accuracy,
        "moved": moved,
        "memory": connection.memory,
        "account": connection.account,
        "weights": [v.numpy() for v in model.trainable_variables],
    }


@contextlib.contextmanager
def noting_what_is_left(folder: str) -> Iterator[None]:
    """Of a worker that drains: the mass of its residual after that, in a file left-RANK-ATTEMPT."""
    try:
        yield
    except SystemExit:
        replicas = [one for one in gc.get_objects() if isinstance(one, SharedStep)]
        left = sum(np.abs(step.residuals(step._space.size)).sum() for step in replicas)
        rank, attempt = keras_strom.rank(), os.environ["KERAS_STROM_ATTEMPT"]
        Path(folder, f"left-{rank}-{attempt}").write_text(repr(float(left)))
        raise


def main(folder: str, job: str, failing: str = "[]") -> None:
    """Trains as a script does and leaves the result in a file."""
    faults.from_json(failing)
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    rank = keras_strom.rank()
    with noting_what_is_left(folder):
        result = train(Job(**json.loads(job)), folder)
    np.savez(Path(folder, f"{rank}.npz"), *result.pop("weights"))
    Path(folder, f"{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
