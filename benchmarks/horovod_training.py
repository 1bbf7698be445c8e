"""What the workers of `make bench-horovod` run: one CNN on Fashion-MNIST, trained in several ways.

Model, data, batches and optimizer are the same for all. Horovod and MultiWorkerMirroredStrategy
work with Keras 2 only (tf_keras), keras-strom with Keras 3; each trains as its documentation says.
Steps are measured from the end of the `WARM_UP_STEPS`th to the end of the last one: what happens
once in a `fit` is left out.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import runpy
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.models import cnn

ROOT = pathlib.Path(__file__).resolve().parents[1]
LEARNING_RATE = 1e-3
#: Steps of two workers, 64 pictures each, with which all 60000 are seen once.
STEPS = 468
#: Steps that do not count: in the first one a graph is traced, and the workers find each other.
WARM_UP_STEPS = 10

STROM = "keras-strom"
HOROVOD = "Horovod"
MIRRORED = "MultiWorkerMirroredStrategy"
ALONE = "plain Keras 3"
ALONE_TF_KERAS = "plain tf_keras"

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int32]


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Counts the bytes that all nodes have sent, as any process may ask.

    Attributes:
        command: prints a /proc/net/dev.
        interfaces: how the names of those begin that everything sent comes in by.

    Example:
        >>> Traffic().sent_bytes() >= 0
        True
    """

    command: tuple[str, ...] = ("cat", "/proc/net/dev")
    interfaces: str = "lo"

    def sent_bytes(self) -> int:
        """So far, with all headers."""
        text = subprocess.run(self.command, capture_output=True, text=True, check=True).stdout
        lines = (line.split(":") for line in text.splitlines() if ":" in line)
        return sum(
            int(counts.split()[0])
            for name, counts in lines
            if name.strip().startswith(self.interfaces)
        )


@dataclasses.dataclass(frozen=True)
class Training:
    """What every worker of one job does.

    Attributes:
        steps: of each worker; more than `WARM_UP_STEPS`.
        batch: pictures a step and worker.
        seed: of initial weights and order.
        judged: whether the model is tried on the test pictures.
        traffic: what is counted.
    """

    steps: int = STEPS
    batch: int = 64
    seed: int = 1
    judged: bool = True
    traffic: Traffic = Traffic()

    def pictures(self, workers: int) -> tuple[Floats, Labels]:
        """What so many workers see together."""
        return pictures("train", self.steps * self.batch * workers)


@dataclasses.dataclass(frozen=True)
class Trained:
    """How it went on the slowest worker.

    Attributes:
        steps: that were measured.
        step_seconds: a step, on average.
        step_bytes: sent by all nodes in a step of it, on average.
        accuracy: on the 10000 test pictures; None = not tried.
    """

    steps: int
    step_seconds: float
    step_bytes: float
    accuracy: float | None

    @classmethod
    def slowest(cls, workers: Iterable[Trained]) -> Trained:
        """The one that all others have to wait for, or that learns least."""
        return max(workers, key=lambda one: one.step_seconds)

    def to_json(self) -> str:
        """One line."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Trained:
        """Reads `to_json`'s text."""
        return cls(**json.loads(text))


# ------------------------------------------------------------------ the five ways


def train_strom(training: Training) -> Trained:
    """One worker of keras-strom, with all defaults; `fit` takes its share of the data."""
    import keras

    import keras_strom
    from keras_strom import StromStrategy

    keras.utils.set_random_seed(training.seed)
    x, y = training.pictures(keras_strom.size())
    with StromStrategy().scope():
        model = compiled(keras, keras.optimizers.Adam(LEARNING_RATE))
    return fit(keras, model, training, x=x, y=y, batch_size=training.batch)


