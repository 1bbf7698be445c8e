"""The present state of a job, fed by what its runner hears: without clock, thread or socket.

The runner tells of processes (started, ended, lost), the workers of themselves (`WorkerRecord`),
the master of its members and their places in the tree. `snapshot` is all that a page, `keras-strom
status` or `/metrics` shows.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from keras_strom.dashboard.diagnosis import diagnose
from keras_strom.dashboard.history import History
from keras_strom.job.worker_record import LinkRecord, WorkerRecord

#: What a worker does that says nothing itself, beside `worker_record.ACTIVITIES`.
STARTING, AWAY, ENDED, FAILED = "starting", "away", "ended", "failed"

#: The columns of a snapshot's workers; seconds, bytes a second and shares of 1.
COLUMNS = (
    *("rank", "activity", "why", "host", "attempt", "parent", "depth", "silent"),
    *("fit", "epoch", "epochs", "batch", "batches", "steps"),
    *("step_seconds", "input_seconds", "waited_seconds", "staleness", "density", "threshold"),
    *("residual_norm", "divergence", "sent", "received", "round_trip", "loss", "queued"),
    *("shared_memory", "logs"),
)

#: A worker that has said nothing for so long is shown as silent.
SILENT_SECONDS = 5.0

_MOST_EVENTS = 500
_MOST_CHECKPOINTS = 20
_NOWHERE = -2  # A parent that is not known; -1 = the master.


@dataclasses.dataclass
class _Worker:
    """What is known of one worker."""

    rank: int
    host: str = ""
    attempt: int = 0
    process: str = ""  # STARTING, AWAY, ENDED or FAILED; "" = its record tells.
    record: WorkerRecord | None = None
    heard: float = -math.inf
    parent: int = _NOWHERE
    depth: int = 0
    returns: bool = False  # Started again, and has not trained since.
    state: str = ""  # As the master sees it: live, away, lost, left.


@dataclasses.dataclass(frozen=True)
class JobEvent:
    """Something that has happened.

    Attributes:
        number: counts from 1.
        seconds: since the job began.
        kind: "runner", "worker", "master" or "checkpoint".
        rank: of the worker that it is about; -1 = of none.
        text: what.
    """

    number: int
    seconds: float
    kind: str
    rank: int
    text: str


class WatchedJob:
    """One job from its start on.

    Args:
        name: what is trained, in a word: the script.
        workers: how many there may be; ranks are below it.
        now: the time at its start; all other times are later, by the same clock, in seconds.

    Example:
        >>> job = WatchedJob("train.py", workers=2, now=0.0)
        >>> job.heard(1, WorkerRecord(activity="training"), now=1.0)
        >>> job.snapshot(now=2.0)["activities"]
        {'training': 1}
    """

    def __init__(self, name: str, workers: int, now: float) -> None:
        self._name = name
        self._workers = workers
        self._begin = now
        self._known: dict[int, _Worker] = {}
        self._events: collections.deque[JobEvent] = collections.deque(maxlen=_MOST_EVENTS)
        self._event_count = 0
        self._masters_events = 0
        self._master: dict[str, Any] = {}
        self._checkpoints: collections.deque[tuple[float, str]] = collections.deque(
            maxlen=_MOST_CHECKPOINTS
        )
        self._checkpoint_count = 0
        self._ended = ""
        self._fit = 0  # The latest that all workers have been seen to train.
        self.history = History(workers)

    # ------------------------------------------------------------------ what the runner tells

    def started(self, rank: int, host: str, attempt: int, now: float) -> None:
        """A worker's process starts."""
        worker = self._worker(rank)
        worker.host, worker.attempt, worker.process = host, attempt, STARTING
        worker.record, worker.heard, worker.returns = None, -math.inf, attempt > 0
        if attempt:
            words = f"worker {rank} is started on {host}, for the {_ordinal(attempt + 1)} time"
            self.event("worker", rank, words, now)

    def heard(self, rank: int, record: WorkerRecord, now: float) -> None:
        """A worker tells of itself."""
        if not 0 <= rank < self._workers:
            return
        worker = self._worker(rank)
        if worker.process in (ENDED, FAILED, AWAY):
            return  # What was on its way when it ended.
        before = worker.record
        worker.process, worker.record, worker.heard = "", record, now
        if before is None or (before.activity, before.why) != (record.activity, record.why):
            self._tell_of(worker, before, record, now)

    def left(self, rank: int, how: str, words: str, now: float) -> None:
        """A worker's process has ended: `how` is AWAY where it comes again, ENDED or FAILED."""
        self._worker(rank).process = how
        self.event("worker", rank, words, now)

    def event(self, kind: str, rank: int, text: str, now: float) -> None:
        """Something has happened."""
        self._event_count += 1
        self._events.append(JobEvent(self._event_count, now - self._begin, kind, rank, text))

    def checkpoint(self, path: str, now: float) -> None:
        """A checkpoint of the job is whole."""
        self._checkpoint_count += 1
        self._checkpoints.append((now - self._begin, path))
        self.event("checkpoint", -1, f"checkpoint {path}", now)

    def master(self, status: Mapping[str, Any], now: float) -> None:
        """The master's `status()`."""
        if not status:
            return
        node = status.get("node", {})
        self._master = {
            "port": status.get("port"),
            "phase": node.get("phase", ""),
            "generation": node.get("generation", 0),
            "parameters": node.get("parameters", 0),
            "bytes_sent": status.get("counters", {}).get("bytes_sent", 0),
            "bytes_received": status.get("counters", {}).get("bytes_received", 0),
        }
        for member in node.get("members", ()):
            worker = self._worker(int(member["rank"]))
            worker.parent = int(member.get("parent", -1))
            worker.depth = int(member.get("depth", 1))
            worker.state = str(member.get("state", ""))
        total = int(status.get("events_total", len(status.get("events", ()))))
        if 0 < total < self._masters_events:  # Another master, under which the job begins again.
            self._masters_events = 0
        new = total - self._masters_events
        if new > 0:
            for seen in status.get("events", ())[-new:]:
                self.event("master", int(seen["rank"]), str(seen["text"]), now)
        self._masters_events = max(total, self._masters_events)

    def end(self, words: str, now: float) -> None:
        """The job is over."""
        self._ended = words
        self.event("runner", -1, words, now)

    def tick(self, now: float) -> None:
        """Notes the present figures in the history; to be called about once a second."""
        values: dict[int, Mapping[str, float]] = {}
        for rank, worker in self._known.items():
            record = worker.record
            if record is None or worker.process or now - worker.heard > SILENT_SECONDS:
                continue
            values[rank] = dict(record.logs)
            if record.step_seconds is not None and record.activity == "training":
                values[rank] = {**values[rank], "step seconds": record.step_seconds}
        self.history.note(now - self._begin, values)

    # ------------------------------------------------------------------ what is shown

    def snapshot(self, now: float, after_event: int = 0) -> dict[str, Any]:
        """All of it, for JSON.

        Args:
            now: the time.
            after_event: leaves out events up to this number.
        """
        activities: collections.Counter[str] = collections.Counter()
        rows = []
        links = self._links()
        records = {}
        for rank, worker in sorted(self._known.items()):
            activity = self._activity(worker)
            activities[activity] += 1
            if worker.record is not None and not worker.process:
                records[rank] = worker.record
            rows.append(self._row(worker, activity, links.get(rank), now))
        slow = diagnose(records, links)
        return {
            "name": self._name,
            "workers_wanted": self._workers,
            "seconds": round(now - self._begin, 1),
            "ended": self._ended,
            "master": self._master,
            "activities": dict(activities.most_common()),
            "columns": COLUMNS,
            "workers": rows,
            "slow": [dataclasses.asdict(one) for one in slow],
            "checkpoints": [[round(seconds, 1), path] for seconds, path in self._checkpoints],
            "checkpoint_count": self._checkpoint_count,  # The latest of them are above.
            "metrics": self.history.metrics,
            "events": [
                [one.number, round(one.seconds, 1), one.kind, one.rank, one.text]
                for one in self._events
                if one.number > after_event
            ],
        }

    def _row(
        self, worker: _Worker, activity: str, link: LinkRecord | None, now: float
    ) -> list[Any]:
        record = worker.record
        values: dict[str, Any] = {
            "rank": worker.rank,
            "activity": activity,
            "host": worker.host,
            "attempt": worker.attempt,
            "parent": worker.parent,
            "depth": worker.depth,
        }
        if record is not None:
            for name in COLUMNS:
                # Of a process that has ended only what it has logged still means something.
                if name not in values and hasattr(record, name) and not worker.process:
                    values[name] = getattr(record, name)
            values["logs"] = {
                name: value if math.isfinite(value) else str(value)
                for name, value in record.logs.items()
            }
            if not worker.process and now - worker.heard > SILENT_SECONDS:
                values["silent"] = round(now - worker.heard)
        if link is not None:
            for name in ("sent", "received", "round_trip", "loss", "queued", "shared_memory"):
                values[name] = getattr(link, name)
        return [values.get(name) for name in COLUMNS]

    def _links(self) -> dict[int, LinkRecord]:
        """Each worker's link to its parent in the tree."""
        return {
            rank: link
            for rank, worker in self._known.items()
            if worker.record is not None and not worker.process
            for link in worker.record.links
            if link.to_parent
        }

    def _activity(self, worker: _Worker) -> str:
        if worker.process:
            return worker.process
        if worker.state in ("away", "lost"):
            return AWAY
        return STARTING if worker.record is None else worker.record.activity

    def _tell_of(
        self, worker: _Worker, before: WorkerRecord | None, record: WorkerRecord, now: float
    ) -> None:
        """What a worker goes on to is an event where it happens seldom."""
        who = f"worker {worker.rank}"
        if record.activity == "waiting":
            self.event("worker", worker.rank, f"{who} waits: {record.why}", now)
        elif before is not None and before.activity == "waiting":
            self.event("worker", worker.rank, f"{who} goes on", now)
        elif record.activity == "training" and worker.returns:
            worker.returns = False
            self.event("worker", worker.rank, f"{who} trains on with the others", now)
        elif record.activity == "training" and record.fit > self._fit:
            training = [w for w in self._known.values() if self._activity(w) == "training"]
            if len(training) == len(self._known):
                self._fit = record.fit
                self.event(
                    "runner", -1, f"all workers ({len(training)}) train: fit {self._fit}", now
                )

    def _worker(self, rank: int) -> _Worker:
        return self._known.setdefault(rank, _Worker(rank))


def _ordinal(number: int) -> str:
    ending = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
