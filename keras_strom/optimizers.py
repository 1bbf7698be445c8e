"""Keras optimizers that consist of others, and those that do the work in them."""

from __future__ import annotations

from typing import Any


def parts_of(optimizer: Any) -> list[Any]:
    """The optimizers that hold state of their own and change variables.

    Args:
        optimizer: any of Keras, or None.

    Returns:
        None at all for None; a MultiOptimizer's parts; else the one itself. A LossScaleOptimizer
        stands for the one inside of it.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return [] if inner is None else list(getattr(inner, "optimizers", [inner]))
