"""What models were compiled with and adapted to, in words: it must be the same on all workers.

Workers with other optimizers or losses would train towards something else, and the averages of
other metrics would be none. Of layers that have adapted to other data, such as StringLookup, the
same number stands for other words, so a row of an embedding means something else on each worker.

A class or a function counts as the same by its name alone, so that what a program makes anew on
each worker (a lambda, a closure, an instance) is never taken for another.
"""

from __future__ import annotations

import math
import weakref
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np

from keras_strom.sharing.optimizers import parts_of

# A model may have many outputs, and the master takes 8192 bytes of options.
_MOST_CHARACTERS = 200

# Of vocabularies, by their tables: a million words take four seconds.
_checksums: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def compiled_options(models: Sequence[Any], *, trains_by_fit: bool = True) -> str:
    """What models were compiled with, for the options that must agree on all workers.

    Args:
        models: those that a training is given.
        trains_by_fit: a custom loop has no use for losses and metrics, which may differ there.

    Returns:
        Such as " optimizer=Adam loss=mean_squared_error metrics=accuracy,AUC"; without what the
        models have not. Of many names the first, and a checksum of all. Of each layer that looks
        words or numbers up a checksum of these, such as " adapted=StringLookup:1c291ca3".
    """
    return "".join(_compiled_with(m, trains_by_fit) + _adapted_to(m) for m in models)


def _compiled_with(model: Any, trains_by_fit: bool) -> str:
    optimizer = [type(rule).__name__ for rule in parts_of(getattr(model, "optimizer", None))]
    losses = getattr(model, "_compile_loss", None)
    metrics = getattr(model, "_compile_metrics", None)
    given = {"optimizer": optimizer}
    if trains_by_fit:
        given["loss"] = _names(keras.losses.get, losses, "_user_loss")
        names = "_user_metrics", "_user_weighted_metrics"
        given["metrics"] = _names(keras.metrics.get, metrics, *names)
    return "".join(
        f" {what}={_shortened(','.join(names))}" for what, names in given.items() if names
    )


def _adapted_to(model: Any) -> str:
    found = []
    for layer in model._flatten_layers():
        if isinstance(layer, (keras.layers.StringLookup, keras.layers.IntegerLookup)):
            learnt = _checksum_of_vocabulary(layer)
        elif isinstance(layer, keras.layers.Discretization):
            learnt = _checksum(repr(_rounded(layer.bin_boundaries or ())))
        else:
            continue
        found.append(f"{type(layer).__name__}:{learnt}")
    return f" adapted={_shortened(','.join(found))}" if found else ""


def _checksum_of_vocabulary(layer: Any) -> str:
    """Whoever adapts a layer again gives it another table."""
    table = layer.lookup_table
    if (known := _checksums.get(table)) is None:
        try:
            learnt = [str(word) for word in layer.get_vocabulary()]
        except UnicodeDecodeError:  # Keras cannot show words of other encodings.
            learnt = [str(layer.vocabulary_size())]
        if (weights := getattr(layer, "idf_weights", None)) is not None:
            learnt += _rounded(np.ravel(weights))
        known = _checksums[table] = _checksum(repr(learnt))
    return known


def _rounded(numbers: Iterable[float]) -> list[str]:
    """To some thousandths of their range: processors may differ in later digits."""
    exact = [float(number) for number in numbers]
    finite = [number for number in exact if math.isfinite(number)] or [0.0]
    spread = max(finite) - min(finite) or abs(finite[0]) / 1000 or 1.0
    power = math.floor(math.log10(spread)) - 3
    unit = 10.0**power
    return [f"{round(n / unit)}e{power}" if math.isfinite(n) else str(n) for n in exact]


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


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
    # Keras's wrappers have their function there; a program's own class may have anything.
    for function in (getattr(one, "fn", None), getattr(one, "_fn", None), one):
        if callable(function) and hasattr(function, "__name__"):
            return str(function.__name__)
    return type(one).__name__


def _shortened(names: str) -> str:
    if len(names) <= _MOST_CHARACTERS:
        return names
    return f"{names[:_MOST_CHARACTERS]}...{_checksum(names)}"
