"""The learning tasks of `make bench-parity`: a model, its data, and one figure to judge it by.

Fashion-MNIST is real; the teacher's labels are made; the text is that of Python's own library,
which is on every machine that runs this.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import runpy
import sysconfig
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from benchmarks.report import ROOT
from keras_strom.sharing.residual import ResidualClipping
from keras_strom.sharing.threshold import (
    AdaptiveThreshold,
    TargetDensityThreshold,
    ThresholdAlgorithm,
)

_TEXT_BYTES = 3_000_000
_CONTEXT = 64
_TEST_WINDOWS = 1000

_THRESHOLD = AdaptiveThreshold()

Array = npt.NDArray[np.generic]


@dataclasses.dataclass(frozen=True)
class Data:
    """Examples and their labels, for training and for the judgement."""

    x: Array
    y: Array
    x_test: Array
    y_test: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sharing:
    """What StromStrategy is given for a task; these are its own defaults.

    Attributes:
        threshold, residual_clipping, update_scale, warmup_steps, local_steps, local_apply: its
            options.
    """

    threshold: ThresholdAlgorithm = _THRESHOLD
    residual_clipping: ResidualClipping | None = None
    update_scale: str | float = "auto"
    warmup_steps: int | None = None
    local_steps: int = 1
    local_apply: str = "full"

    def options(self) -> dict[str, Any]:
        """As arguments of StromStrategy."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def __str__(self) -> str:
        """What is not StromStrategy's default, as one would write it."""
        return _changes(self) or "all defaults"


def _changes(options: Any) -> str:
    """The fields of a frozen dataclass that are not what they are by default."""
    parts = []
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if value != field.default:
            is_nested = dataclasses.is_dataclass(value)
            written = f"{type(value).__name__}({_changes(value)})" if is_nested else repr(value)
            parts.append(f"{field.name}={written}")
    return ", ".join(parts)


def _in_local_steps(density: float) -> Sharing:
    """Messages of so many elements every 8 steps; each worker keeps what it has not sent."""
    # Messages are few, so tau has no time to go far: it starts where it will be needed.
    threshold = TargetDensityThreshold(density=density, initial=1e-2)
    return Sharing(threshold=threshold, local_steps=8)


@dataclasses.dataclass(frozen=True)
class Task:
    """What is learned.

    Attributes:
        name: in targets' names.
        title: for people.
        build: makes the uncompiled model, which gives logits.
        load: makes the data.
        batch: examples a step and worker.
        examples: that all workers together train on.
        learning_rate: Adam's.
        tuned: the options with which messages are made in the second table.
        by_loss: judged by the test loss in nats, where less is better; else by accuracy.
    """

    name: str
    title: str
    build: Callable[[], keras.Model]
    load: Callable[[], Data]
    batch: int
    examples: int
    learning_rate: float = 1e-3
    tuned: Sharing | None = None
    by_loss: bool = False


# ------------------------------------------------------------------ models


def dense_stack(inputs: int, *units: int) -> keras.Model:
    """Dense layers of so many units, with ReLU between them; the last one's are logits."""
    activations = [*["relu"] * (len(units) - 1), None]
    layers = [
        keras.layers.Dense(size, activation=activation)
        for size, activation in zip(units, activations, strict=True)
    ]
    return keras.Sequential([keras.Input((inputs,)), *layers])


