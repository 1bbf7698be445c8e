"""Keras optimizers: those that consist of others, and where they keep a variable's momentum."""

from __future__ import annotations

from typing import Any

import keras

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
