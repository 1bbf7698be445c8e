"""Goodput: useful steps a second where workers are struck, against those of a job in peace.

A step is useful that no other process of its rank has made before; each is slept out to the same
time, so that two cores carry four workers. Counted are those between the first step of the last
worker to begin and the last step of the first to end, so neither the start nor the end counts, in
which workers wait for each other.

Targets that this benchmark measures, as a part of `make chaos`: goodput_kills and goodput_drains
(one of four workers is killed, or gets SIGTERM, every 20 s), and drained_mass_lost (the mass of the
residuals of workers that were to drain, as far as nobody has it).
"""

from __future__ import annotations

import dataclasses
import io
import json
import pathlib
import signal
import statistics
import tempfile
from collections.abc import Iterable

import rich.progress

from benchmarks import report
from benchmarks.hits import Kill, Killer
from keras_strom import errors
from keras_strom.runner.console import Console
from keras_strom.runner.launcher import Job, launch
from keras_strom.runner.work import Script
from tests.support.scripts import elastic

#: Of a step. Four steps of the small model take a fraction of it on two cores.
PERIOD_S = 0.2
_MANY = 1000


@dataclasses.dataclass(frozen=True)
class Steps:
    """The steps that one process has made.

    Attributes:
        rank, attempt: of the process.
        made: (time, number of the step among its rank's, mass of the residual after it).
        left: the mass of its residual when it had drained; None = it has not.
    """

    rank: int
    attempt: int
    made: tuple[tuple[float, int, float], ...]
    left: float | None = None


def read_steps(folder: pathlib.Path) -> list[Steps]:
    """What the processes of a job have noted (`elastic.Timed`)."""
    found = []
    for path in sorted(folder.glob("steps-*")):
        rank, attempt = map(int, path.name.split("-")[1:])
        lines = [line.split() for line in path.read_text().splitlines()]
        # A process that was killed may have left half a line.
        made = tuple((float(a), int(b), float(c)) for a, b, c in (x for x in lines if len(x) == 3))
        left = folder / f"left-{rank}-{attempt}"
        found.append(Steps(rank, attempt, made, float(left.read_text()) if left.exists() else None))
    return found


def useful_rate(processes: Iterable[Steps]) -> float:
    """Useful steps a second of all workers together; 0 where they have made none at one time.

    Args:
        processes: of one job.
    """
    when: dict[int, dict[int, float]] = {}  # When each step of each rank was first made.
    for process in sorted(processes, key=lambda one: one.attempt):
        for moment, number, _ in process.made:
            when.setdefault(process.rank, {}).setdefault(number, moment)
    if not when:
        return 0.0
    begin = max(min(steps.values()) for steps in when.values())
    end = min(max(steps.values()) for steps in when.values())
    count = sum(begin < moment <= end for steps in when.values() for moment in steps.values())
    return count / (end - begin) if begin < end else 0.0


def mass_lost(processes: Iterable[Steps], hits: Iterable[Kill]) -> float:
    """The mass of the residuals that went with the workers that were struck.

    Of one that was struck before it had noted a step nothing is known, and nothing counted.
    """
    by_name = {(one.rank, one.attempt): one for one in processes}
    lost = 0.0
    for hit in hits:
        struck = by_name.get((hit.rank, hit.attempt))
        if struck is not None and struck.left is not None:
            lost += struck.left
        elif struck is not None and struck.made:
            lost += struck.made[-1][2]
    return lost


@dataclasses.dataclass(frozen=True)
class Ran:
    """One job.

    Attributes:
        rate: useful steps a second.
        hits: workers that were struck.
        lost: the mass of their residuals that nobody has.
        accuracy: of the chief at the end.
        failure: why it failed; "" = it has not.
    """

    rate: float
    hits: tuple[Kill, ...]
    lost: float
    accuracy: float
    failure: str


def run(workers: int, seconds: float, every: float, number: int | None) -> Ran:
    """Runs a job whose workers are struck with a signal.

    Args:
        workers: how many.
        seconds: that it trains for, about.
        every: seconds between two strokes.
        number: the signal; None = it trains in peace.
    """
    batches = elastic.Job.rows // workers // elastic.Job.batch
    work = elastic.Job(epochs=max(2, round(seconds / (batches * PERIOD_S))), period=PERIOD_S)
    with tempfile.TemporaryDirectory() as name:
        folder, failure = pathlib.Path(name), ""
        killer = Killer(folder, every, 0, number or 0, until=seconds)
        job = Job(
            work=Script(elastic.__file__, (name, json.dumps(dataclasses.asdict(work)))),
            workers=workers,
            max_failures=_MANY if number == signal.SIGKILL else 0,
            env={"PYTHONPATH": str(report.ROOT)},
            warm_start=True,
        )
        output = io.StringIO()
        try:
            if number is None:
                launch(job, Console(workers, output))
            else:
                with killer:
                    launch(job, Console(workers, output))
        except errors.WorkerFailed as error:
            failure = f"{error}\n{output.getvalue()[-2000:]}"
        processes = read_steps(folder)
        chief = folder / "0.json"
        return Ran(
            rate=useful_rate(processes),
            hits=killer.kills,
            lost=mass_lost(processes, killer.kills),
            accuracy=json.loads(chief.read_text())["accuracy"] if chief.exists() else 0.0,
            failure=failure,
        )


def add_goodput(result: report.Report, workers: int, seconds: float, every: float) -> None:
    """A row for each way to lose a worker, and the targets.

    Args:
        result: gets them.
        workers: of each job.
        seconds: that each trains for, about.
        every: seconds between two strokes.
    """
    ways = {"in peace": None, "with kills": signal.SIGKILL, "with drains": signal.SIGTERM}
    jobs = {
        name: run(workers, seconds, every, number)
        for name, number in rich.progress.track(ways.items(), "Goodput")
    }
    calm = jobs["in peace"]
    for name, job in jobs.items():
        back = [hit.back_after for hit in job.hits if hit.back_after is not None]
        result.row(
            name,
            group="Goodput: useful steps a second",
            steps_a_second=job.rate,
            goodput=_goodput(job, calm),
            workers_struck=len(job.hits),
            back_after_s=statistics.median(back) if back else None,
            mass_lost=job.lost,
            accuracy=job.accuracy,
            failure=job.failure,
        )
    killed, drained = jobs["with kills"], jobs["with drains"]
    for name, job, goal in (("goodput_kills", killed, 0.9), ("goodput_drains", drained, 0.97)):
        goodput = _goodput(job, calm)
        if job.failure or not job.hits:
            result.skip(name, job.failure or "no worker was struck before the end")
        elif calm.failure or goodput is None:
            result.skip(name, calm.failure or "the job in peace has made no steps")
        else:
            result.target(name, goodput, goal=goal)
    if drained.hits:
        result.target("drained_mass_lost", drained.lost, goal=0, better="lower")
    else:
        result.skip("drained_mass_lost", "no worker was struck before the end")


def _goodput(job: Ran, calm: Ran) -> float | None:
    """None = there is nothing to compare with."""
    return job.rate / calm.rate if calm.rate > 0 else None
