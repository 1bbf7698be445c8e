"""`make bench-step`: what a training step costs under StromStrategy, against plain Keras.

Four models train with `fit` on the same arrays, each under plain Keras, under TensorFlow's own
OneDeviceStrategy (which shows what the way through tf.distribute costs by itself), as a lone worker
of StromStrategy, and with `always_encode=True`, where every step encodes its update and applies it.
They take turns, a block of steps each, round after round.

What counts is the process's CPU time, all threads included, from the end of the block's second step
to the end of its last one; so `fit`'s own start and end are left out. A figure is the median of the
rounds' ratios to plain Keras; its interval is the bootstrap's 95 % of that median.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_strom.strategy import StromStrategy
from keras_strom.threshold import AdaptiveThreshold
from tests.bench import pictures, report
from tests.bench.models import cnn
from tests.bench.parity_tasks import dense_stack

BATCH = 128
#: Steps at the start of a block that do not count.
SKIPPED = 2

PLAIN = "plain Keras"
ONE_DEVICE = "OneDeviceStrategy"
LONE = "lone worker"
ENCODING = "always_encode"
COLORS = {ONE_DEVICE: pictures.GREY, LONE: pictures.SKY, ENCODING: pictures.ORANGE}


@dataclasses.dataclass(frozen=True)
class Workload:
    """A model and how it is trained.

    Attributes:
        name: the end of the target's name.
        title: for people.
        inputs: the shape of one example.
        build: makes the uncompiled model.
        optimizer: makes the optimizer.
        threshold: how tau is chosen.
        goal: of the ratio of CPU times.
        steps: of a block.
        rows: of the table that the inputs look up; None where the inputs are numbers.
    """

    name: str
    title: str
    inputs: tuple[int, ...]
    build: Callable[[], keras.Model]
    optimizer: Callable[[], keras.optimizers.Optimizer]
    threshold: AdaptiveThreshold
    goal: float
    steps: int
    rows: int | None = None


def mlp() -> keras.Model:
    """784-2048-2048-2048-10: 10 million parameters."""
    return dense_stack(784, 2048, 2048, 2048, 10)


def table() -> keras.Model:
    """An embedding of 6 million rows of 16, of which an example looks up eight."""
    layers = keras.layers
    lookup = layers.Embedding(6_000_000, 16)
    return keras.Sequential(
        [keras.Input((8,), dtype="int32"), lookup, layers.Flatten(), layers.Dense(10)]
    )


# Keeps the density near 1e-3, whatever the optimizer.
_SPARSE = AdaptiveThreshold(min_density=8e-4, max_density=1.2e-3, factor=0.8)

WORKLOADS = (
    Workload(
        name="mlp_sgd",
        title="MLP of 10 million parameters, SGD",
        inputs=(784,),
        build=mlp,
        optimizer=lambda: keras.optimizers.SGD(0.01),
        threshold=_SPARSE,
        goal=1.25,
        steps=14,
    ),
    Workload(
        name="mlp_adam",
        title="MLP of 10 million parameters, Adam",
        inputs=(784,),
        build=mlp,
        optimizer=lambda: keras.optimizers.Adam(1e-4),
        threshold=_SPARSE,
        goal=1.12,
        steps=14,
    ),
    Workload(
        name="cnn",
        title="the example's CNN, Adam",
        inputs=(28, 28, 1),
        build=functools.partial(cnn, keras),
        optimizer=lambda: keras.optimizers.Adam(),
        threshold=AdaptiveThreshold(),
        goal=1.03,
        steps=40,
    ),
    Workload(
        name="embedding",
        title="an embedding of 6 million rows, SGD",
        inputs=(8,),
        build=table,
        optimizer=lambda: keras.optimizers.SGD(0.1),
        threshold=AdaptiveThreshold(),
        goal=1.25,
        steps=14,
        rows=6_000_000,
    ),
)


def main() -> None:
    """Measures every workload and shows the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=report.ROUNDS)
    parser.add_argument("--warm-ups", type=int, default=4, help="rounds before; tau settles too")
    parser.add_argument("--only", choices=[workload.name for workload in WORKLOADS])
    arguments = parser.parse_args()
    result = report.Report("step", "What a training step costs")
    lone = []
    for workload in WORKLOADS:
        if arguments.only in (None, workload.name):
            lone.append(measure(workload, result, arguments.rounds, arguments.warm_ups))
    result.target("lone_worker", max(lone), goal=1.02, better="lower")
    draw(result)
    result.finish()


