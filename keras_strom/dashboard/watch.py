"""Who watches a job: its dashboard, or nobody, where no page was asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from keras_strom.dashboard.page_address import PageAddress
from keras_strom.dashboard.watching import Watching


def watch(
    address: PageAddress | None, name: str, workers: int, tell: Callable[[str], object]
) -> contextlib.AbstractContextManager[Watching]:
    """What a runner tells of its job, while the job runs.

    Args:
        address: of the page; None = there is none.
        name: of the job: its script.
        workers: how many it may have.
        tell: shows a line, with the page's URL.

    Raises:
        InvalidOption: on entry, what a page needs is not installed.
        AddressError: on entry, the port is in use.
    """
    if address is None:
        return contextlib.nullcontext(Watching())
    from keras_strom.dashboard.dashboard import Dashboard

    return Dashboard(address, name, workers, tell)
