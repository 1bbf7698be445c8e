"""What models were compiled with, in words: it must be the same on all workers.

Workers with other optimizers or losses would train towards something else, and the averages of
other metrics would be none. A class or a function counts as the same by its name alone, so that
what a program makes anew on each worker (a lambda, a closure, an instance) is never taken for
another.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import keras

from keras_strom.sharing.optimizers import parts_of

# A model may have many outputs, and the master takes 8192 bytes of options.
_MOST_CHARACTERS = 1000


def compiled_options(models: Sequence[Any]) -> str:
    """What models were compiled with, for the options that must agree on all workers.

    Args:
        models: those that a training is given.

    Returns:
        Such as " optimizer=Adam loss=mean_squared_error metrics=accuracy,AUC"; without what the
        models have not. Of many names the first, and a checksum of all.
    """
    return "".join(map(_compiled_with, models))


def _compiled_with(model: Any) -> str:
    optimizer = [type(rule).__name__ for rule in parts_of(getattr(model, "optimizer", None))]
    losses = getattr(model, "_compile_loss", None)
    metrics = getattr(model, "_compile_metrics", None)
    given = {
        "optimizer": optimizer,
        "loss": _names(keras.losses.get, losses, "_user_loss"),
        "metrics": _names(keras.metrics.get, metrics, "_user_metrics", "_user_weighted_metrics"),
    }
    return "".join(
        f" {what}={_shortened(','.join(names))}" for what, names in given.items() if names
    )


def _names(known: Callable[[str], Any], compiled: Any, *attributes: str) -> list[str]:
    """The names of all that Keras was given in these attributes, by output and then as listed."""
    given = [getattr(compiled, name, None) for name in attributes]
    return [_name(known, one) for one in keras.tree.flatten(given) if one is not None]


def _name(known: Callable[[str], Any], given: Any) -> str:
    """One name for the ways to say the same: "mse", `mean_squared_error`, `MeanSquaredError()`."""
    one: Any = given
    if isinstance(given, str):
        try:
            one = known(given)
        except ValueError:  # Of metrics, Keras knows some by the shapes of the outputs alone.
            return given
    function = getattr(one, "fn", None) or getattr(one, "_fn", None) or one
    return str(getattr(function, "__name__", type(function).__name__))


def _shortened(names: str) -> str:
    if len(names) <= _MOST_CHARACTERS:
        return names
    return f"{names[:_MOST_CHARACTERS]}...{zlib.crc32(names.encode()):08x}"
