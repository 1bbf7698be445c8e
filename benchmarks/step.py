"""`make bench-step`: what a training step costs under StromStrategy, against plain Keras.

Four models train with `fit` on the same arrays, each under plain Keras, under TensorFlow's own
OneDeviceStrategy (which shows what the way through tf.distribute costs by itself), as a lone worker
of StromStrategy, with `always_encode=True`, where every step encodes its update and applies it, and
with `method=MPCA()` beside a partner, where every step is pulled to the target of a cycle that is
over. They take turns, a block of steps each, round after round. The pull alone is compared with
NumPy's `x += y`.

What a cycle in flight costs is measured by itself: steps of one core, with and without cycles one
after the other, whose I/O has the other core, as has the partner.

Each way has a process of its own, which lives from round to round. One that TensorFlow's
MultiDeviceIterator brings down (OneDeviceStrategy, in short fits) is started again, warms up, and
repeats its block; the report says how often that was.

What counts is the process's CPU time, all threads included, from the end of the block's second step
to the end of its last one; so `fit`'s own start and end are left out. A figure is the median of the
rounds' ratios to plain Keras; its interval is the bootstrap's 95 % of that median.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import multiprocessing.connection
import os
import pathlib
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks import pictures, processes, report, step_partner
from benchmarks.models import cnn
from benchmarks.parity_tasks import dense_stack
from keras_strom._native.joint_model import pull
from keras_strom.method import MPCA, PullStart
from keras_strom.sharing.threshold import AdaptiveThreshold
from keras_strom.strategy.report import UpdateReport
from keras_strom.strategy.strategy import StromStrategy

BATCH = 128
#: Steps at the start of a block that do not count; beside a joint model its first cycle has ended.
SKIPPED = 2
SKIPPED_PULLED = 9

PLAIN = "plain Keras"
ONE_DEVICE = "OneDeviceStrategy"
LONE = "lone worker"
ENCODING = "always_encode"
PULLED = "MPCA"
ON_ONE_CORE = "MPCA on one core"
IN_FLIGHT = "MPCA on one core, cycles in flight"
#: Of two cores: where TensorFlow computes, and where the network's thread and the partner do.
COMPUTING, TALKING = report.two_processors()
COLORS = {
    ONE_DEVICE: pictures.GREY,
    LONE: pictures.SKY,
    ENCODING: pictures.ORANGE,
    PULLED: pictures.GREEN,
}
IN_FLIGHT_WORKLOAD = "mlp_adam"
#: Elements of the pull that is compared with an addition: no cache holds them.
PULL_ELEMENTS = 25_000_000


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
        pulled_goal: the same beside a joint model; None = it is not measured.
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
    pulled_goal: tuple[str, float] | None = None
    rows: int | None = None

    @property
    def ways(self) -> list[str]:
        """Of `SCOPES`, those that train it beside plain Keras."""
        ways = [PLAIN, ONE_DEVICE, LONE, ENCODING]
        return ways if self.pulled_goal is None else [*ways, PULLED]


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
        goal=1.10,
        steps=14,
        pulled_goal=("mpca_step_mlp", 1.10),
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
        pulled_goal=("mpca_step_cnn", 1.03),
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


def compiled(workload: Workload, strategy: Any) -> keras.Model:
    """The workload's model, in the scope of a strategy where there is one."""
    with strategy.scope() if strategy is not None else contextlib.nullcontext():
        model = workload.build()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(workload.optimizer(), loss)
    return model


def pulled_strategy(way: str) -> StromStrategy:
    """MPCA that pulls as soon as there is a target, with one cycle a `fit` or as many as go."""
    steps_between = 1 if way == IN_FLIGHT else 1_000_000
    return StromStrategy(method=MPCA(start=PullStart(free_cycles=0), min_steps=steps_between))


def partners_model(name: str, way: str) -> keras.Model:
    """What the partner of a pulled worker trains."""
    if way != PULLED:
        os.sched_setaffinity(0, TALKING)
    workload = next(workload for workload in WORKLOADS if workload.name == name)
    return compiled(workload, pulled_strategy(way))


def beside_a_partner(workload: Workload, way: str) -> StromStrategy:
    """A strategy in a job of two."""
    build = functools.partial(partners_model, workload.name, way)
    step_partner.join(build, *examples(workload), BATCH)
    if way != PULLED:
        os.sched_setaffinity(0, COMPUTING)
    return pulled_strategy(way)


