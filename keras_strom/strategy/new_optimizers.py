"""A training whose optimizers are new begins as a first one, with nothing of earlier updates.

Updates of another optimizer can be a thousand times smaller: after `compile` with a lower learning
rate, to tune a model finely, or in the next trial of a search. The threshold of the training before
would hold all of them back for hundreds of steps, and what waits of that one's updates, many times
as large, would be most of what is sent. The threshold alone starts anew where two models train
in turn, each with its own optimizer.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from typing import Any

from keras_strom.job.environment import ClusterEnvironment
from keras_strom.recovery.donation import optimizers_of
from keras_strom.sharing.flat_space import Entry
from keras_strom.sharing.optimizers import parts_of
from keras_strom.sharing.step import SharedStep

_logger = logging.getLogger("keras_strom")


class KnownOptimizers:
    """Those of a strategy's trainings so far."""

    def __init__(self) -> None:
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self._latest: weakref.WeakSet[Any] = weakref.WeakSet()  # Of the training before.
        self._has_any = False

    def begin(
        self,
        models: Sequence[Any],
        step: SharedStep,
        trained: list[Entry],
        here: ClusterEnvironment,
    ) -> None:
        """Has the thresholds of `trained` start by themselves where no optimizer goes on.

        What waits in their residuals stays if the optimizers were there in a training before the
        last, for it is theirs, and is left out if they are new. From now on they are known. Loops
        of a program's own, whose optimizers nobody sees, count as going on.

        Args:
            models: those that are trained.
            step: the strategy's; the variables show what all workers share.
            trained: what the optimizers train.
            here: this worker; the chief logs it.
        """
        found = {part for m in models for one in optimizers_of(m) for part in parts_of(one)}
        if not found:
            return
        had_any, self._has_any = self._has_any, True
        are_others, are_new = found.isdisjoint(self._latest), found.isdisjoint(self._known)
        self._known.update(found)
        self._latest = weakref.WeakSet(found)
        if not had_any or not are_others:
            return
        step.begin_anew(trained)
        mass = step.forget_residuals(trained) if are_new else 0.0
        if mass > 0 and here.is_chief:
            _logger.info(
                "the optimizer is a new one: the threshold starts as in a first training, and what "
                "was not sent of earlier updates is left out (on worker %d a sum of %.3g of "
                "|residual|)",
                here.rank,
                mass,
            )
