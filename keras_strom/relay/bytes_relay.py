"""The relay by itself, for tools and tests: any bytes between processes, without a model.

A `Master` and K `Worker`s that hold the same secret. What one worker submits, all the others get:
in the order it was submitted, once, over whatever the network loses, doubles or reorders. It is
the relay that carries a training's updates (`keras_strom.relay.training_relay`), with a message's
bytes in place of an update's; neither TensorFlow nor a codec is involved.

    secret = keras_strom.relay.new_secret()
    with Master(secret, workers=2) as master:
        info = master.join_info
        with Worker(info, secret) as one, Worker(info, secret) as other:
            one.submit(b"hello")
            [message] = other.poll(timeout=5)
            message.data                      # b"hello"

Another process needs the `JoinInfo` (it can be pickled or sent as JSON, and holds no secret)
and, by a private way, the secret.

To the protocol a relay of bytes is a training without parameters that begins when all K workers
have joined and never ends. So nothing travels before all K are there, and whoever has left after
that is not replaced.
"""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import json
import logging
import secrets
import threading
import time
from typing import Any, NamedTuple

from keras_strom import errors
from keras_strom._native.bytes_node import MAX_BYTES, BytesNode
from keras_strom._native.master_node import MasterNode
from keras_strom.checks import waiting_seconds, whole_number
from keras_strom.job import environment
from keras_strom.job.credentials import JOB_ID_BYTES, KEY_BYTES, Credentials
from keras_strom.job.joining import at_first_that_answers, explained
from keras_strom.job.network import (
    HostPort,
    NetworkConfig,
    bound_address,
    format_address,
    resolve_address,
    warn_of_receive_buffer,
)

#: The longest message, in bytes.
MAX_MESSAGE_BYTES = MAX_BYTES

_logger = logging.getLogger("keras_strom")

_LOOPBACK = "127.0.0.1"
_RANK_TAKEN = (
    "is already taken by another process"  # in the master's words (core/master/membership.cc)
)
_SLICE_SECONDS = 0.2  # Ctrl+C is heard so often in a wait.
_MOST_MESSAGES = 10_000  # of one poll


class Message(NamedTuple):
    """What a worker has received.

    Attributes:
        origin: names the worker that submitted it (`Worker.origin`).
        counter: its number among that worker's: 1, 2, ...
        data: its bytes.
    """

    origin: int
    counter: int
    data: bytes


