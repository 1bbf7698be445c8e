"""What `run` returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .event import Event
from .run_timeline import timeline_of
from .timeline import Timeline


class RunResult(list[Any]):
    """What the function returned on every worker, in rank order.

    Of an elastic run those count that were there at the end.

    Attributes:
        metrics: "ranks" of the workers whose results these are, "seconds" of the whole run,
            "start_seconds" until it had enough workers to start, "failures" and "lost_tasks" after
            which workers were started again, and the master's state and counters
            (docs/internals/native.md lists its keys).
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
        return timeline_of(self.events, self.metrics["start_seconds"], self.metrics["seconds"])
