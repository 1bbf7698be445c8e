"""What a join that did not work means, in words that say where to look."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from keras_strom import errors
from keras_strom.network import HostPort, format_address

_REMEDIES: Mapping[type[errors.StromError], str] = MappingProxyType(
    {
        errors.Unreachable: "is the master running there, and is that UDP port open?",
        errors.SecretRejected: "give every worker the credentials of its own job",
    }
)


@contextlib.contextmanager
def explained(who: str, master: HostPort) -> Iterator[None]:
    """Adds to a failed join who could not reach whom, and what to do."""
    try:
        yield
    except (errors.Unreachable, errors.SecretRejected) as error:
        raise type(error)(
            f"{who} cannot join the master at {format_address(master)}: {error}; "
            f"{_REMEDIES[type(error)]}"
        ) from None
