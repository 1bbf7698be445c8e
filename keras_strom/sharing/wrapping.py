"""Puts functions of ours around those of Keras and of Python, once in a process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_WRAPPED = "_keras_strom_wrap"


def is_wrapped(function: Any) -> bool:
    """Whether `wrap_once` has made it."""
    return bool(getattr(function, _WRAPPED, False))


def definer_of(kind: type, name: str) -> Any:
    """The class in which an attribute of `kind` is defined, the first where there are several."""
    return next(one for one in kind.__mro__ if name in vars(one))


def wrap_once(owner: Any, name: str, instead: Callable[..., Any]) -> bool:
    """Has `instead` called in the place of another package's function; a second call does nothing.

    Args:
        owner: the class or module that has the function.
        name: the function's.
        instead: called with the original function, and then with what that was to be called with.

    Returns:
        Whether this call has done it.
    """
    original = getattr(owner, name)
    if is_wrapped(original):
        return False

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return instead(original, *args, **kwargs)

    setattr(wrapped, _WRAPPED, True)
    setattr(owner, name, wrapped)
    return True
