"""Trainings that show what an option of StromStrategy does: in the process, and on two workers."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_strom.strategy.strategy import StromStrategy
from tests.support.scripts import options as script
from tests.support.two_workers import results, run_two_workers, weights

ROWS = 8


def seeded(strategy: StromStrategy | None, optimizer: Callable[[], Any]) -> keras.Model:
    """The same small compiled model each time, in the strategy's scope if there is one."""
    keras.utils.set_random_seed(7)
    with strategy.scope() if strategy else contextlib.nullcontext():
        layers = [keras.Input((5,)), keras.layers.Dense(8, activation="tanh")]
        model = keras.Sequential([*layers, keras.layers.Dense(2)])
        model.compile(optimizer(), "mse", jit_compile=False)
    return model


def data(batches: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Random x and y for it, `ROWS` a batch."""
    random = np.random.default_rng(3)
    x, y = random.normal(size=(ROWS * batches, 5)), random.normal(size=(ROWS * batches, 2))
    return x.astype(np.float32), y.astype(np.float32)


def table_with_steps(strategy: StromStrategy) -> tuple[keras.Variable, Callable[[int], None]]:
    """A table of zeros [6, 2], and a step that takes 1 from both elements of a row."""
    with strategy.scope():
        table = keras.Variable(np.zeros((6, 2)), dtype="float32")
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build([table])

    @tf.function
    def step(row: Any) -> None:
        gradient = tf.IndexedSlices(tf.ones([1, 2]), row[tf.newaxis], tf.constant([6, 2]))
        strategy.run(lambda: optimizer.apply([gradient], [table]))

    return table, lambda row: step(tf.constant(row))


def on_two_workers(
    mode: str, options: Mapping[str, Any]
) -> list[tuple[dict[str, Any], list[np.ndarray]]]:
    """What both workers of a job have written: figures, and weights.

    Args:
        mode: max_staleness, "None" or a number.
        options: others of the strategy.
    """
    with tempfile.TemporaryDirectory() as folder:
        run_two_workers(Path(script.__file__), folder, mode, json.dumps(options))
        arrays = [list(worker.values()) for worker in weights(folder)]
        return list(zip(results(folder), arrays, strict=True))
