"""Checks of arguments that several options share, in one form of words."""

from __future__ import annotations

import math
from typing import Any

from keras_strom import errors


def whole_number(name: str, value: object, least: int) -> int:
    """`value`, which must be an int of `least` or more; a bool is none.

    Raises:
        InvalidOption: it is something else; the message begins with `name`.

    Example:
        >>> whole_number("batch_size", 32, least=1)
        32
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise errors.InvalidOption(f"{name}={value!r} must be a whole number, {least} or more")
    return value


def check_number(name: str, value: object) -> None:
    """Refuses what is neither an int nor a float; a bool is none.

    Raises:
        InvalidOption: the message begins with `name`.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise errors.InvalidOption(f"{name}={value!r} must be a number")


def flag(name: str, value: Any) -> bool:
    """`value`, which must be True or False.

    Raises:
        InvalidOption: it is something else; the message begins with `name`.
    """
    if not isinstance(value, bool):
        raise errors.InvalidOption(f"{name}={value!r} must be True or False")
    return value


def check_verbose(verbose: object) -> None:
    """Refuses what a runner cannot be told of how much it is to say."""
    if verbose not in (0, 1):
        raise errors.InvalidOption(f"verbose={verbose!r} must be 0 or 1")


def check_least(name: str, least: int | None, most_name: str, most: int) -> None:
    """Refuses a least number that is none, or more than the most; None passes."""
    if least is None:
        return
    whole_number(name, least, least=1)
    if least > most:
        raise errors.InvalidOption(f"{name}={least} is more than {most_name}={most}")


def check_seconds(name: str, seconds: float) -> None:
    """Refuses what is no positive, finite number of seconds."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not (is_number and 0 < seconds < math.inf):
        raise errors.InvalidOption(
            f"{name}={seconds!r} must be a positive, finite number of seconds"
        )


def waiting_seconds(name: str, seconds: object) -> float:
    """`seconds` to wait, of which 0 are a time, too.

    Raises:
        InvalidOption: no finite number of seconds, 0 or more.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise errors.InvalidOption(f"{name}={seconds!r} must be a number of seconds")
    if not 0 <= seconds < math.inf:
        raise errors.InvalidOption(f"{name}={seconds!r} must be 0 seconds or more, and finite")
    return float(seconds)
