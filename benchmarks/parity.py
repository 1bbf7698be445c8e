"""`make bench-parity`: whether sharing compressed updates learns as well as sharing everything.

Each task is trained with the same number of examples and the same seeds by one worker, by K that
share messages of the codec, by K that share whole updates (dense asynchronous), and by K that share
nothing. The latter three run in virtual time (`parity_cluster`); two real jobs of two and four
processes show that the real ones do likewise, with their bytes counted at the socket.

All targets are for StromStrategy's defaults. `--tuned` adds, in tables of their own, what options
made for a task come to.

The gaps are of pairs with the same seed, as a mean and the 95 % interval of Student's t.
`FULL=1` (or --full) runs every task with every number of workers and two delays, which takes hours.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import statistics
from collections.abc import Sequence

from benchmarks import parity_job, pictures, report
from benchmarks.parity_cluster import Exchange, Outcome, Training, sharing_of
from benchmarks.parity_kept import KeptOutcomes
from benchmarks.parity_tasks import TASKS, Task

GAP_POINTS = 0.3
GAP_NATS = 0.03
RAW_GOAL = 300
#: Student's t, two-sided 95 %, for 1, 2, ... degrees of freedom.
STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
#: What the targets compare.
COMPARED = (Exchange.SHARED, Exchange.DENSE, Exchange.NOTHING)
COLORS = {
    Exchange.SHARED: pictures.ORANGE,
    Exchange.DENSE: pictures.BLUE,
    Exchange.NOTHING: pictures.GREY,
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """One comparison.

    Attributes:
        task: what is learned.
        workers: K.
        delay: steps until a message is applied.
        seeds: how many trainings of each kind.
        times: as many examples as the task has, which many workers need for rounds enough.
        falls: whether the learning rate falls to 0 over the training.
    """

    task: Task
    workers: int
    delay: int
    seeds: int
    times: int = 1
    falls: bool = False

    @property
    def name(self) -> str:
        """As it ends a target's name."""
        suffix = "" if self.delay == 1 else f"_delay{self.delay}"
        return f"{self.task.name}_{self.workers}{suffix}{'_cosine' if self.falls else ''}"

    def several(self, exchange: Exchange, share: float) -> list[Training]:
        """The trainings of K workers, one a seed."""
        delay = 1 if exchange is Exchange.NOTHING else self.delay
        return [
            Training(
                *(self.task.name, exchange, self.workers, delay, seed, share * self.times),
                falls=self.falls,
            )
            for seed in range(self.seeds)
        ]

    def alone(self, share: float) -> list[Training]:
        """Those of one worker."""
        return [
            Training(
                *(self.task.name, Exchange.NOTHING, 1, 1, seed, share * self.times),
                falls=self.falls,
            )
            for seed in range(self.seeds)
        ]

    def trainings(self, share: float) -> list[Training]:
        """All that are compared."""
        several = [t for exchange in COMPARED for t in self.several(exchange, share)]
        return self.alone(share) + several


