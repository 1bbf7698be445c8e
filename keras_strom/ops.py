"""The codec by itself as TensorFlow ops: the same as `keras_strom.codec`, on tensors.

The ops keep no state and change no argument: what `encode` would change in place is an output here
(TensorFlow reuses the input's buffer where nobody else reads it). They work eagerly and in
`tf.function`, and not under `jit_compile=True`. A message is a uint8 vector, so its size is
`tf.size(message)` bytes; `message.numpy().tobytes()` is what `keras_strom.codec` calls its bytes,
and `tf.io.decode_raw(string, tf.uint8)` turns them back.

On a GPU `threshold_encode` and `apply` work where the tensors lie; only the message is on the host.
Where libstrom_cuda.so is not installed, or cannot use the GPU, tensors are copied to the host and
back, and a warning says so once.

What is refused raises `tf.errors.InvalidArgumentError` (wrong shapes, NaN or infinity, a threshold
that is not over 0) or `tf.errors.DataLossError` (bytes that are no message), with the same words as
`keras_strom.codec`. Asking for a gradient is a `LookupError` that says why there is none (through
the message itself it is None, as through every integer tensor).

Example:
    >>> import tensorflow as tf
    >>> from keras_strom import ops
    >>> update = tf.constant([0.25, -1.5, 0.5, 2.0])
    >>> residual = tf.constant([0.0, 0.0, 0.75, 0.0])
    >>> message, residual, count = ops.threshold_encode(update, residual, threshold=1.0)
    >>> residual.numpy().tolist(), int(count)
    ([0.25, -0.5, 0.25, 1.0], 3)
    >>> ops.decode(message, size=4).numpy().tolist()
    [0.0, -1.0, 1.0, 1.0]
    >>> ops.apply(message, tf.ones([2, 2])).numpy().tolist()
    [[1.0, 0.0], [2.0, 2.0]]
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_strom._native.ops import operations
from keras_strom.codec import Coding, Prefer, require_options
from keras_strom.sharing import step_warnings

#: A tensor, or what TensorFlow makes one of.
Tensor = Any


def threshold_encode(
    update: Tensor,
    residual: Tensor,
    threshold: Tensor,
    *,
    coding: Coding = "auto",
    prefer: Prefer = "size",
    iteration: Tensor = 0,
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Adds an update to a residual and moves what reached the threshold into a message.

    Args:
        update: float32, any shape, not empty.
        residual: float32, the same shape; zeros at the start.
        threshold: float32 scalar, tau > 0.
        coding: "auto", or one coding for all spans: "sparse", "bitmap" or "bitmap4", which goes
            by the host where tensors lie on a GPU; see `keras_strom.codec.encode`.
        prefer: what "auto" prefers: "size", the fewest bytes, or "speed".
        iteration: int32 or int64 scalar, the sender's step, 0 to 2**35 - 1. The message says it,
            and "bitmap4" needs another one each step.
        name: of the op.

    Returns:
        message: uint8 [bytes].
        residual_after: float32, the residual's shape: residual + update less what is in the
            message.
        count: int64 scalar, the elements that left.

    Raises:
        tf.errors.InvalidArgumentError: an argument that is refused, when the op runs.
        InvalidOption: an unknown coding or preference.
    """
    require_options(coding, prefer)
    encoded = operations().strom_threshold_encode(
        update=update,
        residual=residual,
        threshold=threshold,
        iteration=_int64(iteration),
        coding=coding,
        prefer=prefer,
        name=name,
    )
    _warn()
    return encoded.message, encoded.residual_after, encoded.count


def bitmap_encode(
    update: Tensor, residual: Tensor, threshold: Tensor, *, name: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """`threshold_encode` with `coding="bitmap"`: at most two bits an element, for dense updates."""
    return threshold_encode(update, residual, threshold, coding="bitmap", name=name)


def decode(message: Tensor, size: Tensor, *, name: str | None = None) -> Tensor:
    """What a message adds to parameters: ±threshold (or a half) where an entry is, 0 elsewhere.

    Args:
        message: uint8 [bytes], of `threshold_encode` or of any machine.
        size: int32 or int64 scalar, the elements of the update that it was made from.
        name: of the op.

    Returns:
        float32 [size].

    Raises:
        tf.errors.DataLossError: the bytes were cut short or altered, or never were a message.
        tf.errors.InvalidArgumentError: another size.
    """
    return operations().strom_decode(message=message, size=_int64(size), name=name)


def apply(message: Tensor, parameters: Tensor, *, name: str | None = None) -> Tensor:
    """The parameters plus what a message says.

    Args:
        message: uint8 [bytes], of `threshold_encode` or of any machine.
        parameters: float32, any shape with as many elements as the update had.
        name: of the op.

    Returns:
        float32, the parameters' shape.

    Raises:
        tf.errors.DataLossError: the bytes were cut short or altered, or never were a message.
        tf.errors.InvalidArgumentError: another size.
    """
    after = operations().strom_apply_message(message=message, parameters=parameters, name=name)
    _warn()
    return after


def _warn() -> None:
    """Says what the ops have to say; those in a graph are heard by the next call or step."""
    if tf.executing_eagerly():
        step_warnings.tell()


def _int64(number: Tensor) -> Tensor:
    """An integer as the ops take it; what is none they refuse."""
    tensor = tf.convert_to_tensor(number, dtype_hint=tf.int64)
    # tf.size's own type.
    return tf.cast(tensor, tf.int64) if tensor.dtype == tf.int32 else tensor


@tf.RegisterGradient("StromThresholdEncode")  # type: ignore[untyped-decorator]
def _encoding_has_no_gradient(op: Any, *_gradients: Any) -> None:
    raise LookupError(
        f"{op.type} has no gradient: what reaches the threshold leaves as a constant, so its "
        "derivative is 0 almost everywhere. Encode updates after their gradients have been taken, "
        "or put tf.stop_gradient around the update"
    )


@tf.RegisterGradient("StromApplyMessage")  # type: ignore[untyped-decorator]
def _applying_has_no_gradient(op: Any, *_gradients: Any) -> None:
    raise LookupError(
        f"{op.type} has no gradient: a message is bytes, which nothing can be derived by. Apply "
        "messages outside of the tape, or put tf.stop_gradient around the parameters"
    )


# Between numbers and uint8 TensorFlow looks for no gradient: it gives None, as for tf.argmax.
tf.no_gradient("StromDecode")
