"""What several tests share: a result that takes long is made once, and so is a failure."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

_Result = TypeVar("_Result")


def once(make: Callable[..., _Result]) -> Callable[..., _Result]:
    """`functools.cache`, which keeps an exception, too: the next tests raise it at once.

    Args:
        make: with arguments that can be hashed.
    """

    @functools.cache
    def outcome(*arguments: Any) -> tuple[_Result | None, BaseException | None]:
        try:
            return make(*arguments), None
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # What pytest raises of its own is no Exception.
            return None, error

    @functools.wraps(make)
    def kept(*arguments: Any) -> _Result:
        result, error = outcome(*arguments)
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    return kept
