"""What each worker of a StromTrainer runs: `train`, with all it needs to know as one JSON text."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from keras_strom import errors
from keras_strom.job import environment
from keras_strom.tfx.fn_args import Arguments
from keras_strom.tfx.options import NESTED_OPTIONS, TYPED_OPTIONS, to_json
from keras_strom.tfx.user_function import UserFunction

# The signature by which TensorFlow Serving calls a model unless it is told another.
_SERVED = "serving_default"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """The same value for every worker.

    Attributes:
        arguments: what the FnArgs are made of.
        function: the user's.
        strategy: the options of the StromStrategy to call it under; None = it makes its own.
    """

    arguments: Arguments
    function: UserFunction
    strategy: Mapping[str, Any] | None

    def to_json(self) -> str:
        """The text that travels."""
        parts = {
            "arguments": self.arguments.to_json(),
            "function": self.function.to_json(),
            "strategy": self.strategy,
        }
        return to_json("strom", parts)

    @classmethod
    def from_json(cls, text: str) -> Training:
        """Reads `to_json`'s text."""
        parts = json.loads(text)
        return cls(
            arguments=Arguments.from_json(parts["arguments"]),
            function=UserFunction.from_json(parts["function"]),
            strategy=parts["strategy"],
        )


def train(text: str) -> None:
    """Calls the user's function on this worker; `text` is `Training.to_json`'s.

    Raises:
        InvalidOption: the chief's call has written no model, or an option makes no sense.
        UnsupportedModel: the function enters another strategy than MirroredStrategy.
    """
    training = Training.from_json(text)
    rank, size = environment.rank(), environment.size()
    with (
        tempfile.TemporaryDirectory(prefix="keras-strom-tfx-") as scratch,
        _strategy_scope(training.strategy),
    ):
        run_fn = training.function.load(scratch)
        run_fn(training.arguments.for_worker(rank, size, scratch))
    if rank == 0:
        _check_written(training)


@contextlib.contextmanager
def _strategy_scope(options: Mapping[str, Any] | None) -> Iterator[None]:
    if options is None:
        yield
        return
    from keras_strom.strategy.strategy import StromStrategy

    strategy = StromStrategy(**strategy_arguments(options))
    try:
        with _in_place_of_mirrored(strategy), strategy.scope():
            yield
    except RuntimeError as error:
        # TensorFlow's words for two strategies at a time; they do not say what to do.
        if "different tf.distribute.Strategy" not in str(error):
            raise
        raise errors.UnsupportedModel(
            "run_fn enters a strategy of its own, but is called under a StromStrategy: use "
            "tf.distribute.get_strategy() there, or strom={'strategy': None} and StromStrategy()"
        ) from error


@contextlib.contextmanager
def _in_place_of_mirrored(strategy: Any) -> Iterator[None]:
    """Within it `tf.distribute.MirroredStrategy()` is `strategy`.

    Most functions written for Trainer make one, to use what the machine has. They need no change.
    """
    from tensorflow import distribute

    def make(devices: Any = None, cross_device_ops: Any = None) -> Any:
        if devices is not None or cross_device_ops is not None:
            raise errors.InvalidOption(
                "run_fn's MirroredStrategy is the job's StromStrategy, so its arguments have no "
                "effect; name devices in strom={'strategy': {'devices': [...]}}"
            )
        return strategy

    original = distribute.MirroredStrategy
    distribute.MirroredStrategy = make
    try:
        yield
    finally:
        distribute.MirroredStrategy = original


def strategy_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of StromStrategy for the JSON values of `strom["strategy"]`."""
    import keras_strom

    arguments = dict(options)
    for name in TYPED_OPTIONS:
        value = arguments.get(name)
        if value is None:
            continue
        fields = {field: given for field, given in value.items() if field != "type"}
        for field, kind in NESTED_OPTIONS.items():
            if isinstance(fields.get(field), Mapping):
                fields[field] = _made(name, getattr(keras_strom, kind), fields[field])
        arguments[name] = _made(name, getattr(keras_strom, value["type"]), fields)
    return arguments


def _made(option: str, kind: Any, fields: Mapping[str, Any]) -> Any:
    """The value of a class that is a dataclass.

    Raises:
        InvalidOption: it has no such field, or says what is wrong with a value.
    """
    unknown = sorted(set(fields) - {field.name for field in dataclasses.fields(kind)})
    if unknown:
        raise errors.InvalidOption(
            f"strom['strategy'][{option!r}]: {kind.__name__} has no {', '.join(unknown)}"
        )
    return kind(**fields)


def _check_written(training: Training) -> None:
    from tensorflow.io import gfile

    folder = training.arguments.serving_model_dir
    if not (gfile.isdir(folder) and gfile.listdir(folder)):
        raise errors.InvalidOption(
            f"{training.function.module}.{training.function.name} has written no model to "
            f"fn_args.serving_model_dir, {os.path.join(folder, '')}: end it with "
            "model.export(fn_args.serving_model_dir)"
        )
    if _SERVED not in _signatures(folder):
        warnings.warn(
            f"{folder} holds no SavedModel with a signature {_SERVED}, which Evaluator and "
            "TensorFlow Serving look for: write one with model.export(fn_args.serving_model_dir)",
            RuntimeWarning,
            stacklevel=3,
        )


def _signatures(folder: str) -> set[str]:
    """The names of a SavedModel's signatures; none where there is no SavedModel."""
    from tensorflow.core.protobuf import saved_model_pb2
    from tensorflow.io import gfile

    path = os.path.join(folder, "saved_model.pb")
    if not gfile.exists(path):
        return set()
    with gfile.GFile(path, "rb") as file:
        model = saved_model_pb2.SavedModel.FromString(file.read())
    return {name for graph in model.meta_graphs for name in graph.signature_def}
