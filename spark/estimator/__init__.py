"""The stage of Spark ML: `StromEstimator`, and the `StromModel` that it fits.

Pipelines that were saved before 0.1.0 look for `StromEstimator` here; use `keras_strom.spark`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keras_strom.lazy_names import lazy_names

if TYPE_CHECKING:
    from .estimator import StromEstimator

__all__ = ["StromEstimator"]

__getattr__ = lazy_names(__name__, {"StromEstimator": "estimator"})
