"""Workers of libstrom.so as Python objects, and what masters (`master_node`) share with them.

Thin: every method is one call of the C interface (``custom_ops/capi/strom.h``), with arrays checked
on the way in and errors raised as the exceptions of `keras_strom.errors`. `keras_strom.relay` and
`keras_strom.relay.training_relay` add addresses and credentials.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_strom import errors
from keras_strom._native.library import Allocate, check, declare, library, nanoseconds
from keras_strom._native.local_model import MethodStruct, RangeStruct
from keras_strom.checks import waiting_seconds
from keras_strom.job.credentials import JOB_ID_BYTES, KEY_BYTES, Credentials
from keras_strom.method import MethodNumbers

#: kJoinsAnew: with these words, and why, a worker leaves that joins anew; no start is without it.
JOINS_ANEW = "joins anew: "
#: kCannotStart: the beginning of that why which the master keeps for all who come to the start.
CANNOT_START = "cannot start: "

#: Types of the C interface.
Handle = ctypes.c_int64
Pointer = ctypes.c_void_p
KeyBytes = ctypes.c_uint8 * KEY_BYTES
JobIdBytes = ctypes.c_uint8 * JOB_ID_BYTES

_POLL_SECONDS = 0.2


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
            secret=KeyBytes.from_buffer_copy(credentials.secret),
            job_id=JobIdBytes.from_buffer_copy(credentials.job_id),
            master_public_key=KeyBytes.from_buffer_copy(credentials.master_public_key),
            rank=rank,
            size=size,
            attempt=attempt,
            max_staleness=-1 if max_staleness is None else max_staleness,
            failure_timeout_ns=wait_ns(failure_timeout),
            join_timeout_ns=wait_ns(waiting_seconds("join_timeout", join_timeout)),
            same_host=same_host,
            master_wait_ns=wait_ns(master_wait),
        )
        self.handle = 0
        join = declare(f"strom_{self._kind}_join", Pointer, Pointer)

        def joined() -> int:  # Which may be when nobody waits for it any more.
            handle = ctypes.c_int64()
            code: int = join(ctypes.addressof(options), ctypes.addressof(handle))
            self.handle = handle.value
            return code

        self._wait(joined)

    def status(self) -> dict[str, Any]:
        """State and counters; docs/internals/native.md lists the keys."""
        return status_of(self.handle)

    def close(self, reason: str = "") -> None:
        """Says goodbye (`reason` "" = the work is done). Harmless when repeated."""
        if self.handle:
            close = declare(f"strom_{self._kind}_close", Handle, ctypes.c_char_p)
            check(close(self.handle, utf8(reason)))

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
        leave = declare("strom_worker_drain", Handle, ctypes.c_int64)
        self._wait(leave, self.handle, wait_ns(timeout))

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
            ranges: (offset, size) of what is trained, of a method what the joint model consists of,
                in the flat space; ascending, apart, equal on all workers.
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
            Handle,
            ctypes.c_uint64,
            ctypes.c_int64,
            ctypes.c_uint64,
            ctypes.c_char_p,
            Pointer,
            Pointer,
            ctypes.c_int64,
            ctypes.c_int64,
            Pointer,
            Pointer,
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
            wait_ns(timeout),
        )
        return parameters

    @property
    def start_info(self) -> StartInfo:
        """How the generation has begun; valid after `start`."""
        found = _StartInfo()
        read = declare("strom_worker_started", Handle, Pointer)
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
        give = declare("strom_worker_hand_over", Handle, Pointer, ctypes.c_int64)
        check(give(self.handle, values.ctypes.data, values.size))

    def donate(self, data: bytes) -> None:
        """Answers all who have asked with `data`; empty = nothing to give, another is asked."""
        give = declare("strom_worker_donate", Handle, ctypes.c_char_p, ctypes.c_int64)
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
            Handle,
            ctypes.c_int64,
            Allocate,
            Pointer,
            Pointer,
        )
        self._wait(
            request,
            self.handle,
            wait_ns(timeout),
            Allocate(allocate),
            None,
            ctypes.byref(size),
        )
        return None if size.value < 0 else bytes(donation.raw)

    def average(self, key: int, values: np.ndarray) -> tuple[np.ndarray, int]:
        """The mean over the workers' latest `values` under `key`, and how many contributed.

        Args:
            key: names what is averaged (64 bits).
            values: float64 [n], the same n on all workers.
        """
        averaged = np.array(values, np.float64, copy=True).reshape(-1)
        contributors = ctypes.c_int32()
        request = declare(
            "strom_worker_average",
            Handle,
            ctypes.c_uint64,
            Pointer,
            ctypes.c_int64,
            Pointer,
            ctypes.c_int64,
        )
        self._wait(
            request,
            self.handle,
            key,
            averaged.ctypes,
            averaged.size,
            ctypes.byref(contributors),
            wait_ns(None),
        )
        return averaged, contributors.value

    def joint_model(self, size: int) -> np.ndarray:
        """The joint model as the master has it now, float32 [size]: the ranges one after another.

        Args:
            size: elements of all ranges that `start` was given.
        """
        values = np.empty(size, np.float32)
        request = declare(
            "strom_worker_joint_model", Handle, Pointer, ctypes.c_int64, ctypes.c_int64
        )
        self._wait(request, self.handle, values.ctypes, size, wait_ns(None))
        return values

    def joint_cycles(self) -> int:
        """Cycles that the joint model has finished, as the master has told last; 0 without one."""
        cycles = ctypes.c_int64()
        read = declare("strom_worker_joint_cycles", Handle, ctypes.POINTER(ctypes.c_int64))
        check(read(self.handle, ctypes.byref(cycles)))
        return cycles.value

    def finish(self, stop: bool = False, *, timeout: float | None = None) -> None:
        """No more updates from here; returns when all that any member sent is here."""
        request = declare("strom_worker_finish", Handle, ctypes.c_int32, ctypes.c_int64)
        self._wait(request, self.handle, int(stop), wait_ns(timeout))

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
            Handle,
            Pointer,
            ctypes.c_int64,
            Pointer,
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
            wait_ns(timeout),
        )
        return averaged, parameters

    def verify(
        self, difference: float, parameters_hash: int, *, timeout: float | None = None
    ) -> float:
        """Reports this replica's largest difference; returns the largest over all workers."""
        worst = ctypes.c_double()
        request = declare(
            "strom_worker_verify",
            Handle,
            ctypes.c_double,
            ctypes.c_uint64,
            Pointer,
            ctypes.c_int64,
        )
        self._wait(
            request,
            self.handle,
            difference,
            parameters_hash,
            ctypes.byref(worst),
            wait_ns(timeout),
        )
        return worst.value


