"""The codec of libstrom.so: one update to one message and back.

Thin: every function is one call of the C interface (``custom_ops/capi/strom.h``) and trusts its
arrays to be C-contiguous float32. `keras_strom.codec` checks them and is what people use.
"""

from __future__ import annotations

import ctypes
import dataclasses

import numpy as np
import numpy.typing as npt

from keras_strom._native.library import Allocate, check, declare, library

#: The values of strom_codec_options by their names in Python.
CODINGS = {"auto": 0, "sparse": 1, "bitmap": 2, "bitmap4": 3}
PREFERENCES = {"size": 0, "speed": 1}

Floats = npt.NDArray[np.float32]
_Pointer = ctypes.c_void_p


class _Options(ctypes.Structure):
    _fields_ = (
        ("threshold", ctypes.c_float),
        ("coding", ctypes.c_int32),
        ("prefer", ctypes.c_int32),
        ("kernel", ctypes.c_int32),
        ("iteration", ctypes.c_int64),
    )


class _Description(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("iteration", ctypes.c_int64),
        ("threshold", ctypes.c_float),
        ("value", ctypes.c_float),
        ("sparse_spans", ctypes.c_int64),
        ("bitmap_spans", ctypes.c_int64),
        ("raw_spans", ctypes.c_int64),
        ("bitmap4_spans", ctypes.c_int64),
    )


@dataclasses.dataclass(frozen=True)
class Description:
    """What a message says of itself; see strom_message_description."""

    size: int
    count: int
    iteration: int
    threshold: float
    value: float
    sparse_spans: int
    bitmap_spans: int
    raw_spans: int
    bitmap4_spans: int


def encode(
    update: Floats,
    residual: Floats,
    residual_after: Floats,
    threshold: float,
    *,
    coding: str = "auto",
    prefer: str = "size",
    kernel: int = -1,
    iteration: int = 0,
) -> tuple[bytes, int]:
    """A message and its number of entries; `residual_after` may be `residual`.

    Args:
        update: what is added to the residual.
        residual: as many elements.
        residual_after: receives residual + update less what is in the message.
        threshold: tau.
        coding: one of `CODINGS`.
        prefer: one of `PREFERENCES`.
        kernel: -1 = the fastest, else an index into `kernels()`.
        iteration: the sender's step, 0 to 2**35 - 1.
    """
    message = b""

    def allocate(_context: object, size: int) -> int:
        # Filled where it is: a copy could find no memory once the residual has changed.
        nonlocal message
        message = _new_bytes(None, size)
        return int(_memory_of(message))

    options = _Options(
        threshold=threshold,
        coding=CODINGS[coding],
        prefer=PREFERENCES[prefer],
        kernel=kernel,
        iteration=iteration,
    )
    count = ctypes.c_int64()
    function = declare(
        "strom_codec_encode",
        *(_Pointer, _Pointer, _Pointer, ctypes.c_int64),
        *(_Pointer, _Pointer, Allocate, _Pointer, _Pointer),
    )
    check(
        function(
            update.ctypes.data,
            residual.ctypes.data,
            residual_after.ctypes.data,
            update.size,
            ctypes.addressof(options),
            None,
            Allocate(allocate),
            None,
            ctypes.addressof(count),
        )
    )
    return message, count.value


# Bytes to be filled before anybody else sees them, and where they lie.
_new_bytes = ctypes.PYFUNCTYPE(ctypes.py_object, _Pointer, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)
_memory_of = ctypes.PYFUNCTYPE(ctypes.c_ssize_t, ctypes.py_object)(
    ("PyBytes_AsString", ctypes.pythonapi)
)


def kernels() -> tuple[str, ...]:
    """The names of this processor's encoding kernels, the scalar oracle first."""
    name = library().strom_codec_kernel
    name.argtypes, name.restype = (ctypes.c_int32,), ctypes.c_char_p
    names: list[str] = []
    while (found := name(len(names))) is not None:
        names.append(found.decode())
    return tuple(names)


def describe(message: bytes) -> Description:
    """Checks the whole message and tells what it says of itself."""
    found = _Description()
    function = declare("strom_codec_describe", ctypes.c_char_p, ctypes.c_int64, _Pointer)
    check(function(message, len(message), ctypes.addressof(found)))
    return Description(*(getattr(found, field.name) for field in dataclasses.fields(Description)))


def apply(message: bytes, parameters: Floats) -> None:
    """Checks the whole message, then adds it to the parameters."""
    function = declare(
        "strom_codec_apply", ctypes.c_char_p, ctypes.c_int64, _Pointer, ctypes.c_int64, _Pointer
    )
    check(function(message, len(message), parameters.ctypes.data, parameters.size, None))
