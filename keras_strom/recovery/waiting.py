"""A worker waits between two batches while it may not train.

It waits in two cases: fewer workers take part than the job needs (`min_workers`; the master counts
them and says so in its beacons), or the master is lost and another may come
(`on_master_loss="wait"`). A worker that waits still answers requests for its state, or nobody could
go on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from keras_strom.job.network import format_address
from keras_strom.sharing.participant import Participant

_logger = logging.getLogger("keras_strom")

_POLL_SECONDS = 0.05


def wait_until_allowed(
    participant: Participant,
    meanwhile: Callable[[], None],
    waiting: Callable[[str], AbstractContextManager[None]],
) -> None:
    """Returns once this worker may train, or its connection has failed.

    Args:
        participant: this worker.
        meanwhile: is called again and again.
        waiting: stands around the waiting; takes the reason for it.
    """
    worker = participant.worker
    if worker is None or not (reason := _reason(participant)):
        return
    begin = time.monotonic()
    rank = participant.environment.rank
    while reason and not worker.status()["failure"]:
        _logger.warning("worker %d: %s", rank, logged := reason)
        with waiting(reason):
            while reason == logged and not worker.status()["failure"]:
                meanwhile()
                time.sleep(_POLL_SECONDS)
                reason = _reason(participant)
    _logger.warning("worker %d: training goes on after %.1f s", rank, time.monotonic() - begin)


def _reason(participant: Participant) -> str:
    """Why this worker may not train, in words; "" = it may."""
    worker, here = participant.worker, participant.environment
    assert worker is not None
    if worker.waits_for_master():
        at = "" if here.master is None else f" at {format_address(here.master)}"
        return (
            f"the master{at} is lost; training waits for it to come back, at most "
            f"{here.join_timeout:g} s"
        )
    missing = worker.missing_workers()
    if not missing:
        return ""
    return f"training waits for {missing} more worker{'s' * (missing > 1)}"
