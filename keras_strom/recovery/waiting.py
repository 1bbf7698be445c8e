"""A worker waits, and says for what: between two batches while it may not train, and at the end.

Between two batches it waits in two cases: fewer workers take part than the job needs
(`min_workers`; the master counts them and says so in its beacons), or the master is lost and
another may come (`on_master_loss="wait"`). A worker that waits still answers requests for its
state, or nobody could go on.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from keras_strom.job.drain import after
from keras_strom.job.network import format_address
from keras_strom.sharing.participant import Participant

_logger = logging.getLogger("keras_strom")

_POLL_SECONDS = 0.05

# Workers of unequal machines end far apart; an error should not wait for that to be seen.
_SILENT_SECONDS = 60.0
_SILENT_SECONDS_OF_FAILURE = 5.0


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


def finish_with_all(participant: Participant, stop: bool, failure: str) -> None:
    """Ends this worker's training, and returns when all others have ended theirs.

    Args:
        participant: this worker, which has others.
        stop: it ends the training of all before its last epoch.
        failure: how its `fit` has failed; "" = it has not.

    Raises:
        DeadlinePassed: `fit` has failed here, and the others have not heard of it.
    """
    worker = participant.worker
    assert worker is not None
    with _told_if_long(participant, "end theirs, too", failure) as timeout:
        worker.finish(stop, timeout=timeout)


def verify_with_all(
    participant: Participant, difference: float, parameters_hash: int, failure: str
) -> float:
    """Tells the others this replica's largest difference, once their last callbacks have returned.

    Args:
        participant: this worker, which has others.
        difference: as `TrainingWorker.verify` takes it.
        parameters_hash: the same.
        failure: how its `fit` has failed since it has ended its training; "" = it has not.

    Returns:
        The largest of all workers.

    Raises:
        DeadlinePassed: `fit` has failed here, and the others have not heard of it.
    """
    worker = participant.worker
    assert worker is not None
    with _told_if_long(participant, "return from their last callbacks", failure) as timeout:
        return worker.verify(difference, parameters_hash, timeout=timeout)


@contextlib.contextmanager
def _told_if_long(participant: Participant, what: str, failure: str) -> Iterator[float | None]:
    """Stands around a wait for the others; gives the seconds that it may take, None = any.

    Some may stand still in code of their user's: where that takes long a warning says what this
    worker waits for, and one whose `fit` has failed does not wait longer than `start_timeout`.
    """
    here = participant.environment
    seconds, timeout, words = _SILENT_SECONDS, None, "has ended its training and waits"
    if failure:
        seconds, timeout = _SILENT_SECONDS_OF_FAILURE, here.join_timeout
        words = f"has failed ({failure}) and waits, at most {timeout:g} s,"
    timer = after(seconds, _logger.warning, f"worker {here.rank} {words} for the others to {what}")
    try:
        yield timeout
    finally:
        timer.cancel()


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
