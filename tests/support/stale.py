"""Stale files (ESTALE) on purpose, in this process; `faults` has the failures of whole workers."""

from __future__ import annotations

import errno
import os
from collections.abc import Container
from typing import Any

import pytest


class Stale:
    """Has calls of a function fail with ESTALE, as NFS does where a file has been replaced.

    Args:
        owner, name: the function, as for `monkeypatch.setattr`.
        calls: which of its calls fail, from 0.

    Attributes:
        count: of its calls so far.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, calls: Container[int]
    ) -> None:
        self.count = 0
        work = getattr(owner, name)

        def stale(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            if self.count - 1 in calls:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            return work(*args, **kwargs)

        monkeypatch.setattr(owner, name, stale)
