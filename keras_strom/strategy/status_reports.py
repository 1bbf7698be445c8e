"""What a worker says of itself once a second, where whoever runs it wants to know.

A thread of its own reads the counters that the step, the connection and TensorFlow keep anyway, so
that a step does nothing more for it. Where nobody asks (`ClusterEnvironment.status_path` is None)
nothing of this exists.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import dataclasses
import functools
import logging
import os
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_strom import errors
from keras_strom._native.ops import input_time
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.job.worker_record import LinkRecord, WorkerRecord
from keras_strom.relay.counters import LinkCounters, NodeCounters
from keras_strom.sharing.pulled_step import PulledStep
from keras_strom.sharing.step import SharedStep

if TYPE_CHECKING:
    from keras_strom.strategy.generation import Sharing

_logger = logging.getLogger("keras_strom")

_SECONDS = 1.0
# Rates and means are over so many records; a step that takes longer is its own mean.
_WINDOW = 8
_RESIDUAL_NORM = "strom/residual_norm"
_OWN_LOGS = "strom/"


@dataclasses.dataclass(frozen=True)
class _Sample:
    """Counters at one moment; they only grow while one `fit` runs."""

    clock: float
    steps: int
    input_seconds: float
    waited_seconds: float
    count: float = 0.0
    elements: float = 0.0
    received: float = 0.0
    staleness: float = 0.0
    parent_link: int = 0  # The number of one of `links`; 0 = the parent is lost.
    links: Mapping[int, LinkCounters] = dataclasses.field(default_factory=dict)


class StatusReports:
    """The reports of this process, from its first strategy on.

    Args:
        write: takes a record's line; False = nobody reads any more.
        seconds: from one record to the next.
    """

    def __init__(self, write: Callable[[str], bool], seconds: float = _SECONDS) -> None:
        self._write = write
        self._seconds = seconds
        self._over = threading.Event()
        self._lock = threading.Lock()  # Guards what a record is made of.
        self._sharing: Callable[[], Sharing | None] = lambda: None
        self._samples: collections.deque[_Sample] = collections.deque(maxlen=_WINDOW)
        self._activities = ["between fits"]
        self._why = ""
        self._place: dict[str, int | None] = {}
        self._logs: Mapping[str, Any] = {}
        self._residual_norm: float | None = None
        self._fits = self._batches = 0  # For a worker alone, whose steps are plain Keras's.
        self._thread = threading.Thread(target=self._run, name="strom-status", daemon=True)

    def begin(self) -> None:
        """Reports from now on, until the process ends."""
        # A thread that is in TensorFlow while the interpreter is taken down would crash it.
        atexit.register(self.close)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread. Harmless when repeated."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def follow(self, sharing: Sharing) -> None:
        """Says whose figures these are."""
        self._sharing = weakref.ref(sharing)

    @contextlib.contextmanager
    def doing(self, activity: str, why: str = "") -> Iterator[None]:
        """While the block runs the worker does this."""
        self._activities.append(activity)
        before, self._why = self._why, why
        try:
            yield
        finally:
            self._why = before
            self._activities.pop()

    def enter(self, activity: str) -> None:
        """Within `doing`: the worker goes on to something else."""
        self._activities[-1] = activity

    def begin_fit(self, epochs: int | None, batches: int | None) -> None:
        """Figures begin anew."""
        with self._lock:
            self._samples.clear()
            self._fits, self._batches = self._fits + 1, 0
            self._place = _whole(
                {"epoch": None, "epochs": epochs, "batch": None, "batches": batches}
            )

    def note(self, logs: Mapping[str, Any] | None, **place: int | None) -> None:
        """Where `fit` is. The logs are read when they are written, not here."""
        self._place = {**self._place, **_whole(place)}
        if logs:
            self._logs = logs
            if (norm := logs.get(_RESIDUAL_NORM)) is not None:
                self._residual_norm = float(norm)

    def batch(self, batch: int, logs: Mapping[str, Any] | None) -> None:
        """After each batch, so it does next to nothing."""
        self._batches += batch + 1 - (self._place.get("batch") or 0)
        self._place["batch"] = batch + 1
        if logs:
            self._logs = logs

    def record(self) -> WorkerRecord:
        """The figures at this moment."""
        sharing = self._sharing()
        activity = self._activities[-1]
        with self._lock:
            found: dict[str, Any] = {"activity": activity, "why": self._why, **self._place}
            found["fit"] = self._fits if sharing is None else sharing.fits
            found.update(self._figures(sharing, activity))
        found["logs"] = _numbers(self._logs)
        found["residual_norm"] = self._residual_norm
        return WorkerRecord(**found)

    def _figures(self, sharing: Sharing | None, activity: str) -> dict[str, Any]:
        if sharing is None:  # One worker alone: plain Keras.
            step = None
            sample = _Sample(time.monotonic(), self._batches, input_time(), 0.0)
        else:
            step = sharing.step
            sample = _sample(sharing)
        if activity != "training" or (self._samples and self._samples[-1].steps > sample.steps):
            self._samples.clear()
        self._samples.append(sample)
        first = self._samples[0]
        steps, seconds = sample.steps - first.steps, sample.clock - first.clock
        found: dict[str, Any] = {"steps": sample.steps}
        if steps > 0:
            found["step_seconds"] = seconds / steps
            # A wait that has just ended may have begun before the first sample.
            waited = sample.waited_seconds - first.waited_seconds
            found["waited_seconds"] = min(waited, seconds) / steps
            if sample.input_seconds >= 0:
                found["input_seconds"] = (sample.input_seconds - first.input_seconds) / steps
        if isinstance(step, PulledStep):
            found["divergence"] = float(step.last.divergence)
        elif isinstance(step, SharedStep) and sample.steps > 0:
            found["threshold"] = float(np.median(step.thresholds))
            found["density"] = _ratio(sample, first, "count", "elements")
            found["staleness"] = _ratio(sample, first, "staleness", "received")
        found["links"] = tuple(
            _link(now, first.links.get(link), seconds, to_parent=link == sample.parent_link)
            for link, now in sample.links.items()
        )
        return found

    def _run(self) -> None:
        while not self._over.wait(self._seconds):
            try:
                line = self.record().to_json()
            except (errors.StromError, RuntimeError, TypeError, ValueError) as error:
                # A connection that has just ended, a dict that has grown meanwhile, or logs of a
                # callback's that no record can have.
                _logger.debug("no record of this worker: %s", error)
                continue
            if not self._write(line):
                return


def _whole(place: Mapping[str, int | None]) -> dict[str, int | None]:
    """Numbers that a program may have given as NumPy's, which JSON does not know."""
    return {name: None if value is None else int(value) for name, value in place.items()}


