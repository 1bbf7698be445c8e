"""What `make bench-mpca` trains: small models in NumPy, of which a crew of workers steps at once.

A model is one flat vector, a crew is a matrix with a row a worker; a step of several rows is a few
batched products. Models are small because virtual time does not care: seconds and bytes are those
of the paper's settings, whatever is trained.
"""

from __future__ import annotations

import dataclasses
import functools
import runpy
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from benchmarks.report import ROOT

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int32]

#: Of the penalty on |x|^2, as in the paper.
L2 = 1e-4
# Adam's, as Keras has them.
_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-7


@dataclasses.dataclass(frozen=True)
class Data:
    """Examples [n, features] and their classes, for training and for the judgement."""

    x: Floats
    y: Integers
    x_test: Floats
    y_test: Integers


@dataclasses.dataclass(frozen=True)
class Task:
    """What is learned.

    Attributes:
        name: of its rows.
        title: for people.
        layers: units, from the inputs to the classes; ReLU between them.
        batch: examples a step of one worker.
        learning_rate: Adam's, constant; so high that one worker ends on its noise floor.
        load: gives the data.
    """

    name: str
    title: str
    layers: tuple[int, ...]
    batch: int
    learning_rate: float
    load: Callable[[], Data]

    @property
    def size(self) -> int:
        """Parameters."""
        pairs = zip(self.layers[:-1], self.layers[1:], strict=True)
        return sum(inputs * units + units for inputs, units in pairs)

    def start(self, seed: int) -> Floats:
        """Initial parameters: He's for kernels, zero for biases."""
        random = np.random.default_rng([seed, 1])
        parts: list[npt.NDArray[np.float64]] = []
        for inputs, units in zip(self.layers[:-1], self.layers[1:], strict=True):
            parts.append(random.normal(0, np.sqrt(2 / inputs), inputs * units))
            parts.append(np.zeros(units))
        return np.concatenate(parts).astype(np.float32)

    def views(self, flat: Floats) -> list[tuple[Floats, Floats]]:
        """(kernel [rows, in, out], bias [rows, 1, out]) of each layer of [rows, size] values."""
        found, begin, rows = [], 0, len(flat)
        for inputs, units in zip(self.layers[:-1], self.layers[1:], strict=True):
            middle, end = begin + inputs * units, begin + (inputs + 1) * units
            kernel = flat[:, begin:middle].reshape(rows, inputs, units)
            found.append((kernel, flat[:, middle:end].reshape(rows, 1, units)))
            begin = end
        return found

    def accuracy(self, values: Floats) -> float:
        """In percent, on the test data, of a flat model."""
        data = self.load()
        out = data.x_test[None]
        layers = self.views(values[None])
        for number, (kernel, bias) in enumerate(layers):
            out = out @ kernel + bias
            if number + 1 < len(layers):
                np.maximum(out, 0, out=out)
        return 100.0 * float(np.mean(np.argmax(out[0], axis=1) == data.y_test))


class Batches:
    """Each worker's batches for ever: of each pass its share of the examples, newly shuffled.

    Args:
        task: what is learned.
        workers: among whom the examples are divided.
        seed: equal for all methods, so that worker i sees the same batches in each.
    """

    def __init__(self, task: Task, workers: int, seed: int) -> None:
        self._data = task.load()
        self._batch = task.batch
        self._random = [np.random.default_rng([seed, 2, rank]) for rank in range(workers)]
        self._shares = [np.arange(rank, len(self._data.x), workers) for rank in range(workers)]
        self._orders = [np.empty(0, np.int64)] * workers
        self._taken = [0] * workers

    def take(self, rows: range) -> tuple[Floats, Integers]:
        """The next batches of these workers: [rows, batch, features] and [rows, batch]."""
        chosen = np.stack([self._next(rank) for rank in rows])
        return self._data.x[chosen], self._data.y[chosen]

    def _next(self, rank: int) -> npt.NDArray[np.int64]:
        begin = self._taken[rank]
        if begin + self._batch > len(self._orders[rank]):
            self._orders[rank] = self._random[rank].permutation(self._shares[rank])
            begin = 0
        self._taken[rank] = begin + self._batch
        return self._orders[rank][begin : begin + self._batch]


