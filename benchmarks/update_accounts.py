"""Which updates every replica of a job holds at its end: are some missing, or counted twice?

A worker's parameters are the master's at its START, which hold each origin's updates up to the cut,
and what its step op has added since. The op counts what it adds; the version vector says how far it
has come with each origin. So the two have to agree, and all vectors with each other and with what
each worker has made.

Where updates are merged, vectors also count the master's publications, under an origin of its own:
they are no updates, but name those of workers that they contain.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

Vector = Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Account:
    """One worker at the end of its training.

    Attributes:
        origin: under which it has sent updates.
        sent: how many.
        cut: the updates that were in the parameters with which it began, by origin.
        held: those that are in its parameters at the end.
        added: how many of others it has added in between.
    """

    origin: str
    sent: int
    cut: Vector
    held: Vector
    added: int

    @classmethod
    def of(cls, status: Mapping[str, Any], added: int) -> Account:
        """Reads a worker's status (`strom_node_status`)."""
        node = status["node"]
        cut, applied = of_workers(node["cut"]), of_workers(node["applied"])
        # An origin of which nothing has come since is in the cut alone.
        held = {origin: applied.get(origin, 0) for origin in {*cut, *applied}}
        held = {origin: max(count, cut.get(origin, 0)) for origin, count in held.items()}
        return cls(str(node["origin"]), int(node["counter"]), cut, held, added)

    @property
    def due(self) -> int:
        """So many updates of others lie between the cut and what it holds."""
        others = (origin for origin in self.held if origin != self.origin)
        return sum(self.held[origin] - self.cut.get(origin, 0) for origin in others)


def of_workers(vector: Vector) -> dict[str, int]:
    """A vector without the origins of masters, whose lower half is 0 (core/base/exchange.h)."""
    return {origin: count for origin, count in vector.items() if int(origin) % (1 << 32)}


def lost(accounts: Sequence[Account], master: Vector) -> int:
    """Updates that some node has and another lacks, over all replicas and the master's copy.

    What a killed worker had made and nobody had accepted is in no account.
    """
    master = of_workers(master)
    all_there_are: dict[str, int] = dict(master)
    for account in accounts:
        for origin, count in {**account.held, account.origin: account.sent}.items():
            all_there_are[origin] = max(count, all_there_are.get(origin, 0))
    missing = 0
    for origin, count in all_there_are.items():
        missing += count - master.get(origin, 0)
        missing += sum(
            count - account.held.get(origin, 0) for account in accounts if account.origin != origin
        )
    return missing + sum(max(0, account.due - account.added) for account in accounts)


def twice(accounts: Sequence[Account]) -> int:
    """Updates that were added to a replica which held them already."""
    return sum(max(0, account.added - account.due) for account in accounts)