@functools.cache
def _cheap(name: str) -> Any:
    """A function whose result is no code, so that it is not for `declare`."""
    function = getattr(library(), name)
    function.argtypes, function.restype = (Handle,), ctypes.c_int32
    return function


def wait_ns(seconds: float | None) -> int:
    """A time to wait as the C interface takes it; None = for ever."""
    return -1 if seconds is None else nanoseconds(waiting_seconds("timeout", seconds))


def utf8(reason: str) -> bytes:
    """Words for others; an error's may hold a file's name that is no UTF-8."""
    return reason.encode("utf-8", "backslashreplace")


def _floats(values: np.ndarray, size: int) -> np.ndarray:
    array = np.ascontiguousarray(values, np.float32).reshape(-1)
    if array.size != size:
        raise errors.InvalidOption(f"expected {size} parameters, got {array.size}")
    return array


def status_of(handle: int) -> dict[str, Any]:
    """State and counters of a node; docs/internals/native.md lists the keys."""
    read = declare("strom_node_status", Handle, Pointer, ctypes.c_int64, Pointer)
    size = ctypes.c_int64()
    capacity = 1 << 16
    while True:
        text = ctypes.create_string_buffer(capacity)
        check(read(handle, ctypes.addressof(text), capacity, ctypes.addressof(size)))
        if size.value <= capacity:
            status: dict[str, Any] = json.loads(text.raw[: size.value])
            return status
        capacity = 2 * size.value
