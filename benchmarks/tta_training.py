"""What the workers of `make bench-time-to-accuracy` run: one model on Fashion-MNIST, by any method.

Model, data, order, batches and optimizer are the same for all. Horovod and
MultiWorkerMirroredStrategy work with Keras 2 only (tf_keras), keras-strom with Keras 3; each trains
as its documentation says. keras-strom is given no option.

Nothing is evaluated while a model trains. At fixed steps, which are ends of `fit`'s epochs, the
parameters are copied (of keras-strom the ones that all workers share, as at any epoch's end), and
whoever has started the job tries them when it is over.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.horovod_training import Traffic, pictures
from benchmarks.models import cnn, mlp, wide_mlp

STROM = "keras-strom"
HOROVOD = "Horovod"
HOROVOD_FP16 = "Horovod, fp16"
MIRRORED = "MultiWorkerMirroredStrategy"
SILENT = "never talking"
MPCA = "MPCA"
SPARKNET = "SparkNet"
EASGD = "EASGD"
#: keras-strom's other methods, all with their defaults.
METHODS = (MPCA, SPARKNET, EASGD)
#: Its exact mode, which `make bench-exact` times: what travels is float32, or half of that.
EXACT = "exact mode"
EXACT_BFLOAT16 = "exact mode, bfloat16"
EXACT_DTYPES = {EXACT: "float32", EXACT_BFLOAT16: "bfloat16"}

BATCH = 64
PICTURES = 60_000
#: Steps that tell no time: in the first one a graph is traced, and the workers find each other.
WARM_UP_STEPS = 10
#: Of the hidden dense layer, by task.
UNITS = {"cnn": 128, "wide": 1280}
MLPS = {"mlp": mlp, "wide mlp": wide_mlp}

Parameters = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True)
class Rate:
    """A learning rate, as it is tuned.

    Attributes:
        alone: of one worker; the synchronous methods multiply it by their workers.
        warm_up: epochs in which Horovod's comes from one worker's up to that of all.
    """

    alone: float = 1e-3
    warm_up: int = 0


@dataclasses.dataclass(frozen=True)
class Training:
    """What every worker of one job does.

    Attributes:
        way: the method, one of `WAYS`.
        task: one of `UNITS` or of `MLPS`.
        workers: how many.
        seed: of initial weights and order.
        rate: the learning rate.
        marks: the steps after which the parameters are copied, ascending; training ends with the
            last one.
        step_seconds: no step is shorter; who has done one earlier sleeps.
        copies: False copies nothing, and only times.
        batch: examples of a worker's step.
        optimizer: of keras-strom's methods and of Horovod, a class of keras.optimizers.
    """

    way: str
    task: str
    workers: int
    seed: int
    rate: Rate
    marks: tuple[int, ...]
    step_seconds: float = 0.0
    copies: bool = True
    batch: int = BATCH
    optimizer: str = "Adam"

    @property
    def epoch_steps(self) -> int:
        """Steps of each worker in which all pictures are seen once."""
        return steps_per_epoch(self.workers)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where one worker is.

    Attributes:
        rank: its number.
        folder: for its copies.
        traffic: counts what all nodes send.
    """

    rank: int
    folder: str
    traffic: Traffic


@dataclasses.dataclass(frozen=True)
class Course:
    """How a training went on one worker.

    The clock is that of the whole machine, and starts with the end of the warm-up.

    Attributes:
        steps: the marks.
        seconds: from the end of the warm-up to each.
        sent_bytes: by all nodes in that time, with all headers.
        cycle_seconds: of the last cycle before each, of the methods that have cycles.
        last_step_seconds: to the end of the last step, after which an epoch's end follows.
    """

    steps: tuple[int, ...]
    seconds: tuple[float, ...]
    sent_bytes: tuple[float, ...]
    cycle_seconds: tuple[float, ...] = ()
    last_step_seconds: float = math.nan

    def to_json(self) -> str:
        """One line."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Course:
        """Reads `to_json`'s text."""
        told = json.loads(text).items()
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in told})


