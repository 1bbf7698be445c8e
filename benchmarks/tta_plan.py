"""Which jobs `make bench-time-to-accuracy` consists of, and with which learning rates."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.tta_place import LINES, UNLIMITED, Line
from benchmarks.tta_training import (
    HOROVOD,
    HOROVOD_FP16,
    MIRRORED,
    SILENT,
    STROM,
    UNITS,
    WARM_UP_STEPS,
    Rate,
    Training,
    steps_per_epoch,
)

#: On the command line.
WAY_KEYS = {
    STROM: "keras-strom",
    HOROVOD: "horovod",
    HOROVOD_FP16: "horovod-fp16",
    MIRRORED: "mwms",
    SILENT: "silent",
}
WORKERS = (2, 4)
#: What a step lasts at least where four workers share two processors: what a step of all four at
#: once takes there, and somewhat more, so that the processors decide as little as may be.
STEP_SECONDS: Mapping[tuple[str, int], float] = {("cnn", 4): 0.060, ("wide", 4): 0.100}
#: Of an epoch, from one evaluation to the next: in the first two, and later.
EARLY_PARTS, LATER_PARTS = 6, 3
EARLY_EPOCHS = 2

#: By task, workers and method, what `--tune` finds: on seed 100, which is not reported, with
#: training of three epochs, the rate whose test accuracy is highest in the mean of all evaluations,
#: among powers of two times 1e-3, until both neighbours are worse. Horovod's are tried with and
#: without a warm-up of one epoch. Its fp16 compression takes the same. Of four workers the warm-up
#: was tried with the best rate alone, and MultiWorkerMirroredStrategy, which computes the same, has
#: Horovod's rate. What does not stand here has not been looked for, and is Keras's own, 1e-3.
RATES: Mapping[tuple[str, int, str], Rate] = {
    ("cnn", 2, STROM): Rate(0.004),
    ("cnn", 2, HOROVOD): Rate(0.004),
    ("cnn", 2, MIRRORED): Rate(0.004),
    ("cnn", 4, STROM): Rate(0.004),
    ("cnn", 4, HOROVOD): Rate(0.002),
    ("cnn", 4, MIRRORED): Rate(0.002),
    ("wide", 2, STROM): Rate(0.002),
    ("wide", 2, HOROVOD): Rate(0.001),
    ("wide", 2, MIRRORED): Rate(0.001),
    ("wide", 4, STROM): Rate(0.001),
    ("wide", 4, HOROVOD): Rate(0.0005),
    ("wide", 4, MIRRORED): Rate(0.0005),
}


@dataclasses.dataclass(frozen=True)
class Job:
    """A training on a line; equal ones have outcomes that may stand for each other."""

    training: Training
    line: Line

    @property
    def key(self) -> str:
        """All that its outcome depends on, but the code."""
        return f"{self}; units={UNITS[self.training.task]}"

    @property
    def name(self) -> str:
        """For people."""
        training = self.training
        what = "" if training.copies else ", steps timed"
        return (
            f"{training.way}, {training.task}, {training.workers} workers, {self.line.name}, "
            f"seed {training.seed}{what}"
        )


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is compared.

    Attributes:
        tasks, workers, ways, lines: of each, those that are.
        seeds: 1 to so many.
        epochs: of all pictures, by all workers together.
        whole: whether the synchronous methods train wholly on each line, too.
        timed_steps: in which a step of theirs is timed on a line, where they do not.
    """

    tasks: Sequence[str] = tuple(UNITS)
    workers: Sequence[int] = WORKERS
    ways: Sequence[str] = tuple(WAY_KEYS)
    lines: Sequence[Line] = LINES
    seeds: int = 3
    epochs: float = 6
    whole: bool = False
    timed_steps: int = 100

    def settings(self) -> Iterator[tuple[str, int]]:
        """Every task with every number of workers."""
        for task in self.tasks:
            for workers in self.workers:
                yield task, workers

    def only(self, words: Sequence[str]) -> Plan:
        """The part that these words choose: of each kind of which there is a word, those named.

        Raises:
            ValueError: a word names nothing.
        """
        kinds: dict[str, dict[str, object]] = {
            "tasks": {task: task for task in self.tasks},
            "workers": {f"k{workers}": workers for workers in self.workers},
            "ways": {WAY_KEYS[way]: way for way in self.ways},
            "lines": {line.key: line for line in self.lines},
        }
        known = [word for named in kinds.values() for word in named]
        for word in words:
            if word not in known:
                raise ValueError(f"--only {word}: one of {', '.join(known)}")
        chosen = {
            kind: [one for word, one in named.items() if word in words]
            for kind, named in kinds.items()
        }
        return dataclasses.replace(self, **{kind: ones for kind, ones in chosen.items() if ones})  # type: ignore[arg-type]

    def jobs(self) -> list[Job]:
        """All, seed by seed."""
        jobs: dict[Job, None] = {}
        for seed in range(1, self.seeds + 1):
            for task, workers in self.settings():
                for line in self.lines:
                    for way in self.ways:
                        jobs.update(dict.fromkeys(self.of(way, task, workers, line, seed)))
        return list(jobs)

    def of(self, way: str, task: str, workers: int, line: Line, seed: int) -> list[Job]:
        """The jobs behind one curve: one that learns, or that and one whose steps are timed."""
        training = Training(
            way,
            task,
            workers,
            seed,
            rate_of(task, workers, way),
            marks(workers, self.epochs),
            STEP_SECONDS.get((task, workers), 0.0),
        )
        if way == SILENT:
            return [Job(training, UNLIMITED)]
        if way == STROM or self.whole:
            return [Job(training, line)]
        # How long a step takes is of no interest there.
        learning = dataclasses.replace(training, step_seconds=0.0)
        # A step takes as long with any seed, so one sample stands for all.
        timed = dataclasses.replace(
            training, seed=1, marks=(WARM_UP_STEPS + self.timed_steps,), copies=False
        )
        return [Job(learning, UNLIMITED), Job(timed, line)]


#: A few minutes, to see that all works.
QUICK = Plan(
    tasks=("cnn",),
    workers=(2,),
    lines=LINES[:2],
    seeds=1,
    epochs=1.0,
    timed_steps=20,
    ways=(STROM, HOROVOD, MIRRORED, SILENT),
)


def rate_of(task: str, workers: int, way: str) -> Rate:
    """As tuned; Keras's own rate of Adam where nothing was."""
    return RATES.get((task, workers, HOROVOD if way == HOROVOD_FP16 else way), Rate())


def marks(workers: int, epochs: float) -> tuple[int, ...]:
    """The steps of each worker after which all are evaluated."""
    whole = steps_per_epoch(workers)
    early = round(min(epochs, EARLY_EPOCHS) * EARLY_PARTS)
    later = round(max(0.0, epochs - EARLY_EPOCHS) * LATER_PARTS)
    return (
        *(whole * part // EARLY_PARTS for part in range(1, early + 1)),
        *(whole * EARLY_EPOCHS + whole * part // LATER_PARTS for part in range(1, later + 1)),
    )
