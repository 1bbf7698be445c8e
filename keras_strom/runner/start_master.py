"""What a runner starts beside its workers, and all it knows of what they exchange.

The launcher and the Spark runner take a function that starts an `Exchange`. Sharing of updates
through a master is the one there is; other training methods bring their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from keras_strom.job.credentials import Credentials
from keras_strom.job.network import HostPort, NetworkConfig


class Exchange(Protocol):
    """Serves the workers of one job from the process that runs it."""

    @property
    def address(self) -> HostPort:
        """Where workers reach it: what they find in KERAS_STROM_MASTER."""

    @property
    def credentials(self) -> Credentials:
        """What workers need to be let in."""

    def status(self) -> Mapping[str, Any]:
        """State and counters, for the result's metrics."""

    def close(self, reason: str = "") -> None:
        """Ends it; with a reason, workers that are still there are told."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExchangeOptions:
    """What a runner asks of the exchange that it starts.

    Attributes:
        workers: the ranks are 0 to `workers` - 1.
        network: the job's options.
        host: the literal address to bind to; None = what `network` picks.
        min_workers: so many are enough to start, and with fewer of them training waits; None = it
            starts with all and goes on with those that are left.
        credentials: the job's; None = fresh ones.
        epoch: of the master; a job that goes on from a checkpoint has a higher one than before.
    """

    workers: int
    network: NetworkConfig
    host: str | None = None
    min_workers: int | None = None
    credentials: Credentials | None = None
    epoch: int = 1


#: What starts the exchange of a job.
StartExchange = Callable[[ExchangeOptions], Exchange]


def share_updates(options: ExchangeOptions) -> Exchange:
    """Starts the master through which replicas share their updates.

    It runs on a thread of this process, or, where workers are to outlive it, in one of its own.
    """
    if options.network.waits_for_master:
        from keras_strom.runner.master_supervisor import KeptMaster

        return KeptMaster(options)
    from keras_strom.relay.training_relay import TrainingMaster

    return TrainingMaster(
        workers=options.workers,
        network=options.network,
        host=options.host,
        min_workers=options.min_workers,
        credentials=options.credentials,
        epoch=options.epoch,
    )