def cnn() -> keras.Model:
    """Two convolutions: 55982 parameters."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((784,)),
            layers.Reshape((28, 28, 1)),
            layers.Conv2D(16, 3, strides=2, activation="relu"),
            layers.Conv2D(32, 3, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(44, activation="relu"),
            layers.Dense(10),
        ]
    )


def transformer() -> keras.Model:
    """Two causal blocks of width 64 over characters."""
    layers = keras.layers
    width, heads = 64, 4
    tokens = keras.Input((_CONTEXT,), dtype="int32")
    places = layers.Embedding(_CONTEXT, width)(keras.ops.arange(_CONTEXT))
    x = layers.Embedding(128, width)(tokens) + places
    for _ in range(2):
        normal = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(heads, width // heads)
        x = x + attention(normal, normal, use_causal_mask=True)
        hidden = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(width)(hidden)
    return keras.Model(tokens, layers.Dense(128)(layers.LayerNormalization()(x)))


def gru() -> keras.Model:
    """A GRU of 128 over characters."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((_CONTEXT,), dtype="int32"),
            layers.Embedding(128, 64),
            layers.GRU(128, return_sequences=True),
            layers.Dense(128),
        ]
    )


# ------------------------------------------------------------------ data


@functools.cache
def fashion_mnist() -> Data:
    """60000 pictures as float32 [n, 784] in 0 to 1, and 10000 to judge by."""
    path = ROOT / "examples" / "fashion_mnist_data.py"
    (x, y), (x_test, y_test) = runpy.run_path(str(path))["load_fashion_mnist"]()
    flat = [images.reshape(len(images), -1).astype(np.float32) / 255 for images in (x, x_test)]
    return Data(flat[0], y.astype(np.int32), flat[1], y_test.astype(np.int32))


@functools.cache
def taught() -> Data:
    """Gaussian inputs [n, 64], labelled by a random network of one hidden layer of 128."""
    generator = np.random.default_rng(7)
    x = generator.normal(size=(110_000, 64)).astype(np.float32)
    hidden = np.maximum(x @ generator.normal(size=(64, 128)) / 8, 0)
    y = np.argmax(hidden @ generator.normal(size=(128, 10)), axis=1).astype(np.int32)
    return Data(x[:100_000], y[:100_000], x[100_000:], y[100_000:])


@functools.cache
def text() -> Data:
    """Windows of 64 ASCII characters of Python's library, and the same shifted by one."""
    folder = pathlib.Path(sysconfig.get_path("stdlib"))
    parts, size = [], 0
    for path in sorted(folder.glob("*.py")):
        parts.append(path.read_bytes())
        size += len(parts[-1])
        if size >= _TEXT_BYTES:
            break
    characters = np.frombuffer(b"".join(parts)[:_TEXT_BYTES], np.uint8)
    characters = characters[characters < 128].astype(np.int32)
    windows = len(characters) // (_CONTEXT + 1)
    rows = characters[: windows * (_CONTEXT + 1)].reshape(windows, _CONTEXT + 1)
    rows = np.random.default_rng(7).permutation(rows)
    x, y = rows[:, :-1], rows[:, 1:]
    test = _TEST_WINDOWS
    return Data(x[test:], y[test:], x[:test], y[:test])


TASKS = {
    task.name: task
    for task in (
        Task(
            "mlp",
            "MLP on Fashion-MNIST",
            functools.partial(dense_stack, 784, 256, 128, 10),
            fashion_mnist,
            batch=32,
            examples=480_000,
        ),
        Task(
            "cnn",
            "CNN on Fashion-MNIST",
            cnn,
            fashion_mnist,
            batch=32,
            examples=240_000,
        ),
        Task(
            "teacher",
            "student of a teacher",
            functools.partial(dense_stack, 64, 512, 256, 10),
            taught,
            batch=32,
            examples=256_000,
            tuned=Sharing(threshold=AdaptiveThreshold(max_density=1e-3)),
        ),
        # Small batches, so that there are rounds enough for what sparse messages can carry.
        Task(
            "transformer",
            "character transformer",
            transformer,
            text,
            batch=4,
            examples=96_000,
            by_loss=True,
            tuned=_in_local_steps(1.5e-2),
        ),
        Task(
            "gru",
            "character GRU",
            gru,
            text,
            batch=4,
            examples=96_000,
            by_loss=True,
            tuned=_in_local_steps(2.4e-2),
        ),
    )
}
