"""What an exception that ends `fit` says to its user: the cause, without our own frames."""

from __future__ import annotations

from types import TracebackType

import tensorflow as tf

from keras_strom import errors
from keras_strom._native.ops import translate
from keras_strom.job.environment import ClusterEnvironment


def cause_of(error: BaseException, here: ClusterEnvironment) -> errors.StromError | None:
    """What an exception that Keras or TensorFlow raised means to the user; None: just that."""
    if isinstance(error, tf.errors.OpError):
        return translate(error)
    if isinstance(error, StopIteration):  # How Keras meets data that ends before its first batch.
        return errors.UnsupportedModel(
            f"worker {here.rank} of {here.size} has no training data; each takes one of "
            f"{here.size} rows of arrays, or of {here.size} elements of a dataset (usually "
            "batches), so there must be at least as many: use smaller batches or fewer workers"
            if here.size > 1
            else "the training data is empty"
        )
    return None


def without_own_frames(frames: TracebackType | None) -> TracebackType | None:
    """The frames of a traceback that are not of keras_strom, as Keras leaves out its own."""
    if frames is None:
        return None
    inner = without_own_frames(frames.tb_next)
    if frames.tb_frame.f_globals.get("__name__", "").startswith("keras_strom."):
        return inner
    return TracebackType(inner, frames.tb_frame, frames.tb_lasti, frames.tb_lineno)
