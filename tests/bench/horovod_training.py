"""What the workers of `make bench-horovod` run: one CNN on Fashion-MNIST, trained in several ways.

Model, data, batches and optimizer are the same for all. Horovod and MultiWorkerMirroredStrategy
work with Keras 2 only (tf_keras), keras-strom with Keras 3; each trains as its documentation says.
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
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.bench.models import cnn

ROOT = pathlib.Path(__file__).resolve().parents[2]
LEARNING_RATE = 1e-3

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
        epochs: passes over the pictures, of all workers together.
        batch: pictures a step and worker.
        seed: of initial weights and order.
        pictures: of 60000; fewer for a quick look.
        traffic: what is counted.
    """

    epochs: int = 3
    batch: int = 64
    seed: int = 1
    pictures: int = 60_000
    traffic: Traffic = Traffic()


@dataclasses.dataclass(frozen=True)
class Trained:
    """How it went on the first worker.

    Attributes:
        epoch_seconds: of every epoch but the first, which also traces and begins; of that if there
            is no other.
        fit_seconds: of `fit` as a whole.
        sent_bytes: by all nodes, from the start of `fit` to its end.
        accuracy: on the 10000 test pictures.
    """

    epoch_seconds: tuple[float, ...]
    fit_seconds: float
    sent_bytes: int
    accuracy: float

    def to_json(self) -> str:
        """One line."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Trained:
        """Reads `to_json`'s text."""
        values = json.loads(text)
        return cls(epoch_seconds=tuple(values.pop("epoch_seconds")), **values)


# ------------------------------------------------------------------ the five ways


def train_strom(training: Training) -> Trained:
    """One worker of keras-strom, with all defaults; `fit` takes its share of the data."""
    import keras

    from keras_strom import StromStrategy

    keras.utils.set_random_seed(training.seed)
    x, y = pictures("train", training.pictures)
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
    x, y = pictures("train", training.pictures)
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
    data = tf.data.Dataset.from_tensor_slices(pictures("train", training.pictures))
    data = data.shuffle(training.pictures, seed=training.seed).batch(training.batch * workers)
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
    x, y = pictures("train", training.pictures)
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
    ends: list[float] = []

    class Clock(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            ends.append(time.monotonic())

    callbacks = [*options.pop("callbacks", ()), Clock()]
    sent, begin = training.traffic.sent_bytes(), time.monotonic()
    model.fit(**options, epochs=training.epochs, callbacks=callbacks, verbose=0)
    fit_seconds = time.monotonic() - begin
    sent = training.traffic.sent_bytes() - sent
    epochs = [end - before for before, end in zip([begin, *ends], ends, strict=False)]
    judge = compiled(keras, keras.optimizers.SGD())
    judge.set_weights(model.get_weights())
    _, accuracy = judge.evaluate(*pictures("t10k", 10_000), batch_size=1000, verbose=0)
    return Trained(tuple(epochs[1:] or epochs), fit_seconds, sent, float(accuracy))


@functools.cache
def pictures(split: str, count: int) -> tuple[Floats, Labels]:
    """The first `count` of "train" or "t10k": float32 [n, 28, 28, 1] in 0 to 1, int32 [n]."""
    path = ROOT / "examples" / "fashion_mnist_data.py"
    train, test = runpy.run_path(os.fspath(path))["load_fashion_mnist"]()
    images, labels = train if split == "train" else test
    scaled = images[:count, ..., np.newaxis].astype(np.float32) / 255
    return scaled, labels[:count].astype(np.int32)
