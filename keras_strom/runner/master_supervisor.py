"""A master in a process of its own, which is started again when it dies: `on_master_loss="wait"`.

The runner and its workers outlive it. Every master of the job has the same address, job id, secret
and key, so that workers know it for theirs, and an epoch that is higher than that of the one
before, so that they follow it and no earlier one (`keras_strom.runner.master_main` is what runs
there).
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import logging
import secrets
import subprocess
import threading
import time
from collections.abc import Mapping
from typing import Any

from keras_strom import errors
from keras_strom.job import environment
from keras_strom.job.credentials import KEY_BYTES, Credentials
from keras_strom.job.network import HostPort, format_address
from keras_strom.runner.master_options import MasterOptions
from keras_strom.runner.outcome import signal_name
from keras_strom.runner.started_process import module_command

_logger = logging.getLogger("keras_strom")

# Epochs of one run: a run that goes on from a checkpoint has a number of its own, and higher ones.
_MASTERS_OF_A_RUN = 1 << 16
# A master that takes longer for an answer does not serve its workers either, and is ended.
_ANSWER_SECONDS = 60.0
# So many in a row that end so soon after their start have a reason that another one will not lack.
_SHORT_LIVES = 5
_SHORT_LIFE_SECONDS = 60.0
# How long a master may take to tell the workers of its end.
_CLOSE_SECONDS = 10.0
# A status has so many at most, as a master's own has: kMaxEvents in net/master_agent.cc.
_MOST_EVENTS = 1000


class SupervisedMaster:
    """A `Master`: that of a job, as long as the job lasts.

    Attributes:
        address: (host, port) where workers reach it.
        credentials: what a worker needs to join.

    Raises:
        AddressError: the port is in use, or the mask picks no or several interfaces.
    """

    def __init__(self, options: MasterOptions) -> None:
        self._lock = threading.Lock()  # Guards all below, and the pipes.
        self._closing = False
        self._short_lives = 0
        self._past = collections.deque[Mapping[str, Any]](maxlen=_MOST_EVENTS)
        self._past_total = 0  # Events before the master at hand: of those that are gone, and ours.
        self._ended: set[int] = set()  # Ranks whose processes have ended well.
        self._status: dict[str, Any] = {}  # The latest of the master at hand.
        self._epoch = options.epoch * _MASTERS_OF_A_RUN
        self._private_key = secrets.token_bytes(KEY_BYTES)
        self._job = options.credentials or Credentials.new()
        self._options = options
        self._process, started = self._start(options.network.port)
        host, self._port = started["bound"]
        self._options = dataclasses.replace(options, host=host)
        self.address: HostPort = (started["address"][0], started["address"][1])
        self.credentials = self._job.with_master(bytes.fromhex(started["public_key"]))
        self._keeper = threading.Thread(target=self._keep, name="strom-master", daemon=True)
        self._keeper.start()

    @property
    def pid(self) -> int:
        """The process of the master at hand."""
        return self._process.pid

    def status(self) -> Mapping[str, Any]:
        """State and counters of the master at hand; the events of all masters and their losses.

        The events only grow at their end, and `events_total` with them, so that whoever has seen
        some of them knows which are new.
        """
        with self._lock:
            with contextlib.suppress(OSError, ValueError):  # It is gone, and another one comes.
                self._status = _ask(self._process, {"do": "status"})
            events = [*self._past, *self._status.get("events", ())][-_MOST_EVENTS:]
            total = self._past_total + self._status.get("events_total", 0)
            return {**self._status, "events": events, "events_total": total}

    def worker_has_ended(self, rank: int) -> None:
        """Tells the master at hand, and those that follow it."""
        with self._lock:
            self._ended.add(rank)
            if not self._closing:
                with contextlib.suppress(OSError, ValueError):  # It is gone, and another one comes.
                    self._tell_of_ended()

    def _tell_of_ended(self) -> None:
        _ask(self._process, {"do": "worker_has_ended", "ranks": sorted(self._ended)})

    def close(self, reason: str = "") -> None:
        """Tells every worker to end with `reason`. Harmless when repeated."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            with contextlib.suppress(OSError, ValueError):
                self._status = _ask(self._process, {"do": "close", "reason": reason})
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_CLOSE_SECONDS)
        self._process.kill()
        self._keeper.join()

    def _keep(self) -> None:
        """Starts another master whenever the one at hand has ended."""
        started = time.monotonic()
        while True:
            code = self._wait_for_end()
            with self._lock:
                if self._closing:
                    return
                self._keep_events()
                how = f"has ended with code {code}"
                if code < 0:
                    how = f"was ended by {signal_name(-code)}"
                self._note(f"the master (process {self._process.pid}) {how}")
                short = time.monotonic() - started < _SHORT_LIFE_SECONDS
                self._short_lives = self._short_lives + 1 if short else 0
                self._closing = not self._start_another()
                if self._closing:
                    return
            started = time.monotonic()

    def _wait_for_end(self) -> int:
        """The exit code of the master at hand, once it has ended, or stood still and been ended."""
        while True:
            try:
                return self._process.wait(self._options.network.failure_timeout)
            except subprocess.TimeoutExpired:
                self.status()  # Ends it if it does not answer.

    def _start_another(self) -> bool:
        """Whether there is a master again."""
        if self._short_lives == _SHORT_LIVES:
            self._note(
                f"{_SHORT_LIVES} masters in a row have ended within {_SHORT_LIFE_SECONDS:g} s of "
                "their start, so no other is started; their last words are in the output above"
            )
            return False
        try:
            self._epoch += 1
            self._process, _ = self._start(self._port)
        except (errors.StromError, OSError) as error:
            self._note(f"another master could not be started: {error}")
            return False
        if self._ended:
            with contextlib.suppress(OSError, ValueError):  # It is gone, as `_keep` will find.
                self._tell_of_ended()
        self._note(
            f"another master (process {self._process.pid}, epoch {self._epoch}) waits for the "
            f"workers at {format_address(self.address)}"
        )
        return True

    def _keep_events(self) -> None:
        """The master at hand is gone, and what it has told stays."""
        self._past.extend(self._status.pop("events", ()))
        self._past_total += self._status.pop("events_total", 0)

    def _note(self, text: str) -> None:
        """Tells of what has happened while there is no master, or one that has told nothing yet."""
        _logger.warning("%s", text)
        event = {"time_ns": time.monotonic_ns(), "type": "master", "rank": -1, "text": text}
        self._past.append(event)
        self._past_total += 1

    def _start(self, port: int) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
        """Starts a master at `port`; the process and what it has said of itself."""
        options = self._options
        network = dataclasses.replace(options.network, port=port)
        process = subprocess.Popen(
            module_command("keras_strom.runner.master_main"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment.inherited(),
            start_new_session=True,  # Ctrl+C is the runner's; it ends with the runner's pipe.
        )
        try:
            started = _ask(
                process,
                {
                    "workers": options.workers,
                    "min_workers": options.min_workers,
                    "network": network.to_json(),
                    "host": options.host,
                    "epoch": self._epoch,
                    "credentials": self._job.to_json(),
                    "private_key": self._private_key.hex(),
                },
            )
        except (OSError, ValueError) as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_CLOSE_SECONDS)
            process.kill()  # What says something else than its answer would go on waiting.
            raise errors.InternalError(
                f"the master's process ended with code {process.wait()} before it could say why; "
                "its last words are in the output above"
            ) from error
        if "error" in started:
            process.wait()
            raise getattr(errors, started["error"])(started["words"])
        return process, started


def _ask(process: subprocess.Popen[bytes], question: Mapping[str, Any]) -> dict[str, Any]:
    """Sends a line to a master's process and reads the line that it answers.

    Raises:
        OSError: it has ended.
        ValueError: it ended in the middle of its answer, or was ended for want of one.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    limit = threading.Timer(_ANSWER_SECONDS, process.kill)
    limit.start()
    try:
        process.stdin.write(json.dumps(question).encode() + b"\n")
        process.stdin.flush()
        answer: dict[str, Any] = json.loads(process.stdout.readline())
    finally:
        limit.cancel()
    return answer
