"""Failures on purpose: a Keras callback that has its worker fail in a chosen way and moment.

It reads `Fault`s from the variable STROM_TEST_FAULTS, so that any test script can fail without a
change. Only tests know it.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import random
import resource
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, Literal

import keras

import keras_strom
from keras_strom.job import drain
from keras_strom.job.process_status import parent_of
from tests.support import emulated_gpu

#: Until a worker hears that its executor is to go, at most.
DECOMMISSION_SECONDS = 120.0
VARIABLE = "STROM_TEST_FAULTS"

Mode = Literal[
    "exception", "exit", "kill", "stop", "memory", "cut", "gpu", "sigterm", "drain", "decommission"
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens to which worker, and when; it happens when all that is given is true.

    Attributes:
        mode: exception, exit code 3, SIGKILL, SIGSTOP (for good: another process must wake it),
            running out of a memory limit, a network from which nothing comes any more, or the loss
            of its emulated GPU. No failures: SIGTERM, or `keras_strom.drain()`; by either it hands
            over and leaves; or on a standalone cluster of Spark a decommission of its machine, of
            which it waits to hear.
        rank: the worker.
        attempts: it happens in so many attempts, from the first on.
        step: after so many batches of this process in that fit.
        fit: in the script's fit of this number, from 0.
        epoch: in this epoch.
        seconds: this long after training has begun.
        chance: after each batch with this probability.
        seed: of the random numbers, together with rank and attempt.
    """

    mode: Mode
    rank: int
    attempts: int = 1
    step: int | None = None
    fit: int = 0
    epoch: int | None = None
    seconds: float | None = None
    chance: float | None = None
    seed: int = 0


#: How a worker leaves in order.
DRAINS = ("sigterm", "drain")


def to_environ(*faults: Fault) -> dict[str, str]:
    """The variables from which `callbacks` reads them."""
    return {VARIABLE: to_json(*faults)}


def to_json(*faults: Fault) -> str:
    """The same as a text that a script takes, for `from_json`."""
    return json.dumps([dataclasses.asdict(fault) for fault in faults])


def from_json(text: str) -> None:
    """Lets `callbacks` find them in this process."""
    os.environ[VARIABLE] = text


def callbacks(fit: int = 0) -> list[keras.callbacks.Callback]:
    """A callback for each fault that the environment asks for in this worker's fit."""
    rank, attempt = keras_strom.rank(), int(os.environ["KERAS_STROM_ATTEMPT"])
    return [
        _Fails(fault, random.Random(f"{fault.seed} {rank} {attempt}"))
        for fault in (Fault(**fields) for fields in json.loads(os.environ.get(VARIABLE, "[]")))
        if fault.rank == rank and fault.fit == fit and attempt < fault.attempts
    ]


class _Fails(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self, fault: Fault, draws: random.Random) -> None:
        super().__init__()
        self._fault = fault
        self._random = draws
        self._steps = 0
        self._epoch = 0
        self._begin = 0.0

    def on_train_begin(self, logs: Any = None) -> None:
        self._begin = time.monotonic()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._steps += 1
        fault = self._fault
        if (
            (fault.step is None or self._steps == fault.step)
            and (fault.epoch is None or self._epoch == fault.epoch)
            and (fault.seconds is None or time.monotonic() - self._begin >= fault.seconds)
            and (fault.chance is None or self._random.random() < fault.chance)
        ):
            fail(fault.mode)


def fail(mode: Mode) -> None:
    """Has this process fail."""
    sys.stdout.write(f"fails on purpose: {mode}\n")
    sys.stdout.flush()
    if mode == "exception":
        raise RuntimeError("on purpose")
    if mode == "exit":
        os._exit(3)
    if mode == "memory":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limit = used + (64 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        bytearray(1 << 40)  # Raises MemoryError.
    if mode == "cut":
        return _hear_nothing()
    if mode == "gpu":
        return emulated_gpu.lose()
    if mode == "sigterm":
        return os.kill(os.getpid(), signal.SIGTERM)
    if mode == "drain":
        return keras_strom.drain()
    if mode == "decommission":
        return _decommission()
    os.kill(os.getpid(), signal.SIGKILL if mode == "kill" else signal.SIGSTOP)


def _decommission() -> None:
    """Tells the Spark daemon of this worker's machine, the parent of its executor, to go."""
    server = Path(f"/proc/{os.getppid()}/cmdline").read_text().split("\0")
    os.kill(parent_of(int(server[4])), signal.SIGPWR)
    deadline = time.monotonic() + DECOMMISSION_SECONDS
    while not drain.request.why:
        if time.monotonic() > deadline:
            raise TimeoutError("nobody has asked this worker to leave")
        time.sleep(0.02)


class _Filter(ctypes.Structure):
    """struct sock_filter of <linux/filter.h>."""

    _fields_ = (
        ("code", ctypes.c_uint16),
        ("jt", ctypes.c_uint8),
        ("jf", ctypes.c_uint8),
        ("k", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.POINTER(_Filter)))


_RETURN = 0x06  # BPF_RET | BPF_K: keep k bytes of a packet, here none.
_SO_ATTACH_FILTER = 26


def _hear_nothing() -> None:
    """Has the kernel drop what arrives at this process's UDP sockets."""
    drop = _Program(1, ctypes.pointer(_Filter(_RETURN, 0, 0, 0)))
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(path.name))) as one:
            if one.type == socket.SOCK_DGRAM and one.family in (socket.AF_INET, socket.AF_INET6):
                one.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, bytes(drop))
