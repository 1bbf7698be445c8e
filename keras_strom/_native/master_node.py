"""Masters of libstrom.so as Python objects; as thin as workers (`node`)."""

from __future__ import annotations

import ctypes
from types import MappingProxyType
from typing import Any

from keras_strom._native.library import check, declare
from keras_strom._native.node import (
    Handle,
    JobIdBytes,
    KeyBytes,
    Pointer,
    status_of,
    utf8,
    wait_ns,
)
from keras_strom.job.credentials import Credentials

#: Topologies by the names of `NetworkConfig`, as the C interface numbers them.
TOPOLOGIES = MappingProxyType({"auto": 0, "plain": 1, "mesh": 2})

#: How updates are merged, likewise.
MERGING = MappingProxyType({"auto": 0, "off": 1, "on": 2})


class _MasterOptions(ctypes.Structure):
    """`strom_master_options`."""

    _fields_ = (
        ("bind_address", ctypes.c_char_p),
        ("port", ctypes.c_int32),
        ("workers", ctypes.c_int32),
        ("secret", ctypes.POINTER(ctypes.c_uint8)),
        ("job_id", ctypes.POINTER(ctypes.c_uint8)),
        ("failure_timeout_ns", ctypes.c_int64),
        ("epoch", ctypes.c_uint64),
        ("topology", ctypes.c_int32),
        ("max_children", ctypes.c_int32),
        ("max_depth", ctypes.c_int32),
        ("merging", ctypes.c_int32),
        ("same_host", ctypes.c_int32),
        ("any_bytes", ctypes.c_int32),
        ("min_workers", ctypes.c_int32),
        ("private_key", ctypes.POINTER(ctypes.c_uint8)),
    )


class MasterNode:
    """The master's I/O thread. See `strom_master_create`."""

    def __init__(
        self,
        credentials: Credentials,
        *,
        workers: int,
        bind_address: str = "",
        port: int = 0,
        failure_timeout: float = 5.0,
        epoch: int = 1,
        topology: str = "auto",
        max_children: int = 8,
        max_depth: int = 5,
        merging: str = "auto",
        same_host: bool = True,
        any_bytes: bool = False,
        min_workers: int = 0,
        private_key: bytes | None = None,
    ) -> None:
        options = _MasterOptions(
            bind_address=bind_address.encode(),
            port=port,
            workers=workers,
            secret=KeyBytes.from_buffer_copy(credentials.secret),
            job_id=JobIdBytes.from_buffer_copy(credentials.job_id),
            failure_timeout_ns=wait_ns(failure_timeout),
            epoch=epoch,
            topology=TOPOLOGIES[topology],
            max_children=max_children,
            max_depth=max_depth,
            merging=MERGING[merging],
            same_host=same_host,
            any_bytes=any_bytes,
            min_workers=min_workers,
            private_key=None if private_key is None else KeyBytes.from_buffer_copy(private_key),
        )
        handle = ctypes.c_int64()
        create = declare("strom_master_create", Pointer, Pointer)
        check(create(ctypes.addressof(options), ctypes.addressof(handle)))
        self.handle = handle.value

    @property
    def port(self) -> int:
        """The UDP port it listens on."""
        port = ctypes.c_int32()
        read = declare("strom_master_port", Handle, Pointer)
        check(read(self.handle, ctypes.addressof(port)))
        return port.value

    @property
    def public_key(self) -> bytes:
        """Its X25519 key, which workers must be given beside the secret."""
        key = KeyBytes()
        read = declare("strom_master_public_key", Handle, Pointer)
        check(read(self.handle, ctypes.addressof(key)))
        return bytes(key)

    def status(self) -> dict[str, Any]:
        """State and counters; docs/internals/native.md lists the keys."""
        return status_of(self.handle)

    def worker_has_ended(self, rank: int) -> None:
        """Says that this worker's process has ended; who waits hears of it where it never came."""
        check(declare("strom_master_worker_has_ended", Handle, ctypes.c_int32)(self.handle, rank))

    def close(self, reason: str = "") -> None:
        """Tells every worker to end with `reason` and ends the thread. Harmless when repeated."""
        close = declare("strom_master_close", Handle, ctypes.c_char_p)
        check(close(self.handle, utf8(reason)))
