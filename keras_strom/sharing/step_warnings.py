"""What the operators of steps have to tell their user, said by Python's logger.

TensorFlow's own log is silent in workers that keras-strom starts (TF_CPP_MIN_LOG_LEVEL).
"""

from __future__ import annotations

import logging

from keras_strom._native.ops import take_step_warnings

_logger = logging.getLogger(__name__)


def tell(rank: int) -> None:
    """Says what this process has not said yet, which costs nothing where that is nothing.

    Args:
        rank: of this worker.
    """
    for words in take_step_warnings():
        _logger.warning("worker %d: %s", rank, words)
