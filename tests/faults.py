"""Failures on purpose: a Keras callback that has its worker fail in a chosen way and moment.

It reads a `Fault` from the variable STROM_TEST_FAULT, so that any test script can fail without a
change. Only tests know it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any, Literal

import keras

import keras_strom

VARIABLE = "STROM_TEST_FAULT"

Mode = Literal["exception", "exit", "kill", "stop", "memory"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens to which worker, and when; it happens when all that is given is true.

    Attributes:
        mode: exception, exit code 3, SIGKILL, SIGSTOP (for good: another process must wake it) or
            running out of a memory limit.
        rank: the worker.
        attempts: it happens in so many attempts, from the first on.
        step: after so many batches of this process.
        epoch: in this epoch.
        seconds: this long after training has begun.
        chance: after each batch with this probability.
        seed: of the random numbers, together with rank and attempt.
    """

    mode: Mode
    rank: int
    attempts: int = 1
    step: int | None = None
    epoch: int | None = None
    seconds: float | None = None
    chance: float | None = None
    seed: int = 0

    def to_environ(self) -> dict[str, str]:
        """The variables from which `callbacks` reads it."""
        return {VARIABLE: json.dumps(dataclasses.asdict(self))}


def callbacks() -> list[keras.callbacks.Callback]:
    """The callback of the fault that the environment asks for, where it concerns this worker."""
    text = os.environ.get(VARIABLE)
    if text is None:
        return []
    fault = Fault(**json.loads(text))
    attempt = int(os.environ["KERAS_STROM_ATTEMPT"])
    if keras_strom.rank() != fault.rank or attempt >= fault.attempts:
        return []
    return [_Fails(fault, random.Random(f"{fault.seed} {fault.rank} {attempt}"))]


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
    os.kill(os.getpid(), signal.SIGKILL if mode == "kill" else signal.SIGSTOP)
