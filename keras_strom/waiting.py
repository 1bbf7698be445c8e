"""A worker waits between two batches while fewer take part than the job needs at least.

The master counts them (`min_workers`) and says so in its beacons. Who waits still gives its state
to a worker that joins, or they would never be enough again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras_strom.generation import Sharing

_logger = logging.getLogger("keras_strom")

_POLL_SECONDS = 0.05


def wait_for_enough(sharing: Sharing, meanwhile: Callable[[], None]) -> None:
    """Returns once enough workers take part, or this one's connection has failed.

    Args:
        sharing: the strategy's.
        meanwhile: is called again and again.
    """
    worker = sharing.worker
    if worker is None or not (missing := worker.missing_workers()):
        return
    begin = time.monotonic()
    rank = sharing.environment.rank
    _logger.warning(
        "worker %d: training waits for %d more worker%s", rank, missing, "s" * (missing > 1)
    )
    while worker.missing_workers() and not worker.status()["failure"]:
        meanwhile()
        time.sleep(_POLL_SECONDS)
    _logger.warning("worker %d: training goes on after %.1f s", rank, time.monotonic() - begin)
