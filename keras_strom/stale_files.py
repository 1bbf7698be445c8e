"""Files on a network's file system that have become stale while they were open (ESTALE).

NFS says so where the server has restarted, or another machine has put a new file in the place of
one that is open here. What is opened anew is found again.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")


def anew_if_stale(work: Callable[[], _Result]) -> _Result:
    """What `work` gives, which is begun anew once if a file or folder has become stale.

    Args:
        work: opens what it reads or writes itself, and may be done twice.

    Raises:
        OSError: of `work`; ESTALE only where the second time ends with it too.

    Example:
        >>> anew_if_stale(lambda: 3)
        3
    """
    try:
        return work()
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
    return work()
