"""Masters and workers of libstrom.so as Python objects.

Thin: every method is one call of the C interface (``custom_ops/capi/strom.h``), with arrays checked
on the way in and errors raised as the exceptions of `keras_strom.errors`. `keras_strom.relay` and
`keras_strom.relay.training_relay` add addresses and credentials.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import json
import math
import threading
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from keras_strom import errors
from keras_strom._native.library import Allocate, check, declare, library, nanoseconds
from keras_strom._native.local_model import MethodStruct, RangeStruct
from keras_strom.job.credentials import JOB_ID_BYTES, KEY_BYTES, Credentials
from keras_strom.method import MethodNumbers

#: Topologies by the names of `NetworkConfig`, as the C interface numbers them.
TOPOLOGIES = MappingProxyType({"auto": 0, "plain": 1, "mesh": 2})

#: How updates are merged, likewise.
MERGING = MappingProxyType({"auto": 0, "off": 1, "on": 2})

#: STROM_MAX_BYTES, the longest message of a `BytesNode`: 4 MiB less the header.
MAX_BYTES = (4 << 20) - 56

#: kJoinsAnew: with these words, and why, a worker leaves that joins anew; no start is without it.
JOINS_ANEW = "joins anew: "
#: kCannotStart: the beginning of that why which the master keeps for all who come to the start.
CANNOT_START = "cannot start: "

_POLL_SECONDS = 0.2
_Handle = ctypes.c_int64
_Pointer = ctypes.c_void_p
_KeyBytes = ctypes.c_uint8 * KEY_BYTES
_JobIdBytes = ctypes.c_uint8 * JOB_ID_BYTES


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


class _WorkerOptions(ctypes.Structure):
    """`strom_worker_options`."""

    _fields_ = (
        ("bind_address", ctypes.c_char_p),
        ("port", ctypes.c_int32),
        ("master_host", ctypes.c_char_p),
        ("master_port", ctypes.c_int32),
        ("secret", ctypes.POINTER(ctypes.c_uint8)),
        ("job_id", ctypes.POINTER(ctypes.c_uint8)),
        ("master_public_key", ctypes.POINTER(ctypes.c_uint8)),
        ("rank", ctypes.c_int32),
        ("size", ctypes.c_int32),
        ("attempt", ctypes.c_int32),
        ("max_staleness", ctypes.c_int32),
        ("failure_timeout_ns", ctypes.c_int64),
        ("join_timeout_ns", ctypes.c_int64),
        ("same_host", ctypes.c_int32),
        ("master_wait_ns", ctypes.c_int64),
    )


class _StartInfo(ctypes.Structure):
    """`strom_start_info`."""

    _fields_ = (
        ("late", ctypes.c_int32),
        ("ended", ctypes.c_int32),
        ("resume_iteration", ctypes.c_int64),
    )


@dataclasses.dataclass(frozen=True)
class StartInfo:
    """How a generation has begun for a worker.

    Attributes:
        late: the others train already; this worker takes a lost one's place, or is one more.
        ended: it is over; the parameters are its result, and nothing is to be trained.
        resume_iteration: where it is late, the last iteration that the master has accepted of this
            rank's earlier process; -1 = none.
    """

    late: bool = False
    ended: bool = False
    resume_iteration: int = -1


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
            secret=_KeyBytes.from_buffer_copy(credentials.secret),
            job_id=_JobIdBytes.from_buffer_copy(credentials.job_id),
            failure_timeout_ns=_nanoseconds(failure_timeout),
            epoch=epoch,
            topology=TOPOLOGIES[topology],
            max_children=max_children,
            max_depth=max_depth,
            merging=MERGING[merging],
            same_host=same_host,
            any_bytes=any_bytes,
            min_workers=min_workers,
            private_key=None if private_key is None else _KeyBytes.from_buffer_copy(private_key),
        )
        handle = ctypes.c_int64()
        create = declare("strom_master_create", _Pointer, _Pointer)
        check(create(ctypes.addressof(options), ctypes.addressof(handle)))
        self.handle = handle.value

    @property
    def port(self) -> int:
        """The UDP port it listens on."""
        port = ctypes.c_int32()
        read = declare("strom_master_port", _Handle, _Pointer)
        check(read(self.handle, ctypes.addressof(port)))
        return port.value

    @property
    def public_key(self) -> bytes:
        """Its X25519 key, which workers must be given beside the secret."""
        key = _KeyBytes()
        read = declare("strom_master_public_key", _Handle, _Pointer)
        check(read(self.handle, ctypes.addressof(key)))
        return bytes(key)

    def status(self) -> dict[str, Any]:
        """State and counters; docs/internals/native.md lists the keys."""
        return _status(self.handle)

    def worker_has_ended(self, rank: int) -> None:
        """Says that this worker's process has ended; who waits hears of it where it never came."""
        check(declare("strom_master_worker_has_ended", _Handle, ctypes.c_int32)(self.handle, rank))

    def close(self, reason: str = "") -> None:
        """Tells every worker to end with `reason` and ends the thread. Harmless when repeated."""
        close = declare("strom_master_close", _Handle, ctypes.c_char_p)
        check(close(self.handle, _words(reason)))


