"""What `run` returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .timeline import Timeline


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that happened to a job.

    Attributes:
        seconds: after the call of `run`.
        kind: of the runner: "registered", "started", "lost" (it died, or its task did, and is to be
            started again), "restarted", "waits" (fewer than `min_proc` are left), "ended", "failed"
            or "stopped". Of the master, with "master: " before it: "joined", "rejoined" (one that
            comes for the first time, too), "lost", "left", "started", "ended", "notice" and the
            like.
        rank: the worker concerned; -1 = none, or one that has never had a rank.
        text: who, why and how long.
    """

    seconds: float
    kind: str
    rank: int
    text: str


class RunResult(list[Any]):
    """What the function returned on every worker, in rank order.

    Of an elastic run those count that were there at the end.

    Attributes:
        metrics: "ranks" of the workers whose results these are, "seconds" of the whole run,
            "start_seconds" until it had enough workers to start, "failures" and "lost_tasks" after
            which workers were started again, and the exchange's state and counters
            (docs/internals/native_doors.md lists its keys).
        events: what happened, in order.

    Example:
        >>> RunResult(["a", "b"], metrics={}, events=())[1]
        'b'
    """

    def __init__(
        self, values: Iterable[Any], *, metrics: Mapping[str, Any], events: tuple[Event, ...]
    ) -> None:
        super().__init__(values)
        self.metrics = dict(metrics)
        self.events = events

    @property
    def timeline(self) -> Timeline:
        """What driver and workers did when, in seconds after the call of `run`.

        A worker's phases are "wait" (for others), "start" (until it has joined them), "train"
        (while they share updates), "run" (before and after that, or all of it if it shares
        none) and "away" (lost, until it is started again). They are made of `events`, of which the
        master keeps its latest 1000.
        """
        from .run_timeline import course_of

        return course_of(self.events, self.metrics["start_seconds"], self.metrics["seconds"])