@dataclasses.dataclass(frozen=True)
class JoinInfo:
    """What a worker needs to find its master, besides the secret; nothing here is private.

    Attributes:
        address: the master's (host, port).
        workers: how many there are.
        job_id: 16 random bytes that name the run.
        master_public_key: the X25519 key that the master proves to hold.

    Example:
        >>> info = JoinInfo(("127.0.0.1", 40123), 2, bytes(16), bytes(32))
        >>> JoinInfo.from_json(info.to_json()) == info
        True
    """

    address: HostPort
    workers: int
    job_id: bytes
    master_public_key: bytes

    def to_json(self) -> str:
        """A text for another process."""
        return json.dumps(
            {
                "address": list(self.address),
                "workers": self.workers,
                "job_id": self.job_id.hex(),
                "master_public_key": self.master_public_key.hex(),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> JoinInfo:
        """Reads `to_json`'s text.

        Raises:
            InvalidOption: it is something else.
        """
        try:
            fields = json.loads(text)
            host, port = fields["address"]
            return cls(
                (str(host), int(port)),
                int(fields["workers"]),
                bytes.fromhex(fields["job_id"]),
                bytes.fromhex(fields["master_public_key"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise errors.InvalidOption(
                f"{text!r} is not what JoinInfo.to_json gives ({type(error).__name__}: {error})"
            ) from None


def new_secret() -> bytes:
    """32 random bytes, fit to be a relay's secret."""
    return secrets.token_bytes(KEY_BYTES)


class Master:
    """The relay's middle: takes every worker's messages and passes them on to all others.

    It has a thread of its own, outside Python, and passes on nothing but authentic messages.

    Attributes:
        address: (host, port) where workers reach it.
        join_info: what a worker needs besides the secret.

    Example:
        >>> with Master(new_secret(), workers=1) as master:
        ...     master.address[0]
        '127.0.0.1'
    """

    def __init__(
        self,
        secret: bytes,
        *,
        workers: int,
        network: NetworkConfig | None = None,
        host: str | None = None,
    ) -> None:
        """Starts listening.

        Args:
            secret: 32 random bytes or more that every worker holds too; see `new_secret`.
            workers: how many there will be; nothing travels before all have joined.
            network: port, mask, topology, failure timeout and the like.
            host: the literal address to bind to; None = what `network`'s mask picks on this
                machine, or the loopback interface.

        Raises:
            InvalidOption: a secret that is too short, or no number of workers.
            AddressError: the port is in use, or the mask picks no or several interfaces.
        """
        whole_number("workers", workers, least=1)
        network = network or NetworkConfig()
        network.refuse_checkpoints("a relay of bytes has nothing to save")
        network.refuse_waiting("a relay of bytes has no state to go on from")
        network.refuse_merging("bytes have no sum; a relay passes each message on by itself")
        if host is None:
            host = _LOOPBACK
            if network.network_mask is not None:
                host = resolve_address(network, node_address=environment.node_address())
        credentials = Credentials(secrets.token_bytes(JOB_ID_BYTES), _key(secret))
        self._node = MasterNode(
            credentials,
            workers=workers,
            bind_address=host,
            port=network.port,
            failure_timeout=network.failure_timeout,
            topology=network.topology,
            max_children=network.max_children,
            max_depth=network.max_depth,
            same_host=network.same_host,
            any_bytes=True,
        )
        self.address: HostPort = network.advertised_master((host, self._node.port))
        self.join_info = JoinInfo(self.address, workers, credentials.job_id, self._node.public_key)
        self._last_status: dict[str, Any] | None = None
        warn_of_receive_buffer(self._node.status()["counters"])

    def status(self) -> dict[str, Any]:
        """State, members, counters and the latest events; the last one once closed."""
        return self._node.status() if self._last_status is None else self._last_status

    def counters(self) -> dict[str, Any]:
        """What has been sent, received, sent again and dropped, in all and by link.

        The keys are those of `keras_strom.relay.counters`, which has them as objects, too.
        """
        counters: dict[str, Any] = self.status()["counters"]
        return counters

    def close(self, reason: str = "the master is closed") -> None:
        """Tells every worker to end with `reason`. Harmless when repeated."""
        if self._last_status is None:
            self._last_status = self._node.status()
            self._node.close(reason)

    def __enter__(self) -> Master:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Worker:
    """One of the relay's K ends: submits messages and polls those of the others.

    Its methods may be called from any threads.

    Attributes:
        rank: its place among the workers, 0 to K - 1.
        origin: names it in the messages that others receive.

    Example:
        >>> secret = new_secret()
        >>> with Master(secret, workers=2) as master:
        ...     info = master.join_info
        ...     with Worker(info, secret) as one, Worker(info, secret) as other:
        ...         counter = one.submit(b"hello")
        ...         other.poll(timeout=30) == [Message(one.origin, counter, b"hello")]
        True
    """

    def __init__(
        self,
        master: JoinInfo,
        secret: bytes,
        *,
        rank: int | None = None,
        network: NetworkConfig | None = None,
        ip: str | None = None,
        join_timeout: float = 30.0,
    ) -> None:
        """Joins; returns when the master has welcomed this worker, not when all have come.

        Args:
            master: the `join_info` of the `Master`.
            secret: the master's.
            rank: 0 to K - 1; None = the first that nobody has.
            network: the same as the master's.
            ip: the address of this machine to bind to, where the mask does not decide.
            join_timeout: seconds.

        Raises:
            Unreachable: nothing answers at the master's address.
            SecretRejected: it answers but does not know this secret or job.
            Refused: the rank is taken, or there are K workers already.
            AddressError: the local port is in use, or the mask picks no or several interfaces.
        """
        if not isinstance(master, JoinInfo):
            raise errors.InvalidOption(f"{master!r} is no JoinInfo; take the master's join_info")
        credentials = Credentials(master.job_id, _key(secret), master.master_public_key)
        self._workers = master.workers
        self._lock = threading.Lock()  # Guards _room.
        self._room = (ctypes.c_char * MAX_MESSAGE_BYTES)()
        self._last_status: dict[str, Any] | None = None
        self._node, self.rank = _join(
            credentials, master, rank, network or NetworkConfig(), ip, join_timeout
        )
        self.origin: int = self._node.status()["origin"]

    def submit(self, data: bytes, *, timeout: float = 60.0) -> int:
        """Sends `data` to all other workers; returns its number: 1, 2, ...

        It returns once the message is queued; `flush` waits until the master has it.

        Args:
            data: 0 to `MAX_MESSAGE_BYTES` bytes.
            timeout: seconds to wait until all workers have joined and, while much is
                unacknowledged, for room.

        Raises:
            InvalidOption: the message is too long.
            DeadlinePassed: not all workers have joined.
            BackPressure: the network has taken nothing for all that time.
            MasterLost: the master has ended or is silent.
            ConnectionClosed: this worker is closed.
        """
        data = bytes(data)
        if len(data) > MAX_MESSAGE_BYTES:
            raise errors.InvalidOption(
                f"a message of {len(data)} bytes is over the limit of {MAX_MESSAGE_BYTES}; submit "
                "it in parts"
            )
        deadline = time.monotonic() + waiting_seconds("timeout", timeout)
        while True:
            left = deadline - time.monotonic()
            try:
                return self._node.submit(data, _slice(left))
            except errors.BackPressure:
                if left <= _SLICE_SECONDS:
                    raise
            except errors.DeadlinePassed:
                if left <= _SLICE_SECONDS:
                    raise errors.DeadlinePassed(
                        f"worker {self.rank}: not all {self._workers} workers have joined within "
                        f"{timeout:g} s, and nothing travels before"
                    ) from None

    def poll(self, timeout: float | None = 0.0) -> list[Message]:
        """What has arrived, in each origin's order; [] if nothing has within `timeout`.

        Args:
            timeout: seconds to wait for the first message; None = until there is one.

        Raises:
            MasterLost: the master has ended or is silent, and all that came before was polled.
            BackPressure: more waits here than may: poll more often.
            ConnectionClosed: this worker is closed.
        """
        deadline = None
        if timeout is not None:
            deadline = time.monotonic() + waiting_seconds("timeout", timeout)
        messages: list[Message] = []
        while True:
            left = _SLICE_SECONDS if deadline is None else deadline - time.monotonic()
            with self._lock:
                messages += self._take(_slice(left))
            if messages or (deadline is not None and left <= _SLICE_SECONDS):
                return messages

    def flush(self, timeout: float = 30.0) -> None:
        """Waits until the master has all that was submitted.

        Raises:
            DeadlinePassed: it has not within `timeout` seconds.
            MasterLost: the master has ended or is silent.
        """
        deadline = time.monotonic() + waiting_seconds("timeout", timeout)
        while True:
            left = deadline - time.monotonic()
            try:
                return self._node.flush(_slice(left))
            except errors.DeadlinePassed:
                if left <= _SLICE_SECONDS:
                    raise errors.DeadlinePassed(
                        f"worker {self.rank}: the master has not acknowledged all messages within "
                        f"{timeout:g} s"
                    ) from None

    def status(self) -> dict[str, Any]:
        """State and counters; the last ones once closed."""
        return self._node.status() if self._last_status is None else self._last_status

    def counters(self) -> dict[str, Any]:
        """What has been sent, received, sent again and dropped, in all and by link.

        The keys are those of `keras_strom.relay.counters`, which has them as objects, too.
        """
        counters: dict[str, Any] = self.status()["counters"]
        return counters

    def close(self, reason: str = "", *, flush_timeout: float = 5.0) -> None:
        """Says goodbye once the master has all that was submitted. Harmless when repeated.

        Args:
            reason: "" = the work is done.
            flush_timeout: seconds to wait for the master; what it has not got by then is lost.
        """
        if self._last_status is not None:
            return
        try:
            if flush_timeout > 0:
                self.flush(flush_timeout)
        except errors.StromError as error:
            _logger.debug("worker %d closes unflushed: %s", self.rank, error)
        finally:
            self._last_status = self._node.status()
            self._node.close(reason)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.close(f"it ended with {kind.__name__}", flush_timeout=0)

    def _take(self, timeout: float) -> list[Message]:
        """Waits for one message and takes those that are there beside it."""
        messages: list[Message] = []
        while len(messages) < _MOST_MESSAGES:
            try:
                origin, counter, size = self._node.poll(self._room, timeout)
            except errors.StromError:
                if messages:
                    break  # The next call raises it again.
                raise
            if size < 0:
                break
            messages.append(Message(origin, counter, ctypes.string_at(self._room, size)))
            timeout = 0.0
        return messages


def _slice(left: float) -> float:
    return min(max(left, 0.0), _SLICE_SECONDS)


def _key(secret: bytes) -> bytes:
    """The job's key: the secret itself, or the hash of one that is longer."""
    if not isinstance(secret, bytes):
        raise errors.InvalidOption(f"the secret must be bytes, not {type(secret).__name__}")
    if len(secret) < KEY_BYTES:
        raise errors.InvalidOption(
            f"the secret has {len(secret)} bytes and must have at least {KEY_BYTES} random ones; "
            "keras_strom.relay.new_secret() makes one"
        )
    return secret if len(secret) == KEY_BYTES else hashlib.sha256(secret).digest()


def _join(
    credentials: Credentials,
    master: JoinInfo,
    rank: int | None,
    network: NetworkConfig,
    ip: str | None,
    timeout: float,
) -> tuple[BytesNode, int]:
    def join(host: str) -> tuple[BytesNode, int]:
        bind = bound_address(network, node_address=ip, toward=host)
        candidates = range(master.workers) if rank is None else (rank,)
        in_use: errors.AddressError | None = None
        for candidate in candidates:
            try:
                with explained(f"worker {candidate}", master.address, bind):
                    node = BytesNode(
                        credentials,
                        master=(host, master.address[1]),
                        rank=candidate,
                        size=master.workers,
                        bind_address=bind,
                        port=network.of_worker(candidate).port,
                        failure_timeout=network.failure_timeout,
                        join_timeout=timeout,
                        same_host=network.same_host,
                    )
                return node, candidate
            except errors.Refused as error:
                if rank is not None or _RANK_TAKEN not in str(error):
                    raise
            except errors.AddressError as error:
                if rank is not None or network.port == 0:
                    raise
                in_use = error  # By a worker of this machine, whose port follows from its rank.
        raise in_use or errors.Refused(
            f"the master at {format_address(master.address)} has its {master.workers} workers "
            "already"
        )

    return at_first_that_answers(master.address[0], join)
