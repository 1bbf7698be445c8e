"""Workers of a relay of any bytes as Python objects; as thin as those that train (`node`)."""

from __future__ import annotations

import ctypes

from keras_strom._native.library import check, declare
from keras_strom._native.node import Handle, JoinedNode, Pointer, wait_ns

#: STROM_MAX_BYTES, the longest message of a `BytesNode`: 4 MiB less the header.
MAX_BYTES = (4 << 20) - 56


class BytesNode(JoinedNode):
    """A worker of a relay of any bytes. See `strom_bytes_join` and what follows it.

    Its calls block the calling thread, Ctrl+C included, for their timeout: keep that short.
    """

    _kind = "bytes"

    def submit(self, data: bytes, timeout: float) -> int:
        """Sends `data` to all others and returns its number."""
        counter = ctypes.c_uint64()
        send = declare(
            "strom_bytes_submit", Handle, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64, Pointer
        )
        duration = wait_ns(timeout)
        check(send(self.handle, data, len(data), duration, ctypes.addressof(counter)))
        return counter.value

    def poll(self, room: ctypes.Array[ctypes.c_char], timeout: float) -> tuple[int, int, int]:
        """The next message's (origin, counter, length); its bytes are in `room`.

        Args:
            room: takes MAX_BYTES.
            timeout: seconds; the length is -1 where nothing came.
        """
        origin, counter, size = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_int64()
        take = declare(
            "strom_bytes_poll",
            Handle,
            ctypes.c_int64,
            Pointer,
            Pointer,
            Pointer,
            Pointer,
        )
        check(
            take(
                self.handle,
                wait_ns(timeout),
                ctypes.addressof(origin),
                ctypes.addressof(counter),
                ctypes.addressof(room),
                ctypes.addressof(size),
            )
        )
        return origin.value, counter.value, size.value

    def flush(self, timeout: float) -> None:
        """Waits until the master has all that was submitted."""
        wait = declare("strom_bytes_flush", Handle, ctypes.c_int64)
        check(wait(self.handle, wait_ns(timeout)))
