"""The codec by itself: turns an update into a short message and back, on NumPy arrays.

`encode` adds an update to a residual and lets only what has grown to the threshold leave, as
±threshold (with coding "bitmap4" also halves of it); the rest stays in the residual and leaves
later, so nothing is ever lost::

    residual_before + update == residual_after + decode(message)

elementwise and within float32 rounding. It needs neither TensorFlow nor a cluster: use it to see
what compression does to your own updates, or to send them over a transport of your own. Inside
TensorFlow graphs use `keras_strom.ops`; `StromStrategy` does all of it by itself.

Arrays have any shape and are taken as flat. They must be C-contiguous float32, for they are read
and written where they are. Whatever is refused leaves every argument as it was. Messages are the
same on every machine and are checked whole before anything is applied.

Source: N. Strom, "Scalable distributed DNN training using commodity GPU cloud computing", 2015.

Example:
    >>> import numpy as np
    >>> from keras_strom import codec
    >>> update = np.array([[0.25, -1.5], [0.5, 2.0]], np.float32)
    >>> residual = np.array([[0.0, 0.0], [0.75, 0.0]], np.float32)
    >>> message = codec.encode(update, residual, threshold=1.0)
    >>> residual.tolist()
    [[0.25, -0.5], [0.25, 1.0]]
    >>> codec.decode(message.bytes, size=4).tolist()
    [0.0, -1.0, 1.0, 1.0]
    >>> parameters = np.ones((2, 2), np.float32)
    >>> codec.apply(message.bytes, parameters)
    >>> parameters.tolist()
    [[1.0, 0.0], [2.0, 2.0]]
"""

from __future__ import annotations

import builtins
import dataclasses
import math
import operator
from collections.abc import Iterable
from typing import Literal, SupportsFloat

import numpy as np
import numpy.typing as npt

from keras_strom import errors
from keras_strom._native import codec as native

Floats = npt.NDArray[np.float32]

#: How entries are written: each place by itself, or a bit for every element; `auto` takes the
#: better one for each span, of 2048 elements or more. `bitmap4` sends something else: halves too.
Coding = Literal["auto", "sparse", "bitmap", "bitmap4"]

#: What `auto` calls better: fewer bytes, or less time to encode and decode.
Prefer = Literal["size", "speed"]


#: What one message can hold, as strom_codec_encode has it.
_MOST_ELEMENTS = 1 << 33
_LAST_ITERATION = (1 << 35) - 1


@dataclasses.dataclass(frozen=True)
class Message:
    """What left an update.

    Attributes:
        bytes: the message itself, as `decode` and `apply` take it.
        size: elements of the update.
        threshold: tau: every entry adds this, with its sign; one of coding "bitmap4" this or a half
            of it.
        count: entries, the elements that sent something.
        iteration: the sender's step.

    Example:
        >>> import numpy as np
        >>> residual = np.zeros(1000, np.float32)
        >>> update = np.linspace(-1, 1, 1000, dtype=np.float32)
        >>> message = encode(update, residual, threshold=0.9)
        >>> message.count, message.density, len(message.bytes) < 4 * message.size
        (100, 0.1, True)
    """

    bytes: builtins.bytes = dataclasses.field(repr=False)
    size: int
    threshold: float
    count: int
    iteration: int = 0

    @property
    def density(self) -> float:
        """The share of elements that are in the message, 0 to 1."""
        return self.count / self.size

    @property
    def bits_per_entry(self) -> float:
        """Bits an entry, the header included; infinity for a message without entries."""
        return 8 * len(self.bytes) / self.count if self.count else math.inf


