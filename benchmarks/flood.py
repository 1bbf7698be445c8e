"""What a flood of HELLOs with valid cookies costs a job: hardly an update.

A stranger that receives at its address gets cookies, as anybody may, and sends HELLOs that the
master has to open to see that they are of a wrong secret: the same one over and over, or many
different ones. The workers submit at a fixed rate, so that what they get from each other shows
whether the master was busy with the stranger.
"""

from __future__ import annotations

import dataclasses
import pathlib
import time

from benchmarks.relay_job import Job, Load, received_between

WORKERS = 2
HELLOS_PER_S = 8200
#: More than the master knows again.
DIFFERENT = 4096
_UPDATES_PER_S = 1000
_SETTLE_S = 0.3
#: For as long as this the job goes on after the flood, and so long its recovery may take.
_AFTER_S = 2.0


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a flood did.

    Attributes:
        rate: of what the workers got from each other meanwhile, relative to the time before.
        recovery_s: from its end until they get 0.9 of that time's, in whole tenths of a second.
        sent_per_s: HELLOs.
    """

    rate: float
    recovery_s: float
    sent_per_s: float


def measure(program: pathlib.Path, seconds: float, hellos: int) -> Cost:
    """One job; `hellos` different HELLOs flood it for so many seconds."""
    load = Load(
        workers=WORKERS,
        seconds=2 * seconds + 2 * _SETTLE_S + _AFTER_S,
        message_bytes=4 << 10,
        updates_per_s=_UPDATES_PER_S,
        elements=1 << 18,
    )
    with Job(load, program=program) as job:
        job.wait_for_training()
        time.sleep(_SETTLE_S)
        calm = time.monotonic()
        time.sleep(seconds)
        flood = job.flood(hellos=hellos, rate=HELLOS_PER_S, seconds=seconds)
        workers = job.finish_well("flooded")

    def rate(first_s: float, last_s: float) -> float:
        return sum(received_between(worker, first_s, last_s) for worker in workers)

    before = rate(calm, calm + seconds)
    recovery_s = _AFTER_S
    for tenth in range(round(_AFTER_S * 10)):
        after = flood.end_s + tenth / 10
        if rate(after, after + 0.2) >= 0.9 * before:
            recovery_s = tenth / 10
            break
    return Cost(
        rate=rate(flood.begin_s, flood.end_s) / before,
        recovery_s=recovery_s,
        sent_per_s=flood.sent / (flood.end_s - flood.begin_s),
    )
