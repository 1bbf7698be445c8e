"""The outcomes of `parity_cluster`'s trainings, kept in a file as they come.

A run that was cut off, or was of fewer seeds, is gone on with by `--resume`: what was trained with
the same settings is not trained again. Whether the code is still the same is for the user to know.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Collection, Iterator

from tests.bench.parity_cluster import Exchange, Outcome, Training, sharing_of, train_all
from tests.bench.parity_tasks import TASKS


class KeptOutcomes:
    """A file of outcomes, one a line.

    Args:
        path: of the file.
        resume: whether to begin with what it holds; else it is begun anew.
    """

    def __init__(self, path: pathlib.Path, *, resume: bool) -> None:
        self._path = path
        self._outcomes: dict[str, Outcome] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if not resume:
            path.write_text("", encoding="utf-8")
        elif path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                self._outcomes[entry["training"]] = Outcome(**entry["outcome"])

    def train_all(self, trainings: Collection[Training]) -> Iterator[tuple[Training, Outcome]]:
        """Gives what is kept, then trains the rest, and keeps that."""
        kept = {t: self._outcomes[_key(t)] for t in trainings if _key(t) in self._outcomes}
        yield from kept.items()
        missing = [training for training in trainings if training not in kept]
        for training, outcome in train_all(missing) if missing else ():
            entry = {"training": _key(training), "outcome": dataclasses.asdict(outcome)}
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
            yield training, outcome


def _key(training: Training) -> str:
    """All that its outcome depends on."""
    task = TASKS[training.task]
    settings: list[object] = [training, task.batch, task.examples, task.learning_rate]
    if training.exchange in (Exchange.SHARED, Exchange.TUNED):
        settings.append(sharing_of(training))
    return "; ".join(map(repr, settings))
