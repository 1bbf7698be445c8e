"""`StromTrainer`: the pipeline component.

Where the whole TFX is installed it is a `Trainer`, elsewhere a component of its own with the same
inputs, outputs and parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from tfx import types
from tfx.dsl.components.base import base_component, executor_spec
from tfx.orchestration.data_types import RuntimeParameter
from tfx.types import standard_artifacts
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter
from tfx.types.system_executions import Train

from keras_strom import errors
from keras_strom.tfx.executor import StromExecutor
from keras_strom.tfx.installation import has_tfx
from keras_strom.tfx.options import StromOptions, join_config, read_split_args, to_json

if has_tfx():
    from tfx.components.trainer.component import Trainer as _Base
    from tfx.components.util import udf_utils
else:
    _Base = base_component.BaseComponent
    udf_utils = None


class StromTrainerSpec(ComponentSpec):  # type: ignore[misc]
    """What a StromTrainer takes and gives: Trainer's names; train_args and eval_args are JSON."""

    PARAMETERS: ClassVar[dict[str, Any]] = {
        "train_args": ExecutionParameter(type=str),
        "eval_args": ExecutionParameter(type=str),
        "module_file": ExecutionParameter(type=str, optional=True),
        "module_path": ExecutionParameter(type=str, optional=True),
        "run_fn": ExecutionParameter(type=str, optional=True),
        "custom_config": ExecutionParameter(type=str),
    }
    INPUTS: ClassVar[dict[str, Any]] = {
        "examples": ChannelParameter(type=standard_artifacts.Examples),
        "transform_graph": ChannelParameter(type=standard_artifacts.TransformGraph, optional=True),
        "schema": ChannelParameter(type=standard_artifacts.Schema, optional=True),
        "base_model": ChannelParameter(type=standard_artifacts.Model, optional=True),
        "hyperparameters": ChannelParameter(type=standard_artifacts.HyperParameters, optional=True),
        "statistics": ChannelParameter(type=standard_artifacts.ExampleStatistics, optional=True),
    }
    OUTPUTS: ClassVar[dict[str, Any]] = {
        "model": ChannelParameter(type=standard_artifacts.Model),
        "model_run": ChannelParameter(type=standard_artifacts.ModelRun),
    }
    TYPE_ANNOTATION = Train


class StromTrainer(_Base):  # type: ignore[misc]
    """Trains a Keras model on Spark's executors, by the `run_fn` that `Trainer` would call.

    The function runs on every worker, in the scope of a StromStrategy. `train_args.num_steps` are
    steps of all workers together: each takes its part of them. The first worker, the chief, writes
    the model and the logs.

    Args:
        examples: a channel of Examples.
        transform_graph: a channel of TransformGraph.
        schema: a channel of Schema.
        base_model: a channel of Model, to start from.
        hyperparameters: a channel of HyperParameters.
        statistics: a channel of ExampleStatistics, whose folder is `fn_args.statistics_path`.
        module_file: a Python file with a function `run_fn`; it and the Python files beside it are
            sent to the workers. Either this or `run_fn`.
        run_fn: "package.module.function", or the function itself, installed on the workers.
        train_args: {"splits": [...], "num_steps": n} or TFX's `TrainArgs`; default: split "train",
            as many steps as `run_fn` pleases.
        eval_args: the same for evaluation; default: split "eval".
        custom_config: JSON values for `run_fn`.
        strom: where and how to train: the keys of `keras_strom.tfx.options.StromOptions`, such as
            num_proc, master, network, strategy.

    Attributes:
        outputs: "model" (a SavedModel in Format-Serving) and "model_run" (TensorBoard logs).

    Raises:
        InvalidOption: both or neither of `module_file` and `run_fn`, no `examples`, or a mapping
            with values that are not understood.

    Example:
        >>> trainer = StromTrainer(  # doctest: +SKIP
        ...     examples=transform.outputs["transformed_examples"],
        ...     transform_graph=transform.outputs["transform_graph"],
        ...     module_file="model.py", train_args={"num_steps": 1000}, strom={"num_proc": 8})
    """

    SPEC_CLASS = StromTrainerSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(StromExecutor)

    def __init__(
        self,
        examples: types.BaseChannel | None = None,
        transform_graph: types.BaseChannel | None = None,
        schema: types.BaseChannel | None = None,
        base_model: types.BaseChannel | None = None,
        hyperparameters: types.BaseChannel | None = None,
        statistics: types.BaseChannel | None = None,
        module_file: str | RuntimeParameter | None = None,
        run_fn: str | Callable[[Any], Any] | RuntimeParameter | None = None,
        train_args: Any = None,
        eval_args: Any = None,
        custom_config: Mapping[str, Any] | None = None,
        strom: Mapping[str, Any] | None = None,
    ) -> None:
        if examples is None:
            raise errors.InvalidOption("StromTrainer needs examples=, a channel of Examples")
        if bool(module_file) == bool(run_fn):
            raise errors.InvalidOption(
                "StromTrainer takes exactly one of module_file= and run_fn=, and got "
                + ("both" if run_fn else "neither")
            )
        spec = StromTrainerSpec(
            examples=examples,
            transform_graph=transform_graph,
            schema=schema,
            base_model=base_model,
            hyperparameters=hyperparameters,
            statistics=statistics,
            module_file=module_file,
            run_fn=_name_of(run_fn),
            train_args=_split_args("train_args", train_args),
            eval_args=_split_args("eval_args", eval_args),
            custom_config=join_config(custom_config, StromOptions.of(strom)),
            model=types.Channel(type=standard_artifacts.Model),
            model_run=types.Channel(type=standard_artifacts.ModelRun),
        )
        # Not Trainer's __init__, which makes Trainer's own specification.
        base_component.BaseComponent.__init__(self, spec=spec)
        if udf_utils is not None and udf_utils.should_package_user_modules():
            udf_utils.add_user_module_dependency(self, "module_file", "module_path")


def _name_of(run_fn: Any) -> Any:
    """The name under which workers import a function."""
    if run_fn is None or isinstance(run_fn, str | RuntimeParameter):
        return run_fn
    module, name = getattr(run_fn, "__module__", None), getattr(run_fn, "__qualname__", "")
    if not callable(run_fn) or module in (None, "__main__") or not name.isidentifier():
        raise errors.InvalidOption(
            f"run_fn={run_fn!r} must be a function at the top level of a module that workers can "
            "import; give the file of another one as module_file="
        )
    return f"{module}.{name}"


def _split_args(name: str, given: Any) -> Any:
    """`train_args` or `eval_args` as JSON."""
    if isinstance(given, RuntimeParameter):
        return given
    if hasattr(given, "DESCRIPTOR"):  # TFX's TrainArgs or EvalArgs.
        from google.protobuf import json_format

        given = json_format.MessageToDict(given, preserving_proto_field_name=True)
    text = to_json(name, given if given is not None else {})
    read_split_args(name, text)  # Refuses it here rather than where it is used.
    return text
