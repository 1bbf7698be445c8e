"""Two workers go through several fits of one strategy; each writes what it saw.

Run by tests/strategy/test_lifecycle.py: lifecycle.py OUTPUT_FOLDER MAX_STALENESS ("None" or a
number)
"""

from __future__ import annotations

import dataclasses
import json
import logging
import pathlib
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import keras_strom
from tests.support.digest import digest

TAU = 2e-3
WARMUP_STEPS = 4


def build_dense(optimizer: str = "adam") -> keras.Model:
    """The model of the NumPy oracle."""
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(3)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
    return model


def build_with_state() -> keras.Model:
    """Has state that no optimizer trains, and a moving average of the parameters."""
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8),
            keras.layers.BatchNormalization(momentum=0.5),
            keras.layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.5)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
    return model


def build_embedding() -> keras.Model:
    """A table of which each step changes a few rows."""
    model = keras.Sequential(
        [
            keras.Input((2,), dtype="int32"),
            keras.layers.Embedding(40, 4),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.5), loss, jit_compile=False)
    return model


def data(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The same on every worker."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 6)).astype("float32")
    return x, random.integers(0, 3, rows)


def own_data(rows: int, seed: int) -> tf.data.Dataset:
    """A worker's own data, not to be sharded."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return tf.data.Dataset.from_tensor_slices(data(rows, seed)).batch(8).with_options(options)


class Record(keras.callbacks.Callback):
    """Keeps what a user's callback sees, before and after the average of an epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.own: list[dict[str, Any]] = []
        self.averaged: list[dict[str, Any]] = []

    def _state(self) -> dict[str, Any]:
        metrics = [v.numpy().tolist() for m in self.model.metrics for v in m.variables]
        state = [
            v.numpy().tolist() for v in self.model.non_trainable_variables if "moving" in v.path
        ]
        return {"metrics": metrics, "state": state}

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._latest = self._state()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.own.append(self._latest)
        self.averaged.append({**self._state(), "logs": dict(logs)})


class HashEveryStep(keras.callbacks.Callback):
    """Names the bits of the replica in the middle of training, after each of its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.hashes: list[str] = []
        self.shared: list[str] = []  # At the end of epochs, when all workers show the same.

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.hashes.append(self._hash())

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.shared.append(self._hash())

    def _hash(self) -> str:
        return digest(self.model.trainable_variables)


class StopOnTheChief(keras.callbacks.Callback):
    """Wants to stop after the second epoch, but only the chief's word counts."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._wanted_after = 1 if rank == 0 else 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == self._wanted_after:
            self.model.stop_training = True


class AssignOnce(keras.callbacks.Callback):
    """Changes a trained variable in the middle of training, which no worker should do."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 1:
            self.model.layers[0].bias.assign_add(np.full(16, 0.5, np.float32))


class Warnings(logging.Handler):
    """Collects the words of keras-strom's warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.words: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.words.append(record.getMessage())


class Follower(keras.Model):
    """A network that is trained, and two that a `train_step` has follow it."""

    def __init__(self) -> None:
        super().__init__()
        self.leader = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        self.follower = keras.models.clone_model(self.leader)
        self.frozen = keras.models.clone_model(self.leader)
        self.frozen.trainable = False

    def train_step(self, data: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.leader(data[0]) - 1))
        weights = self.leader.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        for behind in (self.follower, self.frozen):
            for mine, leaders in zip(behind.weights, self.leader.weights, strict=True):
                mine.assign(0.5 * mine + 0.5 * leaders)
        return {"loss": loss}


