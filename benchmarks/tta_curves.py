"""Curves of `make bench-time-to-accuracy`: test accuracy against steps, seconds and bytes.

A method that is synchronous learns the same on any line, step by step: from the same seed it does
the same sums. So its curve may be put together (`composed`) of what it learns by its steps on an
unlimited line, and of how long a step takes on the line in question. keras-strom is asynchronous,
what it learns depends on when messages arrive, so its curves are always of one run (`whole`).
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.tta_place import Line
from benchmarks.tta_training import SILENT, WARM_UP_STEPS, Course

#: So many evaluations in a row are averaged wherever accuracies are compared.
SMOOTHED = 3


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a job went.

    Attributes:
        steps: of each worker, at the marks.
        seconds: from the end of the warm-up to each mark.
        sent_bytes: by all nodes in that time, with all headers.
        accuracies: on the 10000 test pictures, in 0 to 1; empty where only steps are timed.
        other_cores: processors that were busy with other work meanwhile, on average.
    """

    steps: tuple[int, ...]
    seconds: tuple[float, ...]
    sent_bytes: tuple[float, ...]
    accuracies: tuple[float, ...]
    other_cores: float

    @classmethod
    def of(
        cls,
        way: str,
        courses: Sequence[Course],
        accuracies: Sequence[Sequence[float]],
        other_cores: float,
    ) -> Outcome:
        """Of the workers': who trains alone counts as a mean, and waits for the slowest.

        Args:
            way: the method.
            courses: of each worker.
            accuracies: of each worker that was judged, at each mark.
            other_cores: see above.
        """
        chief = courses[0]
        slowest = tuple(map(max, zip(*(one.seconds for one in courses), strict=True)))
        return cls(
            chief.steps,
            slowest if way == SILENT else chief.seconds,
            (0.0,) * len(chief.steps) if way == SILENT else chief.sent_bytes,
            tuple(map(statistics.fmean, zip(*accuracies, strict=True))),
            other_cores,
        )

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Outcome:
        """Of its fields as JSON gives them."""
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})

    @property
    def step_seconds(self) -> float:
        """A step after the warm-up, on average."""
        return self.seconds[-1] / (self.steps[-1] - WARM_UP_STEPS)

    @property
    def step_bytes(self) -> float:
        """What all nodes send in such a step."""
        return self.sent_bytes[-1] / (self.steps[-1] - WARM_UP_STEPS)


@dataclasses.dataclass(frozen=True)
class Curve:
    """One run of a method.

    The first steps, in which a graph is traced and the workers find each other, count as average
    ones in seconds and in bytes.

    Attributes:
        seed: of the run.
        composed: whether seconds and bytes were measured in other steps than the accuracies.
        steps, seconds, sent_bytes, accuracies: by evaluation.
        step_seconds: a step, on average.
    """

    seed: int
    composed: bool
    steps: tuple[int, ...]
    seconds: tuple[float, ...]
    sent_bytes: tuple[float, ...]
    accuracies: tuple[float, ...]
    step_seconds: float

    @classmethod
    def whole(cls, seed: int, run: Outcome) -> Curve:
        """Of one run."""
        seconds = tuple(s + WARM_UP_STEPS * run.step_seconds for s in run.seconds)
        sent = tuple(b + WARM_UP_STEPS * run.step_bytes for b in run.sent_bytes)
        return cls(seed, False, run.steps, seconds, sent, run.accuracies, run.step_seconds)

    @classmethod
    def put_together(cls, seed: int, learned: Outcome, timed: Outcome) -> Curve:
        """Of a synchronous method's accuracies by steps, and what its steps take on a line."""
        seconds = tuple(steps * timed.step_seconds for steps in learned.steps)
        sent = tuple(steps * timed.step_bytes for steps in learned.steps)
        return cls(seed, True, learned.steps, seconds, sent, learned.accuracies, timed.step_seconds)

    @classmethod
    def of(cls, seed: int, outcomes: Sequence[Outcome]) -> Curve:
        """Of one run, or of what was learned and what was timed."""
        return (
            cls.whole(seed, *outcomes) if len(outcomes) == 1 else cls.put_together(seed, *outcomes)
        )

    @property
    def running_means(self) -> list[float]:
        """For each evaluation the mean of it and the two before it, or of those that there are."""
        ends = range(1, len(self.accuracies) + 1)
        return [statistics.fmean(self.accuracies[max(0, end - SMOOTHED) : end]) for end in ends]

    @property
    def smoothed(self) -> list[float]:
        """The running means; -inf while they are of fewer than three."""
        return [
            -math.inf if place < SMOOTHED - 1 else mean
            for place, mean in enumerate(self.running_means)
        ]

    @property
    def best(self) -> float:
        """The highest that it comes to."""
        return max(self.smoothed)

    @property
    def end(self) -> float:
        """Where it is at the end."""
        return self.smoothed[-1]

    def seconds_to(self, target: float) -> float:
        """Until it is there, on a straight line between evaluations; inf = it never is."""
        points = list(zip(self.seconds, self.smoothed, strict=True))
        before = points[0]
        for seconds, mean in points:
            if mean >= target:
                share = (target - before[1]) / (mean - before[1]) if before[1] > -math.inf else 1.0
                return before[0] + share * (seconds - before[0])
            before = seconds, mean
        return math.inf

    def as_json(self) -> dict[str, Any]:
        """For the report's file."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Setting:
    """In which methods are compared: a task, a number of workers, and a line."""

    task: str
    workers: int
    line: Line


#: Of each method, a curve a seed.
Curves = Mapping[str, Sequence[Curve]]
Compared = Mapping[Setting, Curves]


def common_target(curves: Curves) -> float:
    """The highest accuracy, in whole tenths of a point, that every run of every method reaches."""
    lowest = min(curve.best for several in curves.values() for curve in several)
    return math.floor(lowest * 1000) / 1000


def mean_seconds(several: Sequence[Curve], target: float) -> float:
    """To the target, over the seeds."""
    return statistics.fmean(curve.seconds_to(target) for curve in several)


def mean_end(several: Sequence[Curve]) -> float:
    """Accuracy at the end, over the seeds."""
    return statistics.fmean(curve.end for curve in several)