#: The ways, and what makes the strategy of each.
SCOPES: dict[str, Callable[[Workload], Any]] = {
    PLAIN: lambda _: None,
    ONE_DEVICE: lambda _: tf.distribute.OneDeviceStrategy("/cpu:0"),
    LONE: lambda _: StromStrategy(),
    ENCODING: lambda workload: StromStrategy(always_encode=True, threshold=workload.threshold),
    **{
        way: functools.partial(beside_a_partner, way=way)
        for way in (PULLED, ON_ONE_CORE, IN_FLIGHT)
    },
}


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
        if workload.name == IN_FLIGHT_WORKLOAD and arguments.only in (None, workload.name):
            measure_flight(workload, result, arguments.rounds, arguments.warm_ups)
    result.target("lone_worker", max(lone), goal=1.02, better="lower")
    measure_pull(result, arguments.rounds)
    draw(result)
    result.finish()


def measure(workload: Workload, result: report.Report, rounds: int, warm_ups: int) -> float:
    """Adds one workload's rows and target; returns a lone worker's ratio."""
    with contextlib.ExitStack() as stack:
        blocks = {
            name: stack.enter_context(Block(workload.name, name, warm_ups))
            for name in workload.ways
        }
        report.interleave(blocks, rounds=rounds, warm_ups=warm_ups)
    ratios = {}
    for name, block in blocks.items():
        taken, plain = block.taken[-rounds:], blocks[PLAIN].taken[-rounds:]
        cpu = Ratio.of([t.cpu_ms for t in taken], [t.cpu_ms for t in plain])
        wall = Ratio.of([t.wall_ms for t in taken], [t.wall_ms for t in plain])
        result.row(
            name,
            group=workload.title,
            cpu_ms=statistics.median(t.cpu_ms for t in taken),
            cpu_ratio=cpu.median,
            low=cpu.low,
            high=cpu.high,
            wall_ms=statistics.median(t.wall_ms for t in taken),
            wall_ratio=wall.median,
            density=taken[-1].density,
            crashes=block.crashes,
        )
        ratios[name] = cpu.median
    result.target(f"overhead_{workload.name}", ratios[ENCODING], workload.goal, better="lower")
    if workload.pulled_goal is not None:
        target, goal = workload.pulled_goal
        result.target(target, ratios[PULLED], goal, better="lower")
    return ratios[LONE]


def measure_flight(workload: Workload, result: report.Report, rounds: int, warm_ups: int) -> None:
    """How much longer steps are while the joint model travels."""
    target = "mpca_step_in_flight"
    if len(os.sched_getaffinity(0)) < 2:
        return result.skip(target, "two cores are needed")
    with contextlib.ExitStack() as stack:
        blocks = {
            way: stack.enter_context(Block(workload.name, way, warm_ups))
            for way in (ON_ONE_CORE, IN_FLIGHT)
        }
        report.interleave(blocks, rounds=rounds, warm_ups=warm_ups)
    base = [one.wall_ms for one in blocks[ON_ONE_CORE].taken[-rounds:]]
    for way, block in blocks.items():
        taken = block.taken[-rounds:]
        wall = Ratio.of([one.wall_ms for one in taken], base)
        result.row(
            way,
            group="A cycle in flight",
            cpu_ms=statistics.median(one.cpu_ms for one in taken),
            wall_ms=statistics.median(one.wall_ms for one in taken),
            wall_ratio=wall.median,
            low=wall.low,
            high=wall.high,
        )
    result.target(target, wall.median, goal=1.03, better="lower")


def measure_pull(result: report.Report, rounds: int) -> None:
    """The pull's speed over that of an addition, one thread each."""
    generator = np.random.default_rng(1)
    x, y = (generator.normal(size=PULL_ELEMENTS).astype(np.float32) for _ in range(2))
    timings = report.interleave(
        {
            "x += y": functools.partial(timed, lambda: np.add(x, y, out=x)),
            "pull": functools.partial(timed, lambda: pull(x, y, 1e-6)),
        },
        rounds=rounds,
        warm_ups=2,
    )
    speed = timings.speedup("pull", over="x += y")
    result.target("mpca_pull", speed, goal=0.85, better="higher")


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


# ------------------------------------------------------------------ in a process of its own