def steps_per_epoch(workers: int) -> int:
    """Whole batches of each worker's share of the pictures."""
    return PICTURES // workers // BATCH


def copies_path(folder: str, rank: int) -> pathlib.Path:
    """The file with a worker's copies: float32 [marks, parameters]."""
    return pathlib.Path(folder) / f"{rank}.npy"


# ------------------------------------------------------------------ the methods


def train_strom(training: Training, place: Place) -> Course:
    """One worker of keras-strom, with all defaults of its method."""
    import keras

    import keras_strom

    method = None
    if training.way in METHODS:
        method = getattr(keras_strom, training.way)()
    elif training.way in EXACT_DTYPES:
        method = keras_strom.AllReduce(dtype=EXACT_DTYPES[training.way])
    keras.utils.set_random_seed(training.seed)
    with keras_strom.StromStrategy(method=method).scope():
        optimizer = getattr(keras.optimizers, training.optimizer)(training.rate.alone)
        model = compiled(keras, training.task, optimizer)
    return fit(keras, model, training, place, data=kept_whole(share(training, place.rank)))


def train_horovod(training: Training, place: Place) -> Course:
    """One worker of Horovod: its optimizer and callbacks, and a scaled learning rate."""
    import tf_keras as keras

    # Where Horovod says `keras` it means Keras 2, which it was then.
    sys.modules["keras"] = keras
    import horovod.tensorflow.keras as hvd

    hvd.init()
    keras.utils.set_random_seed(training.seed + hvd.rank())
    packed = training.way == HOROVOD_FP16
    scaled = training.rate.alone * hvd.size()
    optimizer = hvd.DistributedOptimizer(
        getattr(keras.optimizers, training.optimizer)(scaled),
        compression=hvd.Compression.fp16 if packed else hvd.Compression.none,
    )
    model = compiled(keras, training.task, optimizer)
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    if training.rate.warm_up:
        parts = training.epoch_steps // part_steps(training)
        callbacks.append(
            hvd.callbacks.LearningRateWarmupCallback(
                initial_lr=scaled,
                warmup_epochs=training.rate.warm_up * parts,
                steps_per_epoch=part_steps(training),
            )
        )
    data = share(training, place.rank)
    return fit(keras, model, training, place, data=data, callbacks=callbacks)


def train_mirrored(training: Training, place: Place) -> Course:
    """One worker of MultiWorkerMirroredStrategy; TF_CONFIG names the others."""
    import tensorflow as tf
    import tf_keras as keras

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    workers = strategy.num_replicas_in_sync
    keras.utils.set_random_seed(training.seed)
    data = strategy.distribute_datasets_from_function(
        lambda context: share(training, context.input_pipeline_id)
    )
    with strategy.scope():
        optimizer = keras.optimizers.Adam(training.rate.alone * workers)
        model = compiled(keras, training.task, optimizer)
    return fit(keras, model, training, place, data=data)


def train_silent(training: Training, place: Place) -> Course:
    """Plain Keras on a worker's share; nobody hears of it."""
    import keras

    keras.utils.set_random_seed(training.seed)
    model = compiled(keras, training.task, keras.optimizers.Adam(training.rate.alone))
    return fit(keras, model, training, place, data=share(training, place.rank))


#: By the names in the report.
WAYS: Mapping[str, Callable[[Training, Place], Course]] = {
    STROM: train_strom,
    **dict.fromkeys((*METHODS, *EXACT_DTYPES), train_strom),
    HOROVOD: train_horovod,
    HOROVOD_FP16: train_horovod,
    MIRRORED: train_mirrored,
    SILENT: train_silent,
}
#: Those that learn the same on any line, step by step, for everybody waits for everybody.
SYNCHRONOUS = (HOROVOD, HOROVOD_FP16, MIRRORED)

# ------------------------------------------------------------------ what they share


