"""`make bench-mpca`: table 2 of the paper of MPCA SGD, in virtual time.

Eight workers learn two tasks by six methods, with the seconds and sizes of the paper's three models
(`mpca_paper`), on small models in NumPy (`mpca_tasks`, `mpca_methods`). The rules of MPCA SGD,
SparkNet and EASGD are the native ones.

A task's target accuracy is what SparkNet holds at its end on its worst seed, so MPCA has no say in
it. MPCA's alpha is the best of a grid on a seed that is not reported; everything else is the same
for all tasks. Seeds are paired: with one, all methods begin equal and worker i sees the same
batches. What never gets to the target counts with the whole time, which is less than it needs: of a
rival such a ratio is a lower bound, of MPCA an upper one, and of both it says nothing.

Workers of MPCA never stop, by assumption, and SparkNet's stop as long as its setting says. So their
utilisations are shown as assumed; what asynchronous workers stand in EASGD's queue comes out.

`--quick` is one seed and few cycles: whether it runs, not what comes out.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import pathlib
import statistics
from collections.abc import Iterable, Sequence

from matplotlib.lines import Line2D

from benchmarks import pictures, report
from benchmarks.mpca_methods import Pulls
from benchmarks.mpca_paper import RESULTS, SETTINGS, Setting
from benchmarks.mpca_tasks import TASKS
from benchmarks.mpca_training import (
    CYCLES,
    EVALUATIONS,
    METHODS,
    Curve,
    Training,
    Trainings,
)

SEEDS = 5
#: Of the grid of alphas; none that is reported.
TUNING_SEED = 100
#: Pulls to choose from; only those with at most two pulls a cycle, above which they are a brake.
ALPHAS = (0.05, 0.02, 0.01, 0.005)
MOST_PULLS = 2.0
#: Of its evaluations, by whose mean an alpha is chosen: the last.
JUDGED_FOR_ALPHA = 10
#: Of the setting whose workers are also of different speed, of which so many are at half.
STRAGGLING, SLOW = "r110", 3
#: Whose utilisation comes out of the simulation; the others' follow from settings alone.
SIMULATED_UTILISATION = "easgd"
#: What a ratio of table 2 must be reached by.
RATIO_PART = 0.8
UTILISATION_DEVIATION = 0.05

TITLES = {
    "mpca": "MPCA SGD",
    "easgd": "EASGD, asynchronous",
    "sparknet": "SparkNet",
    "server": "parameter server",
    "synchronous": "dense synchronous",
    "single": "one worker",
}
COLORS = {
    "mpca": pictures.ORANGE,
    "easgd": pictures.BLUE,
    "sparknet": pictures.GREEN,
    "server": pictures.PURPLE,
    "synchronous": pictures.SKY,
    "single": pictures.GREY,
}
#: Each before the other, in time and in end accuracy.
ORDERS = {
    "r110": (("mpca", "easgd"), ("easgd", "sparknet"), ("sparknet", "single")),
    "r152": (
        *(("mpca", "easgd"), ("easgd", "sparknet"), ("sparknet", "single")),
        ("sparknet", "server"),
    ),
    "vgga": (("mpca", "easgd"), ("easgd", "sparknet")),
}
#: MPCA in other ways than in the table: its workers, or its options.
VARIANTS = ("stragglers", "stragglers, unweighted", "gamma 0")


@dataclasses.dataclass(frozen=True)
class Extent:
    """How much is trained.

    Attributes:
        seeds: of each method.
        cycles: by setting.
        alphas: that are tried.
        evaluations: of each training.
    """

    seeds: int
    cycles: dict[str, int]
    alphas: tuple[float, ...]
    evaluations: int


def main(arguments: Sequence[str] | None = None, output: pathlib.Path = report.OUTPUT) -> None:
    """Trains, compares, shows the report; its files, mpca.json and mpca.png, go to `output`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, few cycles; in seconds")
    parser.add_argument("--seeds", type=int, default=SEEDS, choices=range(1, 21), metavar="N")
    parser.add_argument(
        "--resume", action="store_true", help="keep the trainings of the run before, if its code is"
    )
    options = parser.parse_args(arguments)
    extent = Extent(options.seeds, CYCLES, ALPHAS, EVALUATIONS)
    if options.quick:
        extent = Extent(1, dict.fromkeys(CYCLES, 2), ALPHAS[-1:], evaluations=5)
    # Matrices are small: more threads than one a process would only wait for each other.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    title = "MPCA SGD beside its rivals, in virtual time"
    result = report.Report("mpca", title, output, quick=options.quick)
    trainings = Trainings(
        result.path.with_suffix(".jsonl"),
        resume=options.resume,
        processes=1 if options.quick else len(os.sched_getaffinity(0)),
    )
    bench = Comparison(result, trainings, extent)
    bench.train()
    bench.compare()
    bench.draw()
    trainings.tell_origins(result)
    result.finish()


