"""The stage of Spark ML: `StromEstimator`, and the `StromModel` that it fits.

Pipelines that were saved before 0.1.0 look for `StromEstimator` here; use `keras_strom.spark`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .estimator import StromEstimator

__all__ = ["StromEstimator"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .estimator import StromEstimator

    return StromEstimator
