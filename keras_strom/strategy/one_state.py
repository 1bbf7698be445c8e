"""Where all workers are to have one state after every step, nobody steps before all have it.

In exact mode the optimizers of some can differ from the chief's when a `fit` begins: they have had
a batch more or less in the one before, or it has failed. They get its state. A round does not wait
for who has none, so how many rounds went by meanwhile, and how many of a worker's batches, would
depend on time. So all say first who lacks it, and the chief, without whose gradient there is no
round, gives it to one after the other before its first step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from keras_strom.recovery.resume import DataPosition, Fit
from keras_strom.recovery.takeover import donate_if_asked
from keras_strom.sharing.constraints import Projection
from keras_strom.strategy.fit_failure import is_connected

if TYPE_CHECKING:
    from keras_strom.strategy.generation import Generation, Sharing

# The first of as many as there are workers, beside those that generation.py asks for.
_STATE_KEY = 4

_POLL_SECONDS = 0.002


def who_lack(sharing: Sharing, generation: Generation) -> list[int]:
    """The ranks that start together and lack the chief's state; the same on all of them.

    Args:
        sharing: the strategy's.
        generation: has started.
    """
    here = sharing.environment
    apart = sharing.worker is None or generation.late or generation.ended
    if apart or not sharing.step.has_one_state:
        return []
    lacks = np.zeros(here.size)
    lacks[here.rank] = generation.lacks_state
    mean, _ = generation.average(_STATE_KEY, lacks)
    return [int(rank) for rank in np.flatnonzero(mean)]


def in_turn(generation: Generation, lacking: list[int]) -> Iterator[int]:
    """Each of the ranks that `who_lack` has found, once all workers have come so far.

    A worker answers all who have asked it by then, so one asks after the other.
    """
    for turn, rank in enumerate(lacking):
        if turn > 0:
            generation.average(_STATE_KEY + turn, np.zeros(1))
        yield rank


def give_one(sharing: Sharing, fit: Fit, place: DataPosition, projection: Projection) -> None:
    """On the chief, before its first batch: gives its state to the one whose turn it is.

    Args:
        sharing: the strategy's.
        fit: the one that begins.
        place: the batch with which this worker begins.
        projection: of its model.
    """
    worker, generation = sharing.worker, sharing.generation
    if not sharing.environment.is_chief or worker is None or generation is None:
        return
    lost = len(generation.lost.words())
    deadline = time.monotonic() + sharing.environment.join_timeout
    while not donate_if_asked(sharing, fit, place, projection):
        parted = generation.stop_requested() or len(generation.lost.words()) > lost
        if parted or not is_connected(worker) or time.monotonic() > deadline:
            return
        time.sleep(_POLL_SECONDS)
