"""StromModel: a Keras model as a stage of Spark ML."""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
from pyspark.ml import Model
from pyspark.ml.util import MLReadable, MLWritable

from keras_strom import errors

from ..data.checked import explain
from ..data.columns import Columns, ColumnSpec, Fields, check_dataframe, inspect, select
from ..data.connect import context_of, is_connect
from ..inference.dry_run import dry_run
from ..inference.labels import LabelsByName, in_order, labels_by_name
from ..inference.outputs import OutputColumns, Outputs
from ..inference.pickled import loads
from ..inference.prediction import (
    ROW,
    BroadcastPayload,
    Inference,
    InPlan,
    examples,
    losses,
    measure,
    metric_results,
    metric_state,
    predict,
    score,
    taking_labels,
    zeros,
)
from ..inference.serialization import PackedModel, pack
from ..runner.executors import check_python_memory, refuse_mismatch
from ..runner.timeline import Timeline
from .params import ColumnParams
from .persistence import Reader, Writer, not_plain

if TYPE_CHECKING:
    from keras import Model as KerasModel
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField

# Spark Connect's clients send 128 MiB at most, and a plan holds more than the model.
_MOST_IN_PLAN = 120 << 20


class StromModel(ColumnParams, Model, MLWritable, MLReadable):  # type: ignore[misc]
    """A trained Keras model that predicts on DataFrames, streaming ones too.

    `StromEstimator.fit` gives one.

    All arguments but `model` and `custom_objects` are ML Params.

    Args:
        model: any Keras model that is built, to predict with a model from elsewhere.
        feature_cols: columns that go into the model; several go to the inputs of their names.
        label_cols: columns for `evaluate` and `score`; `transform` does not need them.
        sample_weight_col: weighs the examples in `evaluate` and `score`; or None.
        output_cols: columns for the model's outputs as they are (numbers, or arrays as deep as
            their shape), one each; None = none, or "LABEL__output" for a model with several. A
            dict's outputs go to columns of their names, else as `label_cols` name them, else in the
            dict's order.
        prediction_col: for a model with one output: the class (double) where its loss is a
            categorical or binary cross-entropy, else the value (double, or arrays); None = none.
        probability_col: the classes' probabilities as an ML vector; None = none.
        transformation_fn: changes a batch as in training. In `transform` it is given zeros for the
            labels; for those that are bytes or strings, what they are in one row of the training,
            which is saved with the model, or of the DataFrame for a model from elsewhere.
        val_batch_size: rows a step of prediction.
        custom_objects: classes that the model is made of, where `keras.saving` does not know them.

    Raises:
        InvalidOption: an argument that makes no sense.
        UnsupportedModel: the model cannot be sent to executors.

    Example:
        >>> model = estimator.fit(train)  # doctest: +SKIP
        >>> model.transform(test).select("label", "prediction").show()  # doctest: +SKIP
        >>> model.evaluate(test)["accuracy"]  # doctest: +SKIP
        0.93
    """

    # What saved pipelines name, wherever the class lies.
    __module__ = "keras_strom.spark"

    def __init__(
        self,
        *,
        model: KerasModel | None = None,
        feature_cols: Sequence[str] | None = None,
        label_cols: Sequence[str] | None = None,
        sample_weight_col: str | None = None,
        output_cols: Sequence[str] | None = None,
        prediction_col: str | None = "prediction",
        probability_col: str | None = None,
        transformation_fn: Callable[..., Any] | None = None,
        val_batch_size: int = 1024,
        custom_objects: Mapping[str, Any] | None = None,
    ) -> None:
        given = dict(locals())
        super().__init__()
        self._adopt(given)
        self._packed = None if model is None else pack(model, custom_objects=custom_objects)
        self._specs: dict[str, ColumnSpec] = {}
        self._outputs: Outputs | None = None
        self._outputs_of: tuple[ColumnSpec, ...] | None = None
        self._keras: KerasModel | None = None
        self._payload: tuple[str, BroadcastPayload] | None = None
        #: What `fit` has logged: a value an epoch, by name; {} for a model from elsewhere.
        self.history: dict[str, list[Any]] = {}
        #: What driver and workers did in `fit`, and when; it is not saved with the model.
        self.timeline: Timeline | None = None
        #: The run in the store; None = there is none.
        self.run_id: str | None = None

    @property
    def keras(self) -> KerasModel:
        """The Keras model, made when first asked for."""
        if self._keras is None:
            self._keras = self._model().load()
        return self._keras

    def evaluate(self, df: DataFrame) -> dict[str, Any]:
        """Loss and metrics over a DataFrame, computed where its partitions are.

        Each partition counts by itself and the counts are added up, so what Keras computes from
        counts (accuracy, AUC, mean errors, ...) is that of all rows at once.

        Args:
            df: features, labels and, where it is set, the sample weight.

        Returns:
            What `keras.Model.evaluate(return_dict=True)` gives: "loss" and the metrics by name;
            of a metric with several values (`F1Score`) an array.

        Raises:
            InvalidData: no rows, or columns that do not fit.
            UnsupportedModel: a model that is not compiled.
        """
        columns, specs = self._examined(df, with_labels=True)
        if df.isStreaming:
            raise errors.InvalidData(
                "a streaming DataFrame has no last row to evaluate: use score(), or evaluate() on "
                "each batch (df.writeStream.foreachBatch)"
            )
        self._require_loss()
        payload = self._broadcast(df, columns, specs)
        model = self._measuring(columns, specs)
        rows = select(df, {name: specs[name] for name in columns.names})
        try:
            found = rows.mapInArrow(functools.partial(measure, payload), "state binary").collect()
        except Exception as error:
            from ..runner.runner import root_cause

            refuse_mismatch(*root_cause(str(error)))
            raise explain(error) from error
        if not found:
            raise errors.InvalidData("the DataFrame has no rows to evaluate on")
        counted = [pickle.loads(row["state"]) for row in found]
        for part in counted:
            if isinstance(part, errors.InvalidData):
                raise part
        state = [np.sum(parts, axis=0) for parts in zip(*counted, strict=True)]
        for variable, value in zip(metric_state(model), state, strict=True):
            variable.assign(value)
        return metric_results(model)

    def score(self, df: DataFrame, score_col: str = "score") -> DataFrame:
        """Adds each row's loss (float), times its sample weight: what the model finds hard.

        The sum of all outputs' losses by their weights; without what layers add themselves, and of
        what a layer masks (padding).

        Args:
            df: features, labels and, where it is set, the sample weight.
            score_col: the name of the new column.

        Raises:
            InvalidData: columns that do not fit, or no labels that a loss is computed of.
            UnsupportedModel: a model that is not compiled, or a loss that is of all rows together.
        """
        from pyspark.sql.types import FloatType, StructField

        columns, specs = self._examined(df, with_labels=True)
        require_free(df, (score_col,))
        self._require_loss()
        payload = self._broadcast(df, columns, specs)
        self._try_to_score(columns, specs)
        work = functools.partial(score, payload, score_col)
        return _with_rows(df, columns, specs, work, [StructField(score_col, FloatType(), False)])

    def __getstate__(self) -> dict[str, Any]:
        # What each process makes anew; a broadcast, which `transform` leaves, cannot be pickled.
        return {**self.__dict__, "_keras": None, "_payload": None}

    def __copy__(self) -> StromModel:
        # `transform(df, params)` works with a copy, for which the model need not travel again.
        copied = type(self).__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def write(self) -> Writer:
        """Saves Params, history and the Keras model (`model.keras`)."""
        return Writer(self)

    @classmethod
    def read(cls) -> Reader:
        """Loads what `write` has saved; runs pickled code."""
        return Reader(cls)

    def _transform(self, df: DataFrame) -> DataFrame:
        columns, specs = self._examined(df, with_labels=False)
        made = self._output_columns(columns, specs)
        require_free(df, made.names)
        payload = self._broadcast(df, columns, specs)
        work = functools.partial(predict, payload, made)
        return _with_rows(df, columns, specs, work, made.fields())

    def _examined(
        self, df: DataFrame, *, with_labels: bool
    ) -> tuple[Columns, dict[str, ColumnSpec]]:
        """The columns that are used, and what they hold: as in training, or as in `df`."""
        check_dataframe(df)
        params = self.check_params()
        features = params["feature_cols"]
        if features is None:
            raise errors.InvalidOption("feature_cols is not set: which columns go into the model?")
        labels = tuple(params["label_cols"] or ()) if with_labels else ()
        if with_labels and not labels:
            raise errors.InvalidOption("label_cols is not set: what is the model compared with?")
        columns = Columns(tuple(features), labels, params["sample_weight_col"] if labels else None)
        trained, function = bool(self._specs), params["transformation_fn"]
        shapes = df.isStreaming or trained or function is None
        # To predict with a trained model nothing is tried, and nothing asked of Spark.
        tried = function is not None and (with_labels or not trained)
        specs = inspect(df, columns, self._shapes(columns) if shapes else None, with_strings=tried)
        for name, spec in self._specs.items():
            if name in specs:
                specs[name] = _as_trained(name, specs[name], spec)
        specs = {**self._specs, **specs}
        given = self._with_labels(columns)
        missing = [name for name in given.names if name not in specs]
        fields = Fields(df)
        there = tuple(name for name in given.labels if name in missing and fields.of(name))
        specs |= dict.fromkeys(missing, ColumnSpec("scalar", "float32"))
        found = inspect(df, Columns(there, ()), with_strings=True) if there else {}
        return columns, {**specs, **found}

    def _with_labels(self, columns: Columns) -> Columns:
        """With the labels and the weight that `transformation_fn` takes, if there is one."""
        params = self.check_params()
        labels = tuple(params["label_cols"] or ())
        if params["transformation_fn"] is None or not labels:
            return columns
        return Columns(columns.features, labels, params["sample_weight_col"])

    def _shapes(self, columns: Columns) -> dict[str, tuple[int, ...]]:
        """What the model itself tells of its columns, one of which it may have under any name."""
        if self._specs:
            return {name: spec.shape for name, spec in self._specs.items()}
        inputs = getattr(self.keras, "inputs", None) or ()
        tensors = {one.name: tuple(one.shape[1:]) for one in inputs}
        if len(tensors) == len(columns.features) == 1:
            tensors = dict.fromkeys(columns.features, *tensors.values())
        return {name: shape for name, shape in tensors.items() if None not in shape}

    def _output_columns(self, columns: Columns, specs: Mapping[str, ColumnSpec]) -> OutputColumns:
        params = self.check_params()
        features = tuple(specs[name] for name in columns.features)
        # How long the outputs of a model from elsewhere are may depend on its rows.
        if self._outputs is None or not (self._specs or self._outputs_of == features):
            function = params["transformation_fn"]
            trial = dry_run(
                self._model(), self._with_labels(columns), specs, function, trains=False
            )
            self._outputs, self._outputs_of = trial.outputs, features
        return output_columns(self._outputs, params)

    def _model(self) -> PackedModel:
        if self._packed is None:
            raise errors.InvalidOption("this StromModel has no Keras model: give model=")
        return self._packed

    def _require_loss(self) -> None:
        if not self.keras.compiled:
            raise errors.UnsupportedModel(
                "the model is not compiled, so it has no loss and no metrics: compile it before "
                "StromModel(model=...)"
            )

    def _broadcast(
        self, df: DataFrame, columns: Columns, specs: Mapping[str, ColumnSpec]
    ) -> BroadcastPayload:
        """The model on its way to the executors, broadcast once as long as nothing changes."""
        check_python_memory(df.sparkSession)
        params = self.check_params()
        self._output_columns(columns, specs)
        assert self._outputs is not None
        trained = self._with_labels(columns)
        absent = set(trained.names) - set(columns.names)
        inference = Inference(
            model=self._model(),
            columns=columns,
            # Others differ from DataFrame to DataFrame, and the model would travel again.
            specs={
                name: spec if name in absent else dataclasses.replace(spec, example=b"")
                for name, spec in specs.items()
            },
            trained=trained,
            outputs=self._outputs,
            batch_size=params["val_batch_size"],
            transformation_fn=self._function(columns),
        )
        pickled = cloudpickle.dumps(inference)
        key = hashlib.sha256(pickled).hexdigest()
        if is_connect(df.sparkSession):
            return BroadcastPayload(key, _in_plan(pickled))
        context = context_of(df.sparkSession)
        application = str(context.applicationId)  # Another one does not have it.
        if self._payload is None or (self._payload[0], self._payload[1].key) != (application, key):
            self._payload = application, BroadcastPayload(key, context.broadcast(pickled))
        return self._payload[1]

    def _function(self, columns: Columns) -> Callable[..., Any] | None:
        """What a batch goes through: the user's function, and what names labels, if there are."""
        function: Callable[..., Any] | None = self.check_params()["transformation_fn"]
        assert self._outputs is not None
        if not columns.labels or not self._outputs.named:
            return function
        found = labels_by_name(self.keras, self._outputs, columns.labels, function)
        if function is None and isinstance(found, LabelsByName):
            found.named(columns.labels)  # Refuses here what a task would refuse.
        return found

    def _measuring(self, columns: Columns, specs: Mapping[str, ColumnSpec]) -> KerasModel:
        """A model of its own, whose metrics have variables: they have seen a batch of zeros."""
        model = self._model().load()
        with taking_labels():
            model.test_on_batch(*self._zeros(columns, specs))
        return model

    def _try_to_score(self, columns: Columns, specs: Mapping[str, ColumnSpec]) -> None:
        """Finds here what a task would find; not where a stream has yet to show its rows."""
        assert self._outputs is not None
        parsed = self.check_params()["transformation_fn"] is not None
        kinds = ("binary", "string") if parsed else ("binary",)
        if all(spec.kind not in kinds or spec.example for spec in specs.values()):
            with taking_labels():
                losses(self.keras, self._outputs, *self._zeros(columns, specs))

    def _zeros(self, columns: Columns, specs: Mapping[str, ColumnSpec]) -> tuple[Any, ...]:
        """A batch of two rows that hold nothing, as the model takes it."""
        arrays = {name: zeros(specs[name], 2) for name in columns.names}
        return examples(columns, arrays, self._function(columns))

    def _contents(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        packed = self._model()
        parsed = self.getOrDefault("transformation_fn") is not None
        labels = self.getOrDefault("label_cols") or () if parsed else ()
        bytes_of = {name: one.example for name, one in self._specs.items() if name in labels}
        metadata = {
            "suffix": packed.suffix,
            "history": self.history,
            "run_id": self.run_id,
            "specs": {name: spec.to_json() for name, spec in self._specs.items()},
            "examples": {name: base64.b64encode(one).decode() for name, one in bytes_of.items()},
            "outputs": None if self._outputs is None else self._outputs.to_json(),
        }
        code = cloudpickle.dumps((packed.code, not_plain(self)))
        return metadata, {f"model{packed.suffix}": packed.file, "code.pkl": code}

    @classmethod
    def _restored(cls, metadata: Mapping[str, Any], read: Callable[[str], bytes]) -> StromModel:
        code, params = loads(read("code.pkl"))
        file = read(f"model{metadata['suffix']}")
        specs = {name: ColumnSpec.from_json(spec) for name, spec in metadata["specs"].items()}
        for name, example in metadata.get("examples", {}).items():  # Earlier versions had none.
            specs[name] = dataclasses.replace(specs[name], example=base64.b64decode(example))
        outputs = metadata["outputs"]
        if outputs is not None and "named" not in outputs and len(outputs["tensors"]) > 1:
            outputs = None  # Of an earlier version; the model itself tells.
        model = cls()._filled(
            PackedModel(code, file, metadata["suffix"]),
            specs,
            None if outputs is None else Outputs.from_json(outputs),
        )
        model.history, model.run_id = metadata["history"], metadata["run_id"]
        model._set(**params)
        return model

    def _filled(
        self,
        packed: PackedModel,
        specs: Mapping[str, ColumnSpec],
        outputs: Outputs | None,
    ) -> StromModel:
        self._packed, self._specs, self._outputs = packed, dict(specs), outputs
        return self


def output_columns(outputs: Outputs, params: Mapping[str, Any]) -> OutputColumns:
    """The columns that a model's Params ask for.

    Raises:
        InvalidOption: columns that the model cannot fill.
    """
    raw = tuple(params["output_cols"] or ())
    prediction = params["prediction_col"]
    labels = tuple(params["label_cols"] or ())
    names = outputs.names
    if outputs.named and len(names) > 1:
        order = next((one for one in (raw, labels) if sorted(one) == sorted(names)), names)
        outputs = outputs.ordered(order)
        names = order
    if len(names) > 1 and prediction == "prediction":
        prediction = None  # The default is for models with one output.
        if len(labels) == len(names) and (not outputs.named or in_order(labels, names)):
            names = labels
        raw = raw or tuple(f"{name}__output" for name in names)
    return OutputColumns(outputs, prediction, params["probability_col"], raw)


def require_free(df: DataFrame, names: Sequence[str]) -> None:
    """Refuses to add a column that is there.

    Raises:
        InvalidData: the message names it.
    """
    fields = Fields(df)
    taken = [name for name in names if fields.of(name)]
    if taken:
        raise errors.InvalidData(
            f"the DataFrame has a column {', '.join(map(repr, taken))} already: drop it, or choose "
            "another name for the new one"
        )


def _in_plan(pickled: bytes) -> InPlan:
    if len(pickled) > _MOST_IN_PLAN:
        raise errors.UnsupportedModel(
            f"the model takes {len(pickled) >> 20} MiB, and a plan of Spark Connect, in which it "
            f"travels, at most {_MOST_IN_PLAN >> 20}: run this program on the cluster with "
            "spark-submit"
        )
    return InPlan(pickled)


def _as_trained(name: str, found: ColumnSpec, trained: ColumnSpec) -> ColumnSpec:
    """What a column is read as: numbers as in training, where that loses nothing."""
    whole = ("int32", "int64")
    fits = found.dtype == trained.dtype or (
        found.dtype in whole and trained.dtype in (*whole, "uint8", "float32")
    )
    if found.shape != trained.shape or not fits:
        raise errors.InvalidData(
            f"column {name!r} holds {found.dtype} of shape {found.shape}, and the model has been "
            f"trained on {trained.dtype} of shape {trained.shape}"
        )
    return dataclasses.replace(found, dtype=trained.dtype, example=found.example or trained.example)


def _with_rows(
    df: DataFrame,
    columns: Columns,
    specs: Mapping[str, ColumnSpec],
    work: Callable[..., Any],
    fields: Sequence[Any],
) -> DataFrame:
    """The DataFrame with more columns, which `work` makes of the features.

    Raises:
        InvalidData: it has columns that Spark does not give to Python.
    """
    from pyspark.errors import PySparkNotImplementedError
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import StructType

    used = {name: specs[name] for name in columns.names}
    # Spark tries a task four times, and each of them would be a Python worker with TensorFlow.
    rows = select(_with_own_names(df), used, F.struct("*").alias(ROW), refuse_nulls=True)
    try:
        return rows.mapInArrow(work, StructType([*df.schema.fields, *fields]))
    except PySparkNotImplementedError as error:
        words = ", ".join(
            f"{field.name!r} ({field.dataType.simpleString()})" for field in _out_of_reach(df)
        )
        raise errors.InvalidData(
            f"Spark gives no column of these types to Python: {words or error}; drop it, or cast "
            "it to a string"
        ) from error


def _out_of_reach(df: DataFrame) -> list[StructField]:
    """The columns that Spark does not give to Python, such as intervals of months."""
    from pyspark.sql.pandas.types import to_arrow_type

    found = []
    for field in df.schema.fields:
        try:
            to_arrow_type(field.dataType)
        except Exception:  # Its class depends on the version.
            found.append(field)
    return found


def _with_own_names(df: DataFrame) -> DataFrame:
    """The DataFrame without two columns of one name, as a join leaves them: no struct has both."""
    names = df.columns
    if len(set(names)) == len(names):
        return df
    own = (f"{ROW}_{index}" if names.count(name) > 1 else name for index, name in enumerate(names))
    return df.toDF(*own)
