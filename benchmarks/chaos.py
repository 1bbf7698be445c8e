"""`make chaos`: workers train together while one of them is killed every few seconds.

Each job runs tests/support/scripts/elastic.py with the launcher, or on Spark's embedded cluster,
once with kills and once, with the same seed, without. A killed worker is started again and trains
on where it was. At the end all workers must hold the same bits, and what they have learnt is
compared over the pairs.

Targets that this benchmark measures: kills_survived (the share of jobs with kills that ended well,
all replicas equal), updates_lost and updates_twice (over all replicas of the jobs with kills, see
`update_accounts`), accuracy_loss (mean over the pairs), rejoin_seconds (a model of 25 million
parameters: the median from a replacement's call of `fit` to the end of its first batch),
memory_over_cap (the largest share of a bound on a node's memory that was seen in use),
unreachable_nodes (the most seen), those of `goodput`, and that of `executor_loss` (with --executors
that one alone). How deep the tree was is told and not judged: so few workers cannot come to the
bound of five levels, which the simulator checks with more, and less is not promised.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import rich.progress
from matplotlib.axes import Axes

from benchmarks import executor_loss, pictures, report
from benchmarks.executor_loss import add_executor_losses
from benchmarks.goodput import add_goodput
from benchmarks.hits import Kill, Killer, Thread
from benchmarks.other_work import OtherWork
from benchmarks.update_accounts import Account, lost, twice
from keras_strom import errors
from keras_strom.job.network import NetworkConfig
from keras_strom.runner.console import Console
from keras_strom.runner.launcher import Job, launch
from keras_strom.runner.master_options import Master, MasterOptions, StartMaster
from keras_strom.runner.start_master import start_master
from keras_strom.runner.work import Script
from tests.support.scripts import elastic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Seconds after each batch, so that an epoch is long enough to be killed in.
PAUSE_S = 0.1
_SAMPLE_SECONDS = 0.5
#: A worker that has had no place in the tree for longer is not just on its way there.
_HOMELESS_SECONDS = 10.0
_MANY = 1000
#: With 8 inputs and 4 classes, 25 million parameters.
LARGE = (5000, 5000)
_LARGE_SECONDS = 20.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs all pairs of jobs and shows the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=5, help="of jobs with and without kills")
    parser.add_argument("--seconds", type=float, default=120, help="of each job, about")
    parser.add_argument("--every", type=float, default=20, help="seconds between two kills")
    parser.add_argument("--output", type=pathlib.Path, default=report.OUTPUT)
    parser.add_argument("--spark", action="store_true", help="on Spark's embedded cluster")
    parser.add_argument("--quick", action="store_true", help="goodput alone, of short jobs")
    parser.add_argument("--executors", action="store_true", help="killed executors of Spark alone")
    chosen = parser.parse_args(arguments)
    name, place = ("chaos_spark", " on Spark") if chosen.spark else ("chaos", "")
    name += "-executors" if chosen.executors else ""
    title = f"Training while workers are killed{place}"
    result = report.Report(name, title, chosen.output, quick=chosen.quick)
    others = OtherWork()
    if chosen.executors:
        _add_executors(result)
        others.add_row(result)
        result.finish()
        return
    if not chosen.spark:
        add_goodput(result, chosen.workers, 60 if chosen.quick else chosen.seconds, chosen.every)
        result.write()
    if chosen.quick:
        others.add_row(result)
        result.finish()
        return
    with _spark(chosen.workers) if chosen.spark else contextlib.nullcontext() as spark:
        chaos = Chaos(chosen.workers, chosen.seconds, chosen.every, spark=spark)
        pairs = []
        for seed in rich.progress.track(range(chosen.pairs), "Pairs of jobs"):
            pairs.append((chaos.run(seed, kills=True), chaos.run(seed, kills=False)))
            add_pair(result, *pairs[-1])
            result.write()
        add_targets(result, pairs)
        large = Chaos(2, _LARGE_SECONDS, chosen.every, LARGE, spark=spark)
        add_rejoins(result, large.run(0, kills=True))
    draw(pairs, result.name, chosen.output)
    if not chosen.spark:
        _add_executors(result)
    others.add_row(result)
    result.finish()


def _add_executors(result: report.Report) -> None:
    with _spark(2) as spark:
        add_executor_losses(result, executor_loss.measure(spark))


@contextlib.contextmanager
def _spark(executors: int) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    os.environ["PYTHONPATH"] = str(report.ROOT)  # The executors' too.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    session = (
        SparkSession.builder.master(f"local-cluster[{executors},1,1024]")
        .appName("keras-strom chaos")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.task.maxFailures", str(_MANY + 1))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


@dataclasses.dataclass(frozen=True)
class Ended:
    """One job.

    Attributes:
        seed: of weights, data order and victims.
        kills: in order of time.
        seconds: that it took.
        accuracy: of the chief; None = it failed.
        failure: why it failed, or what is wrong with its end; "" = nothing.
        updates: of others that the replicas have added.
        lost, twice: updates that a replica lacks, or has added twice, at the end.
        memory: the largest share of a bound on a node's memory that was seen in use.
        unreachable: the most workers at a time that lived and had no place in the tree.
        depth: the deepest place seen in the tree.
    """

    seed: int
    kills: tuple[Kill, ...]
    seconds: float
    accuracy: float | None
    failure: str
    updates: int
    lost: int
    twice: int
    memory: float
    unreachable: int
    depth: int


class Chaos:
    """Runs jobs.

    Args:
        workers: of each job.
        seconds: that it trains for, about.
        every: seconds between two kills.
        hidden: the units of the model's hidden layers.
        spark: the session on whose executors the workers run; None = processes of this machine.
    """

    def __init__(
        self,
        workers: int,
        seconds: float,
        every: float,
        hidden: tuple[int, ...] = elastic.Job.hidden,
        *,
        spark: SparkSession | None = None,
    ) -> None:
        self._workers = workers
        self._every = every
        self._hidden = hidden
        self._spark = spark
        batches = max(1, elastic.Job.rows // workers // elastic.Job.batch)
        self._epochs = max(2, round(seconds / (batches * PAUSE_S)))

    def run(self, seed: int, *, kills: bool) -> Ended:
        """One job from start to end; a failure of it is part of the answer."""
        work = elastic.Job(seed=seed, epochs=self._epochs, pause=PAUSE_S, hidden=self._hidden)
        with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
            folder = pathlib.Path(name)
            master = _Master()
            stack.enter_context(master)
            killer = Killer(folder, self._every, seed)
            if kills:
                stack.enter_context(killer)
            begin, failure = time.monotonic(), ""
            try:
                self._train(name, work, _MANY if kills else 0, master.start)
            except errors.WorkerFailed as error:
                failure = str(error)
            seconds = time.monotonic() - begin
            results = _results(folder)
            accounts = [Account(**one["account"]) for one in results if one["account"]]
            return Ended(
                seed=seed,
                kills=killer.kills,
                seconds=seconds,
                accuracy=None if failure else float(results[0]["accuracy"]),
                failure=failure or _difference(folder, self._workers),
                updates=sum(account.added for account in accounts),
                lost=0 if failure else lost(accounts, master.received()),
                twice=twice(accounts),
                memory=max([master.memory, *(one["memory"] for one in results)]),
                unreachable=master.unreachable,
                depth=master.depth,
            )

    def _train(self, folder: str, work: elastic.Job, max_failures: int, start: StartMaster) -> None:
        """Runs the workers, who leave their results in the folder."""
        arguments = (folder, json.dumps(dataclasses.asdict(work)))
        network = NetworkConfig(topology="mesh", max_children=2)
        if self._spark is None:
            job = Job(
                work=Script(elastic.__file__, arguments),
                workers=self._workers,
                network=network,
                max_failures=max_failures,
                env={"PYTHONPATH": str(report.ROOT)},
            )
            launch(job, Console(self._workers, io.StringIO()), start)
            return
        from keras_strom.spark.runner import runner

        with mock.patch.object(runner, "start_master", start):
            runner.run(
                elastic.main,
                arguments,
                num_proc=self._workers,
                network=network,
                max_failures=max_failures,
                stream_logs=False,
                verbose=0,
                spark=self._spark,
            )


def _results(folder: pathlib.Path) -> list[dict[str, Any]]:
    """What the workers that ended well have left, in rank order."""
    paths = sorted(folder.glob("*.json"), key=lambda path: int(path.stem))
    return [json.loads(path.read_text()) for path in paths]


def _difference(folder: pathlib.Path, workers: int) -> str:
    """Which workers do not hold the chief's bits; "" = all do."""
    chief = dict(np.load(folder / "0.npz"))
    for rank in range(1, workers):
        other = dict(np.load(folder / f"{rank}.npz"))
        if any((other[name] != value).any() for name, value in chief.items()):
            return f"worker {rank} ended with other parameters than worker 0"
    return ""


