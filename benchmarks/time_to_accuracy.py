"""`make bench-time-to-accuracy`: test accuracy against seconds on slow, fast and lossy lines.

keras-strom with its defaults, Horovod (float32, and with its fp16 compression), TensorFlow's
MultiWorkerMirroredStrategy, and workers that never talk train the same models on Fashion-MNIST for
as many epochs. Every worker is a process on a machine of its own, a network namespace, behind a
line of its own; so this needs root. Copies of the model are tried when training is over, so
evaluation takes no time. The target of a comparison is the accuracy, as a mean of three evaluations
in a row, that every run of every method reaches; when, is told on a straight line between two.

keras-strom always trains wholly on the line. For Horovod and MultiWorkerMirroredStrategy, which are
synchronous and learn the same on any line, step by step, accuracy against steps comes from a run on
an unlimited line, and is put together with the time of a step in a sample of steps on the line in
question. `--whole` trains them wholly on every line instead, which takes hours.

Four workers share this machine's processors, so every step of theirs, of any method, takes at least
one constant time: who is done earlier sleeps. What a synchronous method communicates within that
time costs it nothing.

Every outcome is kept as it comes: `--resume` goes on, `--only` chooses pieces (`--only wide k2`).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import pathlib
import signal
import sys
from collections.abc import Mapping, Sequence

import rich.progress

from benchmarks import namespaces, report, tta_picture, tta_report
from benchmarks.horovod_place import ENVIRONMENT
from benchmarks.kept import Kept
from benchmarks.other_work import OtherWork
from benchmarks.tta_curves import Compared, Curve, Outcome, Setting
from benchmarks.tta_place import Machines
from benchmarks.tta_plan import QUICK, Job, Plan
from benchmarks.tta_training import HOROVOD, HOROVOD_FP16, MIRRORED, SYNCHRONOUS
from benchmarks.tta_tuning import tune

NAME = "time-to-accuracy"


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what is missing and shows the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few minutes, to see that it works")
    parser.add_argument("--resume", action="store_true", help="keep the outcomes of runs before")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="tasks, methods, ...")
    parser.add_argument("--seeds", type=int, help="1 to so many; otherwise 3")
    parser.add_argument("--epochs", type=float, help="instead of 6")
    parser.add_argument("--whole", action="store_true", help="everything wholly on every line")
    parser.add_argument("--tune", action="store_true", help="look for learning rates, and stop")
    parser.add_argument(
        "--report", action="store_true", help="run nothing: show what is kept, if not all"
    )
    parser.add_argument("--output", type=pathlib.Path, default=report.OUTPUT)
    chosen = parser.parse_args(arguments)
    plan = QUICK if chosen.quick else Plan()
    changes = {"seeds": chosen.seeds, "epochs": chosen.epochs, "whole": chosen.whole or None}
    plan = dataclasses.replace(plan, **{k: v for k, v in changes.items() if v is not None})
    if plan.seeds < 1 or not plan.epochs * 6 >= 3:
        parser.error("--seeds: 1 or more; --epochs: 0.5 or more, for three evaluations")
    try:
        plan = plan.only(chosen.only)
    except ValueError as error:
        parser.error(str(error))
    reason = None if chosen.report else namespaces.unavailable()
    if reason is not None:
        sys.exit(f"time to accuracy needs a machine for each worker, and {reason}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces are taken down
    name = NAME + ("-rates" if chosen.tune else "")
    result = report.Report(name, "Time to accuracy", chosen.output, quick=chosen.quick)
    path = result.path.with_suffix(".jsonl")
    kept = Kept(path, Outcome.from_fields, resume=chosen.resume or chosen.report)
    plan = available(result, plan)
    bench = TimeToAccuracy(result, kept, runs=not chosen.report)
    if chosen.tune:
        tune(result, plan, bench.run)
    else:
        outcomes = bench.run(plan.jobs())
        compared = curves_of(plan, outcomes)
        tta_report.add(result, compared, outcomes.values())
        tta_picture.draw(compared, result.name, chosen.output)
    kept.tell_origins(result)
    result.finish()


def available(result: report.Report, plan: Plan) -> Plan:
    """The plan without the methods that there are not here; says why."""
    missing = {}
    if not (ENVIRONMENT / "made-of.txt").exists():
        missing[MIRRORED] = "there is no tf_keras: .ci/horovod/set-up"
    if not (ENVIRONMENT / "horovod-of.txt").exists():
        why = "it is not built: .ci/horovod/set-up, build/logs/horovod-build.log"
        missing.update(dict.fromkeys((HOROVOD, HOROVOD_FP16), why))
    for way in [way for way in plan.ways if way in missing]:
        result.skip(way, missing[way])
    return dataclasses.replace(plan, ways=[way for way in plan.ways if way not in missing])


class TimeToAccuracy:
    """Runs jobs and keeps what comes of them.

    Args:
        result: says what has failed.
        kept: the outcomes so far.
        runs: False runs nothing.
    """

    def __init__(self, result: report.Report, kept: Kept[Outcome], *, runs: bool = True) -> None:
        self._report = result
        self._kept = kept
        self._runs = runs

    def run(self, jobs: Sequence[Job]) -> dict[Job, Outcome]:
        """Runs those whose outcome is not kept; gives all outcomes that there are then.

        A peer that fails is left out, with its last words as a reason.
        """
        missing = [job for job in jobs if self._kept.get(job.key) is None]
        if missing and self._runs:
            with contextlib.ExitStack() as stack:
                machines: dict[int, Machines] = {}
                for job in rich.progress.track(missing, "Training"):
                    workers = job.training.workers
                    if workers not in machines:
                        machines[workers] = stack.enter_context(Machines(workers))
                    self._run(job, machines[workers])
        found = {job: self._kept.get(job.key) for job in jobs}
        return {job: outcome for job, outcome in found.items() if outcome is not None}

    def _run(self, job: Job, machines: Machines) -> None:
        from benchmarks.tta_judge import accuracy

        others = OtherWork()
        try:
            trained = machines.train(job.training, job.line)
        except RuntimeError as error:
            if job.training.way not in SYNCHRONOUS:
                raise
            self._report.skip(job.name, str(error))
            return
        cores = others.cores()
        task = job.training.task
        judged = [[accuracy(task, copy) for copy in copies] for copies in trained.copies]
        outcome = Outcome.of(job.training.way, trained.courses, judged, cores)
        self._kept.put(job.key, outcome)


def curves_of(plan: Plan, outcomes: Mapping[Job, Outcome]) -> Compared:
    """All curves whose jobs have outcomes."""
    compared: dict[Setting, dict[str, list[Curve]]] = {}
    for task, workers in plan.settings():
        for line in plan.lines:
            curves = compared.setdefault(Setting(task, workers, line), {})
            for way in plan.ways:
                for seed in range(1, plan.seeds + 1):
                    jobs = plan.of(way, task, workers, line, seed)
                    if all(job in outcomes for job in jobs):
                        several = curves.setdefault(way, [])
                        several.append(Curve.of(seed, [outcomes[job] for job in jobs]))
    return {setting: curves for setting, curves in compared.items() if curves}


if __name__ == "__main__":
    main()
