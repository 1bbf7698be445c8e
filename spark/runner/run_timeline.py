"""What each worker of a `run` was doing when, from the events that the driver has seen.

All of it goes by the driver's clock: when a task came and when its worker was started, lost or
ended is the controller's word, when it had joined and when the workers trained is the master's.
"""

from __future__ import annotations

from collections.abc import Sequence

from .event import Event
from .timeline import DRIVER, WAIT, Phase, Timeline

_START, _TRAIN, _RUN, _AWAY = "start", "train", "run", "away"


def timeline_of(events: Sequence[Event], start_seconds: float, seconds: float) -> Timeline:
    """The timeline of a run.

    Args:
        events: what happened, in order.
        start_seconds: when enough workers had come.
        seconds: how long the run took.
    """
    workers: dict[int, _Worker] = {}
    for event in events:
        if event.rank >= 0:
            workers.setdefault(event.rank, _Worker(event.rank)).see(event)
            continue
        for worker in workers.values():
            worker.see(event)
    phases = [
        Phase(DRIVER, _START, 0.0, start_seconds),
        Phase(DRIVER, _RUN, start_seconds, seconds),
    ]
    for _, worker in sorted(workers.items()):
        phases += worker.end(seconds)
    return Timeline(tuple(phases))


class _Worker:
    """One rank: the phase that it is in, and those before."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._phases: list[Phase] = []
        self._open: tuple[str, float] | None = None
        self._joined = False

    def see(self, event: Event) -> None:
        """Takes in an event of this rank, or of all."""
        match event.kind:
            case "registered" if self._open is None:
                self._enter(WAIT, event)
            case "started" | "restarted":
                self._joined = False
                self._enter(_START, event)
            case "lost" | "drained":
                self._joined = False
                self._enter(_AWAY, event)
            case "master: joined" if not self._joined and self._open is not None:
                self._joined = True
                self._enter(WAIT, event)
            case "master: started" | "master: rejoined" if self._joined:
                self._enter(_TRAIN, event)
            case "master: ended" if self._open is not None and self._open[0] == _TRAIN:
                self._enter(_RUN, event)
            case "ended" | "failed":
                self._joined = False
                self.end(event.seconds)

    def end(self, seconds: float) -> list[Phase]:
        """Its phases, once it is over; what has never joined did not start to, but just ran."""
        if self._open is not None and self._open[0] == _START:
            self._open = _RUN, self._open[1]
        self._leave(seconds)
        return self._phases

    def _enter(self, name: str, event: Event) -> None:
        self._leave(event.seconds)
        self._open = name, event.seconds

    def _leave(self, seconds: float) -> None:
        if self._open is not None:
            name, begin = self._open
            self._open = None
            if seconds > begin:
                self._phases.append(Phase(self._rank, name, begin, seconds))
