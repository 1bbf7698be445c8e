"""What a training has done: `StromStrategy.last_report`."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import numpy as np

from keras_strom.relay.counters import NodeCounters
from keras_strom.sharing.pulled_step import PulledStep
from keras_strom.sharing.step import SharedStep
from keras_strom.sharing.training_step import TrainingStep

_logger = logging.getLogger("keras_strom")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingReport:
    """One worker's figures for one `fit`, or for one custom loop up to `synchronize()`.

    A training that shares updates has an `UpdateReport`, one beside a joint model (`method=`) a
    `JointModelReport`.

    Attributes:
        rank: this worker.
        workers: K, how many trained together.
        parameters: elements of the variables that were trained.
        steps: training steps of this worker.
        bytes_sent, bytes_received: everything on this worker's socket, packet headers,
            acknowledgements and retransmits included, and what went through shared memory to
            other processes of its machine; 0 for a lone worker.
        max_replica_difference: over all workers, the largest difference of a parameter from the
            master's, before everybody took the master's; 0 where a method has each worker train a
            model of its own.
        seconds: from the common start, for which workers wait, to the agreed end.
        network: all that this worker's connection has counted since it joined, by link and with
            what was sent again and dropped; None for a lone worker.
        lost_workers: what the master has said of other workers that were lost meanwhile, or have
            left because `fit` failed on them.
    """

    rank: int
    workers: int
    parameters: int
    steps: int
    bytes_sent: int
    bytes_received: int
    max_replica_difference: float
    seconds: float
    network: NodeCounters | None = None
    lost_workers: tuple[str, ...] = ()

    def __str__(self) -> str:
        return (
            f"{self.workers} worker(s), {self.steps} steps of rank {self.rank} in "
            f"{self.seconds:.1f} s: {self._figures()}"
            + "".join(f"; {words}" for words in self.lost_workers)
        )

    def _figures(self) -> str:
        return f"{self.bytes_sent} bytes sent and {self.bytes_received} received"


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdateReport(TrainingReport):
    """The figures of a training that shares updates.

    Attributes:
        messages: updates that this worker made of its steps, one each `local_steps` steps.
        updates_applied: updates of other workers that this one has applied.
        density: sent entries per element and message, the mean over the messages.
        threshold: tau of the last message; where each variable has its own, their median.
        residual_mass: the sum of |r| that the last message left below tau; it stays with this
            worker and leaves in its next `fit` with the same optimizer.
        message_bytes: encoded updates that this worker made, without packet framing.
        clipped_mass: the sum of |r| that residual clipping has removed.
        clipped_elements: how many residual elements were clipped.
        shaken_mass: the sum of |update| that shake-ups have sent.
        limited_updates: how many updates were scaled down for their norm (`UpdateClipping`).
        limited_mass: the sum of |update| that this has taken off them.
        assigned_outside: how often a shared variable was found assigned outside `strategy.run`.
    """

    messages: int
    updates_applied: int
    density: float
    threshold: float
    residual_mass: float
    message_bytes: int
    clipped_mass: float
    clipped_elements: int
    shaken_mass: float
    limited_updates: int
    limited_mass: float
    assigned_outside: int

    def _figures(self) -> str:
        return (
            f"density {self.density:.2e}, threshold {self.threshold:.2e}, {super()._figures()}, "
            f"{self.updates_applied} updates of others applied; replicas differed by at most "
            f"{self.max_replica_difference:.2e} before the final copy"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class JointModelReport(TrainingReport):
    """The figures of a training beside a joint model.

    Attributes:
        method: the method and its numbers, in words.
        exchanges: snapshots and differences that this worker has sent.
        cycle_steps: own steps between the last two snapshots of a shard, or exchanges.
        cycle_seconds: between them.
        alpha: the last pull; 0 = there was none.
        divergence: |x - x*| / |x*| before the last pull: how far this worker's model was from its
            target.
        waited_seconds: that training has stood still for exchanges.
    """

    method: str
    exchanges: int
    cycle_steps: int
    cycle_seconds: float
    alpha: float
    divergence: float
    waited_seconds: float

    def _figures(self) -> str:
        return (
            f"{self.method}, {self.exchanges} exchanges, the last cycle of {self.cycle_steps} "
            f"steps and {self.cycle_seconds:.2g} s, pull {self.alpha:.2g} over a distance of "
            f"{self.divergence:.2e}, {self.waited_seconds:.1f} s waited, {super()._figures()}"
        )


def describe(step: TrainingStep, common: TrainingReport) -> TrainingReport:
    """The report of a training whose steps `step` has ended.

    Args:
        step: since its `begin`.
        common: what both kinds of report have.
    """
    known = {field.name: getattr(common, field.name) for field in dataclasses.fields(common)}
    if isinstance(step, SharedStep):
        return _of_updates(step, known)
    assert isinstance(step, PulledStep)
    last = step.last
    return JointModelReport(
        **known,
        method=step.method.text,
        exchanges=int(last.exchanges),
        cycle_steps=int(last.cycle_steps),
        cycle_seconds=last.cycle_seconds,
        alpha=last.alpha,
        divergence=last.divergence,
        waited_seconds=last.waited_seconds,
    )


def announce(report: TrainingReport | None) -> None:
    """Logs the chief's report, and what each worker's network has to say."""
    if report is None:
        return
    if report.rank == 0:
        _logger.info("%s", report)
    if report.network is not None:
        report.network.log(f"worker {report.rank}")


def _of_updates(step: SharedStep, known: dict[str, Any]) -> UpdateReport:
    totals = step.totals
    return UpdateReport(
        **known,
        messages=int(totals.shared),
        updates_applied=int(totals.received),
        density=totals.count / totals.elements if totals.elements else 0.0,
        threshold=float(np.median(step.thresholds)),
        residual_mass=step.last.sum_residual,
        message_bytes=int(totals.message_bytes),
        clipped_mass=totals.clipped_mass,
        clipped_elements=int(totals.clipped_count),
        shaken_mass=step.shaken_mass,
        limited_updates=step.limited,
        limited_mass=totals.limited_mass,
        assigned_outside=int(totals.assigned_outside),
    )