def measure(workload: Workload, result: report.Report, rounds: int, warm_ups: int) -> float:
    """Adds one workload's rows and target; returns a lone worker's ratio."""
    data = examples(workload)
    encoding = StromStrategy(always_encode=True, threshold=workload.threshold)
    scopes: dict[str, Any] = {
        PLAIN: contextlib.nullcontext(),
        ONE_DEVICE: tf.distribute.OneDeviceStrategy("/cpu:0").scope(),
        LONE: StromStrategy().scope(),
        ENCODING: encoding.scope(),
    }
    blocks = {name: Block(workload, scope, data) for name, scope in scopes.items()}
    report.interleave(blocks, rounds=rounds, warm_ups=warm_ups)
    assert encoding._sharing is not None
    step = encoding._sharing.step.last
    ratios = {}
    for name, block in blocks.items():
        cpu = Ratio.of(block.cpu_ms[-rounds:], blocks[PLAIN].cpu_ms[-rounds:])
        wall = Ratio.of(block.wall_ms[-rounds:], blocks[PLAIN].wall_ms[-rounds:])
        density = step.count / step.elements if name == ENCODING else None
        result.row(
            name,
            group=workload.title,
            cpu_ms=statistics.median(block.cpu_ms[-rounds:]),
            cpu_ratio=cpu.median,
            low=cpu.low,
            high=cpu.high,
            wall_ms=statistics.median(block.wall_ms[-rounds:]),
            wall_ratio=wall.median,
            density=density,
        )
        ratios[name] = cpu.median
    result.target(f"overhead_{workload.name}", ratios[ENCODING], workload.goal, better="lower")
    return ratios[LONE]


def examples(workload: Workload) -> tuple[np.ndarray, np.ndarray]:
    """Random inputs and labels, a block's worth."""
    generator = np.random.default_rng(1)
    shape = (BATCH * workload.steps, *workload.inputs)
    if workload.rows is None:
        x = generator.normal(size=shape).astype(np.float32)
    else:
        x = generator.integers(0, workload.rows, shape, dtype=np.int32)
    return x, generator.integers(0, 10, len(x), dtype=np.int32)


class Block:
    """A model that trains for a block of steps whenever it is called, and what those took."""

    def __init__(self, workload: Workload, scope: Any, data: tuple[np.ndarray, np.ndarray]) -> None:
        self._x, self._y = data
        self.cpu_ms: list[float] = []
        self.wall_ms: list[float] = []
        keras.utils.set_random_seed(1)
        with scope:
            self._model = workload.build()
            self._model.compile(
                workload.optimizer(), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            )

    def __call__(self) -> float:
        """Trains; returns the seconds of CPU time a step took."""
        clock = _StepClock()
        self._model.fit(
            self._x, self._y, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[clock]
        )
        cpu, wall = clock.per_step()
        self.cpu_ms.append(1e3 * cpu)
        self.wall_ms.append(1e3 * wall)
        return cpu


class _StepClock(keras.callbacks.Callback):  # type: ignore[misc]
    """Notes both clocks at the end of each step."""

    def __init__(self) -> None:
        super().__init__()
        self._ends: list[tuple[float, float]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._ends.append((time.process_time(), time.perf_counter()))

    def per_step(self) -> tuple[float, float]:
        """Seconds of CPU and of real time."""
        (cpu, wall), (cpu_end, wall_end) = self._ends[SKIPPED - 1], self._ends[-1]
        steps = len(self._ends) - SKIPPED
        return (cpu_end - cpu) / steps, (wall_end - wall) / steps


@dataclasses.dataclass(frozen=True)
class Ratio:
    """The median of paired ratios, and the bootstrap's 95 % interval of it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float], base: Sequence[float], resamples: int = 10_000) -> Ratio:
        """Pairs the rounds of `values` with those of `base`."""
        ratios = [value / other for value, other in zip(values, base, strict=True)]
        choices = random.Random(1).choices
        medians = sorted(
            statistics.median(choices(ratios, k=len(ratios))) for _ in range(resamples)
        )
        tail = resamples // 40
        return cls(statistics.median(ratios), medians[tail], medians[-1 - tail])


def draw(result: report.Report) -> None:
    """Bars of the ratios with their intervals, a panel a workload."""
    groups = list(dict.fromkeys(row["group"] for row in result.rows))
    figure, panels = pictures.picture(len(groups), width=4.5, height=3.2)
    for axes, group in zip(panels, groups, strict=True):
        rows = [row for row in result.rows if row["group"] == group and row["name"] != PLAIN]
        for y, row in enumerate(reversed(rows)):
            overhead = 100 * (row["cpu_ratio"] - 1)
            errors = [
                [100 * (row["cpu_ratio"] - row["low"])],
                [100 * (row["high"] - row["cpu_ratio"])],
            ]
            color = COLORS[row["name"]]
            axes.barh(y, overhead, height=0.6, color=color, xerr=errors, ecolor=pictures.BLACK)
            right = 100 * (row["high"] - 1)
            pictures.label(axes, max(right, 0), y, f"{overhead:+.1f} %", pictures.BLACK)
        axes.set_yticks(range(len(rows)), [row["name"] for row in reversed(rows)])
        axes.axvline(0, color=pictures.GREY, linewidth=1)
        axes.margins(x=0.25)
        pictures.caption(axes, group, "CPU time of a step over plain Keras, %", "")
    pictures.save(figure, result.name)


if __name__ == "__main__":
    main()
