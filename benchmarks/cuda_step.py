"""What a training step on a GPU costs under StromStrategy, against plain Keras on the same card.

A CNN and a transformer block of 100 million parameters train with `fit` on the same arrays: under
plain Keras, under TensorFlow's own OneDeviceStrategy, as a lone worker, which shares nothing, and
with `always_encode=True`, where every step makes its messages, as a worker among others does.
That worker's steps stay on the card, or go by way of the host (`KERAS_STROM_GPU_STEP=off`). No way
is compiled by XLA, which Keras chooses by itself for plain `fit`: `--xla` adds what that takes.

Each way has a process of its own on the one card; they take turns, a block of steps each, round
after round. What counts is the time from the end of a block's second step to the end of its last
one, each of which is read from the card. A figure is the median of the rounds' ratios to plain
Keras; its interval is the bootstrap's 95 % of that median.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import multiprocessing.connection
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks import pictures, processes, report
from benchmarks.step import Ratio
from keras_strom.sharing.threshold import AdaptiveThreshold
from keras_strom.strategy.strategy import StromStrategy

#: Steps at the start of a block that do not count.
SKIPPED = 2

PLAIN = "plain Keras"
XLA = "plain Keras, compiled by XLA"
ONE_DEVICE = "OneDeviceStrategy"
LONE = "keras-strom, a lone worker"
ON_CARD = "keras-strom, on the card"
BY_HOST = "keras-strom, by the host"
WAYS = (PLAIN, ONE_DEVICE, LONE, ON_CARD, BY_HOST)
COLORS = {
    XLA: pictures.GREY,
    ONE_DEVICE: pictures.GREY,
    LONE: pictures.GREY,
    ON_CARD: pictures.ORANGE,
    BY_HOST: pictures.SKY,
}


@dataclasses.dataclass(frozen=True)
class Workload:
    """A model and how it is trained.

    Attributes:
        title: for people.
        build: makes the uncompiled model.
        inputs: the shape of one example.
        tokens: inputs are numbers below it; 0: they are any numbers.
        batch: rows.
        steps: of a block.
    """

    title: str
    build: Callable[[], keras.Model]
    inputs: tuple[int, ...]
    tokens: int
    batch: int
    steps: int


def cnn() -> keras.Model:
    """Four pairs of convolutions with BatchNormalization, 32x32x3 to ten classes: 4.7 million."""
    layers = keras.layers
    model = keras.Sequential([keras.Input((32, 32, 3))])
    for filters in (64, 128, 256, 512):
        for _ in range(2):
            model.add(layers.Conv2D(filters, 3, padding="same", use_bias=False))
            model.add(layers.BatchNormalization())
            model.add(layers.Activation("relu"))
        model.add(layers.MaxPooling2D())
    model.add(layers.GlobalAveragePooling2D())
    model.add(layers.Dense(10))
    return model


def transformer_block(width: int = 2880, heads: int = 20, tokens: int = 512) -> keras.Model:
    """Attention and two dense layers with normalization before each: 12 width^2 parameters."""
    layers = keras.layers
    inputs = keras.Input((tokens,), dtype="int32")
    x = layers.Embedding(1000, width, trainable=False)(inputs)
    normal = layers.LayerNormalization()(x)
    x = x + layers.MultiHeadAttention(heads, width // heads)(normal, normal)
    normal = layers.LayerNormalization()(x)
    x = x + layers.Dense(width)(layers.Dense(4 * width, "gelu")(normal))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


WORKLOADS = {
    "cnn": Workload("a CNN of 4.7 million parameters", cnn, (32, 32, 3), 0, 512, 40),
    "transformer": Workload(
        "a transformer block of 100 million parameters", transformer_block, (512,), 1000, 32, 20
    ),
}


def compiled(name: str, way: str) -> keras.Model:
    """The workload's model in the scope of the way's strategy."""
    scope: Any = contextlib.nullcontext()
    if way == ONE_DEVICE:
        scope = tf.distribute.OneDeviceStrategy("/gpu:0").scope()
    elif way == LONE:
        scope = StromStrategy(devices="/gpu:0").scope()
    elif way in (ON_CARD, BY_HOST):
        os.environ["KERAS_STROM_GPU_STEP"] = "on" if way == ON_CARD else "off"
        # Near what settles after some hundred steps, for which there is no time here.
        threshold = AdaptiveThreshold(min_density=8e-4, max_density=1.2e-3, factor=0.8)
        strategy = StromStrategy(devices="/gpu:0", always_encode=True, threshold=threshold)
        scope = strategy.scope()
    with scope:
        model = WORKLOADS[name].build()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        jit = {} if way in (LONE, ON_CARD, BY_HOST) else {"jit_compile": way == XLA}
        model.compile(keras.optimizers.Adam(1e-4), loss, **jit)
    return model


def _serve(pipe: multiprocessing.connection.Connection, name: str, way: str) -> None:
    """Answers each message with what a step of a block took, until the other end is closed."""
    for card in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(card, True)
    workload = WORKLOADS[name]
    random = np.random.default_rng(1)
    shape = (workload.batch * workload.steps, *workload.inputs)
    x = random.normal(size=shape).astype(np.float32)
    if workload.tokens:
        x = random.integers(0, workload.tokens, shape, dtype=np.int32)
    y = random.integers(0, 10, len(x), dtype=np.int32)
    keras.utils.set_random_seed(1)
    model = compiled(name, way)
    with contextlib.suppress(EOFError):
        while pipe.recv():
            clock = _StepClock(workload.steps)
            model.fit(x, y, batch_size=workload.batch, shuffle=False, verbose=0, callbacks=[clock])
            pipe.send(clock.per_step())


class _StepClock(keras.callbacks.Callback):  # type: ignore[misc]
    """Notes the time after a block's second and last step, once the card has done them."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps
        self._times: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch + 1 in (SKIPPED, self._steps):
            float(logs["loss"])
            self._times.append(time.perf_counter())

    def per_step(self) -> float:
        """Seconds."""
        first, last = self._times
        return (last - first) / (self._steps - SKIPPED)


