"""What StromStrategy must do to the parameters, restated with plain Keras and NumPy.

One lone worker, a fixed threshold, no clipping: u = after - before, r += u, every element with
|r| >= tau moves by ±tau, and the rest waits. The optimizer that gives `after` is plain Keras,
started from the same parameters in every step. Where its momentum is masked, that of each element
sent is 0 afterwards.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import keras
import numpy as np


class EncodedTraining:
    """Trains a plain Keras model the way one StromStrategy worker would.

    Args:
        model: compiled, outside of any strategy.
        threshold: tau.
        masked: the optimizer's attribute with the momenta to mask; "auto" = SGD's, "" = none.
    """

    def __init__(self, model: keras.Model, threshold: float, masked: str = "auto") -> None:
        self.model = model
        plain_momentum = getattr(model.optimizer, "momentum", 0) and isinstance(
            model.optimizer, keras.optimizers.SGD
        )
        self.masked = masked if masked != "auto" else "momentums" if plain_momentum else ""
        self.threshold = np.float32(threshold)
        self.residuals = [np.zeros(v.shape, np.float32) for v in model.trainable_variables]
        self.sent = 0

    def train_on_batch(self, x: np.ndarray, y: np.ndarray) -> None:
        """One step of a lone worker."""
        before = [variable.numpy().copy() for variable in self.model.trainable_variables]
        message = self.message_of_batch(before, x, y)
        for variable, start, part in zip(
            self.model.trainable_variables, before, message, strict=True
        ):
            variable.assign(start + part)

    def message_of_batch(
        self, start: list[np.ndarray], x: np.ndarray, y: np.ndarray, scale: np.float32 | float = 1.0
    ) -> list[np.ndarray]:
        """What a worker sends after one batch from the parameters `start`; the rest waits."""
        variables = self.model.trainable_variables
        for variable, value in zip(variables, start, strict=True):
            variable.assign(value)
        self.model.train_on_batch(x, y)
        after = [variable.numpy() for variable in variables]
        message = []
        for residual, new, old in zip(self.residuals, after, start, strict=True):
            message.append(encode(residual, new, old, self.threshold, scale))
            self.sent += int(np.count_nonzero(message[-1]))
        for i, part in enumerate(message if self.masked else []):
            momentum = operator.attrgetter(self.masked)(self.model.optimizer)[i]
            momentum.assign(np.where(part != 0, 0, momentum.numpy()))
        return message


def encode(
    residual: np.ndarray,
    after: np.ndarray,
    before: np.ndarray,
    threshold: np.float32 | float,
    scale: np.float32 | float = 1.0,
) -> np.ndarray:
    """What one variable sends after a step; `residual` is changed in place."""
    residual += np.float32(scale) * (after - before)
    # A variable that the step has left alone sends nothing.
    reached = (np.abs(residual) >= np.float32(threshold)) & (after != before).any()
    message = np.where(reached, np.sign(residual) * np.float32(threshold), np.float32(0))
    residual -= message
    return message


def compare(
    build: Callable[[], keras.Model],
    strategy_scope: Callable[[], object],
    batches: list[tuple[np.ndarray, np.ndarray]],
    threshold: float,
    masked: str = "auto",
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
    oracle = EncodedTraining(plain, threshold, masked)
    wrong = compared = 0
    for x, y in batches:
        oracle.train_on_batch(x, y)
        shared.train_on_batch(x, y)
        for want, got in zip(plain.trainable_variables, shared.trainable_variables, strict=True):
            wrong += int((want.numpy() != got.numpy()).sum())
            compared += int(np.prod(want.shape))
    return wrong, compared, oracle.sent
