"""Builds a model at the start of `fit` where Keras's own way would fail or lose data.

A model whose updates are shared must be built before its first step. In any strategy Keras reads a
batch, calls the model on its shape, and starts the data over, in `fit` and in each validation. A
generator cannot start over, a PyDataset whose batches are read ahead goes on where it was, a
dataset that shuffles comes in another order, and a model that has only a `train_step`, such as a
GAN, cannot be called. So a shared model is built once, and one that trains as plain Keras does is
built as there: by its first step.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras


@contextlib.contextmanager
def building_once(arguments: dict[str, Any]) -> Iterator[None]:
    """Stands around `fit`: the model is built once, and all its data reach the training.

    Args:
        arguments: fit's, by name; `x` is replaced where it can be read only once.
    """
    model = arguments["self"]
    if not getattr(model, "compiled", False):  # Keras's own error.
        yield
        return
    _accept_without_call(model)
    build = _Once(model._maybe_symbolic_build)
    first = _first_batch(arguments)
    if first is not None:
        build(data_batch=first)
    # On the object, past Keras's tracking of attributes.
    vars(model)["_maybe_symbolic_build"] = build
    try:
        yield
    finally:
        del vars(model)["_maybe_symbolic_build"]


def wrap_build(is_built_by_its_first_step: Callable[[Any], bool]) -> None:
    """Wraps once what Keras builds the models of a strategy with; later calls do nothing.

    Args:
        is_built_by_its_first_step: whether a model needs none of that, in `fit`, `evaluate` and
            wherever else Keras does it.
    """
    trainer = next(kind for kind in keras.Model.__mro__ if "_maybe_symbolic_build" in vars(kind))
    original = trainer._maybe_symbolic_build
    if getattr(original, "_keras_strom_wrap", False):
        return

    @functools.wraps(original)
    def build(model: Any, *arguments: Any, **named: Any) -> None:
        if not is_built_by_its_first_step(model):
            original(model, *arguments, **named)

    build._keras_strom_wrap = True  # type: ignore[attr-defined]
    trainer._maybe_symbolic_build = build


class _Once:
    """A function whose second and later calls do nothing."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._called = False

    def __call__(self, **arguments: Any) -> None:
        if not self._called:
            self._called = True
            self._function(**arguments)


def _first_batch(arguments: dict[str, Any]) -> Any:
    """The first batch of data that Keras must not start over; None for other data, or no batch."""
    x = arguments["x"]
    if isinstance(x, types.GeneratorType):
        first = next(x, None)
        arguments["x"] = _from_the_start(first, x)
        return first
    if isinstance(x, keras.utils.PyDataset) and x.num_batches != 0:
        return x[0]
    return None


def _from_the_start(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    if first is not None:
        yield first
        yield from rest


def _accept_without_call(model: Any) -> None:
    """Where there is nothing to call, a model is built when its parts are."""
    parts = [layer for layer in model.layers if layer is not model]
    if type(model).call is keras.Model.call and parts and all(layer.built for layer in parts):
        model.built = True
