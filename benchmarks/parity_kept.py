"""The outcomes of `parity_cluster`'s trainings, of which `--resume` trains only what is missing."""

from __future__ import annotations

import pathlib
from collections.abc import Collection, Iterator

from benchmarks.kept import Kept
from benchmarks.parity_cluster import Exchange, Outcome, Training, sharing_of, train_all
from benchmarks.parity_tasks import TASKS


class KeptOutcomes:
    """A file of outcomes, see `Kept`.

    Args:
        path: of the file.
        resume: whether to begin with what it holds; else it is begun anew.
    """

    def __init__(self, path: pathlib.Path, *, resume: bool) -> None:
        self._kept = Kept(path, lambda fields: Outcome(**fields), resume=resume)
        self.tell_origins = self._kept.tell_origins

    def train_all(self, trainings: Collection[Training]) -> Iterator[tuple[Training, Outcome]]:
        """Gives what is kept, then trains the rest, and keeps that."""
        missing = []
        for training in trainings:
            outcome = self._kept.get(_key(training))
            if outcome is None:
                missing.append(training)
            else:
                yield training, outcome
        for training, outcome in train_all(missing) if missing else ():
            self._kept.put(_key(training), outcome)
            yield training, outcome


def _key(training: Training) -> str:
    """All that its outcome depends on."""
    task = TASKS[training.task]
    settings: list[object] = [training, task.batch, task.examples, task.learning_rate]
    if training.exchange in (Exchange.SHARED, Exchange.TUNED):
        settings.append(sharing_of(training))
    return "; ".join(map(repr, settings))
