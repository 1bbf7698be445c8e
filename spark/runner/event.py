"""What happens to a job of workers on Spark, as its driver and its master see it."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that happened to a job.

    Attributes:
        seconds: after the call of `run`.
        kind: of the runner: "registered", "started", "lost" (it died, or its task did, and is to be
            started again), "leaves" (its executor is decommissioned), "drained" (it was told to go,
            and has left, or was killed since it was late), "restarted", "waits" (fewer than
            `min_proc` are left), "ended", "failed" or "stopped". Of the master, with "master: "
            before it: "joined", "rejoined" (one that comes for the first time, too), "lost",
            "left", "started", "ended", "notice" and the like.
        rank: the worker concerned; -1 = none, or one that has never had a rank.
        text: who, why and how long.
    """

    seconds: float
    kind: str
    rank: int
    text: str
