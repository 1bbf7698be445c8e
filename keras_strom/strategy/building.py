"""Builds a model at the start of `fit` where Keras's own way would fail or lose data.

A model whose updates are shared must be built before its first step. In any strategy Keras reads a
batch, calls the model on its shape, and starts the data over, in `fit` and in each validation. A
generator cannot start over, a PyDataset whose batches are read ahead goes on where it was, and a
dataset that shuffles comes in another order. A model with a `train_step` of its own cannot always
be called on its data: a GAN cannot at all, one that embeds pairs takes them one by one. So a shared
model is built once, no data are read for one that is built, and one that trains as plain Keras does
is built as there: by its first step.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras

from keras_strom.sharing import model_checks
from keras_strom.sharing.wrapping import definer_of, wrap_once


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
    build = _Once(model, model._maybe_symbolic_build)
    first = None if _is_built(model) else _first_batch(arguments)
    if first is not None:
        build(data_batch=first)
    # On the object, past Keras's tracking of attributes.
    vars(model)["_maybe_symbolic_build"] = build
    try:
        yield
    finally:
        del vars(model)["_maybe_symbolic_build"]


def wrap_build(kind: type, is_built_by_its_first_step: Callable[[Any], bool]) -> None:
    """Wraps once what Keras builds the models of a strategy with; later calls do nothing.

    Args:
        kind: of strategies whose models may be compiled outside their scope.
        is_built_by_its_first_step: whether a model needs none of that, in `fit`, `evaluate` and
            wherever else Keras does it.
    """

    def build(original: Callable[..., None], model: Any, *arguments: Any, **named: Any) -> None:
        if isinstance(strategy := model.distribute_strategy, kind):  # As in `fit`.
            model_checks.adopt_optimizer(getattr(model, "optimizer", None), strategy)
        if is_built_by_its_first_step(model):
            _build_optimizer(model)  # A callback that restores weights may want it before.
        elif not _is_built(model):
            original(model, *arguments, **named)

    name = "_maybe_symbolic_build"
    wrap_once(definer_of(keras.Model, name), name, build)


def build_for(model: keras.Model, batch: Any) -> None:
    """Builds a model and what it is compiled with, without reading data.

    Args:
        model: made in a strategy's scope.
        batch: the `element_spec` of its training dataset.
    """
    with model.distribute_strategy.scope():
        model._symbolic_build(data_batch=batch)


def _is_built(model: Any) -> bool:
    """Whether Keras would read a batch, and start the data over, to build nothing."""
    compiled = (getattr(model, name, None) for name in ("_compile_metrics", "_compile_loss"))
    parts = (*model._flatten_layers(), *compiled, getattr(model, "optimizer", None))
    return all(part is None or part.built for part in parts)


def _build_optimizer(model: keras.Model) -> None:
    """Where all variables that it may change are there."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and all(layer.built for layer in model._flatten_layers()):
        with model.distribute_strategy.scope():
            optimizer.build(model.trainable_variables)


class _Once:
    """Builds a model when it is called first, and never again.

    Args:
        model: to be built.
        build: how Keras does it.
    """

    def __init__(self, model: keras.Model, build: Callable[..., None]) -> None:
        self._model = model
        self._build = build
        self._called = False

    def __call__(self, **arguments: Any) -> None:
        if self._called:
            return
        self._called = True
        try:
            self._build(**arguments)
        except (ValueError, RuntimeError):
            if not _calls_itself(self._model):
                raise
            # Metrics and losses are no part of what is shared; they may come with the first step.
            _build_optimizer(self._model)


def _calls_itself(model: keras.Model) -> bool:
    """Whether a model that is built has a `train_step` of its own.

    Then data need not be what the model itself is called on, such as pairs of pictures of which it
    embeds one after the other.
    """
    own = type(model).train_step is not keras.Model.train_step
    return own and all(layer.built for layer in model._flatten_layers())


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
