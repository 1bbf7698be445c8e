"""The control channel between the driver and one task: authenticated JSON messages over TCP.

Both ends hold a key derived from the job's secret. Each sends 16 random bytes; the session's key is
the HMAC-SHA256 of both, and every message carries a tag over its direction, its number and its
bytes. So nothing is parsed before it is known to come from a member of the job, and no message can
be replayed, dropped or reordered unnoticed. Messages are not encrypted: they hold log lines and
ranks, never keys.

    message = u32 length, 32-byte tag, `length` bytes of JSON (an object); little-endian
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Mapping
from typing import Any

from keras_strom import errors
from keras_strom.job.credentials import Credentials

HEARTBEAT_SECONDS = 2.0
SILENCE_SECONDS = 30.0
MAX_MESSAGE_BYTES = 1 << 20

_HELLO_SECONDS = 10.0
_NONCE_BYTES = 16
_TAG_BYTES = 32
_LENGTH = struct.Struct("<I")

Message = Mapping[str, Any]


class Channel:
    """One end of a connection. Any thread may send; one thread receives.

    Args:
        connection: a connected stream socket, which this object then owns.
        credentials: the job's.
        driver: whether this is the driver's end.

    Raises:
        ConnectionError: the peer went away or said nothing for 10 seconds.
    """

    def __init__(
        self, connection: socket.socket, credentials: Credentials, *, driver: bool
    ) -> None:
        self._socket = connection
        self._socket.settimeout(None)
        with contextlib.suppress(OSError):  # Not every family has it; it only saves time.
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._send_lock = threading.Lock()
        self._sent = self._received = 0
        self._out, self._in = (b"D", b"T") if driver else (b"T", b"D")
        own = os.urandom(_NONCE_BYTES)
        self._socket.sendall(own)
        theirs = self._read(_NONCE_BYTES, _HELLO_SECONDS)
        nonces = own + theirs if driver else theirs + own
        self._key = _hmac(_control_key(credentials), nonces)

    def send(self, message: Message) -> None:
        """Sends one message; blocks while the peer does not read.

        Raises:
            ConnectionError: the connection is gone.
        """
        # Unescaped, a character takes at most 4 bytes, or 6 if it is a control character.
        body = json.dumps(message, ensure_ascii=False).encode()
        if len(body) > MAX_MESSAGE_BYTES:
            raise errors.InternalError(f"a control message of {len(body)} bytes is too long")
        with self._send_lock:
            tag = self._tag(self._out, self._sent, body)
            self._sent += 1
            try:
                self._socket.sendall(_LENGTH.pack(len(body)) + tag + body)
            except OSError as error:
                raise ConnectionError(f"the control connection is gone: {error}") from error

    def receive(self, timeout: float = SILENCE_SECONDS) -> dict[str, Any]:
        """The next message.

        Raises:
            SecretRejected: it was not made with this job's secret.
            ConnectionError: the connection is gone, or there was silence for `timeout` seconds.
        """
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, timeout))
        if length > MAX_MESSAGE_BYTES:
            raise ConnectionError(f"the peer announced {length} bytes")
        tag = self._read(_TAG_BYTES, timeout)
        body = self._read(length, timeout)
        if not hmac.compare_digest(tag, self._tag(self._in, self._received, body)):
            raise errors.SecretRejected("a control message was not made with this job's secret")
        self._received += 1
        try:
            message = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ConnectionError(f"a control message is no JSON: {error}") from error
        if not isinstance(message, dict):
            raise ConnectionError("a control message is no JSON object")
        return message

    def close(self) -> None:
        """Closes the connection; a thread that is blocked in it gets a ConnectionError."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _tag(self, direction: bytes, number: int, body: bytes) -> bytes:
        return _hmac(self._key, direction + struct.pack("<Q", number) + body)

    def _read(self, size: int, timeout: float) -> bytes:
        content = bytearray()
        deadline = time.monotonic() + timeout
        while len(content) < size:
            try:
                ready = select.poll()
                ready.register(self._socket, select.POLLIN)
                if not ready.poll(max(0.0, deadline - time.monotonic()) * 1000):
                    raise ConnectionError(f"no sign of life for {timeout:g} s")
                chunk = self._socket.recv(size - len(content))
            except ConnectionError:
                raise
            except (OSError, ValueError) as error:  # ValueError: closed by another thread.
                raise ConnectionError(f"the control connection is gone: {error}") from error
            if not chunk:
                raise ConnectionError("the peer closed the control connection")
            content += chunk
        return bytes(content)


def _control_key(credentials: Credentials) -> bytes:
    return _hmac(credentials.secret, b"keras-strom control channel" + credentials.job_id)


def _hmac(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, content, hashlib.sha256)