class _Master(Thread):
    """Starts the job's master and looks at its tree while the job runs."""

    def __init__(self) -> None:
        super().__init__(_SAMPLE_SECONDS)
        self._master: Master | None = None
        self._homeless: dict[int, float] = {}
        self._received: dict[str, int] = {}
        self.memory = 0.0
        self.unreachable = 0
        self.depth = 0

    def start(self, options: MasterOptions) -> Master:
        """What `launch` starts the master with."""
        self._master = start_master(options)
        return self._master

    def received(self) -> dict[str, int]:
        """How many updates of each origin the master's own copy holds.

        Also of workers that were lost, of which it tells no more once another training has begun.
        """
        if self._master is not None:
            self._note_received(self._master.status()["node"])
        return dict(self._received)

    def _note_received(self, node: Mapping[str, Any]) -> None:
        for origin, count in node["received"].items():
            self._received[origin] = max(count, self._received.get(origin, 0))

    def act(self) -> None:
        if self._master is None:
            return
        status = self._master.status()
        self.memory = max(self.memory, elastic.share_of_bounds(dict(status)))
        node = status["node"]
        self._note_received(node)
        now = time.monotonic()
        if node["phase"] != "training":
            self._homeless.clear()
            return
        live = [member for member in node["members"] if member["state"] == "live"]
        self.depth = max([self.depth, *(member["depth"] for member in live)])
        # A worker that has just joined has no place before it announces what it trains.
        homeless = {member["origin"] for member in live if member["depth"] == 0}
        self._homeless = {origin: self._homeless.get(origin, now) for origin in homeless}
        lasting = [since for since in self._homeless.values() if now - since > _HOMELESS_SECONDS]
        self.unreachable = max(self.unreachable, len(lasting))


