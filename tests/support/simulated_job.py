"""A job of many workers that nobody runs: what they would say of themselves, by a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from keras_strom.dashboard.watching import Watching
from keras_strom.job.worker_record import LinkRecord, WorkerRecord

MASTER_PORT = 40100
CHILDREN = 8


def parent_of(rank: int, workers: int) -> int:
    """In a tree where each node has eight children, or a star of up to 32; -1 = the master."""
    return -1 if workers <= 32 or rank < CHILDREN else rank // CHILDREN - 1


def depth_of(rank: int, workers: int) -> int:
    depth = 1
    while (rank := parent_of(rank, workers)) >= 0:
        depth += 1
    return depth


def record(
    rank: int, workers: int, moment: int, *, slow: int = -1, hungry: int = -1, lossy: int = -1
) -> WorkerRecord:
    """What one worker says at a moment; some compute slowly, starve, or lose packets."""
    chance = random.Random(f"{rank} {moment}")
    parent = parent_of(rank, workers)
    own = 0.08 * (1 + 0.05 * chance.random()) * (2.1 if rank == slow else 1)
    fed = 0.12 if rank == hungry else 0.004 * chance.random()
    steps = moment * 10
    loss = 2.3 * math.exp(-moment / 60) + 0.15 + 0.05 * chance.random()
    return WorkerRecord(
        activity="training",
        fit=1,
        epoch=1 + moment // 50,
        epochs=10,
        batch=steps % 500,
        batches=500,
        steps=steps,
        step_seconds=own + fed + 0.003,
        input_seconds=fed,
        waited_seconds=0.003 * chance.random(),
        staleness=1.5 + chance.random(),
        density=1.2e-3 * (0.8 + 0.4 * chance.random()),
        threshold=3.1e-4,
        residual_norm=0.41 + 0.02 * chance.random(),
        logs={"loss": loss, "accuracy": 1 - math.exp(-moment / 80) * 0.9, "val_loss": loss * 1.1},
        links=(
            LinkRecord(
                peer=f"10.0.0.{parent + 2}:{MASTER_PORT if parent < 0 else 50000 + parent}",
                round_trip=3e-4 * (1 + chance.random()),
                sent=2.4e5 * (1 + 0.2 * chance.random()),
                received=1.9e6,
                loss=0.12 if rank == lossy else 0.0,
                queued=0.0,
                to_parent=True,
            ),
        ),
    )


def status(workers: int) -> dict[str, Any]:
    """What the master would say."""
    return {
        "port": MASTER_PORT,
        "events": [],
        "counters": {},
        "node": {
            "phase": "training",
            "parameters": 25_557_032,
            "members": [
                {
                    "rank": rank,
                    "state": "live",
                    "parent": parent_of(rank, workers),
                    "depth": depth_of(rank, workers),
                }
                for rank in range(workers)
            ],
        },
    }


def begin(watching: Watching, workers: int, host: Callable[[int], str] | None = None) -> None:
    """Starts all of its workers."""
    watching.follow(lambda: status(workers))
    for rank in range(workers):
        watching.started(rank, host(rank) if host else f"node-{rank // 8:03}", 0)


def tell(watching: Watching, workers: int, moment: int, **odd: int) -> None:
    """All of its workers tell of themselves."""
    for rank in range(workers):
        watching.heard(rank, record(rank, workers, moment, **odd))
