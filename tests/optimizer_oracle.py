"""What StromStrategy must do to the parameters, restated with plain Keras and NumPy.

One lone worker, a fixed threshold, no clipping: u = after - before, r += u, every element with
|r| >= tau moves by ±tau, and the rest waits. The optimizer that gives `after` is plain Keras,
started from the same parameters in every step.
"""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np


class EncodedTraining:
    """Trains a plain Keras model the way one StromStrategy worker would.

    Args:
        model: compiled, outside of any strategy.
        threshold: tau.
    """

    def __init__(self, model: keras.Model, threshold: float) -> None:
        self.model = model
        self.threshold = np.float32(threshold)
        self.residuals = [np.zeros(v.shape, np.float32) for v in model.trainable_variables]
        self.sent = 0

    def train_on_batch(self, x: np.ndarray, y: np.ndarray) -> None:
        before = [variable.numpy().copy() for variable in self.model.trainable_variables]
        self.model.train_on_batch(x, y)
        self.close_step(before)

    def close_step(self, before: list[np.ndarray]) -> None:
        for variable, start, residual in zip(
            self.model.trainable_variables, before, self.residuals, strict=True
        ):
            after = variable.numpy()
            if not np.array_equal(after, start):
                residual += after - start
        changed = any(
            not np.array_equal(v.numpy(), b)
            for v, b in zip(self.model.trainable_variables, before, strict=True)
        )
        for variable, start, residual in zip(
            self.model.trainable_variables, before, self.residuals, strict=True
        ):
            reached = (np.abs(residual) >= self.threshold) & changed
            message = np.where(reached, np.sign(residual) * self.threshold, np.float32(0))
            residual -= message
            variable.assign(start + message)
            self.sent += int(reached.sum())


def compare(
    build: Callable[[], keras.Model],
    strategy_scope: Callable[[], object],
    batches: list[tuple[np.ndarray, np.ndarray]],
    threshold: float,
) -> tuple[int, int, int]:
    """Trains both and counts parameters that differ in any bit.

    Returns:
        Elements that differ after any step, elements compared, entries that the oracle sent.
    """
    keras.utils.set_random_seed(7)
    plain = build()
    with strategy_scope():  # type: ignore[attr-defined]
        shared = build()
    shared.set_weights(plain.get_weights())
    oracle = EncodedTraining(plain, threshold)
    wrong = compared = 0
    for x, y in batches:
        oracle.train_on_batch(x, y)
        shared.train_on_batch(x, y)
        for want, got in zip(plain.trainable_variables, shared.trainable_variables, strict=True):
            wrong += int((want.numpy() != got.numpy()).sum())
            compared += int(np.prod(want.shape))
    return wrong, compared, oracle.sent