class Adam:
    """Adam of several models at once, each with its own moments and count of steps.

    Args:
        rows: models.
        size: parameters of each.
        learning_rate: constant.
    """

    def __init__(self, rows: int, size: int, learning_rate: float) -> None:
        self._rate = learning_rate
        self._first = np.zeros((rows, size), np.float32)
        self._second = np.zeros((rows, size), np.float32)
        self._scratch = np.empty((rows, size), np.float32)
        self._steps = np.zeros((rows, 1))

    def step(self, rows: range, values: Floats, gradient: Floats) -> None:
        """Steps models `rows`; `values` and `gradient` are theirs, and both are overwritten."""
        where = slice(rows.start, rows.stop)
        first, second = self._first[where], self._second[where]
        scratch, steps = self._scratch[where], self._steps[where]
        steps += 1
        np.multiply(gradient, 1 - _BETA_1, out=scratch)
        first *= _BETA_1
        first += scratch
        gradient *= gradient
        gradient *= 1 - _BETA_2
        second *= _BETA_2
        second += gradient
        rate = self._rate * np.sqrt(1 - _BETA_2**steps) / (1 - _BETA_1**steps)
        np.sqrt(second, out=scratch)
        scratch += _EPSILON
        np.divide(first, scratch, out=scratch)
        scratch *= rate.astype(np.float32)
        values -= scratch


class Crew:
    """Workers that begin equal and each train on their own.

    Args:
        task: what they learn.
        workers: how many; examples are divided among them.
        seed: of the initial values and of the batches.

    Attributes:
        values: [workers, size] parameters, which a method may overwrite between steps.
        size: parameters of each.
    """

    def __init__(self, task: Task, workers: int, seed: int) -> None:
        self.values: Floats = np.repeat(task.start(seed)[None], workers, axis=0)
        self.size = task.size
        self._task = task
        self._batches = Batches(task, workers, seed)
        self._adam = Adam(workers, self.size, task.learning_rate)
        self._gradient = np.empty_like(self.values)
        self._penalty = np.empty_like(self.values)

    def step(self, rows: range) -> None:
        """One step of each of these workers."""
        gradient = self.gradients(rows)
        self._adam.step(rows, self.values[rows.start : rows.stop], gradient)

    def gradients(self, rows: range) -> Floats:
        """[rows, size] gradients at the workers' values, of their next batches.

        They are good until the next call.
        """
        where = slice(rows.start, rows.stop)
        values = self.values[where]
        gradient: Floats = self._gradient[where]
        x, y = self._batches.take(rows)
        layers, into = self._task.views(values), self._task.views(gradient)
        inputs = [x]
        for kernel, bias in layers[:-1]:
            out = inputs[-1] @ kernel
            out += bias
            inputs.append(np.maximum(out, 0, out=out))
        kernel, bias = layers[-1]
        error = _error_of_logits(inputs[-1] @ kernel + bias, y)
        for number in reversed(range(len(layers))):
            np.matmul(inputs[number].transpose(0, 2, 1), error, out=into[number][0])
            np.sum(error, axis=1, keepdims=True, out=into[number][1])
            if number:
                error = error @ layers[number][0].transpose(0, 2, 1)
                error *= inputs[number] > 0
        penalty = self._penalty[where]
        np.multiply(values, 2 * L2, out=penalty)
        gradient += penalty
        return gradient


def _error_of_logits(logits: Floats, y: Integers) -> Floats:
    """The derivative of the mean cross-entropy by the logits [rows, batch, classes]."""
    logits -= logits.max(axis=2, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=2, keepdims=True)
    flat = logits.reshape(-1, logits.shape[2])
    flat[np.arange(len(flat)), y.reshape(-1)] -= 1
    logits /= logits.shape[1]
    return logits


# ------------------------------------------------------------------ data


@functools.cache
def fashion_mnist() -> Data:
    """The pictures as 14 by 14 means of four pixels each, centred."""
    path = ROOT / "examples" / "fashion_mnist_data.py"
    (x, y), (x_test, y_test) = runpy.run_path(str(path))["load_fashion_mnist"]()

    def small(images: npt.NDArray[np.uint8]) -> Floats:
        quarters = images.reshape(len(images), 14, 2, 14, 2).mean(axis=(2, 4)) / 255
        centred: Floats = (2 * (quarters.reshape(len(images), -1) - 0.29)).astype(np.float32)
        return centred

    return Data(small(x), y.astype(np.int32), small(x_test), y_test.astype(np.int32))


@functools.cache
def taught() -> Data:
    """Gaussian inputs [n, 32], labelled by a random network of one hidden layer of 24."""
    random = np.random.default_rng(7)
    x = random.normal(size=(100_000, 32)).astype(np.float32)
    hidden = np.maximum(x @ random.normal(size=(32, 24)) / np.sqrt(32), 0)
    y = np.argmax(hidden @ random.normal(size=(24, 10)), axis=1).astype(np.int32)
    return Data(x[:80_000], y[:80_000], x[80_000:], y[80_000:])


TASKS = {
    task.name: task
    for task in (
        Task("teacher", "student of a teacher", (32, 64, 10), 16, 1e-2, taught),
        Task("fashion", "MLP on Fashion-MNIST", (196, 32, 10), 16, 5e-3, fashion_mnist),
    )
}
