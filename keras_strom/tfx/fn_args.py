"""`FnArgs`: what a `run_fn` is called with, made anew on each worker from plain JSON values.

Where TFX is installed on the worker it is TFX's own class, elsewhere the one here, which has the
same fields.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from typing import Any

from keras_strom.tfx import data_access
from keras_strom.tfx.installation import has_tfx
from keras_strom.tfx.options import to_json


@dataclasses.dataclass
class FnArgs:
    """TFX's `FnArgs`, for workers without TFX.

    Attributes:
        working_dir: always None.
        train_files, eval_files: patterns of the splits' files.
        train_steps: steps of this worker, see `Arguments.for_worker`; None = not limited.
        eval_steps: batches of an evaluation; None = not limited.
        schema_path, schema_file: the schema's file, or None.
        transform_graph_path, transform_output: the transform graph's folder, or None.
        data_accessor: None here; `keras_strom.tfx.read_examples` reads without TFX.
        serving_model_dir: where the chief writes the model; elsewhere a scratch folder.
        eval_model_dir: the same for a model for evaluation.
        model_run_dir: the same for TensorBoard logs and the like.
        base_model: the model to start from, or None.
        hyperparameters: a tuner's choice, or None.
        custom_config: the component's, or None.
        statistics_path: the statistics' folder, or None.
    """

    working_dir: str | None = None
    train_files: list[str] | None = None
    eval_files: list[str] | None = None
    train_steps: int | None = None
    eval_steps: int | None = None
    schema_path: str | None = None
    schema_file: str | None = None
    transform_graph_path: str | None = None
    transform_output: str | None = None
    data_accessor: Any = None
    serving_model_dir: str | None = None
    eval_model_dir: str | None = None
    model_run_dir: str | None = None
    base_model: str | None = None
    hyperparameters: dict[str, Any] | None = None
    custom_config: dict[str, Any] | None = None
    statistics_path: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments:
    """What all workers' FnArgs are made of: JSON values.

    Attributes:
        train_files, eval_files, schema_path, transform_graph_path, base_model, hyperparameters,
            custom_config, statistics_path, eval_steps: as in `FnArgs`.
        train_steps: steps of all workers together, `TrainArgs.num_steps`; None = not limited.
        serving_model_dir, eval_model_dir, model_run_dir: the chief's.
        examples: TFX's JSON of the examples' artifacts, for `FnArgs.data_accessor`.
        shuffle_seed: the seed of shuffling that all workers must do alike.
    """

    train_files: list[str]
    eval_files: list[str]
    train_steps: int | None
    eval_steps: int | None
    schema_path: str | None
    transform_graph_path: str | None
    base_model: str | None
    hyperparameters: dict[str, Any] | None
    statistics_path: str | None
    custom_config: dict[str, Any] | None
    serving_model_dir: str
    eval_model_dir: str
    model_run_dir: str
    examples: str
    shuffle_seed: int

    def to_json(self) -> str:
        """The text that travels."""
        return to_json("FnArgs", dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Arguments:
        """Reads `to_json`'s text."""
        return cls(**json.loads(text))

    def for_worker(self, rank: int, size: int, scratch: str) -> Any:
        """The FnArgs of worker `rank` of `size`.

        `train_steps` is this worker's part, rounded up: `size` workers that take them see as many
        examples as one worker that takes all. Only the chief gets the artifacts' folders.

        Args:
            rank: this worker.
            size: the number of workers.
            scratch: a folder of this worker's own, for what only the chief's is kept of.
        """
        fields = dataclasses.asdict(self)
        del fields["examples"], fields["shuffle_seed"], fields["statistics_path"]
        if self.train_steps is not None:
            fields["train_steps"] = math.ceil(self.train_steps / size)
        if rank > 0:
            for name in ("serving_model_dir", "eval_model_dir", "model_run_dir"):
                fields[name] = os.path.join(scratch, name)
        made = _class()(
            schema_file=self.schema_path, transform_output=self.transform_graph_path, **fields
        )
        made.data_accessor = data_access.accessor(self.examples, self._share(rank, size))
        made.statistics_path = self.statistics_path
        return made

    def _share(self, rank: int, size: int) -> data_access.Share:
        return data_access.Share(
            files=tuple(self.train_files), rank=rank, size=size, seed=self.shuffle_seed
        )


def _class() -> Any:
    if has_tfx():
        from tfx.components.trainer import fn_args_utils

        return fn_args_utils.FnArgs
    return FnArgs
