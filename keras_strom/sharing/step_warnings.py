"""What the operators have to tell their user, said by Python's logger.

TensorFlow's own log is silent in workers that keras-strom starts (TF_CPP_MIN_LOG_LEVEL).
"""

from __future__ import annotations

import logging

from keras_strom._native.ops import take_step_warnings
from keras_strom.job.environment import ClusterEnvironment

_logger = logging.getLogger("keras_strom")


def tell() -> None:
    """Says what this process has not said yet, which costs little where that is nothing."""
    for words in take_step_warnings():
        _logger.warning("worker %d: %s", ClusterEnvironment.from_environ().rank, words)