@dataclasses.dataclass(frozen=True)
class Taken:
    """What a step of a block took on average, and the density of the last message, if any."""

    cpu_ms: float
    wall_ms: float
    density: float | None


class Block:
    """Trains for a block of steps whenever it is called, in a process of its own.

    Args:
        workload: its name.
        way: one of `SCOPES`.
        warm_ups: blocks before those that count, in a process that was started again too.

    Attributes:
        taken: of each call.
        crashes: how often the process has died and was started again.
    """

    _MOST_CRASHES = 5

    def __init__(self, workload: str, way: str, warm_ups: int) -> None:
        self.taken: list[Taken] = []
        self.crashes = 0
        self._arguments = (workload, way)
        self._warm_ups = warm_ups
        self._start()

    def __enter__(self) -> Block:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.close()

    def __call__(self) -> float:
        """Trains; returns the seconds of CPU time a step took."""
        while True:
            try:
                self.taken.append(self._process.ask())
                return self.taken[-1].cpu_ms / 1e3
            except (EOFError, ConnectionError):
                code = self._process.end_code()
                self.crashes += 1
                if code is None or code > 0:
                    raise RuntimeError(
                        f"{' under '.join(self._arguments)} failed, see its traceback above"
                    ) from None
                if self.crashes > self._MOST_CRASHES:
                    raise RuntimeError(
                        f"{' under '.join(self._arguments)} was killed {self.crashes} times, the "
                        f"last time by signal {-code}"
                    ) from None
                self._start()
                for _ in range(self._warm_ups):
                    self()
                    self.taken.pop()

    def _start(self) -> None:
        self._process = processes.Asked(_serve, *self._arguments)


def _serve(pipe: multiprocessing.connection.Connection, name: str, way: str) -> None:
    """Answers each message with what a block took, until the other end is closed."""
    workload = next(workload for workload in WORKLOADS if workload.name == name)
    strategy = SCOPES[way](workload)
    x, y = examples(workload)
    pulled = way in (PULLED, ON_ONE_CORE, IN_FLIGHT)
    if pulled:  # It gets half of the rows.
        x, y = np.repeat(x, 3, axis=0), np.repeat(y, 3, axis=0)
    keras.utils.set_random_seed(1)
    model = compiled(workload, strategy)
    with contextlib.suppress(EOFError):
        while pipe.recv():
            clock = _StepClock(
                SKIPPED_PULLED if pulled else SKIPPED, way in (ON_ONE_CORE, IN_FLIGHT)
            )
            model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[clock])
            cpu, wall = clock.per_step()
            density = None
            report_of_fit = getattr(strategy, "last_report", None)
            if isinstance(report_of_fit, UpdateReport):
                density = report_of_fit.density
            pipe.send(Taken(1e3 * cpu, 1e3 * wall, density))


def examples(workload: Workload) -> tuple[np.ndarray, np.ndarray]:
    """Random inputs and labels, a block's worth."""
    generator = np.random.default_rng(1)
    shape = (BATCH * workload.steps, *workload.inputs)
    if workload.rows is None:
        x = generator.normal(size=shape).astype(np.float32)
    else:
        x = generator.integers(0, workload.rows, shape, dtype=np.int32)
    return x, generator.integers(0, 10, len(x), dtype=np.int32)


class _StepClock(keras.callbacks.Callback):  # type: ignore[misc]
    """Notes both clocks at the end of each step; `apart` moves the network's thread."""

    def __init__(self, skipped: int, apart: bool) -> None:
        super().__init__()
        self._skipped = skipped
        self._apart = apart
        self._ends: list[tuple[float, float]] = []

    def on_train_begin(self, logs: Any = None) -> None:
        for thread in pathlib.Path("/proc/self/task").iterdir() if self._apart else ():
            if (thread / "comm").read_text() == "strom-io\n":
                os.sched_setaffinity(int(thread.name), TALKING)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._ends.append((time.process_time(), time.perf_counter()))

    def per_step(self) -> tuple[float, float]:
        """Seconds of CPU and of real time."""
        (cpu, wall), (cpu_end, wall_end) = self._ends[self._skipped - 1], self._ends[-1]
        steps = len(self._ends) - self._skipped
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
    groups = [workload.title for workload in WORKLOADS]
    groups = [title for title in groups if any(row["group"] == title for row in result.rows)]
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
