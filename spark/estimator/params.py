"""The ML Params of StromEstimator and StromModel: names, words, and what values they take.

A value is checked where it is set, by the constructor, `set` or `setParams`, and once more by
`fit`, since a parameter grid sets unchecked. What is not set has the default in the constructor's
signature.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from pyspark.ml.param import Param, Params

from keras_strom import errors
from keras_strom.checks import check_seconds, flag, whole_number
from keras_strom.dashboard.page_address import PageAddress
from keras_strom.job.network import NetworkConfig
from keras_strom.method import Method

from ..data.store import Store
from ..runner.resources import UseGpu, check_use_gpu
from ..training.method import TrainingMethod

Check = Callable[[str, Any], Any]


def param(name: str, doc: str, check: Check) -> Any:
    """A Param whose values, None aside, go through `check(name, value)`; NumPy's as Python's."""
    convert = functools.partial(_convert, check, name)  # An estimator can be pickled with it.
    return Param(Params._dummy(), name, doc, typeConverter=convert)


def _convert(check: Check, name: str, value: Any) -> Any:
    plain = value.item() if isinstance(value, np.generic) else value
    return None if plain is None else check(name, plain)


def count(name: str, value: Any) -> int:
    """A whole number of 1 or more."""
    return whole_number(name, value, 1)


def number(name: str, value: Any) -> int:
    """A whole number of 0 or more."""
    return whole_number(name, value, 0)


def seed(name: str, value: Any) -> int:
    """A whole number of 0 or more, of 32 bits."""
    found = number(name, value)
    if found >= 1 << 32:
        raise errors.InvalidOption(f"{name}={value!r} must be below 2**32")
    return found


def column(name: str, value: Any) -> str:
    """A column's name."""
    if not isinstance(value, str) or not value:
        raise errors.InvalidOption(f"{name}={value!r} must be a column's name")
    return value


def columns(name: str, value: Any) -> list[str]:
    """A list of different column names."""
    if isinstance(value, str) or not isinstance(value, list | tuple) or not value:
        raise errors.InvalidOption(f"{name}={value!r} must be a list of column names")
    names = [column(name, one) for one in value]
    if len(set(names)) < len(names):
        raise errors.InvalidOption(f"{name}={value!r} names a column twice")
    return names


def function(name: str, value: Any) -> Any:
    """Something that can be called."""
    if not callable(value):
        raise errors.InvalidOption(f"{name}={value!r} cannot be called")
    return value


def anything(name: str, value: Any) -> Any:
    """What Keras itself will judge."""
    return value


def _validation(name: str, value: Any) -> float | str:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, float) and 0 < value < 1 and math.isfinite(value):
        return value
    raise errors.InvalidOption(
        f"{name}={value!r} must be a fraction between 0 and 1, or the name of a Boolean or 0/1 "
        "column"
    )


def _model(name: str, value: Any) -> Any:
    import keras

    if not isinstance(value, keras.Model):
        raise errors.InvalidOption(
            f"{name}={value!r} must be a keras.Model; a function that makes one is model_fn="
        )
    return value


def _callbacks(name: str, value: Any) -> Any:
    import keras

    if callable(value):
        return value
    if isinstance(value, list | tuple) and all(
        isinstance(one, keras.callbacks.Callback) for one in value
    ):
        return list(value)
    raise errors.InvalidOption(
        f"{name}={value!r} must be a list of keras.callbacks.Callback, or a function that makes one"
    )


def _custom_objects(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(one, str) for one in value):
        raise errors.InvalidOption(f"{name}={value!r} must be a dict of classes by their names")
    return dict(value)


