"""`--tune` of `make bench-time-to-accuracy`: learning rates; what it found is `tta_plan.RATES`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from benchmarks.report import Report
from benchmarks.tta_curves import Outcome
from benchmarks.tta_place import UNLIMITED
from benchmarks.tta_plan import Job, Plan, marks
from benchmarks.tta_training import HOROVOD, HOROVOD_FP16, Rate, Training

#: Of no run that is reported.
SEED = 100
EPOCHS = 3
START = 1e-3
FACTOR = 2.0
#: Epochs of Horovod's warm-up that are tried; the others have none.
WARM_UPS = (0, 1)

#: Runs jobs and gives the outcomes that there are then.
Run = Callable[[Sequence[Job]], Mapping[Job, Outcome]]


def tune(result: Report, plan: Plan, run: Run) -> None:
    """Finds each method's rate for each task and number of workers; adds a row for each try."""
    for task, workers in plan.settings():
        for way in plan.ways:
            if way == HOROVOD_FP16:
                continue  # It takes Horovod's.
            tried = _tried(way, task, workers, run)
            best = max(tried, key=lambda rate: tried[rate], default=None)
            for rate, mean in tried.items():
                name = f"{way}, {rate.alone:g}" + (", warm-up" if rate.warm_up else "")
                group = f"{task}, {workers} workers: mean accuracy of {EPOCHS} epochs"
                result.row(name, group=group, accuracy=mean, best=rate == best)
            result.write()


def _tried(way: str, task: str, workers: int, run: Run) -> dict[Rate, float]:
    """The mean accuracy with each rate on the way to the best."""
    tried: dict[Rate, float] = {}

    def score(rate: Rate) -> float:
        training = Training(way, task, workers, SEED, rate, marks(workers, EPOCHS))
        # On an unlimited line, where nobody sleeps: what counts are accuracies by steps.
        job = Job(training, UNLIMITED)
        outcome = run([job]).get(job)
        if outcome is None:
            return 0.0
        tried[rate] = statistics.fmean(outcome.accuracies)
        return tried[rate]

    for warm_up in WARM_UPS if way == HOROVOD else WARM_UPS[:1]:
        climb(lambda alone, warm_up=warm_up: score(Rate(alone, warm_up)))
    return tried


def climb(score: Callable[[float], float]) -> float:
    """The power of `FACTOR`, times `START`, whose both neighbours score less."""
    scores: dict[float, float] = {}

    def of(rate: float) -> float:
        if rate not in scores:
            scores[rate] = score(rate)
        return scores[rate]

    best = START
    while True:
        better = max((best, best * FACTOR, best / FACTOR), key=of)
        if better == best:
            return best
        best = better
