"""Arguments of `compile`: refuses a loss, metric or optimizer by a name that Keras does not know.

Keras looks most names up when the first batch comes, on a worker. And it refuses what an optimizer
cannot take to a worker.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import keras

from keras_strom import errors

from .keras_losses import CROSSENTROPY
from .serialization import rules_of

# What Keras itself makes something of, by the shapes that it finds.
_BY_SHAPES = {"loss": CROSSENTROPY, "metrics": ("accuracy", "acc")}
_PLACES = {
    "optimizer": (keras.optimizers, keras.Optimizer),
    "loss": (keras.losses, keras.Loss),
    "metrics": (keras.metrics, keras.Metric),
}


def check_names(compiling: Mapping[str, Any]) -> None:
    """Refuses names that Keras does not know; classes of the user's own have none.

    Args:
        compiling: `optimizer`, `loss` and `metrics`, as `compile` takes them; others are left out.

    Raises:
        InvalidOption: names the argument, the name, and the nearest one that there is.
    """
    for option, (module, kind) in _PLACES.items():
        for name in _names(compiling.get(option)):
            if name.lower() in _BY_SHAPES.get(option, ()):
                continue
            try:
                module.get(name)
            except Exception as error:
                raise errors.InvalidOption(
                    f"{option}={name!r}: Keras has no {kind.__name__.lower()} of this name"
                    f"{_nearest(name, option, module, kind)}"
                ) from error


def check_decay(optimizer: Any) -> None:
    """Refuses an optimizer that spares variables of this process, which workers do not have.

    Raises:
        InvalidOption: `exclude_from_weight_decay(var_list=...)`; names travel.
    """
    if any(getattr(rule, "_exclude_from_weight_decay", None) for rule in rules_of(optimizer)):
        raise errors.InvalidOption(
            "optimizer.exclude_from_weight_decay(var_list=...) names variables of this process: "
            "workers make their own; name them by var_names=, or compile the model in model_fn"
        )


def _names(value: Any) -> Iterator[str]:
    """The strings among what `compile` takes: one, lists of them, dicts by output."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping) and "class_name" not in value:  # No serialised object.
        for one in value.values():
            yield from _names(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _names(one)


def _nearest(name: str, option: str, module: Any, kind: type) -> str:
    known = {
        one: member
        for one, member in vars(module).items()
        if inspect.isfunction(member) or (inspect.isclass(member) and issubclass(member, kind))
    }
    names = [one for one in known if one not in ("get", "serialize", "deserialize")]
    if option == "optimizer":
        names = [one.lower() for one in names]
    names += _BY_SHAPES.get(option, ())
    found = difflib.get_close_matches(name, names, n=1)
    return (
        f"; did you mean {found[0]!r}?" if found else f" (keras.{module.__name__.split('.')[-1]})"
    )
