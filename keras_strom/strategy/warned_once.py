"""What the user should know of a training, each thing said once."""

from __future__ import annotations

import logging

from keras_strom.sharing.step import SharedStep

_logger = logging.getLogger("keras_strom")

# A residual element this many thresholds large takes as many steps to be sent.
_WIND_UP = 1000.0


class WarnOnce:
    """Logs warnings of one worker, each once, whatever figures it has.

    Args:
        rank: the worker's.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._said: set[str] = set()

    def __call__(self, words: str, *arguments: object) -> None:
        """Logs `words % arguments`, unless it has logged `words`."""
        if words not in self._said:
            self._said.add(words)
            _logger.warning("worker %d: " + words, self._rank, *arguments)

    def of_rows(self, own: int, mean: float, workers: int) -> None:
        """That this worker's arrays are not as long as the others'.

        Args:
            own: rows of the arrays that its `fit` was given; 0 = it was given others.
            mean: those of the workers that have ended the epoch; who ends it last knows all.
            workers: of the job.
        """
        if own and mean != own:
            self(
                "the arrays that fit was given have %d rows here, and %.1f in the workers' mean: "
                "each of the %d workers trains on its part of the same arrays, so rows that only "
                "some have are partly left out. Give all workers the same arrays; where each has "
                "its own, make them a tf.data.Dataset with AutoShardPolicy.OFF in its options",
                own,
                mean,
                workers,
            )

    def of_steps(self, step: SharedStep, *, shares: bool) -> None:
        """What the steps so far have left in the residuals, or could not send.

        Args:
            step: what has ended them.
            shares: whether there are other workers.
        """
        times, threshold = step.wind_up
        if times > _WIND_UP:
            self(
                "the largest residual is %.0f times the threshold %.1e: progress waits for as many "
                "steps before it is sent. Raise the threshold, or clip the residual",
                times,
                threshold,
            )
        if shares and step.totals.assigned_outside > 0:
            self(
                "shared variables were assigned outside strategy.run while training ran (%d times; "
                "a callback, set_weights or load_weights?): such a change is not sent to the other "
                "workers and is lost at the end of training. Assign before fit instead",
                int(step.totals.assigned_outside),
            )
