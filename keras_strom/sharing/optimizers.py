"""Keras optimizers: those that consist of others, and where they keep a variable's momentum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from keras_strom._native.library import array_hash

#: Of `state_hash`.
HASH_LENGTH = 4

# Where Keras's optimizers, and those written after its documentation, keep the moving average or
# sum of gradients that moves their variables: a list, by the variable's index.
_MOMENTA = ("momentums", "_momentums", "_m")


def parts_of(optimizer: Any) -> list[Any]:
    """The optimizers that hold state of their own and change variables.

    Args:
        optimizer: any of Keras, or None.

    Returns:
        An empty list for None; the parts of a MultiOptimizer; otherwise the optimizer itself. A
        LossScaleOptimizer stands for the one inside of it.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return [] if inner is None else list(getattr(inner, "optimizers", [inner]))


def averages_of(rule: Any) -> list[Any]:
    """The moving averages (`use_ema`) of what one of `parts_of` trains, as Keras variables.

    None of one that is not built, as a part of a MultiOptimizer is that trains nothing.
    """
    return getattr(rule, "_model_variables_moving_average", None) or []


def momentum_of(optimizer: Any, variable: Any) -> Any | None:
    """The `tf.Variable` with the momentum of `variable`; None where there is none.

    Args:
        optimizer: a built one that is about to change `variable`.
        variable: a `tf.Variable` that it trains.
    """
    for rule in parts_of(optimizer):
        for name in _MOMENTA:
            slots = getattr(rule, name, None) or []
            try:
                slot = slots[rule._get_variable_index(variable)]
            except (IndexError, KeyError):  # It trains other variables.
                continue
            if slot is not None and slot.shape == variable.shape and slot.dtype == "float32":
                return slot.value
    return None


def has_plain_momentum(optimizer: Any) -> bool:
    """Whether `optimizer` is stochastic gradient descent with momentum."""
    return any(
        isinstance(rule, keras.optimizers.SGD) and rule.momentum for rule in parts_of(optimizer)
    )


def average_from_here(model: Any) -> None:
    """Has moving averages of a model's variables (`use_ema`) begin with what those hold now.

    At the end of `fit` Keras puts them into the variables' place, also where it has trained none.
    """
    averaging = [rule for rule in parts_of(model.optimizer) if getattr(rule, "use_ema", False)]
    if averaging and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    for rule in averaging:
        for variable, average in zip(rule._trainable_variables, averages_of(rule), strict=True):
            average.assign(variable)


def scales_loss(optimizer: Any) -> bool:
    """Whether it leaves out a step whose gradients are not finite, to go on with a lower scale."""
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def learning_rates_of(optimizer: Any) -> list[Any]:
    """The `tf.Variable`s with the learning rates of its parts; a part with a schedule has none."""
    return [
        part._learning_rate.value
        for part in parts_of(optimizer)
        if isinstance(part._learning_rate, keras.Variable)
    ]


def state_hash(optimizers: Sequence[Any]) -> npt.NDArray[np.float32]:
    """Tells whether the optimizers of two workers have the same state, to the bit.

    Returns:
        float32 [4], whole numbers under 2^16.
    """
    hashes = [array_hash(v.numpy()) for optimizer in optimizers for v in optimizer.variables]
    whole = array_hash(np.asarray(hashes, np.uint64))
    return np.asarray([whole >> 16 * i & 0xFFFF for i in range(HASH_LENGTH)], np.float32)