def encode(
    update: Floats,
    residual: Floats,
    threshold: float,
    *,
    coding: Coding = "auto",
    prefer: Prefer = "size",
    iteration: int = 0,
) -> Message:
    """Adds `update` to `residual` and moves what reached the threshold into a message.

    An element leaves at most once: where |residual + update| >= threshold, the message gets
    ±threshold and the residual keeps the difference.

    With `coding="bitmap4"` an element also sends ±threshold / 2 where |residual + update| lies
    between that and the threshold, and its sign is the one that halves have in this step: plus
    where index + iteration is even, otherwise minus. An element so sends halves of either sign
    every other step and neither sign is favoured, as long as `iteration` counts the steps. Less
    stays in the residual than with the other codings, for two bits an element, whatever is sent.
    That pays only where the residual has to be as small as it gets, with a threshold of one to two
    standard deviations of the updates; where more may stay, "auto" with a smaller threshold leaves
    as little for fewer bits (docs/parts.md has figures).

    Args:
        update: float32 array of any shape, not empty. Only read.
        residual: float32 array of the same shape, changed in place; zeros at the start. Its memory
            must not overlap the update's.
        threshold: tau, > 0 as float32; with "bitmap4" at least 2**-125.
        coding: "auto", or one coding for all spans: "sparse", "bitmap" or "bitmap4".
        prefer: what "auto" prefers: "size", the fewest bytes, or "speed".
        iteration: the sender's step, 0 to 2**35 - 1. The message says it.

    Returns:
        The message.

    Raises:
        InvalidOption: an argument that is refused; the residual is as it was.
        NotFinite: NaN or infinity, or a sum over the largest float32; likewise.
    """
    _require_floats("update", update)
    _require_floats("residual", residual, writable=True)
    if update.shape != residual.shape:
        raise errors.InvalidOption(
            f"the update has shape {update.shape} and the residual {residual.shape}; both need the "
            "same"
        )
    if np.may_share_memory(update, residual):
        raise errors.InvalidOption(
            "update and residual share memory; pass a copy of the update (update.copy())"
        )
    tau = _threshold(threshold)
    require_options(coding, prefer)
    step = _iteration(iteration)
    message, count = native.encode(
        *(update, residual, residual, tau), coding=coding, prefer=prefer, iteration=step
    )
    return Message(message, update.size, tau, count, step)


def read(message: bytes | bytearray | memoryview) -> Message:
    """What bytes from elsewhere say: their size, threshold, count and iteration.

    Args:
        message: `Message.bytes` of any machine.

    Raises:
        CorruptMessage: the bytes were cut short or altered, or never were a message.

    Example:
        >>> import numpy as np
        >>> sent = encode(np.ones(8, np.float32), np.zeros(8, np.float32), threshold=0.5)
        >>> read(sent.bytes) == sent
        True
    """
    data = _bytes(message)
    found = native.describe(data)
    return Message(data, found.size, found.threshold, found.count, found.iteration)


def decode(message: bytes | bytearray | memoryview, size: int) -> Floats:
    """What a message adds to parameters: ±threshold (or a half) where an entry is, 0 elsewhere.

    Args:
        message: `Message.bytes` of any machine.
        size: elements of the update that it was made from; `read` tells it.

    Returns:
        A new float32 array [size].

    Raises:
        CorruptMessage: the bytes were cut short or altered, or never were a message.
        InvalidOption: another size, or arguments that are refused.
    """
    data = _bytes(message)
    try:
        elements = operator.index(size)
    except TypeError:
        raise errors.InvalidOption(f"size is {size!r}; it must be an integer") from None
    if not 1 <= elements <= _MOST_ELEMENTS:
        raise errors.InvalidOption(f"size is {elements}; it must be 1 to 2**33")
    parameters = np.zeros(elements, np.float32)
    native.apply(data, parameters)
    return parameters


def apply(message: bytes | bytearray | memoryview, parameters: Floats) -> None:
    """Adds what a message says to `parameters`, in place, after checking all of it.

    Args:
        message: `Message.bytes` of any machine.
        parameters: float32 array of any shape with as many elements as the update had.

    Raises:
        CorruptMessage: the bytes were cut short or altered, or never were a message.
        InvalidOption: another size, or an array that is refused; the parameters are as they were.
    """
    data = _bytes(message)
    _require_floats("parameters", parameters, writable=True)
    native.apply(data, parameters)


