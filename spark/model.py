"""`StromModel` where pipelines saved before 0.1.0 look for it; use `keras_strom.spark`."""

from .estimator.model import StromModel

__all__ = ["StromModel"]
