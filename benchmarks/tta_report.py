"""What `make bench-time-to-accuracy` shows: rows of every comparison, and the targets."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence

from benchmarks.report import Report
from benchmarks.tta_curves import (
    Compared,
    Curves,
    Outcome,
    Setting,
    common_target,
    mean_end,
    mean_seconds,
)
from benchmarks.tta_plan import STEP_SECONDS, rate_of
from benchmarks.tta_training import HOROVOD, HOROVOD_FP16, MIRRORED, STROM, SYNCHRONOUS

#: The task that the targets of time speak of; every task has its rows.
TARGET_TASK = "wide"
TITLES = {"cnn": "CNN of 225,034 parameters", "wide": "CNN of 2,080,906 parameters"}
#: How many times as long the better variant of a peer has to take, by the line's key.
GOALS = {"100mbit": 10.0, "1gbit": 3.0}
PEERS = {"horovod": (HOROVOD, HOROVOD_FP16), "mwms": (MIRRORED,)}
#: The most that the accuracy at the end may be behind the best peer's.
END_GAP = 0.003


def title(setting: Setting) -> str:
    """For people."""
    step = STEP_SECONDS.get((setting.task, setting.workers))
    slept = "" if step is None else f", steps of at least {step * 1e3:g} ms"
    return f"{TITLES[setting.task]}, {setting.workers} workers{slept}, {setting.line.name}"


def add(result: Report, compared: Compared, outcomes: Collection[Outcome]) -> None:
    """Adds everything."""
    for setting, curves in compared.items():
        _add_rows(result, setting, curves)
    _add_targets(result, compared)
    if outcomes:
        result.row(
            "busy with other work, mean of all jobs",
            group="The machine meanwhile",
            cores=statistics.fmean(outcome.other_cores for outcome in outcomes),
            at_worst=max(outcome.other_cores for outcome in outcomes),
            of_cores=result.machine["cores"],
        )
    result.attach(
        "curves",
        [
            {
                "task": setting.task,
                "workers": setting.workers,
                "line": setting.line.name,
                "method": way,
                **curve.as_json(),
            }
            for setting, curves in compared.items()
            for way, several in curves.items()
            for curve in several
        ],
    )


def _add_rows(result: Report, setting: Setting, curves: Curves) -> None:
    target = common_target(curves)
    own = mean_seconds(curves[STROM], target) if STROM in curves else None
    for way, several in curves.items():
        seconds = mean_seconds(several, target)
        rate = rate_of(setting.task, setting.workers, way)
        scaled = f" x {setting.workers}" if way in SYNCHRONOUS else ""
        result.row(
            way,
            group=f"{title(setting)}: to an accuracy of {target:.3f}",
            s_to_target=seconds,
            times_as_long=None if own is None else seconds / own,
            ms_a_step=1e3 * statistics.fmean(curve.step_seconds for curve in several),
            mb_a_step=statistics.fmean(c.sent_bytes[-1] / c.steps[-1] for c in several) / 1e6,
            end_accuracy=mean_end(several),
            rate=f"{rate.alone:g}{scaled}" + (", warm-up" if rate.warm_up else ""),
            runs=len(several),
            put_together=several[0].composed,
        )


def _add_targets(result: Report, compared: Compared) -> None:
    for setting, curves in compared.items():
        goal = GOALS.get(setting.line.key)
        if setting.task != TARGET_TASK or goal is None:
            continue
        suffix = "" if setting.workers == 2 else f"_k{setting.workers}"
        for peer, variants in PEERS.items():
            name = f"tta_{setting.line.key}_{peer}{suffix}"
            ratio = times_as_long(curves, variants)
            if ratio is None:
                result.skip(name, f"{' and '.join((STROM, *variants))}: one of them was not run")
            else:
                result.target(name, ratio, goal)
    if not any(setting.task == TARGET_TASK for setting in compared):
        result.skip("tta_*", f"these speak of the {TITLES[TARGET_TASK]}, which was not trained")
    gaps = {setting: end_gap(curves) for setting, curves in compared.items()}
    known = {setting: gap for setting, gap in gaps.items() if gap is not None}
    if not known:
        result.skip("end_accuracy_gap", f"{STROM} or all peers were not run")
        return
    for setting, gap in known.items():
        result.row(title(setting), group="Behind the best peer at the end", accuracy=gap)
    result.target("end_accuracy_gap", max(known.values()), END_GAP, "lower")


def times_as_long(curves: Curves, variants: Sequence[str]) -> float | None:
    """As keras-strom the best of these takes to the target; None = who is needed was not run."""
    there = [way for way in variants if way in curves]
    if STROM not in curves or not there:
        return None
    target = common_target(curves)
    fastest = min(mean_seconds(curves[way], target) for way in there)
    return fastest / mean_seconds(curves[STROM], target)


def end_gap(curves: Curves) -> float | None:
    """How far keras-strom's end accuracy is behind the best peer's; None = see `times_as_long`."""
    peers = [mean_end(several) for way, several in curves.items() if way in SYNCHRONOUS]
    if STROM not in curves or not peers:
        return None
    return max(peers) - mean_end(curves[STROM])
