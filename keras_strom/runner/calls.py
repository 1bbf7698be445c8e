"""A user's function as workers call it: what of it cannot travel is said in words."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_strom import errors
from keras_strom.runner.work import Function


def call_of(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> Function:
    """The call `fn(*args, **kwargs)`.

    Raises:
        InvalidOption: it is none, or cannot be pickled.
    """
    if not callable(fn):
        raise errors.InvalidOption(f"fn={fn!r} cannot be called")
    if not isinstance(args, Sequence) or isinstance(args, str | bytes):
        raise errors.InvalidOption(f"args={args!r} must be a tuple or a list: fn's arguments")
    kwargs = {} if kwargs is None else kwargs
    if not isinstance(kwargs, Mapping):
        raise errors.InvalidOption(f"kwargs={kwargs!r} must be a dict: fn's arguments by name")
    try:
        return Function.of(fn, *args, **kwargs)
    except errors.StromError:
        raise
    except Exception as error:  # Pickle's, or whatever an object makes of being pickled.
        raise errors.InvalidOption(
            f"fn={fn!r}, its arguments or what it refers to cannot be pickled: {error}; make "
            "inside fn what cannot travel (models, sessions, locks, open files)"
        ) from error


def returned(rank: int, result: bytes, where: str) -> Any:
    """What a worker's function has returned.

    Args:
        rank: the worker's.
        result: it, pickled.
        where: this process, in words.

    Raises:
        StromError: it cannot be read.
    """
    try:
        return pickle.loads(result)
    except Exception as error:
        raise errors.StromError(
            f"the result of worker {rank} cannot be read {where}: {error}; does it use a class "
            f"that cannot be imported {where}?"
        ) from error
