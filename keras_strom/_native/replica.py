"""One worker's compression state, owned by libstrom.so: residuals and what has been applied."""

from __future__ import annotations

import ctypes
import dataclasses

import numpy as np
import numpy.typing as npt

from keras_strom._native.library import check, declare

# A larger encoded update is split by span range (custom_ops/core/base/types.h, kMaxMessageBytes).
_MAX_ENCODED_BYTES = 4 << 20

_HANDLE = ctypes.c_int64
_FLOATS = ctypes.POINTER(ctypes.c_float)


class _ResidualResult(ctypes.Structure):
    """`strom_residual_result`."""

    _fields_ = (
        ("elements", ctypes.c_int64),
        ("message_bytes", ctypes.c_int64),
        ("mass", ctypes.c_double),
    )


@dataclasses.dataclass(frozen=True)
class HandedOver:
    """A residual that was handed over.

    Attributes:
        elements: how many of it were not zero.
        message_bytes: of the messages that hold it.
        mass: the sum of all |r|.
    """

    elements: int
    message_bytes: int
    mass: float

    def __str__(self) -> str:
        return (
            f"{self.elements} elements of its residual, a mass of {self.mass:.6g}, were handed "
            f"over in {self.message_bytes} bytes"
        )


class Replica:
    """Residuals over the flat space of all shared variables.

    The training ops name it by `handle`. Calls on one replica are serialised by the library.

    Example:
        >>> replica = Replica()
        >>> replica.extend(4)
        >>> replica.read_residual(0, 4).tolist()
        [0.0, 0.0, 0.0, 0.0]
    """

    def __init__(self) -> None:
        handle = _HANDLE()
        create = declare("strom_replica_create", ctypes.c_int64, ctypes.POINTER(_HANDLE))
        check(create(_MAX_ENCODED_BYTES, ctypes.byref(handle)))
        self.handle: int = handle.value

    def extend(self, size: int) -> None:
        """Grows the flat space to `size` elements."""
        check(declare("strom_replica_extend", _HANDLE, ctypes.c_int64)(self.handle, size))

    def bind(self, worker: int) -> None:
        """From now on messages go out through the worker of this handle (0 = nobody)."""
        check(declare("strom_replica_bind", _HANDLE, _HANDLE)(self.handle, worker))

    def read_residual(self, offset: int, size: int) -> npt.NDArray[np.float32]:
        """A copy of the residuals of flat elements [offset, offset + size)."""
        out = np.empty(size, np.float32)
        function = declare(
            "strom_replica_read_residual", _HANDLE, ctypes.c_int64, ctypes.c_int64, _FLOATS
        )
        check(function(self.handle, offset, size, out.ctypes.data_as(_FLOATS)))
        return out

    def write_residual(self, offset: int, values: npt.NDArray[np.float32]) -> None:
        """Overwrites the residuals from flat element `offset` on."""
        values = np.ascontiguousarray(values, np.float32)
        function = declare(
            "strom_replica_write_residual", _HANDLE, ctypes.c_int64, ctypes.c_int64, _FLOATS
        )
        check(function(self.handle, offset, values.size, values.ctypes.data_as(_FLOATS)))

    def hand_over(self, iteration: int) -> HandedOver:
        """Sends the whole residual to all others, to the bit; nothing of it is left here.

        The last thing that a worker does with its residual before it leaves.

        Args:
            iteration: of its last step.

        Raises:
            StromError: what could not be sent stays.
        """
        result = _ResidualResult()
        function = declare("strom_replica_hand_over", _HANDLE, ctypes.c_int64, ctypes.c_void_p)
        check(function(self.handle, iteration, ctypes.addressof(result)))
        return HandedOver(result.elements, result.message_bytes, result.mass)

    def keep_messages(self) -> None:
        """From now on keeps a copy of each step's messages for `message`."""
        check(declare("strom_replica_keep_messages", _HANDLE, ctypes.c_int32)(self.handle, 1))

    def message(self, index: int) -> bytes:
        """The kept message `index` of the last step."""
        function = declare(
            "strom_replica_message",
            _HANDLE,
            ctypes.c_int64,
            ctypes.c_char_p,
            ctypes.c_int64,
            ctypes.POINTER(ctypes.c_int64),
        )
        size = ctypes.c_int64()
        check(function(self.handle, index, None, 0, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        check(function(self.handle, index, buffer, size.value, ctypes.byref(size)))
        return buffer.raw

    def close(self) -> None:
        """Frees the residuals; ops that still name the handle fail from now on. Idempotent."""
        handle, self.handle = self.handle, 0
        if handle:
            check(declare("strom_replica_close", _HANDLE)(handle))
