"""A control channel between a runner and one of its workers' machines: encrypted JSON over TCP.

The runner, here the *master*, is Spark's driver or `keras-strom master`; its peer is a Spark task
or the agent of `keras-strom worker`.

Both ends hold a key derived from the job's secret, and the peer the public half of the master's key
of this job. Each sends a fresh X25519 public key. What the two fresh keys agree on, what the peer's
and the master's do, and the job's key make the session's two keys, one for each direction, under
which AES-256-GCM seals every message with its number. The master speaks first: its peer says
nothing to anybody who does not hold the secret and the master's key.

So nothing is parsed before it is known to come from a member of the job, no message can be
replayed, dropped or reordered unnoticed, and who records a session cannot read it later either,
whatever becomes known then.

    message = u32 length, `length` bytes of JSON (an object) encrypted, 16-byte tag; little-endian
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Mapping
from typing import Any

from keras_strom import errors
from keras_strom._native import sealing
from keras_strom.job.credentials import KEY_BYTES, Credentials
from keras_strom.runner.wire import MAX_MESSAGE_BYTES

HEARTBEAT_SECONDS = 2.0
SILENCE_SECONDS = 30.0

_HELLO_SECONDS = 10.0
_LENGTH = struct.Struct("<I")

Message = Mapping[str, Any]


class Channel:
    """One end of a connection. Any thread may send; one thread receives.

    Args:
        connection: a connected stream socket, which this object then owns, and closes where it
            raises.
        credentials: the job's.
        master_key: the public half of the master's X25519 key of this job.
        private_key: its private half, at the master's end; None = this is its peer's end.

    Raises:
        SecretRejected: what the peer has reached does not hold the job's secret and master's key.
        ConnectionError: the peer went away or said nothing for 10 seconds. At the master's end its
            first message, too, has to be there within 30 seconds of the connection.
    """

    def __init__(
        self,
        connection: socket.socket,
        credentials: Credentials,
        master_key: bytes,
        private_key: bytes | None = None,
    ) -> None:
        self._socket = connection
        self._socket.settimeout(None)
        with contextlib.suppress(OSError):  # Not every family has it; it only saves time.
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._is_master = private_key is not None
        self._ended = "the peer closed the control connection"  # What an end of the stream means.
        self._send_lock = threading.Lock()
        self._sent = self._received = 0
        self._known_by = time.monotonic() + SILENCE_SECONDS  # A stranger is not waited for longer.
        try:
            self._shake_hands(credentials, master_key, private_key)
        except BaseException:
            self._socket.close()
            raise

    def _shake_hands(
        self, credentials: Credentials, master_key: bytes, private_key: bytes | None
    ) -> None:
        fresh = secrets.token_bytes(KEY_BYTES)
        own = sealing.public_key(fresh)
        self._write(own)
        theirs = self._read(KEY_BYTES, _HELLO_SECONDS)
        agreed = sealing.agree(fresh, theirs)
        if private_key is not None:
            agreed += sealing.agree(private_key, theirs)
            said = master_key + own + theirs
        else:
            agreed += sealing.agree(fresh, master_key)
            said = master_key + theirs + own
        session = _hmac(_control_key(credentials), agreed + said)
        masters, peers = _hmac(session, b"D"), _hmac(session, b"T")
        if self._is_master:
            self._out, self._in = masters, peers
            self.send({"type": "heartbeat"})
        else:
            self._out, self._in = peers, masters
            self.receive(_HELLO_SECONDS)

    def send(self, message: Message) -> None:
        """Sends one message; blocks while the peer does not read.

        Raises:
            ConnectionError: the connection is gone, or, at the master's end, its peer reads
                nothing for 30 seconds: others wait for the thread that speaks to it.
        """
        # Unescaped, a character takes at most 4 bytes, or 6 if it is a control character.
        body = json.dumps(message, ensure_ascii=False).encode()
        if len(body) > MAX_MESSAGE_BYTES:
            raise errors.InternalError(f"a control message of {len(body)} bytes is too long")
        with self._send_lock:
            sealed = sealing.seal(self._out, self._sent, body)
            self._sent += 1
            self._write(_LENGTH.pack(len(body)) + sealed)

    def receive(self, timeout: float = SILENCE_SECONDS) -> dict[str, Any]:
        """The next message.

        Raises:
            SecretRejected: it was not made with this job's keys.
            ConnectionError: the connection is gone, or there was silence for `timeout` seconds.
        """
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, timeout))
        if length > MAX_MESSAGE_BYTES:
            raise ConnectionError(f"the peer announced {length} bytes")
        sealed = self._read(length + sealing.TAG_BYTES, timeout)
        try:
            body = sealing.unseal(self._in, self._received, sealed)
        except errors.SecretRejected:
            raise errors.SecretRejected(
                "a control message was not made with this job's secret"
                if self._is_master
                else "what answers at the control port is not this job's driver or master: it "
                "lacks the job's secret or the master's key; does another program listen there?"
            ) from None
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

    def _write(self, content: bytes) -> None:
        left = memoryview(content)
        deadline = time.monotonic() + SILENCE_SECONDS
        while left:
            try:
                room = select.poll()
                room.register(self._socket, select.POLLOUT)
                patience = max(0.0, deadline - time.monotonic()) * 1000 if self._is_master else None
                if room.poll(patience):
                    with contextlib.suppress(BlockingIOError):
                        left = left[self._socket.send(left, socket.MSG_DONTWAIT) :]
                    continue
            except (OSError, ValueError) as error:  # ValueError: closed by another thread.
                raise ConnectionError(f"the control connection is gone: {error}") from error
            # Part of a message may be sent, after which nothing else makes sense.
            self._ended = f"the peer has read nothing for {SILENCE_SECONDS:g} s"
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            raise ConnectionError(self._ended)

    def _read(self, size: int, timeout: float) -> bytes:
        content = bytearray()
        deadline = time.monotonic() + timeout
        silence = f"no sign of life for {timeout:g} s"
        if self._is_master and self._received == 0 and self._known_by < deadline:
            deadline = self._known_by
            silence = f"it has not shown the job's secret within {SILENCE_SECONDS:g} s"
        while len(content) < size:
            try:
                ready = select.poll()
                ready.register(self._socket, select.POLLIN)
                if not ready.poll(max(0.0, deadline - time.monotonic()) * 1000):
                    raise ConnectionError(silence)
                chunk = self._socket.recv(size - len(content))
            except ConnectionError:
                raise
            except (OSError, ValueError) as error:  # ValueError: closed by another thread.
                raise ConnectionError(f"the control connection is gone: {error}") from error
            if not chunk:
                raise ConnectionError(self._ended)
            content += chunk
        return bytes(content)


def _control_key(credentials: Credentials) -> bytes:
    return _hmac(credentials.secret, b"keras-strom control channel" + credentials.job_id)


def _hmac(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, content, hashlib.sha256)
