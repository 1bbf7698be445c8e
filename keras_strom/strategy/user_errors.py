"""What an exception says to its user: the cause, without our own frames."""

from __future__ import annotations

import re
import traceback
from types import TracebackType

import keras
import tensorflow as tf

from keras_strom import errors
from keras_strom._native.ops import translate
from keras_strom.job.environment import ClusterEnvironment

# After these codes of CUDA no work on the card succeeds in the same process any more.
_LOST_DEVICE = re.compile(
    r"\w*_ERROR_(?:ASSERT|CONTAINED|DEVICE_LOST|DEVICE_UNAVAILABLE|ECC_UNCORRECTABLE|"
    r"EXTERNAL_DEVICE|HARDWARE_STACK_ERROR|ILLEGAL_ADDRESS|ILLEGAL_INSTRUCTION|"
    r"INVALID_ADDRESS_SPACE|INVALID_PC|LAUNCH_FAILED|LAUNCH_TIMEOUT|MISALIGNED_ADDRESS|"
    r"MPS_CLIENT_TERMINATED|NVLINK_UNCORRECTABLE|SYSTEM_NOT_READY|TENSOR_MEMORY_LEAK|"
    r"UNKNOWN)\b[^\n]*"
)

# What Keras says of a generator or a PyDataset without a batch, which may be a worker's part.
_NO_BATCH = re.compile("Received an empty generator|The PyDataset has length 0")


def cause_of(error: BaseException, here: ClusterEnvironment) -> errors.StromError | None:
    """What an exception that Keras or TensorFlow raised means to the user; None: just that."""
    if isinstance(error, tf.errors.OpError):
        words = _LOST_DEVICE.search(str(error))  # Whatever else is said then follows from that.
        ours = translate(error)
        if words or isinstance(ours, errors.DeviceLost):
            return _device_lost(words[0] if words else str(ours), here)
        return ours
    # How Keras meets data that ends before its first batch.
    is_empty = isinstance(error, StopIteration) or (
        isinstance(error, ValueError) and here.size > 1 and bool(_NO_BATCH.search(str(error)))
    )
    return no_training_data(here) if is_empty and _is_keras_own(error) else None


def no_training_data(here: ClusterEnvironment) -> errors.UnsupportedModel:
    """What a worker says that has not a single batch."""
    return errors.UnsupportedModel(
        f"worker {here.rank} of {here.size} has no training data; each takes one of {here.size} "
        f"rows of arrays, or of {here.size} elements of a dataset or generator (usually batches), "
        "so there must be at least as many: use smaller batches or fewer workers"
        if here.size > 1
        else "the training data is empty"
    )


def outside_of_training() -> errors.UnsupportedModel:
    """What a worker among several says of a step that belongs to no training."""
    if _steps_of_keras_2():
        return errors.UnsupportedModel(
            "this is a model of Keras 2 (tf_keras, or tf.keras where TF_USE_LEGACY_KERAS is set, "
            "as tensorflow_transform does), which several workers cannot train: build it with "
            "Keras 3 (import keras)"
        )
    return errors.UnsupportedModel(
        "a custom training loop with several workers must call strategy.begin() before its "
        "first step and strategy.synchronize() after its last"
    )


def _steps_of_keras_2() -> bool:
    """Whether it is Keras 2 that called us; to us its `fit` is a custom loop."""
    callers = traceback.walk_stack(None)
    return any(str(f.f_globals.get("__name__")).startswith("tf_keras.") for f, _ in callers)


def _is_keras_own(error: BaseException) -> bool:
    """Whether an exception was raised in Keras, not in a callback or data of the user's."""
    *_, (innermost, _) = traceback.walk_tb(error.__traceback__)
    module = str(innermost.f_globals.get("__name__", ""))
    return module.startswith(("keras.", "keras_strom.", "tensorflow."))


def _device_lost(words: str, here: ClusterEnvironment) -> errors.DeviceLost:
    return errors.DeviceLost(
        f"worker {here.rank}'s GPU has stopped working ({words}); the system's log (dmesg, "
        "nvidia-smi -q) may say why"
    )


def as_told(cause: BaseException, error: BaseException) -> BaseException | None:
    """What to raise in place of `error`, which is being handled; None = that as it is.

    Args:
        cause: what it means, or the same.
        error: as it was raised.
    """
    if isinstance(cause, errors.StromError) and keras.config.is_traceback_filtering_enabled():
        # Its words say what to do; our frames and what Keras made of it would only hide them.
        cause.__cause__ = None
        return cause.with_traceback(_without_own_frames(error.__traceback__))
    if cause is error:
        return None
    cause.__cause__ = error
    return cause


def _without_own_frames(frames: TracebackType | None) -> TracebackType | None:
    """The frames of a traceback that are not of keras_strom, as Keras leaves out its own."""
    if frames is None:
        return None
    inner = _without_own_frames(frames.tb_next)
    if frames.tb_frame.f_globals.get("__name__", "").startswith("keras_strom."):
        return inner
    return TracebackType(inner, frames.tb_frame, frames.tb_lasti, frames.tb_lineno)
