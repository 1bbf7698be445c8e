"""What training beside a joint model does, in figures and warnings for the logs of each epoch."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from keras_strom.strategy.fit_failure import lost_workers

if TYPE_CHECKING:
    from keras_strom.sharing.pulled_step import PulledStep
    from keras_strom.strategy.generation import Sharing

# What is worth a warning: alpha n_c above which the pull is a brake, and steps of a cycle.
_BRAKE = 2.0
_LONG_CYCLE = 500

#: A warning's words and what they are filled with.
Warning = tuple[str, tuple[object, ...]]


@dataclasses.dataclass(frozen=True)
class _Counters:
    """Counters at one moment."""

    waited_seconds: float
    bytes_sent: int
    lost: int

    @classmethod
    def of(cls, sharing: Sharing, step: PulledStep) -> _Counters:
        worker = sharing.worker
        if worker is None:
            return cls(step.last.waited_seconds, 0, 0)
        sent = int(worker.status()["counters"]["bytes_sent"])
        return cls(step.last.waited_seconds, sent, len(lost_workers(worker)))


class PullFigures:
    """The figures of one `fit`, an epoch after the other.

    Args:
        sharing: whose they are.
        step: what ends its steps.
    """

    def __init__(self, sharing: Sharing, step: PulledStep) -> None:
        self._sharing = sharing
        self._step = step
        self._before: _Counters | None = None

    def begin(self) -> None:
        """When `fit` begins: starts anew."""
        self._before = None

    def begin_epoch(self) -> None:
        """Notes where the counters stand; a later epoch counts from the end of the one before."""
        if self._before is None:
            self._before = _Counters.of(self._sharing, self._step)

    def end_epoch(self) -> dict[str, float]:
        """The figures of the epoch, by their names without `strom/`."""
        before, now = self._before, _Counters.of(self._sharing, self._step)
        assert before is not None
        self._before = now
        last = self._step.last
        figures = {
            "cycle_seconds": last.cycle_seconds,
            "cycle_steps": last.cycle_steps,
            "alpha": last.alpha,
        }
        if self._step.method.pulls_each_step and not self._step.method.pulls_by_gradient:
            figures["pull"] = last.alpha * last.cycle_steps
        return {
            **figures,
            "divergence": last.divergence,
            "waited": now.waited_seconds - before.waited_seconds,
            "bytes_sent": float(now.bytes_sent - before.bytes_sent),
            "peers": float(self._peers(before, now)),
        }

    def _peers(self, before: _Counters, now: _Counters) -> int:
        """Other workers that take part, as far as the master has told of those that it has lost."""
        here = self._sharing.environment
        # Where workers are started again, those of earlier epochs are back by now.
        lost = now.lost - before.lost if here.max_failures else now.lost
        return max(0, here.size - 1 - lost)

    def warnings(self, figures: dict[str, float]) -> list[Warning]:
        """What the user should know of `figures`, with what to do."""
        found: list[Warning] = []
        if figures.get("pull", 0.0) > _BRAKE:
            found.append(self._brake(figures))
        if figures["cycle_steps"] > _LONG_CYCLE:
            words = (
                "%.0f steps lie between two exchanges, in which workers go ways of their own: the "
                "network is slow for so many parameters. Use a faster one or larger batches, or "
                "share updates (method=None)"
            )
            found.append((words, (figures["cycle_steps"],)))
        return found

    def _brake(self, figures: dict[str, float]) -> Warning:
        """That pulls are too strong: those of the method, or those of its start alone."""
        words = (
            "the pulls of a cycle add up to %.1f (alpha %.2g, %.0f steps), which holds workers "
            "back: "
        )
        steps = figures["cycle_steps"]
        own = self._step.method.numbers(self._sharing.environment.size).alpha
        least = 1 / steps
        if own * steps > _BRAKE:
            words += "lower alpha, to %.2g or less"
        else:
            words += (
                "the pull of the method's start has not fallen yet. Lower that, "
                "start=PullStart(alpha=%.2g), or have it fall in fewer cycles"
            )
            least = max(least, own)
        return words, (figures["pull"], figures["alpha"], steps, least)
