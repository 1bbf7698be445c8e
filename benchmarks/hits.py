"""A worker of a running job is struck every few seconds: killed, or told to leave."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import pathlib
import random
import signal
import threading
import time

from tests.support.scripts import elastic

_POLL_SECONDS = 0.05


@dataclasses.dataclass(frozen=True)
class Kill:
    """One worker that was killed, or told to leave.

    Attributes:
        seconds: after the job's start.
        rank: of the worker.
        attempt: of its process.
        back_after: seconds until its replacement's first batch; None = the job ended before.
        joined_in: of these, since the replacement has called `fit`.
    """

    seconds: float
    rank: int
    attempt: int
    back_after: float | None = None
    joined_in: float | None = None


class Thread:
    """Does something every few moments while the context lasts."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def act(self) -> None:
        """What is done."""

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _loop(self) -> None:
        while not self._over.wait(self._seconds):
            self.act()


class Killer(Thread):
    """Strikes a worker that trains every few seconds, and waits for its replacement to train.

    Args:
        folder: of the job's files.
        every: seconds between two.
        seed: of the choice.
        number: the signal; SIGTERM lets it drain.
        until: seconds after which it strikes no more.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        every: float,
        seed: int,
        number: int = signal.SIGKILL,
        until: float = math.inf,
    ) -> None:
        super().__init__(_POLL_SECONDS)
        self._number = number
        self._until = until
        self._folder = folder
        self._every = every
        self._random = random.Random(seed)
        self._begin = time.monotonic()
        self._next = self._begin + every
        self._kills: list[Kill] = []
        self._away: dict[pathlib.Path, int] = {}  # What a replacement will write, and its kill.

    @property
    def kills(self) -> tuple[Kill, ...]:
        """All so far."""
        return tuple(self._kills)

    def act(self) -> None:
        """Strikes, if it is time, and notes who is back."""
        now = time.monotonic()
        for path, number in list(self._away.items()):
            if path.exists():
                kill = self._kills[number]
                self._kills[number] = dataclasses.replace(
                    kill,
                    back_after=now - self._begin - kill.seconds,
                    joined_in=elastic.Trains.read(path).seconds,
                )
                del self._away[path]
        if now < self._next or now > self._begin + self._until:
            return
        latest: dict[int, tuple[int, pathlib.Path]] = {}
        for path in self._folder.glob("trains-*"):
            rank, attempt = map(int, path.name.split("-")[1:])
            latest[rank] = max(latest.get(rank, (-1, path)), (attempt, path))
        waiting = {int(path.name.split("-")[1]) for path in self._away}
        ended = {int(path.stem) for path in self._folder.glob("*.json")}
        victims = sorted(set(latest) - waiting - ended)
        if not victims:
            return
        victim = self._random.choice(victims)
        attempt, path = latest[victim]
        with contextlib.suppress(ProcessLookupError, ValueError):
            os.kill(elastic.Trains.read(path).pid, self._number)
            self._away[self._folder / f"trains-{victim}-{attempt + 1}"] = len(self._kills)
            self._kills.append(Kill(now - self._begin, victim, attempt))
            self._next = now + self._every