def add_pair(result: report.Report, killed: Ended, calm: Ended) -> None:
    """Their row."""
    result.row(
        f"seed {killed.seed}",
        group="Jobs with kills, and without",
        kills=len(killed.kills),
        seconds=killed.seconds,
        calm_seconds=calm.seconds,
        tree_depth=killed.depth,
        updates=killed.updates,
        lost=killed.lost,
        twice=killed.twice,
        accuracy=killed.accuracy,
        calm_accuracy=calm.accuracy,
        back_after_s=_median([kill.back_after for kill in killed.kills]),
        joined_in_s=_median([kill.joined_in for kill in killed.kills]),
        failure=killed.failure or calm.failure,
    )


def add_targets(result: report.Report, pairs: Sequence[tuple[Ended, Ended]]) -> None:
    """What the jobs of all pairs show together."""
    jobs = [killed for killed, _ in pairs]
    disturbed = [job for job in jobs if job.kills]
    if disturbed:
        survived = sum(not job.failure for job in disturbed) / len(disturbed)
        result.target("kills_survived", survived, goal=1.0)
    for name, count in (
        ("updates_lost", sum(job.lost for job in disturbed)),
        ("updates_twice", sum(job.twice for job in disturbed)),
    ):
        if any(job.updates for job in disturbed):
            result.target(name, count, goal=0, better="lower")
        else:
            result.skip(name, "no job with kills has ended with replicas to count in")
    losses = [
        calm.accuracy - killed.accuracy
        for killed, calm in pairs
        if killed.accuracy is not None and calm.accuracy is not None
    ]
    if losses:
        result.target("accuracy_loss", statistics.mean(losses), goal=0.005, better="lower")
    memory = max(job.memory for pair in pairs for job in pair)
    result.target("memory_over_cap", memory, goal=1.0, better="lower")
    result.target("unreachable_nodes", max(job.unreachable for job in jobs), goal=0, better="lower")


def add_rejoins(result: report.Report, job: Ended) -> None:
    """A row for each kill of a job with a large model, and their target."""
    for kill in job.kills:
        result.row(
            f"worker {kill.rank}, killed after {kill.seconds:.0f} s",
            group="A model of 25 million parameters",
            back_after_s=kill.back_after,
            joined_in_s=kill.joined_in,
            failure=job.failure,
        )
    joined_in = _median([kill.joined_in for kill in job.kills])
    if joined_in is None:
        result.skip("rejoin_seconds", job.failure or "no worker has come back before the end")
    else:
        result.target("rejoin_seconds", joined_in, goal=5.0, better="lower")


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def draw(pairs: Sequence[tuple[Ended, Ended]], name: str, output: pathlib.Path) -> None:
    """Who was away when, and what was learnt, in build/bench/NAME.png."""
    figure, (away, learnt) = pictures.picture(2, width=7, height=0.5 * len(pairs) + 2.2)
    _draw_absences(away, [killed for killed, _ in pairs])
    _draw_accuracies(learnt, pairs)
    pictures.save(figure, name, output)


def _draw_absences(axes: Axes, jobs: Sequence[Ended]) -> None:
    pictures.caption(axes, "From SIGKILL to the replacement's first batch", "s", "")
    for place, job in enumerate(reversed(jobs)):
        axes.barh(place, job.seconds, 0.7, color=pictures.SKY, alpha=0.25)
        for kill in job.kills:
            length = job.seconds - kill.seconds if kill.back_after is None else kill.back_after
            axes.barh(place, length, 0.5, left=kill.seconds, color=pictures.VERMILION, alpha=0.6)
            axes.text(kill.seconds, place, f" {kill.rank}", va="center", color=pictures.BLACK)
    axes.set_yticks(range(len(jobs)), [f"seed {job.seed}" for job in reversed(jobs)])


def _draw_accuracies(axes: Axes, pairs: Sequence[tuple[Ended, Ended]]) -> None:
    pictures.caption(axes, "Accuracy with kills (red) and without (grey)", "", "")
    for place, (killed, calm) in enumerate(reversed(pairs)):
        for job, color in ((calm, pictures.GREY), (killed, pictures.VERMILION)):
            if job.accuracy is not None:
                axes.plot(job.accuracy, place, "o", color=color, markersize=9)
    axes.set_yticks(range(len(pairs)), [f"seed {killed.seed}" for killed, _ in reversed(pairs)])
    axes.margins(x=0.3, y=0.3)


if __name__ == "__main__":
    main()