def compiled(keras: Any, task: str, optimizer: Any) -> Any:
    """The task's model in either Keras."""
    model = MLPS[task](keras) if task in MLPS else cnn(keras, UNITS[task])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def share(training: Training, rank: int) -> Any:
    """A worker's every K-th picture in batches, in another order each time, without end."""
    import tensorflow as tf

    x, y = pictures("train", PICTURES)
    x, y = x[rank :: training.workers], y[rank :: training.workers]
    images, labels = tf.constant(x), tf.constant(y)
    order = tf.data.Dataset.range(len(x)).shuffle(len(x), seed=1000 * training.seed + rank)
    batches = order.batch(training.batch, drop_remainder=True).repeat()
    return batches.map(lambda rows: (tf.gather(images, rows), tf.gather(labels, rows)))


def kept_whole(dataset: Any) -> Any:
    """The dataset, of which keras-strom is to take no share, for it is one."""
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(options)


def part_steps(training: Training) -> int:
    """Steps of one epoch of `fit`, so short that every mark is an epoch's end."""
    return math.gcd(*training.marks)


def fit(
    keras: Any,
    model: Any,
    training: Training,
    place: Place,
    *,
    data: Any,
    callbacks: list[Any] | None = None,
) -> Course:
    """Trains, watching the clock and the line; the chief, or who trains alone, copies."""
    watch = _watch(keras, training, place)
    model.fit(
        data,
        steps_per_epoch=part_steps(training),
        epochs=training.marks[-1] // part_steps(training),
        callbacks=[*(callbacks or ()), watch],
        verbose=0,
    )
    if watch.copies:
        np.save(copies_path(place.folder, place.rank), np.stack(watch.copies))
    return watch.course()


def _watch(keras: Any, training: Training, place: Place) -> Any:
    """A callback of either Keras."""
    copies = training.copies and (place.rank == 0 or training.way == SILENT)

    class Watch(keras.callbacks.Callback):  # type: ignore[misc]
        """Notes time and bytes at the marks, copies parameters, and sleeps out short steps."""

        def __init__(self) -> None:
            super().__init__()
            self.copies: list[Parameters] = []
            self._noted: list[tuple[float, int]] = []
            self._cycles: list[float] = []
            self._steps = 0
            self._step_end = -math.inf

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self._sleep_out()
            self._steps += 1
            if self._steps == WARM_UP_STEPS:
                self._note()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if self._steps in training.marks:
                self._note()
                self._cycles.append((logs or {}).get("strom/cycle_seconds", 0.0))
                if copies:
                    weights = [np.ravel(one) for one in self.model.get_weights()]
                    self.copies.append(np.concatenate(weights))

        def course(self) -> Course:
            begin, sent_before = self._noted[0]
            return Course(
                training.marks,
                tuple(now - begin for now, _ in self._noted[1:]),
                tuple(float(sent - sent_before) for _, sent in self._noted[1:]),
                tuple(self._cycles),
                self._step_end - begin,
            )

        def _note(self) -> None:
            self._noted.append((time.monotonic(), place.traffic.sent_bytes()))

        def _sleep_out(self) -> None:
            left = self._step_end + training.step_seconds - time.monotonic()
            if left > 0:
                time.sleep(left)
            self._step_end = time.monotonic()

    return Watch()


def main(text: str) -> None:
    """One worker: `python -m benchmarks.tta_training JSON`; its last line is its course."""
    values = json.loads(text)
    told, place = values["training"], values["place"]
    traffic = Traffic(tuple(place["traffic"]["command"]), place["traffic"]["interfaces"])
    rate = Rate(**told.pop("rate"))
    training = Training(**{**told, "rate": rate, "marks": tuple(told["marks"])})
    course = WAYS[training.way](training, Place(place["rank"], place["folder"], traffic))
    sys.stdout.write(course.to_json() + "\n")
    sys.stdout.flush()


def arguments(training: Training, place: Place) -> list[str]:
    """What follows the name of a Python to run a worker."""
    told = {"training": dataclasses.asdict(training), "place": dataclasses.asdict(place)}
    return ["-m", "benchmarks.tta_training", json.dumps(told)]


if __name__ == "__main__":
    main(sys.argv[1])
