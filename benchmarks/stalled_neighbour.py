"""What one stopped worker costs the others: nothing, and the master a bounded queue.

Two jobs on loopback with the same load, one of them with a worker that is stopped for a while. The
workers submit at a fixed rate, so that the others' rate shows whether anybody waited for the
stopped one, and what is sent to that one meanwhile is far more than its queue's cap. The model is
small beside the cap: two snapshots of it may wait in the same queue.
"""

from __future__ import annotations

import dataclasses
import pathlib
import signal
import time

from benchmarks.relay_job import Job, Load, received_between

WORKERS = 4
QUEUE_BYTES = 8 << 20
_ELEMENTS = 1 << 18
_SAMPLE_S = 0.05
_SETTLE_S = 0.3


@dataclasses.dataclass(frozen=True)
class Stall:
    """One pair of jobs.

    Attributes:
        rate: of what the others get from each other meanwhile, relative to the undisturbed job.
        queue: the longest queue towards the stopped worker, relative to its cap.
    """

    rate: float
    queue: float


def measure(program: pathlib.Path, seconds: float) -> Stall:
    """Runs both jobs; `seconds` is how long the worker is stopped."""
    calm, stalled = (_run(program, seconds, stop) for stop in (False, True))
    # Of what the others got, the stopped worker's part is missing.
    expected = calm.rate * (WORKERS - 2) / (WORKERS - 1)
    return Stall(
        rate=stalled.rate / expected,
        queue=stalled.queued_bytes / QUEUE_BYTES,
    )


@dataclasses.dataclass(frozen=True)
class _Outcome:
    rate: float
    queued_bytes: int


def _run(program: pathlib.Path, seconds: float, stop: bool) -> _Outcome:
    load = Load(
        workers=WORKERS,
        seconds=seconds + 4 * _SETTLE_S,
        updates_per_s=80,
        elements=_ELEMENTS,
        failure_timeout_s=4 * seconds + 5,
        queue_bytes=QUEUE_BYTES,
    )
    victim = WORKERS - 1
    with Job(load, program=program) as job:
        job.wait_for_training()
        time.sleep(_SETTLE_S)
        begin = time.monotonic()
        if stop:
            job.signal(victim, signal.SIGSTOP)
        samples = []
        while time.monotonic() < begin + seconds:
            samples.append(job.sample())
            time.sleep(_SAMPLE_S)
        end = time.monotonic()
        if stop:
            job.signal(victim, signal.SIGCONT)
        results = job.finish_well("stalled" if stop else "calm")
    return _Outcome(
        rate=sum(received_between(result, begin, end) for result in results[:victim]),
        queued_bytes=max(sample.queued_bytes(victim) for sample in samples),
    )