def settings(full: bool) -> list[Setting]:
    """The default subset, or everything."""
    if full:
        return [
            Setting(task, workers, delay, seeds=5)
            for task in TASKS.values()
            for workers in (2, 4, 8, 16)
            for delay in (1, 4)
        ]
    chosen = {
        "mlp": ((2, 1), (4, 1), (8, 1), (16, 1), (4, 4)),
        "cnn": ((2, 1), (4, 1), (16, 1)),
        "teacher": ((2, 1), (4, 1), (16, 1)),
        "transformer": ((2, 1), (4, 1), (16, 1)),
        "gru": ((2, 1), (4, 1), (16, 1)),
    }
    usual = [
        Setting(TASKS[name], workers, delay, seeds=2 if TASKS[name].by_loss else 3)
        for name, places in chosen.items()
        for workers, delay in places
    ]
    many = [
        Setting(TASKS[name], 64, delay, seeds=3, times=times)
        for name, times in (("mlp", 2), ("teacher", 4))
        for delay in (1, 2)
    ]
    falling = [
        Setting(TASKS[name], workers, 1, seeds=2, falls=True)
        for name, several in (("mlp", (2, 16)), ("cnn", (4, 16)), ("teacher", (4, 16)))
        for workers in several
    ]
    return usual + many + falling


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains, compares, shows the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", default=os.environ.get("FULL") == "1")
    parser.add_argument("--only", choices=sorted(TASKS), help="one task")
    parser.add_argument("--workers", type=int, help="one number of workers, in virtual time alone")
    parser.add_argument(
        "--tuned", action="store_true", help="also options of a task's own, in further tables"
    )
    parser.add_argument(
        "--share", type=float, default=1.0, help="of the examples; for a quick look"
    )
    parser.add_argument(
        "--seeds", type=int, choices=range(1, 11), help="instead of the setting's own number"
    )
    parser.add_argument(
        "--cosine",
        action="store_true",
        help="all with learning rates that fall to 0 by half a cosine, in virtual time alone",
    )
    parser.add_argument("--no-processes", action="store_true", help="virtual time only")
    parser.add_argument(
        "--resume", action="store_true", help="keep the trainings of the run before, if its code is"
    )
    options = parser.parse_args(arguments)
    result = report.Report("parity", "Learning as well as dense training")
    chosen = [
        dataclasses.replace(
            setting,
            seeds=options.seeds or setting.seeds,
            falls=options.cosine or setting.falls,
        )
        for setting in settings(options.full)
        if options.only in (None, setting.task.name) and options.workers in (None, setting.workers)
        if not (options.cosine and setting.falls)  # Where all fall it is there without its own.
    ]
    if not chosen:
        parser.error(f"nothing is trained by {options.workers} workers; see `settings`")
    kept = KeptOutcomes(result.path.with_suffix(".jsonl"), resume=options.resume)
    bench = Parity(result, kept, options.share)
    bench.train(chosen)
    if options.tuned:
        bench.train_tuned([s for s in chosen if s.falls or s.task.tuned is not None])
    alone = options.no_processes or options.cosine or options.workers is not None
    if not alone and options.only in (None, "mlp"):
        for workers in (2, 4):
            bench.processes(workers)
    bench.draw()
    kept.tell_origins(result)
    result.finish()