def _sample(sharing: Sharing) -> _Sample:
    step = sharing.step
    waited, parent_link, links = 0.0, 0, {}
    if sharing.worker is not None:
        status = sharing.worker.status()
        waited = (status["submit_wait_ns"] + status["step_wait_ns"]) * 1e-9
        parent_link = int(status["node"]["parent_link"])
        links = {link.link: link for link in NodeCounters.from_status(status).links}
    more = {}
    if isinstance(step, SharedStep):
        totals = step.totals
        names = ("count", "elements", "received", "staleness")
        more = {name: float(getattr(totals, name)) for name in names}
    elif isinstance(step, PulledStep):
        waited += float(step.last.waited_seconds)
    now = time.monotonic()
    return _Sample(
        now, step.stepped, input_time(), waited, parent_link=parent_link, links=links, **more
    )


def _ratio(now: _Sample, before: _Sample, above: str, below: str) -> float | None:
    grown = float(getattr(now, below) - getattr(before, below))
    return None if grown <= 0 else float(getattr(now, above) - getattr(before, above)) / grown


def _link(
    now: LinkCounters, before: LinkCounters | None, seconds: float, *, to_parent: bool
) -> LinkRecord:
    since = before or now
    packets = now.datagrams_sent - since.datagrams_sent
    again = now.retransmitted_packets - since.retransmitted_packets
    return LinkRecord(
        peer=now.peer,
        round_trip=now.round_trip_seconds,
        sent=(now.bytes_sent - since.bytes_sent) / seconds if seconds > 0 else 0.0,
        received=(now.bytes_received - since.bytes_received) / seconds if seconds > 0 else 0.0,
        loss=min(1.0, again / packets) if packets > 0 else 0.0,
        queued=float(now.queued_bytes),
        shared_memory=now.transport != "udp",
        to_parent=to_parent,
    )


def _numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    """Loss and metrics as numbers; the figures of sharing have places of their own."""
    found = {}
    for name, value in logs.items():
        if name.startswith(_OWN_LOGS):
            continue
        with contextlib.suppress(TypeError, ValueError):  # A metric of several numbers.
            found[name] = float(value)
    return found


class Reporter(keras.callbacks.Callback):  # type: ignore[misc]
    """Tells the reports where `fit` is.

    Args:
        reports: of this process.
    """

    def __init__(self, reports: StatusReports) -> None:
        super().__init__()
        self._reports = reports

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Figures begin anew."""
        self._reports.begin_fit(self.params.get("epochs"), self.params.get("steps"))

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Notes the epoch."""
        self._reports.enter("training")
        self._reports.note(None, epoch=epoch + 1, batch=0)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Notes the batch; the logs are read later."""
        self._reports.batch(batch, logs)

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Notes the validation."""
        self._reports.enter("validating")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Notes the epoch's logs, with the figures of sharing."""
        self._reports.note(dict(logs or {}))

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Notes the end, which all workers have together."""
        self._reports.enter("ending")


def alone() -> StatusReports | None:
    """The reports of a worker on its own; None = nobody wants any (`follow_alone`)."""
    return _alone[0] if _alone else None


def follow_alone(reports: StatusReports) -> None:
    """This process is one worker on its own: what it trains is reported by Keras's callbacks."""
    _alone[:] = [reports]


_alone: list[StatusReports] = []


@functools.cache
def _of_process(path: str) -> StatusReports | None:
    """The reports that go to this pipe; None where it is none."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        _logger.warning("nobody can be told what this worker does: %s", error)
        return None
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        # A program that the worker has started has its variables, but not what it inherited.
        os.close(fd)
        return None

    def write(line: str) -> bool:
        try:
            os.write(fd, line.encode() + b"\n")
        except BlockingIOError:  # The reader is behind; the next record is as good.
            return True
        except OSError:
            return False
        return True

    reports = StatusReports(write)
    reports.begin()
    return reports


def reports_of(environment: ClusterEnvironment) -> StatusReports | None:
    """The reports of this process; None where nobody wants any."""
    return None if environment.status_path is None else _of_process(environment.status_path)


def doing(
    environment: ClusterEnvironment, activity: str, why: str = ""
) -> contextlib.AbstractContextManager[None]:
    """While the block runs this worker does `activity`; see `WorkerRecord`."""
    reports = reports_of(environment)
    return contextlib.nullcontext() if reports is None else reports.doing(activity, why)
