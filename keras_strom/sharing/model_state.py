"""What models hold beside the weights that optimizers train, as `tf.Variable`s and as vectors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from keras_strom.sharing.flat_space import Entry, FlatSpace
from keras_strom.sharing.optimizers import averages_of, parts_of

# Metrics whose result grows with the number of examples.
_SUMS = (
    keras.metrics.Sum,
    keras.metrics.TruePositives,
    keras.metrics.TrueNegatives,
    keras.metrics.FalsePositives,
    keras.metrics.FalseNegatives,
)


def untrained_state(models: Sequence[Any], space: FlatSpace) -> list[Any]:
    """What no optimizer trains: BatchNormalization's averages, the state of random numbers."""
    shared = {id(entry.variable) for entry in space.entries if entry.variable.trainable}
    found = tf_variables(v for model in models for v in model.non_trainable_variables)
    return [v for v in found if id(v) not in shared]


def averaged_state(models: Sequence[Any], space: FlatSpace) -> list[Any]:
    """That part of `untrained_state` of which an average makes sense."""
    return [v for v in untrained_state(models, space) if v.dtype.is_floating]


def metric_sums(models: Sequence[Any]) -> list[Any]:
    """What the models' metrics add up."""
    found = tf_variables(v for model in models for m in model.metrics for v in m.variables)
    return [v for v in found if v.dtype.is_floating or v.dtype.is_integer]


def assign_mean(
    models: Sequence[Any], variables: list[Any], mean: npt.NDArray[np.float64], workers: int
) -> None:
    """Assigns what several workers have of some variables, as of state and metrics of all.

    That is the mean, but the sum where a metric counts in whole numbers (MeanIoU's confusion
    matrix): their mean is none, and of small ones little would be left. So it is where the result
    itself is a sum (TruePositives), not a share of one.

    Args:
        models: whose metrics the variables may be of.
        variables: of these.
        mean: of the workers' `read(variables)`.
        workers: so many.
    """
    metrics = [part for model in models for metric in model.metrics for part in _parts(metric)]
    counting = [
        metric
        for metric in metrics
        if isinstance(metric, _SUMS) or any(v.value.dtype.is_integer for v in metric.variables)
    ]
    whole = {id(variable.value) for metric in counting for variable in metric.variables}
    factors = [float(workers) if id(variable) in whole else 1.0 for variable in variables]
    sizes = [int(np.prod(variable.shape, dtype=np.int64)) for variable in variables]
    assign(variables, mean * np.repeat(factors, sizes))


def _parts(metric: Any) -> Sequence[Any]:
    """The metrics behind one of a model's, which stands for all that it was compiled with."""
    parts: Sequence[Any] = getattr(metric, "metrics", [metric])
    return parts


def moving_averages(models: Sequence[Any]) -> list[Any]:
    """The optimizers' averages of the parameters, which Keras installs at the end of fit."""
    found: list[Any] = []
    for model in models:
        for optimizer in parts_of(getattr(model, "optimizer", None)):
            if getattr(optimizer, "use_ema", False):
                found += tf_variables(averages_of(optimizer))
    return found


def take_over_adapted(models: Sequence[Any]) -> None:
    """After an assignment: layers go by what their variables say now of data they were adapted to.

    Normalization makes tensors of them once, which all else of the model then computes with.
    """
    for model in models:
        for layer in model._flatten_layers():
            if isinstance(layer, keras.layers.Normalization):
                layer.finalize_state()


def left_to_the_program(models: Sequence[Any], space: FlatSpace) -> list[Entry]:
    """The models' trainable variables that no optimizer has touched on this worker.

    A target network, or a network of moving averages, that a `train_step` assigns itself.
    """
    mine = {id(v.value) for model in models for v in model.weights}
    return [
        entry
        for entry in space.entries
        if id(entry.variable) in mine
        and entry.variable.trainable
        and space.is_agreed(entry.variable)
        and not space.is_sent(entry)
    ]


def tf_variables(variables: Iterable[Any]) -> list[Any]:
    """The `tf.Variable`s of Keras variables, each once."""
    return list({id(variable): variable.value for variable in variables}.values())


def read(variables: list[Any]) -> npt.NDArray[np.float64]:
    """The values of all, one after the other."""
    if not variables:
        return np.zeros(0, np.float64)
    return np.concatenate([np.asarray(v.numpy(), np.float64).ravel() for v in variables])


def assign(variables: list[Any], values: npt.NDArray[np.float64]) -> None:
    """The inverse of `read`; integers are rounded."""
    offset = 0
    for variable in variables:
        size = int(np.prod(variable.shape, dtype=np.int64))
        part = values[offset : offset + size].reshape(variable.shape)
        offset += size
        if variable.dtype.is_integer:
            part = np.rint(part)
        variable.assign(part.astype(variable.dtype.as_numpy_dtype))
