"""ParameterAveraging in `make bench-methods`: the driver of a Spark job.

Rounds are jobs of a standalone cluster whose every worker is a machine. The model is the MLP of the
other methods behind a layer that sleeps its steps out; the callback that copies runs in the driver,
which holds the average.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import sys
import tempfile
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.horovod_training import Traffic, pictures
from benchmarks.spark_cluster import spark_session
from benchmarks.tta_training import BATCH, PICTURES, WARM_UP_STEPS, Course, copies_path

#: Steps of each worker between two averages: what ParameterAveraging's users begin with.
FREQUENCY = 10
_FILES = 16


@dataclasses.dataclass(frozen=True)
class Job:
    """One training.

    Attributes:
        workers: K.
        seed: of initial weights and order.
        rate: of Adam.
        marks: the steps after which the parameters are copied, ascending.
        step_seconds: no step is shorter.
        master: Spark's.
        address: the driver's.
        folder: for the copies.
        command, interfaces: of what counts the bytes that all nodes send.
    """

    workers: int
    seed: int
    rate: float
    marks: tuple[int, ...]
    step_seconds: float
    master: str
    address: str
    folder: str
    command: tuple[str, ...]
    interfaces: str

    def arguments(self) -> list[str]:
        """What follows the name of a Python to run the driver; its last line is the course."""
        return ["-m", "benchmarks.methods_averaging", json.dumps(dataclasses.asdict(self))]

    def run(self) -> Course:
        """Trains, and leaves the copies as the workers of the other methods do."""
        from keras_strom.spark import ParameterAveraging, StromEstimator

        outcome = pathlib.Path(self.folder) / "course.json"
        with (
            spark_session("bench-methods", self.master, self.address) as session,
            tempfile.TemporaryDirectory(prefix="strom-rows-") as rows,
        ):
            write_rows(pathlib.Path(rows), self.seed)
            per_epoch = PICTURES // self.workers // BATCH
            keras.utils.set_random_seed(self.seed)
            estimator = StromEstimator(
                model=model(self.step_seconds),
                optimizer=keras.optimizers.Adam(self.rate),
                loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                feature_cols=["pixels"],
                label_cols=["label"],
                batch_size=BATCH,
                epochs=-(-self.marks[-1] // per_epoch),
                train_steps_per_epoch=per_epoch,
                callbacks=functools.partial(_callbacks, self, per_epoch, os.fspath(outcome)),
                custom_objects={"SleptOut": SleptOut},
                random_seed=self.seed,
                training=ParameterAveraging(averaging_frequency=FREQUENCY),
                num_proc=self.workers,
                verbose=0,
            )
            estimator.fit_on_parquet(rows, spark=session)
        return Course.from_json(outcome.read_text(encoding="ascii"))


def write_rows(folder: pathlib.Path, seed: int) -> None:
    """All pictures as rows of Parquet files, in a random order."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    x, y = pictures("train", PICTURES)
    order = np.random.default_rng(seed).permutation(len(x))
    for number, part in enumerate(np.array_split(order, _FILES)):
        pixels = pa.FixedSizeListArray.from_arrays(x[part].ravel(), x[0].size)
        table = pa.table({"pixels": pixels, "label": y[part]})
        pq.write_table(table, folder / f"{number:02}.parquet", row_group_size=512)


class SleptOut(keras.layers.Layer):  # type: ignore[misc]
    """Has a training step last so many seconds at least; its values pass as they are."""

    def __init__(self, seconds: float, **options: Any) -> None:
        super().__init__(**options)
        self._seconds = seconds

    def call(self, values: Any, training: bool | None = None) -> Any:
        """The values, a step later in training."""
        if not training:
            return values
        slept = tf.numpy_function(functools.partial(_sleep_out, self._seconds), [], tf.float32)
        with tf.control_dependencies([slept]):
            return tf.identity(values)

    def get_config(self) -> dict[str, Any]:
        """What Keras saves."""
        return {**super().get_config(), "seconds": self._seconds}


def _sleep_out(seconds: float, clock: list[float] = [0.0]) -> np.float32:  # noqa: B006
    left = clock[0] + seconds - time.monotonic()
    if left > 0:
        time.sleep(left)
    clock[0] = time.monotonic()
    return np.float32(0)


def model(step_seconds: float) -> Any:
    """`benchmarks.models.mlp`, of flat pictures and behind a layer that sleeps."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((784,)),
            SleptOut(step_seconds),
            layers.Dense(1024, activation="relu"),
            layers.Dense(256, activation="relu"),
            layers.Dense(10),
        ]
    )


class Watch(keras.callbacks.Callback):  # type: ignore[misc]
    """Notes time and bytes at the first average at or after each mark, and copies it."""

    def __init__(self, job: Job, per_epoch: int, outcome: str) -> None:
        super().__init__()
        self._job = job
        self._per_epoch = per_epoch
        self._outcome = pathlib.Path(outcome)
        self._traffic = Traffic(tuple(job.command), job.interfaces)
        self._epoch = 0
        self._noted: list[tuple[float, int]] = []
        self._copies: list[Any] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes which one."""
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """A round has ended."""
        steps = self._epoch * self._per_epoch + batch + 1
        marks = (WARM_UP_STEPS, *self._job.marks)
        while len(self._noted) < len(marks) and steps >= marks[len(self._noted)]:
            if self._noted:
                weights = [np.ravel(one) for one in self.model.get_weights()]
                self._copies.append(np.concatenate(weights))
            self._noted.append((time.monotonic(), self._traffic.sent_bytes()))
        if len(self._noted) == len(marks):
            self.model.stop_training = True

    def on_train_end(self, logs: Any = None) -> None:
        """Leaves course and copies."""
        begin, sent_before = self._noted[0]
        course = Course(
            self._job.marks,
            tuple(now - begin for now, _ in self._noted[1:]),
            tuple(float(sent - sent_before) for _, sent in self._noted[1:]),
        )
        np.save(copies_path(self._job.folder, 0), np.stack(self._copies))
        self._outcome.write_text(course.to_json(), encoding="ascii")


def _callbacks(job: Job, per_epoch: int, outcome: str) -> list[Any]:
    return [Watch(job, per_epoch, outcome)]


def main(text: str) -> None:
    """The driver: `python -m benchmarks.methods_averaging JSON`."""
    values = json.loads(text)
    values |= {name: tuple(values[name]) for name in ("marks", "command")}
    sys.stdout.write(Job(**values).run().to_json() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    # By its own name, under which Spark's workers find what they are given.
    from benchmarks import methods_averaging

    methods_averaging.main(sys.argv[1])
