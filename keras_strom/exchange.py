"""What a runner starts beside its workers, and all it knows of what they exchange.

The launcher and the Spark runner take a function that starts an `Exchange`. Sharing of updates
through a master is the one there is; other training methods bring their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from keras_strom.credentials import Credentials
from keras_strom.network import HostPort, NetworkConfig


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


# (workers, network, host): host is the literal address to bind to, None = what `network` picks.
StartExchange = Callable[[int, NetworkConfig, str | None], Exchange]


def share_updates(workers: int, network: NetworkConfig, host: str | None = None) -> Exchange:
    """Starts the master through which `workers` replicas share their updates."""
    from keras_strom.training_relay import TrainingMaster

    master: Exchange = TrainingMaster(workers=workers, network=network, host=host)
    return master
