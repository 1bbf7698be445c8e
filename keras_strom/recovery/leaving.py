"""A worker leaves in the middle of a `fit`, and nothing that it has learnt is lost.

Between two batches it sends its whole residual as ordinary updates, to the bit, waits until the
master holds them, and leaves. The updates bear its last step, by which the worker that takes its
place finds its batch (`takeover`). docs/decisions/drain_by_updates.md says why.
"""

from __future__ import annotations

import logging
from typing import NoReturn

from keras_strom.job.drain import DRAINED_EXIT_CODE, request
from keras_strom.sharing.participant import Participant

_logger = logging.getLogger("keras_strom")


class Drained(SystemExit):
    """Ends the process of a worker that has handed over all and left."""

    def __init__(self) -> None:
        super().__init__(DRAINED_EXIT_CODE)


def is_asked(participant: Participant) -> bool:
    """Whether this worker is to leave."""
    if participant.step.has_stepped():  # Until then it may have waited for others to begin.
        request.looks()
    return bool(request.why) and participant.worker is not None


def leave(participant: Participant, *, trains: bool) -> NoReturn:
    """Hands over what the others have not got, leaves the job and ends the process.

    Args:
        participant: this worker, between two of its steps.
        trains: it takes part in a training that runs, in which others can take something over.

    Raises:
        Drained: always, unless the connection fails before.
    """
    worker, here = participant.worker, participant.environment
    assert worker is not None
    _logger.info("worker %d: asked to leave by %s", here.rank, request.why)
    handed = participant.step.hand_over_all() if trains else None
    worker.drain()
    request.has_left(stepped=participant.step.stepped > 0)
    _logger.info(
        "worker %d (attempt %d) has drained: %s; %.2f s after it was asked to, at step %d",
        here.rank,
        here.attempt,
        "nothing was left here" if handed is None else handed,
        request.waited,
        participant.step.steps,
    )
    raise Drained
