"""How long messages are, against the least that their information needs; and what they leave.

For m entries at random places among n elements that is n H(m / n) + m bits: the entropy of the
places, and a sign for each.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_strom import codec

#: An entry of Deeplearning4j's list is an int32.
LIST_BITS = 32.0


@dataclasses.dataclass(frozen=True)
class Size:
    """One message.

    Attributes:
        elements: of the flat space.
        entries: in the message.
        bits: of the whole message, its header included.
    """

    elements: int
    entries: int
    bits: int

    @property
    def bits_per_entry(self) -> float:
        """Sign, places, directory and header."""
        return self.bits / self.entries

    @property
    def over_bound(self) -> float:
        """How many times as long as the bound."""
        return self.bits_per_entry / entropy_bound(self.entries / self.elements)


def entropy_bound(density: float) -> float:
    """Bits an entry that no code for random places can go below: H(p) / p + 1."""
    p = density
    entropy = -p * math.log2(p) - (1 - p) * math.log2(1 - p)
    return entropy / p + 1


def two_bits(density: float) -> float:
    """Bits an entry of Deeplearning4j's bitmap, two bits an element."""
    return 2 / density


def random_message(entries: int, density: float, seed: int = 1) -> Size:
    """A message whose entries lie at independent random places."""
    random = np.random.default_rng(seed)
    places = np.cumsum(random.geometric(density, entries + 1)) - 1
    update = np.zeros(int(places[-1]), np.float32)
    update[places[:-1]] = random.choice(np.array([-1, 1], np.float32), entries)
    message = codec.encode(update, np.zeros_like(update), 1.0)
    assert message.count == entries
    return Size(message.size, message.count, 8 * len(message.bytes))


def real_messages(steps: int, batch_size: int = 64, seed: int = 1) -> Iterator[Size]:
    """The messages of a real training, as a worker sends them with the default options.

    A network of two wide layers learns Fashion-MNIST with Adam; each step's change of all
    parameters goes through the codec with AdaptiveThreshold.
    """
    import keras
    import tensorflow as tf

    from benchmarks.parity_tasks import dense_stack, fashion_mnist
    from keras_strom.sharing.statistics import LENGTH, StepStatistics
    from keras_strom.sharing.threshold import AdaptiveThreshold

    data = fashion_mnist()
    keras.utils.set_random_seed(seed)
    model = dense_stack(784, 512, 512, 10)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    algorithm = AdaptiveThreshold()
    state = tuple(tf.constant(value) for value in algorithm.initial_state())
    statistics = StepStatistics(*np.zeros(LENGTH))
    random = np.random.default_rng(seed)
    before = _flat(model)
    residual = np.zeros_like(before)
    for _ in range(steps):
        chosen = random.integers(0, len(data.x), batch_size)
        model.train_on_batch(data.x[chosen], data.y[chosen])
        after = _flat(model)
        threshold, state = algorithm.next(state, statistics)
        message = codec.encode(after - before, residual, float(threshold))
        before = after
        statistics = statistics._replace(
            count=float(message.count),
            elements=float(message.size),
            sum_residual=float(np.abs(residual).sum(dtype=np.float64)),
        )
        yield Size(message.size, message.count, 8 * len(message.bytes))


@dataclasses.dataclass(frozen=True)
class Waiting:
    """Means over steps.

    Attributes:
        mean_residual: of its magnitude, after encoding.
        bits_per_element: of the message, its header included.
        density: entries an element, halves among them.
    """

    mean_residual: float
    bits_per_element: float
    density: float


def waiting(coding: codec.Coding, threshold: float, steps: int = 60, seed: int = 1) -> Waiting:
    """What stays behind of independent normal updates, once the residuals have settled.

    Args:
        coding: of the messages.
        threshold: in standard deviations of the updates.
        steps: how many are measured, after as many that are not.
        seed: of the updates.
    """
    elements = 50_000
    random = np.random.default_rng(seed)
    residual = np.zeros(elements, np.float32)
    measured = []
    for step in range(2 * steps):
        update = random.normal(size=elements).astype(np.float32)
        message = codec.encode(update, residual, threshold, coding=coding, iteration=step)
        if step >= steps:
            bits = 8 * len(message.bytes) / elements
            measured.append((float(np.abs(residual).mean()), bits, message.density))
    return Waiting(*np.mean(measured, axis=0).tolist())


def _flat(model: Any) -> npt.NDArray[np.float32]:
    return np.concatenate([weights.ravel() for weights in model.get_weights()])