def train_in_turn(strategy: keras_strom.StromStrategy, rank: int) -> dict[str, Any]:
    """A custom loop whose even steps train one model and whose odd steps the other."""
    with strategy.scope():
        models = [build_dense(), build_dense()]
        optimizers = [keras.optimizers.SGD(0.5) for _ in models]
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.build(model.trainable_variables)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def make_step(model: keras.Model, optimizer: keras.Optimizer) -> Any:
        def train(x: tf.Tensor, y: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                value = loss(y, model(x, training=True))
            gradients = tape.gradient(value, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        return tf.function(lambda x, y: strategy.run(train, args=(x, y)))

    steps = [make_step(m, o) for m, o in zip(models, optimizers, strict=True)]
    strategy.begin(*models)
    before = [model.get_weights() for model in models]
    x, y = (tf.constant(a) for a in data(16, seed=30 + rank))
    for number in range(12):
        steps[number % 2](x, y)
    report = strategy.synchronize()
    moved = [
        any((a != b).any() for a, b in zip(start, model.get_weights(), strict=True))
        for start, model in zip(before, models, strict=True)
    ]
    weights = {f"loop/{m}/{i}": v for m in range(2) for i, v in enumerate(models[m].get_weights())}
    return {"report": dataclasses.asdict(report), "moved": moved, "weights": weights}


def main() -> None:
    """Runs every fit; the order is the same on all workers."""
    output, staleness = pathlib.Path(sys.argv[1]), sys.argv[2]
    rank = keras_strom.rank()
    strategy = keras_strom.StromStrategy(
        threshold=keras_strom.FixedThreshold(TAU),
        residual_clipping=None,
        warmup_steps=WARMUP_STEPS,
        # In lockstep replicas agree after every step then; elsewhere it is the default.
        local_apply="encoded" if staleness == "0" else "full",
        max_staleness=None if staleness == "None" else int(staleness),
    )
    keras.utils.set_random_seed(100 + rank)  # different: the chief's values must win
    result: dict[str, Any] = {"fits": []}
    weights: dict[str, np.ndarray] = {}

    def note(name: str, model: keras.Model, history: Any, **more: Any) -> None:
        result["fits"].append(
            {
                "name": name,
                "epochs": len(history.epoch),
                "history": history.history,
                "report": dataclasses.asdict(strategy.last_report),
                **more,
            }
        )
        for i, value in enumerate(model.get_weights()):
            weights[f"{name}/{i}"] = value

    with strategy.scope():
        model = build_dense()
    if rank == 0:
        weights |= {f"start/{i}": v for i, v in enumerate(model.get_weights())}
    x, y = data(96, seed=1)
    steps = HashEveryStep()
    fit = {"batch_size": 8, "shuffle": False, "verbose": 0}
    history = model.fit(x, y, epochs=2, callbacks=[steps], **fit)
    note("even", model, history, hashes=steps.hashes)
    model.layers[0].kernel.assign_add(tf.ones_like(model.layers[0].kernel) * (rank + 1) * 0.01)
    if rank == 0:
        weights |= {f"again_start/{i}": v for i, v in enumerate(model.get_weights())}
    note("again", model, model.fit(x, y, epochs=1, **fit))

    with strategy.scope():
        model = build_embedding()
    lookups = np.random.default_rng(2).integers(0, 40, (96, 2))
    note("embedding", model, model.fit(lookups, y, epochs=2, **fit))

    with strategy.scope():
        model = build_with_state()
    record = Record()
    history = model.fit(
        own_data(rows=80 if rank == 0 else 24, seed=10 + rank),
        epochs=2,
        verbose=2,
        validation_data=data(16, seed=3),
        callbacks=[record],
    )
    note("uneven", model, history, own=record.own, averaged=record.averaged)

    history = model.fit(
        own_data(rows=40, seed=20 + rank), epochs=50, verbose=0, callbacks=[StopOnTheChief(rank)]
    )
    note("stopped", model, history)

    # The loss falls, so the "best" epoch is the first: each worker restores what it had then.
    stopping = keras.callbacks.EarlyStopping(
        "loss", mode="max", patience=1, restore_best_weights=True
    )
    callbacks = [stopping] if rank == 0 else []
    history = model.fit(own_data(rows=40, seed=40), epochs=9, verbose=0, callbacks=callbacks)
    note("restored", model, history)
    if rank == 0:
        weights |= {f"best_start/{i}": v for i, v in enumerate(stopping.best_weights)}

    with strategy.scope():
        model = Follower()
        model.compile("adam", jit_compile=False)
    before = [model.follower.get_weights()[0], model.frozen.get_weights()[0]]
    note("followed", model, model.fit(x, y, epochs=2, **fit))
    after = [model.follower.get_weights()[0], model.frozen.get_weights()[0]]
    result["followed"] = [bool((a != b).all()) for a, b in zip(before, after, strict=True)]

    warnings = Warnings()
    logging.getLogger("keras_strom").addHandler(warnings)
    with strategy.scope():
        model = build_dense()
    callbacks = [AssignOnce()] if rank == 1 else []
    model.fit(x, y, batch_size=8, epochs=1, verbose=0, callbacks=callbacks)
    report = dataclasses.asdict(strategy.last_report)
    result["assigned"] = {"warnings": warnings.words, "report": report}
    weights |= {f"assigned/{i}": v for i, v in enumerate(model.get_weights())}

    result["loop"] = train_in_turn(strategy, rank)
    weights |= result["loop"].pop("weights")

    np.savez(output / f"{rank}.npz", **weights)
    (output / f"{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