class Comparison:
    """Trains what the table needs, and makes the table.

    Args:
        result: takes rows and targets.
        trainings: train and keep.
        extent: how much.
    """

    def __init__(self, result: report.Report, trainings: Trainings, extent: Extent) -> None:
        self._report = result
        self._trainings = trainings
        self._extent = extent
        self._alphas: dict[tuple[str, str], float] = {}
        self._curves: dict[Training, Curve] = {}

    # -------------------------------------------------------------- training

    def train(self) -> None:
        """Chooses alphas, then trains everything; the file has what each has come to."""
        places = [(task, setting) for setting in SETTINGS for task in TASKS]
        self._train(
            self._trial(*place, alpha) for place in places for alpha in self._grid(place[1])
        )
        for task, setting in places:
            tried = {
                alpha: statistics.fmean(
                    self._curves[self._trial(task, setting, alpha)].accuracies[-JUDGED_FOR_ALPHA:]
                )
                for alpha in self._grid(setting)
            }
            self._alphas[task, setting] = max(tried, key=lambda alpha: tried[alpha])
            self._report.row(
                f"{TASKS[task].title}, {SETTINGS[setting].title}",
                group=f"MPCA's alpha, by the end accuracy on seed {TUNING_SEED}",
                alpha=self._alphas[task, setting],
                **{f"at_{alpha:g}": accuracy for alpha, accuracy in tried.items()},
            )
        methods = [t for place in places for way in METHODS for t in self._several(*place, way)]
        variants = [
            t for task in TASKS for name in VARIANTS for t in self._several(task, STRAGGLING, name)
        ]
        self._train(methods + variants)

    def _train(self, trainings: Iterable[Training]) -> None:
        self._curves.update(self._trainings.all(list(trainings)))

    def _grid(self, setting: str) -> list[float]:
        """The alphas to choose from; the smallest always is one."""
        own = SETTINGS[setting]
        most = MOST_PULLS * own.step_seconds / own.cycle_seconds
        few = [alpha for alpha in self._extent.alphas if alpha <= most]
        return few or [min(self._extent.alphas)]

    def _trial(self, task: str, setting: str, alpha: float) -> Training:
        extent = self._extent
        cycles, evaluations = extent.cycles[setting], extent.evaluations
        return Training(task, setting, "mpca", TUNING_SEED, cycles, evaluations, pulls=Pulls(alpha))

    def _several(self, task: str, setting: str, way: str) -> list[Training]:
        """The trainings of a method or a variant of MPCA, one a seed."""
        method, pulls, slow = way, None, 0
        if way == "mpca" or way in VARIANTS:
            method, pulls = "mpca", Pulls(self._alphas[task, setting])
        if way == "gamma 0" and pulls is not None:
            pulls = dataclasses.replace(pulls, gamma=0.0)
        if way.startswith("stragglers") and pulls is not None:
            slow = SLOW
            pulls = dataclasses.replace(pulls, weighted="unweighted" not in way)
        extent = self._extent
        cycles, evaluations = extent.cycles[setting], extent.evaluations
        return [
            Training(task, setting, method, seed, cycles, evaluations, pulls=pulls, slow=slow)
            for seed in range(extent.seeds)
        ]

    # -------------------------------------------------------------- figures

    def _of(self, task: str, setting: str, way: str) -> list[Curve]:
        return [self._curves[training] for training in self._several(task, setting, way)]

    def _end(self, task: str, setting: str, way: str) -> float:
        """The mean end accuracy, in percent."""
        return statistics.fmean(curve.end for curve in self._of(task, setting, way))

    def _target(self, task: str, setting: str) -> float:
        """The accuracy that counts: what SparkNet holds at its end on its worst seed."""
        return min(curve.end for curve in self._of(task, setting, "sparknet"))

    def _part(self, task: str, setting: str, way: str) -> tuple[float, int]:
        """The mean part of its time that it takes to the target, and how many seeds get there.

        One that does not counts with all of its time.
        """
        target = self._target(task, setting)
        parts = [curve.part_until(target) for curve in self._of(task, setting, way)]
        there = [part for part in parts if part is not None]
        return statistics.fmean(1.0 if part is None else part for part in parts), len(there)

    def _times(self, task: str, setting: str, way: str, over: str = "mpca") -> float:
        """How many times as long it takes to the target."""
        return self._part(task, setting, way)[0] / self._part(task, setting, over)[0]

    def _times_of_seeds(self, task: str, setting: str, way: str) -> list[float]:
        """The same of each pair of trainings."""
        target = self._target(task, setting)
        pairs = zip(self._of(task, setting, way), self._of(task, setting, "mpca"), strict=True)
        return [(a.part_until(target) or 1.0) / (b.part_until(target) or 1.0) for a, b in pairs]

    def _times_of_tasks(self, setting: str, way: str, over: str = "mpca") -> float:
        """The geometric mean of `_times` over the tasks."""
        return statistics.geometric_mean(self._times(task, setting, way, over) for task in TASKS)

    def _end_of_tasks(self, setting: str, way: str) -> float:
        return statistics.fmean(self._end(task, setting, way) for task in TASKS)

    def _gets_there(self, setting: str, way: str) -> bool:
        """Whether all seeds of all tasks reach the target."""
        return all(self._part(task, setting, way)[1] == self._extent.seeds for task in TASKS)

    def _times_in_words(self, setting: str, way: str) -> str:
        """How many times as long as MPCA it takes, as far as that is known."""
        ratio = f"{self._times_of_tasks(setting, way):.2f}"
        ours, theirs = self._gets_there(setting, "mpca"), self._gets_there(setting, way)
        if way == "mpca" or (ours and theirs):
            return ratio
        if ours:
            return f"at least {ratio}"
        return f"at most {ratio}" if theirs else "unknown"

    # -------------------------------------------------------------- the report

    def compare(self) -> None:
        """Adds all rows and targets; everything has been trained."""
        for setting in SETTINGS.values():
            for task in TASKS:
                self._add_table(task, setting)
            self._add_table_two(setting)
        for task in TASKS:
            self._add_variants(task)
        for setting in SETTINGS.values():
            self._add_utilisation(setting)
        for name in SETTINGS:
            self._add_order(name)
        for name in ("r110", "r152"):
            self._add_ratios(name)
        self._add_variants_targets()
        self._report.attach("curves", self._as_json())

    def _add_table(self, task: str, setting: Setting) -> None:
        """One task in one setting, method by method."""
        target = self._target(task, setting.name)
        seconds = self._extent.cycles[setting.name] * setting.cycle_seconds
        for way in METHODS:
            curves = self._of(task, setting.name, way)
            part, there = self._part(task, setting.name, way)
            ends = [curve.end for curve in curves]
            times = self._times_of_seeds(task, setting.name, way)
            self._report.row(
                TITLES[way],
                group=f"{setting.title}, {TASKS[task].title}: to {target:.2f} %",
                seconds=part * seconds if there else None,
                times=self._times(task, setting.name, way),
                times_from=min(times),
                times_to=max(times),
                there=f"{there} of {len(curves)}",
                end_percent=statistics.fmean(ends),
                end_from=min(ends),
                end_to=max(ends),
                late_gain=statistics.fmean(_late_gain(curve) for curve in curves),
            )

    def _add_table_two(self, setting: Setting) -> None:
        """Both tasks beside the paper's table 2."""
        for way in METHODS:
            paper = RESULTS[setting.name].get(way)
            ratio = self._times_of_tasks(setting.name, way)
            known = None
            if paper is not None and self._gets_there(setting.name, "mpca"):
                known = paper.ratio
            simulated = way == SIMULATED_UTILISATION
            utilisation = self._utilisation(setting.name, way)
            self._report.row(
                TITLES[way],
                group=f"{setting.title}: times as long as MPCA, beside the paper's table 2",
                times_as_long=self._times_in_words(setting.name, way),
                paper=None if paper is None else paper.ratio,
                deviation_percent=None if known is None else 100 * (ratio / known - 1),
                end_percent=self._end_of_tasks(setting.name, way),
                utilisation=utilisation if simulated else None,
                assumed_utilisation=None if simulated else utilisation,
                papers_utilisation=None if paper is None else paper.utilisation,
            )

    def _utilisation(self, setting: str, way: str) -> float:
        return statistics.fmean(
            curve.utilisation for task in TASKS for curve in self._of(task, setting, way)
        )

    def _add_variants(self, task: str) -> None:
        setting = SETTINGS[STRAGGLING]
        seconds = self._extent.cycles[STRAGGLING] * setting.cycle_seconds
        group = f"MPCA's variants, {setting.title}, {TASKS[task].title}"
        for way in ("mpca", *VARIANTS):
            part, there = self._part(task, STRAGGLING, way)
            self._report.row(
                "as in table 2" if way == "mpca" else way,
                group=group,
                seconds=part * seconds if there else None,
                times_as_long=self._times(task, STRAGGLING, way),
                seeds_there=f"{there} of {self._extent.seeds}",
                end_percent=self._end(task, STRAGGLING, way),
            )

    def _add_utilisation(self, setting: Setting) -> None:
        """By how much the one that is simulated is off the paper's, either way."""
        way = SIMULATED_UTILISATION
        paper = RESULTS[setting.name][way].utilisation
        assert paper is not None
        off = abs(self._utilisation(setting.name, way) / paper - 1)
        name = f"mpca_utilisation_{way}_{setting.name}"
        self._report.target(name, off, UTILISATION_DEVIATION, "lower")

    def _add_ratios(self, setting: str) -> None:
        """How far behind the paper's rivals are."""
        for way in ("sparknet", "easgd"):
            paper = RESULTS[setting][way].ratio
            assert paper is not None
            ratio = self._times_of_tasks(setting, way)
            if not self._gets_there(setting, "mpca"):
                ratio = 0.0  # MPCA takes longer than was looked; no upper bound will do.
            self._report.target(f"mpca_ratio_{way}_{setting}", ratio, round(RATIO_PART * paper, 2))

    def _add_order(self, setting: str) -> None:
        """Which part of the paper's order holds, of both tasks together, in time and at the end."""
        held = []
        for first, second in ORDERS[setting]:
            over = self._times_of_tasks(setting, second, first)
            ahead = self._end_of_tasks(setting, first) - self._end_of_tasks(setting, second)
            # Where the first does not get there, its time is not known to be the shorter one.
            in_time = over > 1 and self._gets_there(setting, first)
            held += [in_time, ahead > 0]
            self._report.row(
                f"{SETTINGS[setting].title}: {TITLES[first]} before {TITLES[second]}",
                group="The paper's order, both tasks together",
                times_as_long=over,
                ahead_points=ahead,
                holds="yes" if all(held[-2:]) else "no",
            )
        self._report.target(f"mpca_order_{setting}", sum(held) / len(held), 1.0)

    def _add_variants_targets(self) -> None:
        slow, unweighted, flat = VARIANTS
        straggling = self._times_of_tasks(STRAGGLING, slow)
        weighted = self._times_of_tasks(STRAGGLING, slow, unweighted)
        if not self._gets_there(STRAGGLING, slow):
            # Longer than was looked; no lower bound will do.
            straggling, weighted = max(straggling, 10.0), max(weighted, 10.0)
        ahead = self._end_of_tasks(STRAGGLING, "mpca") - self._end_of_tasks(STRAGGLING, flat)
        self._report.target("mpca_straggler", straggling, 1.25, "lower")
        self._report.target("mpca_weighted", weighted, 1.0, "lower")
        self._report.target("mpca_gamma", ahead, 0.0)

    def _as_json(self) -> list[dict[str, object]]:
        """Every curve that was compared."""
        return [
            {**dataclasses.asdict(training), "seconds": training.seconds, **_rounded(curve)}
            for training, curve in self._curves.items()
        ]

    def draw(self) -> None:
        """Accuracy against time, the mean over seeds: a row a task, a column a setting."""
        figure, axes = pictures.picture(len(SETTINGS), rows=len(TASKS), width=5.4, height=3.9)
        for row, task in enumerate(TASKS):
            for column, setting in enumerate(SETTINGS.values()):
                panel = axes[row * len(SETTINGS) + column]
                seconds = self._extent.cycles[setting.name] * setting.cycle_seconds
                highest, lowest = 0.0, math.inf
                for way in METHODS:
                    curves = [curve.smooth for curve in self._of(task, setting.name, way)]
                    mean = [statistics.fmean(several) for several in zip(*curves, strict=True)]
                    at = [seconds * (i + 1) / len(mean) for i in range(len(mean))]
                    panel.plot(at, mean, color=COLORS[way], linewidth=2)
                    highest, lowest = max(highest, *mean), min(lowest, mean[-1])
                target = self._target(task, setting.name)
                panel.axhline(target, color=pictures.BLACK, linewidth=0.8, linestyle=":")
                panel.set_ylim(max(lowest, highest - 15) - 2, highest + 0.5)
                y = f"{TASKS[task].title}\naccuracy, %" if column == 0 else ""
                x = "seconds, virtual" if row + 1 == len(TASKS) else ""
                pictures.caption(panel, setting.title if row == 0 else "", x, y)
        figure.legend(
            [Line2D([], [], color=COLORS[way], linewidth=3) for way in METHODS],
            [TITLES[way] for way in METHODS],
            loc="outside upper center",
            ncols=len(METHODS),
            frameon=False,
        )
        pictures.save(figure, self._report.name, self._report.path.parent)


def _late_gain(curve: Curve) -> float:
    """Points that the last fifth of the time brings: nothing, on the noise floor."""
    return curve.end - curve.smooth[-1 - len(curve.smooth) // 5]


def _rounded(curve: Curve) -> dict[str, object]:
    return {
        "accuracies": [round(accuracy, 3) for accuracy in curve.accuracies],
        "utilisation": curve.utilisation,
    }


if __name__ == "__main__":
    main()