# ------------------------------------------------------------------ what is refused


def _require_floats(name: str, array: object, *, writable: bool = False) -> None:
    """Refuses what the native side cannot read or write where it is."""
    if not isinstance(array, np.ndarray):
        raise errors.InvalidOption(
            f"{name} is {_type_name(array)}; it must be a NumPy array of float32"
        )
    if isinstance(array, np.ma.MaskedArray):
        raise errors.InvalidOption(
            f"{name} is a masked array, whose mask would be left out; pass {name}.filled(0)"
        )
    if array.dtype != np.float32:
        raise errors.InvalidOption(
            f"{name} is {array.dtype}; it must be float32 ({name}.astype(numpy.float32))"
        )
    if not array.flags.c_contiguous:
        raise errors.InvalidOption(
            f"{name} is not C-contiguous; pass numpy.ascontiguousarray({name}), which is a copy"
        )
    if not array.flags.aligned:
        raise errors.InvalidOption(f"{name} is not aligned in memory; pass {name}.copy()")
    if writable and not array.flags.writeable:
        raise errors.InvalidOption(
            f"{name} is read-only and changes in place; pass {name}.copy() and keep that"
        )
    if array.size == 0:
        raise errors.InvalidOption(f"{name} is empty, shape {array.shape}; there is nothing to do")


def _threshold(value: object) -> float:
    """The threshold as float32 has it."""
    misleading = (bool, np.bool_, np.complexfloating, np.ndarray)  # They become floats, too.
    if isinstance(value, misleading) or not isinstance(value, SupportsFloat):
        raise errors.InvalidOption(f"the threshold is {_type_name(value)}; it must be a number")
    try:
        with np.errstate(over="ignore", under="ignore"):
            tau = float(np.float32(float(value)))
    except OverflowError:  # an integer beyond every float
        tau = math.inf
    if not (math.isfinite(tau) and tau > 0):
        raise errors.InvalidOption(
            f"the threshold is {value}; it must be over 0 and finite as float32"
        )
    return tau


def _iteration(value: object) -> int:
    if isinstance(value, bool | np.bool_):  # They become integers, too.
        raise errors.InvalidOption(f"the iteration is {value}; it must be an integer")
    try:
        step = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise errors.InvalidOption(f"the iteration is {value!r}; it must be an integer") from None
    if not 0 <= step <= _LAST_ITERATION:
        raise errors.InvalidOption(f"the iteration is {step}; it must be 0 to 2**35 - 1")
    return step


def require_options(coding: object, prefer: object) -> None:
    """Refuses unknown options of `encode`, and a preference without effect."""
    _require_one_of("coding", coding, native.CODINGS)
    _require_one_of("prefer", prefer, native.PREFERENCES)
    if coding != "auto" and prefer != "size":
        raise errors.InvalidOption(
            f"prefer={prefer!r} has no effect with coding={coding!r}; it is what 'auto' goes by"
        )


def _require_one_of(name: str, value: object, allowed: Iterable[str]) -> None:
    names = list(allowed)
    if not isinstance(value, str) or value not in names:
        raise errors.InvalidOption(
            f"{name} is {value!r}; it must be one of {', '.join(map(repr, names))}"
        )


def _bytes(message: object) -> bytes:
    """The message as memory that nobody can change between its check and its use."""
    if isinstance(message, bytes):
        return message
    if isinstance(message, Message):
        raise errors.InvalidOption("this takes the message's bytes: pass message.bytes")
    if isinstance(message, bytearray | memoryview):
        return bytes(message)
    raise errors.InvalidOption(f"the message is {_type_name(message)}; it must be bytes")


def _type_name(value: object) -> str:
    return f"of type {type(value).__name__}"