class JoinedNode:
    """What joins a master: an I/O thread behind a handle, with its counters and its end.

    Every wait can be interrupted with Ctrl+C; the node is closed then.

    Attributes:
        meanwhile: is called again and again on the thread that waits for an answer; None = nothing.
    """

    meanwhile: Callable[[], None] | None = None
    _kind: str  # Names the C interface's functions: strom_<kind>_join, strom_<kind>_close.

    def __init__(
        self,
        credentials: Credentials,
        *,
        master: tuple[str, int],
        rank: int,
        size: int,
        attempt: int = 0,
        max_staleness: int | None = None,
        bind_address: str = "",
        port: int = 0,
        failure_timeout: float = 5.0,
        join_timeout: float = 30.0,
        same_host: bool = True,
        master_wait: float = 0.0,
    ) -> None:
        if credentials.master_public_key is None:
            raise errors.InvalidOption("these credentials do not name their master's public key")
        options = _WorkerOptions(
            bind_address=bind_address.encode(),
            port=port,
            master_host=master[0].encode(),
            master_port=master[1],
            secret=_KeyBytes.from_buffer_copy(credentials.secret),
            job_id=_JobIdBytes.from_buffer_copy(credentials.job_id),
            master_public_key=_KeyBytes.from_buffer_copy(credentials.master_public_key),
            rank=rank,
            size=size,
            attempt=attempt,
            max_staleness=-1 if max_staleness is None else max_staleness,
            failure_timeout_ns=_nanoseconds(failure_timeout),
            join_timeout_ns=_nanoseconds(check_seconds("join_timeout", join_timeout)),
            same_host=same_host,
            master_wait_ns=_nanoseconds(master_wait),
        )
        self.handle = 0
        join = declare(f"strom_{self._kind}_join", _Pointer, _Pointer)

        def joined() -> int:  # Which may be when nobody waits for it any more.
            handle = ctypes.c_int64()
            code: int = join(ctypes.addressof(options), ctypes.addressof(handle))
            self.handle = handle.value
            return code

        self._wait(joined)

    def status(self) -> dict[str, Any]:
        """State and counters; docs/internals/native.md lists the keys."""
        return _status(self.handle)

    def close(self, reason: str = "") -> None:
        """Says goodbye (`reason` "" = the work is done). Harmless when repeated."""
        if self.handle:
            close = declare(f"strom_{self._kind}_close", _Handle, ctypes.c_char_p)
            check(close(self.handle, _words(reason)))

    def _wait(self, function: Callable[..., int], *arguments: object) -> None:
        """Calls `function` on a thread of its own, so that Ctrl+C reaches this one.

        That thread may outlast the wait: `arguments` hold the memory that it reads and writes.
        """
        failures: list[BaseException] = []
        reasons: list[str] = []  # Why nobody waits any more.

        def call() -> None:
            try:
                check(function(*arguments))
            except BaseException as error:  # handed to the waiting thread below
                failures.append(error)
            for reason in reasons:  # Of a join, which has nothing to close before.
                self.close(reason)

        thread = threading.Thread(target=call, name="strom-wait", daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(_POLL_SECONDS)
                if self.meanwhile is not None and thread.is_alive():
                    self.meanwhile()
        except BaseException as error:
            # Who learns while it waits that another's fit has failed begins the next one.
            goes_on = isinstance(error, errors.FitFailed)
            reasons.append(f"{JOINS_ANEW}{error}" if goes_on else "interrupted")
            self.close(reasons[0])
            thread.join(1.0)
            raise
        if failures:
            raise failures[0]


class WorkerNode(JoinedNode):
    """A training worker's blocking requests. See `strom_worker_join` and what follows it.

    A timeout of None waits until the answer or a failure comes.
    """

    _kind = "worker"

    def drain(self, timeout: float | None = None) -> None:
        """Leaves in order: waits until the master holds all that this worker has made, and closes.

        Raises:
            DeadlinePassed: it does not within `timeout` seconds; the worker is still there.
        """
        leave = declare("strom_worker_drain", _Handle, ctypes.c_int64)
        self._wait(leave, self.handle, _nanoseconds(timeout))

    def start(
        self,
        generation: int,
        layout_size: int,
        layout_hash: int,
        options_text: str,
        values: np.ndarray | None = None,
        *,
        method: MethodNumbers | None = None,
        ranges: Sequence[tuple[int, int]] = (),
        cycles: int = 0,
        timeout: float | None = None,
    ) -> np.ndarray:
        """Begins a generation (one `fit`) together with all other workers.

        Args:
            generation: 1, 2, ...
            layout_size: elements of the flat space.
            layout_hash: 64-bit hash of its shapes and dtypes.
            options_text: must be equal on all workers.
            values: this worker's parameters, float32 [layout_size], which become the chief's; what
                equals those need not come over the network. None, which the chief may not give:
                it has none.
            method: equal on all workers; None = updates are shared.
            ranges: of a method (offset, size) of what the joint model consists of, in the flat
                space; ascending, apart, equal on all workers.
            cycles: what `joint_cycles` was at the end of the training that goes on, or in its
                checkpoint; the most of all workers counts. 0 = training begins.
            timeout: seconds.

        Returns:
            The master's parameters, float32 [layout_size]: `values`, where they were given.
        """
        if values is None:
            own, parameters = None, np.empty(layout_size, np.float32)
        else:
            parameters = _floats(values, layout_size)
            own = parameters.ctypes
        numbers = None if method is None else MethodStruct.of(method)
        places = (RangeStruct * len(ranges))(*(RangeStruct(*one) for one in ranges))
        begin = declare(
            "strom_worker_start",
            _Handle,
            ctypes.c_uint64,
            ctypes.c_int64,
            ctypes.c_uint64,
            ctypes.c_char_p,
            _Pointer,
            _Pointer,
            ctypes.c_int64,
            ctypes.c_int64,
            _Pointer,
            _Pointer,
            ctypes.c_int64,
        )
        self._wait(
            begin,
            self.handle,
            generation,
            layout_size,
            layout_hash,
            options_text.encode(),
            None if numbers is None else ctypes.byref(numbers),
            places,
            len(ranges),
            cycles,
            own,
            parameters.ctypes,
            _nanoseconds(timeout),
        )
        return parameters

    @property
    def start_info(self) -> StartInfo:
        """How the generation has begun; valid after `start`."""
        found = _StartInfo()
        read = declare("strom_worker_started", _Handle, _Pointer)
        check(read(self.handle, ctypes.addressof(found)))
        return StartInfo(bool(found.late), bool(found.ended), found.resume_iteration)

    def donation_wanted(self) -> bool:
        """Whether somebody has joined late and asks for this worker's state.

        Cheap enough for every batch.
        """
        return bool(_cheap("strom_worker_donation_wanted")(self.handle))

    def missing_workers(self) -> int:
        """How many workers are missing to `min_workers`; this one makes no step until it is 0.

        Cheap enough for every batch.
        """
        return int(_cheap("strom_worker_missing")(self.handle))

    def waits_for_master(self) -> bool:
        """Whether the master is lost and another one may come (`master_wait`).

        Before its next step this worker waits until it is False. Cheap enough for every batch.
        """
        return bool(_cheap("strom_worker_waits_for_master")(self.handle))

    def replica_wanted(self) -> bool:
        """Whether another master asks for this worker's parameters; see `hand_over`. As cheap."""
        return bool(_cheap("strom_worker_replica_wanted")(self.handle))

    def hand_over(self, parameters: np.ndarray) -> None:
        """Gives another master the parameters from which training goes on.

        Args:
            parameters: float32 [layout_size], as they are between two steps.
        """
        values = _floats(parameters, parameters.size)
        give = declare("strom_worker_hand_over", _Handle, _Pointer, ctypes.c_int64)
        check(give(self.handle, values.ctypes.data, values.size))

    def donate(self, data: bytes) -> None:
        """Answers all who have asked with `data`; empty = nothing to give, another is asked."""
        give = declare("strom_worker_donate", _Handle, ctypes.c_char_p, ctypes.c_int64)
        check(give(self.handle, data, len(data)))

    def take_donation(self, timeout: float | None) -> bytes | None:
        """Another worker's state, for one that has joined late (`start_info.late`).

        For one that came after the end (`start_info.ended`) it is what the master has of that: the
        number of the generation that has ended last (uint64), and the averaged state that `result`
        gave its members (float64).

        Args:
            timeout: seconds.

        Returns:
            What the donor gave to `donate`; None where there is nobody to give it.

        Raises:
            DeadlinePassed: no answer yet; it may be called again, to wait on.
            InvalidOption: this worker has started with the others.
        """
        donation: Any = None

        def allocate(_context: object, size: int) -> int:
            nonlocal donation
            donation = ctypes.create_string_buffer(size)
            return ctypes.addressof(donation)

        size = ctypes.c_int64()
        request = declare(
            "strom_worker_take_donation",
            _Handle,
            ctypes.c_int64,
            Allocate,
            _Pointer,
            _Pointer,
        )
        self._wait(
            request,
            self.handle,
            _nanoseconds(timeout),
            Allocate(allocate),
            None,
            ctypes.byref(size),
        )
        return None if size.value < 0 else bytes(donation.raw)

    def average(
        self, key: int, values: np.ndarray, *, timeout: float | None = None
    ) -> tuple[np.ndarray, int]:
        """The mean over the workers' latest `values` under `key`, and how many contributed.

        Args:
            key: names what is averaged (64 bits).
            values: float64 [n], the same n on all workers.
            timeout: seconds.
        """
        averaged = np.array(values, np.float64, copy=True).reshape(-1)
        contributors = ctypes.c_int32()
        request = declare(
            "strom_worker_average",
            _Handle,
            ctypes.c_uint64,
            _Pointer,
            ctypes.c_int64,
            _Pointer,
            ctypes.c_int64,
        )
        self._wait(
            request,
            self.handle,
            key,
            averaged.ctypes,
            averaged.size,
            ctypes.byref(contributors),
            _nanoseconds(timeout),
        )
        return averaged, contributors.value

    def joint_model(self, size: int, *, timeout: float | None = None) -> np.ndarray:
        """The joint model as the master has it now, float32 [size]: the ranges one after another.

        Args:
            size: elements of all ranges that `start` was given.
            timeout: seconds.
        """
        values = np.empty(size, np.float32)
        request = declare(
            "strom_worker_joint_model", _Handle, _Pointer, ctypes.c_int64, ctypes.c_int64
        )
        self._wait(request, self.handle, values.ctypes, size, _nanoseconds(timeout))
        return values

    def joint_cycles(self) -> int:
        """Cycles that the joint model has finished, as the master has told last; 0 without one."""
        cycles = ctypes.c_int64()
        read = declare("strom_worker_joint_cycles", _Handle, ctypes.POINTER(ctypes.c_int64))
        check(read(self.handle, ctypes.byref(cycles)))
        return cycles.value

    def finish(self, stop: bool = False, *, timeout: float | None = None) -> None:
        """No more updates from here; returns when all that any member sent is here."""
        request = declare("strom_worker_finish", _Handle, ctypes.c_int32, ctypes.c_int64)
        self._wait(request, self.handle, int(stop), _nanoseconds(timeout))

    def result(
        self, state: np.ndarray, values: np.ndarray, *, timeout: float | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Ends the generation with the master's parameters.

        Args:
            state: float64 [n], to be averaged.
            values: this worker's parameters, float32 [size], which become the master's; what
                equals those need not come over the network.
            timeout: seconds.

        Returns:
            The average of all workers' `state`, and `values`.
        """
        averaged = np.array(state, np.float64, copy=True).reshape(-1)
        parameters = np.ascontiguousarray(values, np.float32).reshape(-1)
        request = declare(
            "strom_worker_result",
            _Handle,
            _Pointer,
            ctypes.c_int64,
            _Pointer,
            ctypes.c_int64,
            ctypes.c_int64,
        )
        self._wait(
            request,
            self.handle,
            averaged.ctypes,
            averaged.size,
            parameters.ctypes,
            parameters.size,
            _nanoseconds(timeout),
        )
        return averaged, parameters

    def verify(
        self, difference: float, parameters_hash: int, *, timeout: float | None = None
    ) -> float:
        """Reports this replica's largest difference; returns the largest over all workers."""
        worst = ctypes.c_double()
        request = declare(
            "strom_worker_verify",
            _Handle,
            ctypes.c_double,
            ctypes.c_uint64,
            _Pointer,
            ctypes.c_int64,
        )
        self._wait(
            request,
            self.handle,
            difference,
            parameters_hash,
            ctypes.byref(worst),
            _nanoseconds(timeout),
        )
        return worst.value


class BytesNode(JoinedNode):
    """A worker of a relay of any bytes. See `strom_bytes_join` and what follows it.

    Its calls block the calling thread, Ctrl+C included, for their timeout: keep that short.
    """

    _kind = "bytes"

    def submit(self, data: bytes, timeout: float) -> int:
        """Sends `data` to all others and returns its number."""
        counter = ctypes.c_uint64()
        send = declare(
            "strom_bytes_submit", _Handle, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64, _Pointer
        )
        duration = _nanoseconds(timeout)
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
            _Handle,
            ctypes.c_int64,
            _Pointer,
            _Pointer,
            _Pointer,
            _Pointer,
        )
        check(
            take(
                self.handle,
                _nanoseconds(timeout),
                ctypes.addressof(origin),
                ctypes.addressof(counter),
                ctypes.addressof(room),
                ctypes.addressof(size),
            )
        )
        return origin.value, counter.value, size.value

    def flush(self, timeout: float) -> None:
        """Waits until the master has all that was submitted."""
        wait = declare("strom_bytes_flush", _Handle, ctypes.c_int64)
        check(wait(self.handle, _nanoseconds(timeout)))


@functools.cache
def _cheap(name: str) -> Any:
    """A function whose result is no code, so that it is not for `declare`."""
    function = getattr(library(), name)
    function.argtypes, function.restype = (_Handle,), ctypes.c_int32
    return function


def check_seconds(name: str, seconds: object) -> float:
    """A time to wait that a caller has given.

    Raises:
        InvalidOption: no finite number of seconds, 0 or more.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise errors.InvalidOption(f"{name}={seconds!r} must be a number of seconds")
    if not 0 <= seconds < math.inf:
        raise errors.InvalidOption(f"{name}={seconds!r} must be 0 seconds or more, and finite")
    return float(seconds)


def _nanoseconds(seconds: float | None) -> int:
    return -1 if seconds is None else nanoseconds(check_seconds("timeout", seconds))


def _words(reason: str) -> bytes:
    """Words for others; an error's may hold a file's name that is no UTF-8."""
    return reason.encode("utf-8", "backslashreplace")


def _floats(values: np.ndarray, size: int) -> np.ndarray:
    array = np.ascontiguousarray(values, np.float32).reshape(-1)
    if array.size != size:
        raise errors.InvalidOption(f"expected {size} parameters, got {array.size}")
    return array


def _status(handle: int) -> dict[str, Any]:
    read = declare("strom_node_status", _Handle, _Pointer, ctypes.c_int64, _Pointer)
    size = ctypes.c_int64()
    capacity = 1 << 16
    while True:
        text = ctypes.create_string_buffer(capacity)
        check(read(handle, ctypes.addressof(text), capacity, ctypes.addressof(size)))
        if size.value <= capacity:
            status: dict[str, Any] = json.loads(text.raw[: size.value])
            return status
        capacity = 2 * size.value