def measure(
    name: str, ways: Sequence[str], result: report.Report, rounds: int, warm_ups: int
) -> None:
    """Adds a workload's rows and target."""
    workload = WORKLOADS[name]
    with contextlib.ExitStack() as stack:
        asked = {way: stack.enter_context(processes.Asked(_serve, name, way)).ask for way in ways}
        timings = report.interleave(asked, rounds=rounds, warm_ups=warm_ups)
    for way, taken in timings.rounds.items():
        ratio = Ratio.of(taken, timings.rounds[PLAIN])
        result.row(
            way,
            group=workload.title,
            step_ms=1e3 * statistics.median(taken),
            ratio=ratio.median,
            low=ratio.low,
            high=ratio.high,
        )
        if way == ON_CARD:
            result.target(f"gpu_step_{name}", ratio.median, goal=1.02, better="lower")


def draw(result: report.Report) -> None:
    """Bars of the ratios with their intervals, a panel a workload."""
    groups = list(dict.fromkeys(row["group"] for row in result.rows))
    figure, panels = pictures.picture(len(groups), width=5.5, height=3.2)
    for axes, group in zip(panels, groups, strict=True):
        rows = [row for row in result.rows if row["group"] == group and row["name"] != PLAIN]
        for y, row in enumerate(reversed(rows)):
            over = 100 * (row["ratio"] - 1)
            errors = [[100 * (row["ratio"] - row["low"])], [100 * (row["high"] - row["ratio"])]]
            axes.barh(y, over, 0.6, color=COLORS[row["name"]], xerr=errors, ecolor=pictures.BLACK)
            pictures.label(axes, max(over, 0), y, f"{over:+.1f} %", pictures.BLACK)
        axes.set_yticks(range(len(rows)), [row["name"] for row in reversed(rows)])
        axes.axvline(0, color=pictures.GREY, linewidth=1)
        axes.margins(x=0.25)
        pictures.caption(axes, group, "time of a step over plain Keras, %", "")
    pictures.save(figure, result.name)


def main() -> None:
    """Measures, or says why not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=report.ROUNDS)
    parser.add_argument("--warm-ups", type=int, default=4, help="rounds before; tau settles too")
    parser.add_argument("--xla", action="store_true", help="plain Keras compiled by XLA as well")
    parser.add_argument("--only", choices=list(WORKLOADS))
    arguments = parser.parse_args()
    result = report.Report("cuda-step", "What a training step on a GPU costs")
    names = [name for name in WORKLOADS if arguments.only in (None, name)]
    if not tf.config.list_physical_devices("GPU"):
        result.skip_all([f"gpu_step_{name}" for name in names], "TensorFlow sees no GPU here")
        return result.finish()
    result.machine["device"] = tf.config.experimental.get_device_details(
        tf.config.list_physical_devices("GPU")[0]
    ).get("device_name")
    for name in names:
        ways = [*WAYS, XLA] if arguments.xla else WAYS
        measure(name, ways, result, arguments.rounds, arguments.warm_ups)
    draw(result)
    result.finish()


if __name__ == "__main__":
    main()
