"""StromEstimator: trains a Keras model on a DataFrame as a stage of Spark ML."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pickle
import secrets
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import cloudpickle
from pyspark.ml import Estimator
from pyspark.ml.util import MLReadable, MLWritable

from keras_strom import errors

from .columns import Columns, ColumnSpec, inspect
from .executors import check_executors
from .export import export
from .exported import ExportedData
from .model import StromModel, output_columns
from .outputs import Outputs
from .params import TrainingParams
from .persistence import Reader, Writer, not_plain
from .runner import run
from .serialization import PackedModel, freeze, pack, thaw
from .slots import choose_workers
from .store import Store, StoreRun
from .training import Code, Trained, TrainingPlan, backup_file, make_strategy, model_file, train
from .trial import try_out

if TYPE_CHECKING:
    import os

    from keras import Model as KerasModel
    from keras.callbacks import Callback
    from pyspark.sql import DataFrame, SparkSession

    from keras_strom.network import NetworkConfig

_START_TIMEOUT = 600.0


class StromEstimator(TrainingParams, Estimator, MLWritable, MLReadable):  # type: ignore[misc]
    """Trains a Keras model on the executors of a Spark cluster, all of them together.

    All arguments are ML Params. Nothing is scaled behind your back: learning rate and batch size
    are what each worker uses.

    Args:
        model: a Keras model; it is not changed. Or
        model_fn: what makes one on each worker, for models that do not serialise.
        optimizer: as `compile` takes it; with `loss`, `loss_weights` and `metrics` it takes the
            place of what the model is compiled with. None for all four = as the model is compiled.
        loss: as `compile` takes it.
        loss_weights: as `compile` takes it.
        metrics: as `compile` takes it.
        feature_cols: numbers, booleans, strings, binary, arrays, ML vectors or images. One goes
            into the model as it is, several to the inputs of their names.
        label_cols: one for each output, in order.
        sample_weight_col: a column of numbers.
        validation: the fraction of the rows that is held out, or a Boolean or 0/1 column that marks
            them. Every worker validates on all of them.
        batch_size: examples a step and worker.
        val_batch_size: examples a step of validation and prediction; None = `batch_size` in
            validation, and at least 1024 in prediction.
        epochs: passes over all rows.
        train_steps_per_epoch: steps an epoch and worker; None = as its rows make.
        validation_steps_per_epoch: steps of each validation; None = as its rows make.
        callbacks: Keras's or your own, or a function that makes a list of them on each worker. The
            chief's write; all decide as with `StromStrategy`.
        shuffle: whether each epoch has an order of its own.
        random_seed: of the workers' randomness, the order and the rows held out; None = any.
        transformation_fn: called with a batch's x, y and weight as tensors; what it returns takes
            their place, in training, validation and prediction.
        custom_objects: classes that the model is made of, where `keras.saving` does not know them.
        strategy: a dict of `StromStrategy`'s options, or a function that makes one on each worker.
        store: a `Store` or its path, for data, checkpoints and the model.
        run_id: the run's folder in the store; None = a new one.
        resume: "auto" = a run of this id that was interrupted goes on after its last whole epoch;
            False = it begins anew.
        network: a `NetworkConfig` of the relay.
        training: None; there is no other way of training yet.
        output_cols: see `StromModel`, as are the next two.
        prediction_col: the column of the prediction.
        probability_col: the column of probabilities.
        num_proc: how many workers; None = one for each slot.
        partitions_per_process: how many partitions a worker the data is written in; None = as the
            DataFrame has.
        use_gpu: False; workers train on CPUs.
        verbose: 0 = silent, 1 = progress, 2 = a line an epoch.

    Raises:
        InvalidOption: a value that makes no sense.
        TypeError: an unknown argument.

    Example:
        >>> estimator = StromEstimator(  # doctest: +SKIP
        ...     model=model, optimizer="adam", loss="mse", feature_cols=["features"],
        ...     label_cols=["label"], store="/mnt/shared/strom", epochs=5, num_proc=2)
        >>> model = Pipeline(stages=[assembler, estimator]).fit(df)  # doctest: +SKIP
    """

    def __init__(
        self,
        *,
        model: KerasModel | None = None,
        model_fn: Callable[[], KerasModel] | None = None,
        optimizer: Any = None,
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        feature_cols: Sequence[str] | None = None,
        label_cols: Sequence[str] | None = None,
        sample_weight_col: str | None = None,
        validation: float | str | None = None,
        batch_size: int = 32,
        val_batch_size: int | None = None,
        epochs: int = 1,
        train_steps_per_epoch: int | None = None,
        validation_steps_per_epoch: int | None = None,
        callbacks: Sequence[Callback] | Callable[[], list[Callback]] | None = None,
        shuffle: bool = True,
        random_seed: int | None = None,
        transformation_fn: Callable[..., Any] | None = None,
        custom_objects: Mapping[str, Any] | None = None,
        strategy: Mapping[str, Any] | Callable[[], Any] | None = None,
        store: Store | str | os.PathLike[str] | None = None,
        run_id: str | None = None,
        resume: str | bool = "auto",
        network: NetworkConfig | None = None,
        training: None = None,
        output_cols: Sequence[str] | None = None,
        prediction_col: str | None = "prediction",
        probability_col: str | None = None,
        num_proc: int | None = None,
        partitions_per_process: int | None = None,
        use_gpu: bool = False,
        verbose: int = 1,
    ) -> None:
        given = dict(locals())
        super().__init__()
        self._adopt(given)

    def fitMultiple(self, dataset: DataFrame, paramMaps: Sequence[Any]) -> Any:  # noqa: N802, N803
        """Fits a model for each map of Params, as `CrossValidator` does.

        Raises:
            InvalidOption: several of them would share a run of the store.
        """
        if len(paramMaps) > 1 and self.getOrDefault("run_id") is not None:
            raise errors.InvalidOption(
                f"run_id={self.getOrDefault('run_id')!r} would be the run of {len(paramMaps)} "
                "models: leave it out, so that each has its own"
            )
        return super().fitMultiple(dataset, paramMaps)

    def write(self) -> Writer:
        """Saves the Params, with model, functions and objects pickled beside them."""
        return Writer(self)

    @classmethod
    def read(cls) -> Reader:
        """Loads what `write` has saved; runs pickled code."""
        return Reader(cls)

    def _fit(self, df: DataFrame) -> StromModel:
        params = self.check_params()
        _check_together(params)
        columns = _columns(params)
        specs = inspect(df, columns)
        prepared = _prepare(params, columns, specs)
        spark = df.sparkSession
        workers = choose_workers(spark.sparkContext, params["num_proc"], _START_TIMEOUT)
        check_executors(spark.sparkContext, workers)
        store_run, seed = _begin_run(params, prepared, columns)
        files = params["partitions_per_process"]
        data = export(
            df if files is None else df.repartition(workers * files),
            columns,
            store_run,
            validation=params["validation"],
            workers=workers,
            seed=seed,
            specs=specs,
        )
        trained = _train(params, prepared, data, store_run, seed, workers, spark)
        return self._trained(prepared, specs, trained, store_run)

    def _trained(
        self,
        prepared: _Prepared,
        specs: Mapping[str, ColumnSpec],
        trained: Trained,
        store_run: StoreRun,
    ) -> StromModel:
        file = store_run.store.read_bytes(model_file(store_run, trained.suffix))
        packed = prepared.model.trained(file, trained.suffix)
        model = StromModel()._filled(packed, specs, prepared.outputs)
        model.history, model.run_id = trained.history, store_run.run_id
        self._copyValues(model)
        if model.getOrDefault("val_batch_size") is None:
            model._set(val_batch_size=max(1024, self.getOrDefault("batch_size")))
        return model

    def _contents(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        values = not_plain(self)
        model = values.pop("model", None)
        objects = self.getOrDefault("custom_objects")
        packed = None if model is None else pack(model, custom_objects=objects)
        compiling = {name: values.pop(name) for name in _COMPILING if name in values}
        return {}, {"code.pkl": cloudpickle.dumps((packed, freeze(compiling), values))}

    @classmethod
    def _restored(cls, metadata: Mapping[str, Any], read: Callable[[str], bytes]) -> StromEstimator:
        packed, compiling, values = pickle.loads(read("code.pkl"))
        estimator = cls()
        if packed is not None:
            estimator._set(model=packed.load())
        estimator._set(**thaw(compiling), **values)
        return estimator


_COMPILING = ("optimizer", "loss", "loss_weights", "metrics")


@dataclasses.dataclass(frozen=True)
class _Prepared:
    """What is known once the model has been tried."""

    model: PackedModel
    code: bytes
    outputs: Outputs


def _check_together(params: Mapping[str, Any]) -> None:
    """Refuses Params that make no sense with each other."""
    if (params["model"] is None) == (params["model_fn"] is None):
        raise errors.InvalidOption("give either model= or model_fn=")
    if params["optimizer"] is None:
        given = [name for name in _COMPILING if params[name] is not None]
        if given:
            raise errors.InvalidOption(
                f"{', '.join(given)} without optimizer: give it too, or compile the model and give "
                "none of them"
            )
    if params["feature_cols"] is None:
        raise errors.InvalidOption("feature_cols is not set: which columns go into the model?")
    if params["store"] is None:
        raise errors.InvalidOption(
            "no store: give store= a path or URL that the driver and all executors reach, for the "
            "training data, checkpoints and the model"
        )
    if params["validation"] is None and params["validation_steps_per_epoch"] is not None:
        raise errors.InvalidOption("validation_steps_per_epoch has no effect without validation")
    strategy = params["strategy"]
    if isinstance(strategy, Mapping):
        make_strategy(strategy)  # Its own words for a value that makes no sense.


def _columns(params: Mapping[str, Any]) -> Columns:
    return Columns(
        tuple(params["feature_cols"]),
        tuple(params["label_cols"] or ()),
        params["sample_weight_col"],
    )


def _prepare(
    params: Mapping[str, Any], columns: Columns, specs: Mapping[str, ColumnSpec]
) -> _Prepared:
    """Everything that can be found wrong without the cluster is found here."""
    compiling = None
    if params["optimizer"] is not None:
        compiling = {name: params[name] for name in _COMPILING if params[name] is not None}
    code = Code(params["callbacks"], params["transformation_fn"], params["strategy"]).pickled()
    model = pack(
        params["model"],
        model_fn=params["model_fn"],
        custom_objects=params["custom_objects"],
        compiling=compiling,
    )
    trial = try_out(model, columns, specs, params["transformation_fn"])
    output_columns(trial.outputs, params)
    if params["model_fn"] is not None:
        model = model.with_example(trial.x)
    return _Prepared(model, code, trial.outputs)


def _begin_run(
    params: Mapping[str, Any], prepared: _Prepared, columns: Columns
) -> tuple[StoreRun, int]:
    """The run in the store, a new one or one to go on with, and its random seed.

    Raises:
        InvalidOption: the interrupted run of this id is another training.
    """
    run_id = params["run_id"] or time.strftime("strom-%Y%m%d-%H%M%S-") + uuid.uuid4().hex[:6]
    store_run: StoreRun = params["store"].run(run_id)
    store = store_run.store
    described = json.dumps([prepared.model.configuration(), dataclasses.asdict(columns)])
    identity = hashlib.sha256(described.encode()).hexdigest()
    seed = params["random_seed"]
    record = f"{store_run.path}/run.json"
    if params["resume"] is False:
        store.delete(store_run.checkpoints)
    if store.exists(backup_file(store_run)):
        before = json.loads(store.read_bytes(record))
        if before["identity"] != identity:
            raise errors.InvalidOption(
                f"run_id={run_id!r} is the interrupted training of another model or of other "
                "columns: choose another run_id, or resume=False to begin anew"
            )
        seed = before["seed"] if seed is None else seed  # The same rows are held out.
    seed = secrets.randbelow(1 << 31) if seed is None else seed
    store.write_bytes(record, json.dumps({"identity": identity, "seed": seed}).encode())
    return store_run, seed


def _train(
    params: Mapping[str, Any],
    prepared: _Prepared,
    data: ExportedData,
    store_run: StoreRun,
    seed: int,
    workers: int,
    spark: SparkSession,
) -> Trained:
    plan = TrainingPlan(
        model=prepared.model,
        code=prepared.code,
        data=data,
        batch_size=params["batch_size"],
        val_batch_size=params["val_batch_size"] or params["batch_size"],
        epochs=params["epochs"],
        train_steps_per_epoch=params["train_steps_per_epoch"],
        validation_steps_per_epoch=params["validation_steps_per_epoch"],
        shuffle=params["shuffle"],
        seed=seed,
        verbose=params["verbose"],
        run=store_run,
    )
    results = run(
        train,
        (plan,),
        num_proc=workers,
        network=params["network"],
        stream_logs=params["verbose"] > 0,
        verbose=min(params["verbose"], 1),
        spark=spark,
    )
    trained: Trained = results[0]
    return trained
