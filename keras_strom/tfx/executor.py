"""What runs when a pipeline reaches its StromTrainer.

The component's artifacts and parameters become plain values, and those a Spark job.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import zipfile
from typing import Any

from tfx.dsl.components.base import base_executor
from tfx.dsl.io import fileio
from tfx.types import artifact_utils
from tfx.utils import io_utils, json_utils, path_utils

from keras_strom import errors
from keras_strom.tfx.driver import SparkJob
from keras_strom.tfx.fn_args import Arguments
from keras_strom.tfx.options import read_split_args, split_config
from keras_strom.tfx.training import Training, strategy_arguments
from keras_strom.tfx.user_function import UserFunction

Artifacts = dict[str, list[Any]]

_logger = logging.getLogger("keras_strom")


class StromExecutor(base_executor.BaseExecutor):  # type: ignore[misc]
    """Trains on Spark what a StromTrainer describes."""

    def Do(  # noqa: N802  # TFX's name.
        self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]
    ) -> None:
        """Runs the user's function on the workers; the chief's model is the output.

        Raises:
            InvalidOption: a split, the function or the model that it should write is missing, or a
                threshold and the like has no such option.
            Unreachable: no Spark, or executors that do not see the artifacts.
            WorkerFailed: the first failure of a worker.
        """
        self._log_startup(input_dict, output_dict, exec_properties)
        custom_config, options = split_config(exec_properties.get("custom_config"))
        strategy_arguments(options.strategy or {})  # Refuses here what each worker would.
        training = Training(
            arguments=arguments_of(input_dict, output_dict, exec_properties, custom_config),
            function=function_of(exec_properties),
            strategy=options.strategy,
        )
        SparkJob(
            options=options,
            training=training.to_json(),
            inputs=_inputs(training.arguments),
            outputs=tuple(artifact_utils.get_single_uri(output_dict[key]) for key in output_dict),
        ).run()
        folder = training.arguments.serving_model_dir
        if not fileio.exists(folder):
            raise errors.InvalidOption(
                f"the chief has written its model to {folder}, but it is not there for the "
                "pipeline: put the pipeline's root on storage that all machines share"
            )
        _logger.info("model in %s, logs in %s", folder, training.arguments.model_run_dir)


def arguments_of(
    inputs: Artifacts,
    outputs: Artifacts,
    exec_properties: dict[str, Any],
    custom_config: dict[str, Any] | None,
) -> Arguments:
    """What a component's artifacts and parameters mean to `run_fn`, as JSON values.

    Raises:
        InvalidOption: examples without a split that is wanted, or with an empty one.
    """
    train_splits, train_steps = read_split_args("train_args", exec_properties["train_args"])
    eval_splits, eval_steps = read_split_args("eval_args", exec_properties["eval_args"])
    model = artifact_utils.get_single_uri(outputs["model"])
    return Arguments(
        train_files=_files(inputs["examples"], train_splits or ["train"]),
        eval_files=_files(inputs["examples"], eval_splits or ["eval"]),
        train_steps=train_steps,
        eval_steps=eval_steps,
        schema_path=_only_file(inputs, "schema"),
        transform_graph_path=_folder(inputs, "transform_graph"),
        base_model=_base_model(inputs),
        hyperparameters=_hyperparameters(inputs),
        statistics_path=_folder(inputs, "statistics"),
        custom_config=custom_config,
        serving_model_dir=path_utils.serving_model_dir(model),
        eval_model_dir=path_utils.eval_model_dir(model),
        model_run_dir=artifact_utils.get_single_uri(outputs["model_run"]),
        examples=json_utils.dumps(inputs["examples"]),
        shuffle_seed=secrets.randbits(31),
    )


def function_of(exec_properties: dict[str, Any]) -> UserFunction:
    """The user's function with its sources, from whichever parameter names it.

    Raises:
        InvalidOption: there is no such file.
    """
    if exec_properties.get("module_path"):  # "name@wheel", made by TFX of the module file.
        module, _, wheel = exec_properties["module_path"].partition("@")
        if not wheel:
            return UserFunction(module, "run_fn", {})
        with fileio.open(wheel, "rb") as file, zipfile.ZipFile(file) as archive:
            names = [name for name in archive.namelist() if _is_module(name)]
            sources = {name: archive.read(name).decode() for name in names}
        return UserFunction(module, "run_fn", sources)
    if exec_properties.get("module_file"):
        path = exec_properties["module_file"]
        if not (path.endswith(".py") and fileio.exists(path)):
            raise errors.InvalidOption(f"module_file={path!r} is no Python file that exists here")
        folder, own_name = os.path.split(path)
        sources = {
            name: io_utils.read_string_file(os.path.join(folder, name))
            for name in fileio.listdir(folder or ".")
            if _is_module(name)
        }
        return UserFunction(own_name.removesuffix(".py"), "run_fn", sources)
    return UserFunction.of_path(exec_properties.get("run_fn") or "")


def _inputs(arguments: Arguments) -> tuple[str, ...]:
    """The folders and files that workers read."""
    folders = {os.path.dirname(p) for p in (*arguments.train_files, *arguments.eval_files)}
    others = (
        arguments.schema_path,
        arguments.transform_graph_path,
        arguments.base_model,
        arguments.statistics_path,
    )
    return tuple(sorted(folders | {path for path in others if path}))


def _files(examples: list[Any], splits: list[str]) -> list[str]:
    """A pattern for the files of each split in each artifact."""
    patterns = []
    for split in splits:
        for artifact in examples:
            there = json.loads(artifact.split_names or "[]")
            if split not in there:
                raise errors.InvalidOption(
                    f"the examples have no split {split!r}, they have {', '.join(there) or 'none'}"
                    "; name splits in train_args and eval_args"
                )
            folder = os.path.join(artifact.uri, f"Split-{split}")
            pattern = os.path.join(folder, "*")
            if not fileio.glob(pattern):
                raise errors.InvalidOption(f"split {split!r} of the examples is empty: {folder}")
            patterns.append(pattern)
    return patterns


def _folder(inputs: Artifacts, key: str) -> str | None:
    return str(artifact_utils.get_single_uri(inputs[key])) if inputs.get(key) else None


def _only_file(inputs: Artifacts, key: str) -> str | None:
    folder = _folder(inputs, key)
    return None if folder is None else str(io_utils.get_only_uri_in_dir(folder))


def _base_model(inputs: Artifacts) -> str | None:
    if not inputs.get("base_model"):
        return None
    artifact = artifact_utils.get_single_instance(inputs["base_model"])
    old = path_utils.is_old_model_artifact(artifact)
    return str(path_utils.serving_model_path(artifact.uri, old))


def _hyperparameters(inputs: Artifacts) -> dict[str, Any] | None:
    path = _only_file(inputs, "hyperparameters")
    if path is None:
        return None
    values: dict[str, Any] = json.loads(io_utils.read_string_file(path))
    return values


def _is_module(name: str) -> bool:
    is_hidden = name.startswith(".")  # An editor's or a system's own, beside a module.
    return name.endswith(".py") and "/" not in name and name != "__init__.py" and not is_hidden
