"""Who is slow, and why: its computation, its input or its network, in words.

A worker's own time is that of its step without what it has waited for others. Who takes much longer
than the median is slow; what it takes longer for is the cause. A line that loses packets, is far
slower than the others', or does not take updates as fast as they are made is a slow network.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from statistics import median_low

from keras_strom.job.worker_record import LinkRecord, WorkerRecord

# So many steps tell of TensorFlow's own start rather than of the worker.
_FIRST_STEPS = 20
# Slow is who takes so many times the median, and so many seconds more.
_TIMES = 1.25
_LEAST_SECONDS = 0.002
# A line is bad that loses so much, or has so many times the median round trip, and so many seconds.
_LOSS = 0.05
_ROUND_TRIPS = 5.0
_LEAST_ROUND_TRIP = 0.02
# Waiting is worth a word where it is so much of a step.
_WAITING = 0.25


@dataclasses.dataclass(frozen=True)
class Slow:
    """A worker that holds the job back, or all of them (rank -1).

    Attributes:
        rank: which.
        cause: "compute", "input" or "network".
        words: with figures; they follow the worker's name.
    """

    rank: int
    cause: str
    words: str


def _runs(record: WorkerRecord) -> bool:
    """Whether it trains, and its first steps, in which TensorFlow compiles, are behind it."""
    begins = record.steps is not None and record.steps < _FIRST_STEPS
    return record.activity == "training" and not begins


def own_seconds(record: WorkerRecord) -> float | None:
    """A step without waiting for others; None = not known yet."""
    if record.step_seconds is None:
        return None
    return max(0.0, record.step_seconds - (record.waited_seconds or 0.0))


def diagnose(
    records: Mapping[int, WorkerRecord], links: Mapping[int, LinkRecord]
) -> tuple[Slow, ...]:
    """Who is slow among the workers that train, the worst first.

    Args:
        records: by rank.
        links: of each to its parent in the tree.
    """
    training = {r: one for r, one in records.items() if _runs(one)}
    own = {r: seconds for r, one in training.items() if (seconds := own_seconds(one)) is not None}
    found: list[tuple[float, Slow]] = []
    if len(own) > 1:
        usual = median_low(own.values())
        inputs = {r: training[r].input_seconds or 0.0 for r in own}
        usual_input = median_low(inputs.values())
        for rank, seconds in own.items():
            if seconds < _TIMES * usual or seconds - usual < _LEAST_SECONDS:
                continue
            by_input = inputs[rank] - usual_input >= (seconds - usual) / 2
            slow = _slow(rank, seconds, usual, inputs[rank], by_input)
            # Who only waits for others has no time of its own.
            found.append((seconds / max(usual, _LEAST_SECONDS), slow))
    found += _networks(training, links)
    alone = _all_wait_for_input(own, training)
    return (
        *(slow for _, slow in sorted(found, key=lambda one: (-one[0], one[1].rank))),
        *alone,
    )


def _slow(rank: int, seconds: float, usual: float, input_seconds: float, by_input: bool) -> Slow:
    beside = f"{in_words(seconds)} a step, the others {in_words(usual)}"
    if by_input:
        words = (
            f"waits for its input: {in_words(input_seconds)} of {beside}. Is its disk or its "
            "network to the data slow, or its preprocessing (map, num_parallel_calls, prefetch)?"
        )
        return Slow(rank, "input", words)
    words = f"computes slowly: {beside}. Is its machine slower, busy with something else, or hot?"
    return Slow(rank, "compute", words)


def _networks(
    training: Mapping[int, WorkerRecord], links: Mapping[int, LinkRecord]
) -> list[tuple[float, Slow]]:
    here = {rank: links[rank] for rank in training if rank in links}
    trips = [link.round_trip for link in here.values() if link.round_trip > 0]
    usual = median_low(trips) if trips else 0.0
    slowest = max((own_seconds(one) or 0.0 for one in training.values()), default=0.0)
    found = []
    for rank, link in here.items():
        record = training[rank]
        late = link.round_trip > max(_ROUND_TRIPS * usual, _LEAST_ROUND_TRIP) and len(trips) > 1
        if link.loss > _LOSS:
            words = (
                f"has a line that loses packets: {link.loss:.0%} of those to {link.peer} had to be "
                "sent again"
            )
        elif late:
            words = (
                f"has a slow line: its round trip to {link.peer} is {in_words(link.round_trip)}, "
                f"the others' {in_words(usual)}"
            )
        elif (
            _waiting(record) > _WAITING
            and link.queued > 0
            # Otherwise it may be another worker that this one waits for.
            and slowest <= _TIMES * (own_seconds(record) or 0.0)
        ):
            words = (
                f"waits {_waiting(record):.0%} of its time for the network to take its updates: "
                "steps are too short for it. Use larger batches, a higher threshold or local_steps"
            )
        else:
            continue
        found.append((1.0 + link.loss + _waiting(record), Slow(rank, "network", words)))
    return found


def _all_wait_for_input(
    own: Mapping[int, float], training: Mapping[int, WorkerRecord]
) -> tuple[Slow, ...]:
    """Nobody is slower than the others where all wait for their data."""
    shares = [(training[r].input_seconds or 0.0) / s for r, s in own.items() if s > _LEAST_SECONDS]
    if not shares or median_low(shares) < 0.5:
        return ()
    who = "all workers wait" if len(own) > 1 else "training waits"
    words = f"{who} for input {median_low(shares):.0%} of a step: the data come slower than they"
    return (Slow(-1, "input", f"{words} are trained on"),)


def _waiting(record: WorkerRecord) -> float:
    if not record.step_seconds:
        return 0.0
    return (record.waited_seconds or 0.0) / record.step_seconds


def in_words(seconds: float) -> str:
    """A duration as people read it."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} us"
