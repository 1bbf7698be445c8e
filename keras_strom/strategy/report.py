"""What a training has done: `StromStrategy.last_report`."""

from __future__ import annotations

import dataclasses

from keras_strom.relay.counters import NodeCounters


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingReport:
    """One worker's figures for one `fit`, or for one custom loop up to `synchronize()`.

    Attributes:
        rank: this worker.
        workers: K, how many trained together.
        parameters: elements of the variables that were trained.
        steps: training steps of this worker.
        messages: updates that it made of them, one each `local_steps` steps.
        updates_applied: updates of other workers that this one has applied.
        density: sent entries per element and message, the mean over the messages.
        threshold: tau of the last message; where each variable has its own, their median.
        residual_mass: the sum of |r| that the last message left below tau; it stays with this
            worker and leaves in its next `fit`.
        message_bytes: encoded updates that this worker made, without packet framing.
        bytes_sent, bytes_received: everything on this worker's socket, packet headers,
            acknowledgements and retransmits included, and what went through shared memory to
            other processes of its machine; 0 for a lone worker.
        clipped_mass: the sum of |r| that residual clipping has removed.
        clipped_elements: how many residual elements were clipped.
        shaken_mass: the sum of |update| that shake-ups have sent.
        limited_updates: how many updates were scaled down for their norm (`UpdateClipping`).
        limited_mass: the sum of |update| that this has taken off them.
        assigned_outside: how often a shared variable was found assigned outside `strategy.run`.
        max_replica_difference: over all workers, the largest difference of a parameter from the
            master's, before everybody took the master's.
        seconds: from the first step to the agreed end.
        network: all that this worker's connection has counted since it joined, by link and with
            what was sent again and dropped; None for a lone worker.
        lost_workers: what the master has said of other workers that were lost meanwhile, or have
            left because `fit` failed on them.
    """

    rank: int
    workers: int
    parameters: int
    steps: int
    messages: int
    updates_applied: int
    density: float
    threshold: float
    residual_mass: float
    message_bytes: int
    bytes_sent: int
    bytes_received: int
    clipped_mass: float
    clipped_elements: int
    shaken_mass: float
    limited_updates: int
    limited_mass: float
    assigned_outside: int
    max_replica_difference: float
    seconds: float
    network: NodeCounters | None = None
    lost_workers: tuple[str, ...] = ()

    def __str__(self) -> str:
        return (
            f"{self.workers} worker(s), {self.steps} steps of rank {self.rank} in "
            f"{self.seconds:.1f} s: density {self.density:.2e}, threshold {self.threshold:.2e}, "
            f"{self.bytes_sent} bytes sent and {self.bytes_received} received, "
            f"{self.updates_applied} updates of others applied; replicas differed by at most "
            f"{self.max_replica_difference:.2e} before the final copy"
            + "".join(f"; {words}" for words in self.lost_workers)
        )
