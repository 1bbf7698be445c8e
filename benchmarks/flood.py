"""What a flood of HELLOs with valid cookies costs a job: hardly an update.

A stranger that receives at its address gets cookies, as anybody may, and sends HELLOs that the
master has to open to see that they are of a wrong secret: the same one over and over, or many
different ones. The workers submit at a fixed rate, so that what they get from each other shows
whether the master was busy with the stranger.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import time

from benchmarks.relay_job import Job, Load, check, received_between

WORKERS = 2
HELLOS_PER_S = 8200
#: More than the master knows again.
DIFFERENT = 4096
_UPDATES_PER_S = 1000
_SETTLE_S = 0.3
#: For as long as this the job goes on after the flood, and so long its recovery may take.
_AFTER_S = 2.0
_TENTH_S = 0.1


@dataclasses.dataclass(frozen=True)
class Flood:
    """What a flood did.

    Attributes:
        rate: of what the workers got from each other meanwhile, relative to the time before.
        recovery_s: from its end until they get 0.9 of that time's, in whole tenths of a second.
        sent_per_s: HELLOs.
    """

    rate: float
    recovery_s: float
    sent_per_s: float


def measure(program: pathlib.Path, seconds: float, hellos: int) -> Flood:
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
        with job.stranger(hellos=hellos, rate=HELLOS_PER_S, seconds=seconds) as stranger:
            begin = time.monotonic()
            sent = stranger.result()
            end = time.monotonic()
        results, master = job.finish()
    mistakes = check(results, master)
    if mistakes:
        raise RuntimeError(f"a flooded job: {'; '.join(mistakes)}")
    workers = [result for result in results if result is not None]

    def rate(first_s: float, last_s: float) -> float:
        return sum(received_between(worker, first_s, last_s) for worker in workers)

    before = rate(calm, calm + seconds)
    tenths = itertools.takewhile(lambda late_s: late_s < _AFTER_S, itertools.count(0, _TENTH_S))
    recovered = (s for s in tenths if rate(end + s, end + s + 2 * _TENTH_S) >= 0.9 * before)
    return Flood(
        rate=rate(begin, end) / before,
        recovery_s=next(recovered, _AFTER_S),
        sent_per_s=sent["sent"] / sent["seconds"],
    )