def train_horovod(training: Training) -> Trained:
    """One worker of Horovod: its optimizer and callbacks, a share of the data, a scaled rate."""
    import tf_keras as keras

    # Where Horovod says `keras` it means Keras 2, which it was then.
    sys.modules["keras"] = keras
    import horovod.tensorflow.keras as hvd

    hvd.init()
    keras.utils.set_random_seed(training.seed + hvd.rank())
    x, y = training.pictures(hvd.size())
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(LEARNING_RATE * hvd.size()))
    model = compiled(keras, optimizer)
    return fit(
        keras,
        model,
        training,
        x=x[hvd.rank() :: hvd.size()],
        y=y[hvd.rank() :: hvd.size()],
        batch_size=training.batch,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
        ],
    )


def train_mirrored(training: Training) -> Trained:
    """One worker of MultiWorkerMirroredStrategy; TF_CONFIG names the others."""
    import tensorflow as tf
    import tf_keras as keras

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    workers = strategy.num_replicas_in_sync
    keras.utils.set_random_seed(training.seed)
    x, y = training.pictures(workers)
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=training.seed)
    data = data.batch(training.batch * workers)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    with strategy.scope():
        model = compiled(keras, keras.optimizers.Adam(LEARNING_RATE * workers))
    return fit(keras, model, training, x=data.with_options(options))


def train_alone(training: Training) -> Trained:
    """One process, Keras 3 as it is."""
    import keras

    return _train_plainly(keras, training)


def train_alone_tf_keras(training: Training) -> Trained:
    """One process, Keras 2 as it is."""
    import tf_keras

    return _train_plainly(tf_keras, training)


def _train_plainly(keras: Any, training: Training) -> Trained:
    keras.utils.set_random_seed(training.seed)
    x, y = training.pictures(1)
    model = compiled(keras, keras.optimizers.Adam(LEARNING_RATE))
    return fit(keras, model, training, x=x, y=y, batch_size=training.batch)


#: By the names in the report.
WAYS: dict[str, Callable[[Training], Trained]] = {
    STROM: train_strom,
    HOROVOD: train_horovod,
    MIRRORED: train_mirrored,
    ALONE: train_alone,
    ALONE_TF_KERAS: train_alone_tf_keras,
}

# ------------------------------------------------------------------ what they share


def compiled(keras: Any, optimizer: Any) -> Any:
    """The CNN of examples/fashion_mnist.py, 225034 parameters, in either Keras."""
    model = cnn(keras)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def fit(keras: Any, model: Any, training: Training, **options: Any) -> Trained:
    """Trains, watching the clock and the line, and judges a plain copy of the model."""
    marks: list[tuple[float, int]] = []

    class Clock(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch + 1 in (WARM_UP_STEPS, training.steps):
                marks.append((time.monotonic(), training.traffic.sent_bytes()))

    callbacks = [*options.pop("callbacks", ()), Clock()]
    model.fit(**options, callbacks=callbacks, verbose=0)
    (begin, sent_before), (end, sent) = marks
    steps = training.steps - WARM_UP_STEPS
    accuracy = judge(keras, model) if training.judged else None
    return Trained(steps, (end - begin) / steps, (sent - sent_before) / steps, accuracy)


def judge(keras: Any, model: Any) -> float:
    """The accuracy of a plain copy of the model on the test pictures."""
    copy = compiled(keras, keras.optimizers.SGD())
    copy.set_weights(model.get_weights())
    _, accuracy = copy.evaluate(*pictures("t10k", 10_000), batch_size=1000, verbose=0)
    return float(accuracy)


@functools.cache
def pictures(split: str, count: int) -> tuple[Floats, Labels]:
    """The first `count` of "train" or "t10k": float32 [n, 28, 28, 1] in 0 to 1, int32 [n]."""
    path = ROOT / "examples" / "fashion_mnist_data.py"
    train, test = runpy.run_path(os.fspath(path))["load_fashion_mnist"]()
    images, labels = train if split == "train" else test
    scaled = images[:count, ..., np.newaxis].astype(np.float32) / 255
    return scaled, labels[:count].astype(np.int32)
