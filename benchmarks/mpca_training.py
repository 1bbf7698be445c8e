"""The trainings of `make bench-mpca`: which method with what, and its accuracy over virtual time.

Every training of a task and a setting lasts as long as so many of MPCA's cycles, and is judged at
the same moments whatever the method.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import multiprocessing
import pathlib
from collections.abc import Callable, Collection, Iterator

import numpy as np

from benchmarks.kept import Kept
from benchmarks.mpca_methods import (
    DenseSynchronous,
    Easgd,
    Machine,
    Mpca,
    ParameterServer,
    Pulls,
    Single,
    SparkNet,
    Trial,
)
from benchmarks.mpca_paper import SETTINGS, WORKERS
from benchmarks.mpca_tasks import TASKS

#: By the name of a method that has no options here.
MACHINES: dict[str, Callable[[Trial], Machine]] = {
    "easgd": Easgd,
    "sparknet": SparkNet,
    "server": ParameterServer,
    "synchronous": DenseSynchronous,
    "single": Single,
}
METHODS = ("mpca", *MACHINES)
#: MPCA's cycles of a training: far enough beyond its start, whose schedules take 22.
CYCLES = {"r110": 800, "r152": 500, "vgga": 300}
#: At which a training is judged; fewer would be coarse, more would see SparkNet's model twice.
EVALUATIONS = 60
#: Evaluations in one mean.
SMOOTHING = 3


@dataclasses.dataclass(frozen=True)
class Training:
    """All that a curve depends on but the code.

    Attributes:
        task, setting, method: their names.
        seed: of the initial values and batches; equal for all methods.
        cycles: of MPCA, as long as it lasts.
        evaluations: at equal distances, the last one at its end.
        pulls: MPCA's options; None elsewhere.
        slow: workers at half speed.
    """

    task: str
    setting: str
    method: str
    seed: int
    cycles: int
    evaluations: int
    pulls: Pulls | None = None
    slow: int = 0

    @property
    def seconds(self) -> float:
        """Of virtual time."""
        return self.cycles * SETTINGS[self.setting].cycle_seconds


@dataclasses.dataclass(frozen=True)
class Curve:
    """How a training went.

    Attributes:
        accuracies: of x~, in percent, at equal distances up to the end.
        utilisation: the part of the time in which its workers computed.
    """

    accuracies: list[float]
    utilisation: float

    @property
    def smooth(self) -> list[float]:
        """The mean of each evaluation and the two before it, as far as there are."""
        every = self.accuracies
        return [float(np.mean(every[max(0, i + 1 - SMOOTHING) : i + 1])) for i in range(len(every))]

    @property
    def end(self) -> float:
        """What it holds at its end."""
        return self.smooth[-1]

    def part_until(self, accuracy: float) -> float | None:
        """Which part of its time it takes to that accuracy; None = it never gets there.

        Between evaluations the accuracy is taken to go on a straight line.
        """
        smooth = self.smooth
        for place, own in enumerate(smooth):
            if own >= accuracy:
                before = smooth[place - 1] if place else own
                way = (accuracy - before) / (own - before) if own > before else 1.0
                return (place + way) / len(smooth)
        return None


def machine(training: Training) -> Machine:
    """The workers of a training, at its start."""
    trial = Trial(
        TASKS[training.task], SETTINGS[training.setting], training.seed, WORKERS, training.slow
    )
    if training.method == "mpca":
        return Mpca(trial, training.pulls or Pulls(trial.setting.alpha))
    return MACHINES[training.method](trial)


def train(training: Training) -> Curve:
    """Trains in this process."""
    workers = machine(training)
    accuracies: list[float] = []
    before, end = np.empty(0, np.float32), training.seconds
    for number in range(1, training.evaluations + 1):
        workers.advance(end * number / training.evaluations)
        joint = workers.joint
        if np.array_equal(joint, before):
            accuracies.append(accuracies[-1])
        else:
            accuracies.append(TASKS[training.task].accuracy(joint))
        before = joint.copy()
    utilisation = workers.utilisation(end)
    workers.close()
    return Curve(accuracies, utilisation)


class Trainings:
    """The curves of trainings, of which `resume` trains only what is missing.

    Args:
        path: of the file that keeps them.
        resume: whether to begin with what it holds.
        processes: that train side by side; 1 = this one alone.
    """

    def __init__(self, path: pathlib.Path, *, resume: bool, processes: int) -> None:
        self._processes = processes
        self._kept = Kept(path, lambda fields: Curve(**fields), resume=resume)
        self.tell_origins = self._kept.tell_origins

    def all(self, trainings: Collection[Training]) -> Iterator[tuple[Training, Curve]]:
        """Gives what is kept, then trains the rest, and keeps that."""
        missing = []
        for training in dict.fromkeys(trainings):
            curve = self._kept.get(_key(training))
            if curve is None:
                missing.append(training)
            else:
                yield training, curve
        for training, curve in _train_all(missing, self._processes):
            self._kept.put(_key(training), curve)
            yield training, curve


def _train_all(trainings: Collection[Training], processes: int) -> Iterator[tuple[Training, Curve]]:
    if processes == 1:
        for training in trainings:
            yield training, train(training)
        return
    with concurrent.futures.ProcessPoolExecutor(
        processes, mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        futures = {pool.submit(train, training): training for training in trainings}
        for future in concurrent.futures.as_completed(futures):
            yield futures[future], future.result()


def _key(training: Training) -> str:
    task = TASKS[training.task]
    constants = (task.layers, task.batch, task.learning_rate)
    return f"{training}; {constants}; {SETTINGS[training.setting]}"