def _strategy(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        from keras_strom.strategy.strategy import StromStrategy

        known = set(inspect.signature(StromStrategy.__init__).parameters) - {"self", "network"}
        unknown = sorted(set(value) - known)
        if unknown:
            raise errors.InvalidOption(
                f"{name}: StromStrategy has no option {', '.join(map(repr, unknown))} here, only "
                f"{', '.join(sorted(known))} (network= is the estimator's own)"
            )
        return dict(value)
    if callable(value):
        return value
    raise errors.InvalidOption(
        f"{name}={value!r} must be a dict of StromStrategy's options or a function that makes a "
        "StromStrategy: it is made on each worker, so one made here has no place"
    )


def _store(name: str, value: Any) -> Store:
    return value if isinstance(value, Store) else Store.create(value)


def _run_id(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise errors.InvalidOption(f"{name}={value!r} must be a string")
    Store(os.sep).run(value)
    return value


def _resume(name: str, value: Any) -> Any:
    if value != "auto" and value is not False:
        raise errors.InvalidOption(f'{name}={value!r} must be "auto" or False')
    return value


def _network(name: str, value: Any) -> NetworkConfig:
    if not isinstance(value, NetworkConfig):
        raise errors.InvalidOption(f"{name}={value!r} must be a NetworkConfig")
    return value


def _training(name: str, value: Any) -> TrainingMethod | Method:
    if not isinstance(value, TrainingMethod | Method):
        raise errors.InvalidOption(
            f"{name}={value!r} must be a method of training: GradientSharing() or "
            "ParameterAveraging(...) of keras_strom.spark, or AllReduce(), MPCA(), SparkNet() or "
            "EASGD() of keras_strom"
        )
    return value


def seconds(name: str, value: Any) -> float:
    """A time, as a float."""
    check_seconds(name, value)
    return float(value)


def _use_gpu(name: str, value: Any) -> UseGpu:
    check_use_gpu(value)
    return value  # type: ignore[no-any-return]


def _dashboard(name: str, value: Any) -> bool | int | str:
    PageAddress.of(value)  # Refuses what makes no sense.
    return value  # type: ignore[no-any-return]


def _verbose(name: str, value: Any) -> int:
    if isinstance(value, bool) or value not in (0, 1, 2):
        raise errors.InvalidOption(f"{name}={value!r} must be 0, 1 or 2")
    return int(value)


class ColumnParams(Params):  # type: ignore[misc]
    """What an estimator and the model that it gives have in common: columns, and their outputs."""

    feature_cols = param("feature_cols", "columns that go into the model", columns)
    label_cols = param("label_cols", "columns that the outputs are compared with", columns)
    sample_weight_col = param("sample_weight_col", "column that weighs the examples", column)
    output_cols = param("output_cols", "columns for the model's outputs as they are", columns)
    prediction_col = param("prediction_col", "column for the class, or the predicted value", column)
    probability_col = param("probability_col", "column for the classes' probabilities", column)
    transformation_fn = param("transformation_fn", "changes each batch of tensors", function)
    val_batch_size = param("val_batch_size", "examples a step of prediction", count)

    def setParams(self, **values: Any) -> Any:  # noqa: N802
        """Sets parameters by name.

        Raises:
            TypeError: a name that is no parameter.
            InvalidOption: a value that makes no sense.
        """
        unknown = sorted(name for name in values if not self.hasParam(name))
        if unknown:
            raise TypeError(f"{type(self).__name__} has no parameter {', '.join(unknown)}")
        self._set(**values)
        return self

    def check_params(self) -> dict[str, Any]:
        """Every parameter's value by name, checked again."""
        values = {one.name: one.typeConverter(self.getOrDefault(one)) for one in self.params}
        for one, default in self._defaultParamMap.items():
            # Without a prediction there are still other columns; of the rest None is no value.
            if values[one.name] is None and default is not None and one.name != "prediction_col":
                raise errors.InvalidOption(f"{one.name}=None: it has no value; leave it out")
        return values

    def _adopt(self, given: Mapping[str, Any]) -> None:
        """Takes a constructor's arguments: what is not its default is set."""
        signature = inspect.signature(type(self).__init__)
        names = [name for name in signature.parameters if self.hasParam(name)]
        defaults = {name: signature.parameters[name].default for name in names}
        self._setDefault(**defaults)
        self._set(**{name: given[name] for name in names if given[name] is not defaults[name]})


class TrainingParams(ColumnParams):
    """What an estimator alone has: the model, what trains it, and where."""

    model = param("model", "the Keras model", _model)
    model_fn = param("model_fn", "makes the model on each worker", function)
    optimizer = param("optimizer", "as compile takes it", anything)
    loss = param("loss", "as compile takes it", anything)
    loss_weights = param("loss_weights", "as compile takes it", anything)
    metrics = param("metrics", "as compile takes it", anything)
    validation = param("validation", "fraction, or column that marks validation rows", _validation)
    batch_size = param("batch_size", "examples a step and worker", count)
    epochs = param("epochs", "passes over the training rows", count)
    train_steps_per_epoch = param("train_steps_per_epoch", "steps an epoch and worker", count)
    validation_steps_per_epoch = param(
        "validation_steps_per_epoch", "steps of each validation", count
    )
    callbacks = param("callbacks", "Keras callbacks, or what makes them", _callbacks)
    shuffle = param("shuffle", "whether every epoch has an order of its own", flag)
    random_seed = param("random_seed", "of weights, shuffling and held-out rows", seed)
    custom_objects = param("custom_objects", "classes the model is made of", _custom_objects)
    strategy = param("strategy", "StromStrategy's options, or what makes one", _strategy)
    store = param("store", "where data, checkpoints and the model lie", _store)
    run_id = param("run_id", "the folder in the store", _run_id)
    resume = param("resume", "whether an interrupted run of this id goes on", _resume)
    network = param("network", "the relay's options", _network)
    training = param("training", "how workers train together", _training)
    num_proc = param("num_proc", "how many workers", count)
    min_proc = param("min_proc", "how many workers are enough", count)
    max_proc = param("max_proc", "how many workers at most", count)
    max_failures = param("max_failures", "how many workers are started again", number)
    drain_seconds = param("drain_seconds", "seconds in which a worker leaves", seconds)
    start_timeout = param("start_timeout", "seconds until all workers must run", seconds)
    partitions_per_process = param("partitions_per_process", "data files a worker", count)
    use_gpu = param("use_gpu", "whether workers see GPUs", _use_gpu)
    dashboard = param("dashboard", "whether, or where, to serve a live page", _dashboard)
    verbose = param("verbose", "0 = silent, 1 = progress, 2 = a line an epoch", _verbose)
