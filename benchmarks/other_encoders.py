"""How else an update is compressed in Python, on the same kind of updates as ours gets.

An encoder adds an update to its residual, takes out what leaves and returns the number of entries.
All run on one thread, as what they are compared with does. Updates and residuals are those of
custom_ops/bench/steady_updates.h: independent bell-shaped updates in every pass, and residuals that
start in the steady state.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

_SLACK = 1 << 20
_OVERSHOOT = 0.5826


class Encoder(Protocol):
    """One library's way; keeps its residual between passes."""

    def prepare(self, start: int) -> Any:
        """The update of a pass, in the library's own form: the noise from `start` on."""

    def encode(self, update: Any) -> int:
        """One pass; waits until it is done."""


class Updates:
    """The noise that all encoders' updates are taken from.

    Args:
        elements: of an update.
        seed: of the noise.
    """

    def __init__(self, elements: int, seed: int = 1) -> None:
        self.elements = elements
        self.random = np.random.default_rng(seed)
        self.noise = self.random.standard_normal(elements + _SLACK, np.float32)

    def residual(self, density: float) -> tuple[Floats, float]:
        """Residuals in the steady state of `density`, and the threshold that keeps it."""
        threshold = 1 / math.sqrt(density) - _OVERSHOOT
        sides = self.random.random((2, self.elements), np.float32)
        residual = (sides[0] + sides[1] - 1) * np.float32(threshold + _OVERSHOOT)
        # What would lie beyond the threshold starts at the middle, as if it had been sent.
        residual[np.abs(residual) >= threshold] = 0
        return residual, threshold

    def timer(self, encoder: Encoder, density: float) -> Callable[[], float]:
        """A function that takes the processor's seconds of one pass and checks its entries."""

        def run() -> float:
            update = encoder.prepare(int(self.random.integers(_SLACK // 16)) * 16)
            begin = time.process_time()
            entries = encoder.encode(update)
            seconds = time.process_time() - begin
            check_entries(entries, density * self.elements)
            return seconds

        return run


def check_entries(entries: int, expected: float) -> None:
    """Raises RuntimeError where updates have left the steady state that their speed is for."""
    if abs(entries - expected) > 0.15 * expected + 5 * math.sqrt(expected):
        raise RuntimeError(f"{entries} entries where {expected:.0f} were to be expected")


class NumPyEncoder:
    """NumPy's vectorised operations, in place where they can be."""

    def __init__(self, updates: Updates, density: float) -> None:
        self._noise = updates.noise
        self._residual, self._threshold = updates.residual(density)
        self._magnitudes = np.empty_like(self._residual)
        self.signs: npt.NDArray[np.bool_] = np.empty(0, np.bool_)

    def prepare(self, start: int) -> Floats:
        """A view."""
        return self._noise[start : start + self._residual.size]

    def encode(self, update: Floats) -> int:
        """Adds, compares, gathers the hits and subtracts the threshold from them alone."""
        residual = self._residual
        np.add(residual, update, out=residual)
        np.abs(residual, out=self._magnitudes)
        places = np.flatnonzero(self._magnitudes >= self._threshold)
        hits = residual[places]
        self.signs = np.signbit(hits)
        residual[places] = hits - np.copysign(np.float32(self._threshold), hits)
        return int(places.size)


class TensorFlowEncoder:
    """TensorFlow's own ops in one graph, the residual in a variable that is changed in place."""

    def __init__(self, updates: Updates, density: float) -> None:
        import tensorflow as tf

        residual, tau = updates.residual(density)
        self._elements = residual.size
        self._noise = tf.constant(updates.noise)
        self._residual = tf.Variable(residual)
        threshold = tf.constant(tau, tf.float32)

        def encode(update: Any) -> tuple[Any, Any]:
            total = self._residual.assign_add(update)
            places = tf.where(tf.abs(total) >= threshold)[:, 0]
            sent = tf.sign(tf.gather(total, places)) * threshold
            self._residual.scatter_sub(tf.IndexedSlices(sent, places))
            return places, sent

        self._encode = tf.function(
            encode, input_signature=[tf.TensorSpec([self._elements], tf.float32)]
        )

    def prepare(self, start: int) -> Any:
        """A slice, which shares the memory."""
        return self._noise[start : start + self._elements]

    def encode(self, update: Any) -> int:
        """Runs the graph, on the CPU until it is done."""
        places, _ = self._encode(update)
        return len(places)


class TorchTopK:
    """PyTorch's top-k with a residual: the k largest leave with their values."""

    def __init__(self, updates: Updates, density: float) -> None:
        torch: Any = importlib.import_module("torch")
        torch.set_num_threads(1)
        self._torch = torch
        residual, _ = updates.residual(density)
        self._residual = torch.from_numpy(residual)
        self._noise = torch.from_numpy(updates.noise)
        self._count = round(density * residual.size)

    def prepare(self, start: int) -> Any:
        """A view."""
        return self._noise[start : start + self._residual.numel()]

    def encode(self, update: Any) -> int:
        """Adds, chooses, gathers and clears what was chosen."""
        self._residual += update
        _, places = self._torch.topk(self._residual.abs(), self._count, sorted=False)
        values = self._residual[places]
        self._residual[places] = 0
        return int(values.numel())