class Parity:
    """Compares what was trained."""

    def __init__(self, result: report.Report, kept: KeptOutcomes, share: float) -> None:
        self._report = result
        self._kept = kept
        self._outcomes: dict[Training, Outcome] = {}
        self._share = share
        self._drawn: list[tuple[Setting, dict[Exchange, float], float]] = []

    def train(self, chosen: Sequence[Setting]) -> None:
        """Trains and compares; each setting's figures are written as soon as they are there."""
        trainings = dict.fromkeys(t for s in chosen for t in s.trainings(self._share))
        left = list(chosen)
        for training, outcome in self._kept.train_all(trainings):
            self._outcomes[training] = outcome
            while left and self._outcomes.keys() >= set(left[0].trainings(self._share)):
                self.compare(left.pop(0))
                self._report.write()

    def train_tuned(self, chosen: Sequence[Setting]) -> None:
        """Trains with options of the tasks' own; compares with what `train` has trained."""
        of_setting = {s: s.several(Exchange.TUNED, self._share) for s in chosen}
        trainings = dict.fromkeys(t for several in of_setting.values() for t in several)
        left = list(chosen)
        for training, outcome in self._kept.train_all(trainings):
            self._outcomes[training] = outcome
            while left and self._outcomes.keys() >= set(of_setting[left[0]]):
                setting = left.pop(0)
                group = f"Tuned: {_title(setting)}"
                self._add_row(group, Exchange.TUNED.value, setting, Exchange.TUNED)
                self._behind(group, setting, Exchange.TUNED, Exchange.DENSE)
                self._report.write()

    def compare(self, setting: Setting) -> None:
        """Adds one setting's rows and targets; its trainings have ended."""
        group = _title(setting)
        self._add_row(group, "one worker", setting, None)
        for exchange in COMPARED:
            self._add_row(group, exchange.value, setting, exchange)
        gap = self._behind(group, setting, Exchange.SHARED, Exchange.DENSE)
        lead = -self._behind(group, setting, Exchange.SHARED, Exchange.NOTHING)
        task = setting.task
        goal = GAP_NATS if task.by_loss else GAP_POINTS
        kind = "loss" if task.by_loss else "accuracy"
        self._report.target(f"{kind}_gap_{setting.name}", gap, goal, "lower")
        self._report.target(f"{kind}_over_nothing_{setting.name}", lead, 0.0)
        shared = self._of(setting, Exchange.SHARED)
        raw = statistics.fmean(outcome.raw for outcome in shared)
        self._report.target(f"compression_{setting.name}", raw, RAW_GOAL)
        means = {e: statistics.fmean(o.figure for o in self._of(setting, e)) for e in COMPARED}
        alone = statistics.fmean(outcome.figure for outcome in self._of(setting, None))
        self._drawn.append((setting, means, alone))

    def processes(self, workers: int) -> None:
        """Adds a row of a real job on this machine."""
        job = parity_job.run(workers, share=self._share)
        self._report.row(
            f"{workers} processes",
            group="MLP on Fashion-MNIST, real processes over UDP",
            points=job.accuracy,
            raw=1 / job.density,
            coded=job.coded,
            mb_on_the_wire=job.wire_bytes / 1e6,
            times_less_than_ring=job.dense_bytes / job.wire_bytes,
        )

    def _of(self, setting: Setting, exchange: Exchange | None) -> list[Outcome]:
        """The outcomes of K workers, or with None those of one worker, one a seed."""
        share = self._share
        several = setting.alone(share) if exchange is None else setting.several(exchange, share)
        return [self._outcomes[training] for training in several]

    def _add_row(self, group: str, label: str, setting: Setting, exchange: Exchange | None) -> None:
        several = self._of(setting, exchange)
        mean, margin = mean_and_margin([outcome.figure for outcome in several])
        sends = several[0].raw > 0
        is_tuned = exchange is Exchange.TUNED
        self._report.row(
            label,
            group=group,
            **{_unit(setting.task): mean},
            margin_95=margin,
            rounds=several[0].rounds,
            raw=statistics.fmean(o.raw for o in several) if sends else None,
            coded=statistics.fmean(o.coded for o in several) if sends else None,
            options=str(sharing_of(setting.several(exchange, 1.0)[0])) if is_tuned else None,
        )

    def _behind(
        self, group: str, setting: Setting, exchange: Exchange, reference: Exchange
    ) -> float:
        """Adds by how much one is behind another, the mean of the pairs; returns it."""
        sign = -1.0 if setting.task.by_loss else 1.0
        pairs = zip(self._of(setting, reference), self._of(setting, exchange), strict=True)
        gaps = [sign * (theirs.figure - own.figure) for theirs, own in pairs]
        mean, margin = mean_and_margin(gaps)
        unit = {_unit(setting.task): mean}
        self._report.row(f"behind {reference.value}", group=group, **unit, margin_95=margin)
        return mean

    def draw(self) -> None:
        """For each setting how far each method is from one worker."""
        figure, (axes,) = pictures.picture(1, width=8.0, height=1.5 + 0.8 * len(self._drawn))
        ticks = []
        for y, (setting, means, alone) in enumerate(reversed(self._drawn)):
            sign = -1.0 if setting.task.by_loss else 1.0
            goal = GAP_NATS if setting.task.by_loss else GAP_POINTS
            for place, (exchange, mean) in enumerate(means.items()):
                ahead = sign * (mean - alone) / goal
                height = y + 0.25 * (1 - place)
                color = COLORS[exchange]
                axes.barh(height, ahead, height=0.22, color=color)
                pictures.label(axes, max(ahead, 0), height, exchange.value, color)
            ticks.append(setting.name)
        axes.set_yticks(range(len(ticks)), ticks)
        axes.axvline(0, color=pictures.GREY, linewidth=1)
        axes.margins(x=0.3)
        unit = f"ahead of one worker, in units of {GAP_POINTS} points or {GAP_NATS} nats"
        pictures.caption(axes, "Equal examples, equal seeds", unit, "")
        pictures.save(figure, self._report.name)


def mean_and_margin(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and half of its 95 % interval by Student's t; None for a single value."""
    if len(values) < 2:
        return values[0], None
    error = statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values), STUDENT_T[len(values) - 2] * error


def _unit(task: Task) -> str:
    return "nats" if task.by_loss else "points"


def _title(setting: Setting) -> str:
    later = "the next step" if setting.delay == 1 else f"{setting.delay} steps later"
    falls = ", falling learning rate" if setting.falls else ""
    return f"{setting.task.title}, {setting.workers} workers, applied {later}{falls}"


if __name__ == "__main__":
    main()
