"""StromEstimator: trains a Keras model on a DataFrame as a stage of Spark ML."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import secrets
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import cloudpickle
from pyspark.ml import Estimator
from pyspark.ml.util import MLReadable, MLWritable

from keras_strom import errors
from keras_strom.dashboard.page_address import PageAddress
from keras_strom.method import Method

from ..data.checked import ValueChecks
from ..data.columns import Columns, ColumnSpec, check_dataframe, inspect
from ..data.connect import context_of
from ..data.direct import Direct, direct
from ..data.export import export
from ..data.exported import ExportedData
from ..data.parquet import Paths, from_parquet, refuse_labels
from ..data.spark_variables import refuse_spark_variables
from ..data.store import Store, StoreRun
from ..inference.compiling import check_decay, check_names
from ..inference.dry_run import dry_run
from ..inference.outputs import Outputs
from ..inference.pickled import loads
from ..inference.serialization import (
    PackedModel,
    described,
    freeze,
    known_to_keras,
    pack,
    registered_in,
    thaw,
)
from ..inference.values import Probe
from ..runner.executors import check_executors, check_python_memory
from ..runner.resources import UseGpu
from ..runner.result_room import ResultRoom
from ..runner.session import active_or_new
from ..runner.slots import START_TIMEOUT_SECONDS, Size, WantedSize
from ..runner.timeline import Recorder
from ..training.gradient_sharing import BesideJointModel, GradientSharing
from ..training.method import TrainingJob, TrainingMethod
from ..training.worker_training import (
    Code,
    Trained,
    TrainingPlan,
    backup_file,
    begin_anew,
    finished,
    model_file,
)
from .model import StromModel, output_columns, require_free
from .params import TrainingParams
from .persistence import Reader, Writer, not_plain

if TYPE_CHECKING:
    import os

    from keras import Model as KerasModel
    from keras.callbacks import Callback
    from pyspark.sql import DataFrame, SparkSession

    from keras_strom.job.network import NetworkConfig


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
        label_cols: one for each output, in order; where the model gives a dict, to the outputs of
            these names, and of other names only where the dict is in alphabetical order.
        sample_weight_col: a column of numbers.
        validation: the fraction of the rows that is held out, or a Boolean or 0/1 column that marks
            them. Every worker validates on all of them, with `ParameterAveraging` on its share.
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
        store: a `Store` or its path, for checkpoints, the model and, until the end of training, the
            rows; None = rows go straight to the workers' disks, and an interrupted run begins anew.
        run_id: the run's folder in the store; None = a new one.
        resume: "auto" = a run of this id that was interrupted goes on after its last whole epoch,
            in a new process too; one that has finished is not trained again: its model is returned,
            with a warning that says so. False = it begins anew.
        network: a `NetworkConfig` of the relay.
        training: how workers train together: `GradientSharing()`, which None stands for, a method
            of `StromStrategy` (`keras_strom.AllReduce()`, `MPCA()`, `SparkNet()`, `EASGD()`), or
            `ParameterAveraging(...)`.
        output_cols: see `StromModel`, as are the next two.
        prediction_col: the column of the prediction.
        probability_col: the column of probabilities.
        num_proc: how many workers; None = one for each slot.
        min_proc: makes the training elastic: it begins with so many workers, and others come and
            go, as with `run`. Not together with `num_proc`.
        max_proc: the most workers of an elastic training; None = the slots that there are. The
            rows are divided among so many, and the parts of those that are away wait.
        max_failures: so many workers that die, or whose executor is lost, are started again and
            train on with the others; None = 3, as `run` has it.
        drain_seconds: how long a worker that is asked to leave may take, as `run`'s; None = 30.
        start_timeout: seconds until all workers, or `min_proc` of them, must run, as `run`'s.
            Without a store their rows come to them before, and that counts.
        partitions_per_process: how many partitions a worker the data is written in; None = as the
            DataFrame has.
        use_gpu: as `run`'s: True = each worker trains on the GPUs that Spark has given its task;
            False = on the CPU; "auto" = on its task's GPUs where Spark gives it some, else on what
            the machine has.
        dashboard: as `run`'s: True = a live page of the training, or its port, or "HOST:PORT".
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

    # What saved pipelines name, wherever the class lies.
    __module__ = "keras_strom.spark"

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
        training: TrainingMethod | Method | None = None,
        output_cols: Sequence[str] | None = None,
        prediction_col: str | None = "prediction",
        probability_col: str | None = None,
        num_proc: int | None = None,
        min_proc: int | None = None,
        max_proc: int | None = None,
        max_failures: int | None = None,
        drain_seconds: float | None = None,
        start_timeout: float = START_TIMEOUT_SECONDS,
        partitions_per_process: int | None = None,
        use_gpu: UseGpu = "auto",
        dashboard: bool | int | str = False,
        verbose: int = 1,
    ) -> None:
        given = dict(locals())
        super().__init__()
        self._adopt(given)

    def fitMultiple(self, dataset: DataFrame, paramMaps: Sequence[Any]) -> Any:  # noqa: N802, N803
        """Fits a model for each map of Params, as `CrossValidator` does.

        Raises:
            InvalidOption: several of them, or those on other rows, would share a run of the store.
        """
        for params in paramMaps:
            run_id = params.get(self.run_id, self.getOrDefault("run_id"))
            if run_id is not None:
                raise errors.InvalidOption(
                    f"run_id={run_id!r} would be the run of {len(paramMaps)} models here, and what "
                    "tunes an estimator fits it again on other rows: leave it out, so that each "
                    "model has a run of its own"
                )
        return super().fitMultiple(dataset, paramMaps)

    def write(self) -> Writer:
        """Saves the Params, with model, functions and objects pickled beside them."""
        return Writer(self)

    @classmethod
    def read(cls) -> Reader:
        """Loads what `write` has saved; runs pickled code."""
        return Reader(cls)

    def fit_on_parquet(
        self,
        train: Paths,
        *,
        validation: Paths | None = None,
        spark: SparkSession | None = None,
    ) -> StromModel:
        """Trains on Parquet files as they lie, which every worker can read; nothing is copied.

        Args:
            train: files or folders, as paths or URLs, with the columns that the Params name.
            validation: the same, for validation data.
            spark: the session; None = the active one, or a new one.

        Raises:
            InvalidData: the files do not hold what the model needs.
            StoreUnavailable: a file that cannot be read.
            Unreachable: Spark cannot be started.
        """
        params = self.check_params()
        if params["validation"] is not None:
            raise errors.InvalidOption(
                "validation= holds out rows of a DataFrame: leave it out, and give fit_on_parquet "
                "the validation files"
            )
        _check_together(params, has_validation=validation is not None)
        if params["partitions_per_process"] is not None:
            raise errors.InvalidOption("partitions_per_process has no effect on files")
        with _alone_in_its_run(params):
            data = from_parquet(
                train,
                _columns(params),
                validation=validation,
                with_strings=params["transformation_fn"] is not None,
            )
            session = spark or active_or_new()
            fitting = _prepare(params, data.columns, data.specs, session, rows=repr(data.splits))
            with _no_new_run_of_refused(fitting):
                data.check_shares(fitting.workers, all_validate=True)
                refuse_labels(data, fitting.checks.allowed)
            return self._trained(fitting, fitting.finished or _train(fitting, data))

    def _fit(self, df: DataFrame) -> StromModel:
        check_dataframe(df)
        params = self.check_params()
        with _alone_in_its_run(params):
            return self._fit_rows(df, params)

    def _fit_rows(self, df: DataFrame, params: Mapping[str, Any]) -> StromModel:
        _check_together(params, has_validation=params["validation"] is not None)
        files = params["partitions_per_process"]
        if params["store"] is None and files is not None:
            raise errors.InvalidOption("partitions_per_process has no effect without store")
        method = _method(params)
        if params["store"] is None and method.needs_files:
            raise errors.InvalidOption(
                f"training={method!r} needs store=, a folder that driver and executors reach, or "
                "fit_on_parquet: any task may read any rows"
            )
        context_of(df.sparkSession)  # Nothing else works without one.
        if df.isStreaming:
            raise errors.InvalidData(
                "a streaming DataFrame has no last row, so there is no epoch of it: train on a "
                "table that it is written to"
            )
        columns = _columns(params)
        parsed = params["transformation_fn"] is not None
        specs, rows_of = inspect(df, columns, with_strings=parsed), str(df.semanticHash())
        fitting = _prepare(params, columns, specs, df.sparkSession, rows=rows_of, df=df)
        if fitting.finished is not None:
            return self._trained(fitting, fitting.finished)
        fitting.recorder.enter("export")
        if fitting.run is None:
            with direct(
                df,
                columns,
                validation=params["validation"],
                workers=fitting.workers,
                seed=fitting.seed,
                specs=fitting.specs,
                checks=fitting.checks,
                all_validate=True,  # As those who read them from a store do.
            ) as rows:
                return self._trained(fitting, _train(fitting, rows.data, rows))
        try:
            with _no_new_run_of_refused(fitting):
                data = export(
                    df if files is None else df.repartition(fitting.workers * files),
                    columns,
                    fitting.run,
                    validation=params["validation"],
                    workers=fitting.workers,
                    seed=fitting.seed,
                    specs=fitting.specs,
                    checks=fitting.checks,
                    all_validate=True,
                )
            trained = _train(fitting, data)
        finally:
            _remove_rows(fitting.run)
        return self._trained(fitting, trained)

    def _trained(self, fitting: _Fitting, trained: Trained) -> StromModel:
        file = trained.file
        if fitting.run is not None:
            file = fitting.run.store.read_bytes(model_file(fitting.run, trained.suffix))
        model = StromModel()._filled(
            fitting.model.trained(file, trained.suffix), fitting.specs, fitting.outputs
        )
        model.history = trained.history
        model.timeline = fitting.recorder.timeline()
        model.run_id = None if fitting.run is None else fitting.run.run_id
        self._copyValues(model)
        if model.getOrDefault("val_batch_size") is None:
            model._set(val_batch_size=max(1024, self.getOrDefault("batch_size")))
        return model

    def _contents(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        values = not_plain(self)
        model = values.pop("model", None)
        objects = self.getOrDefault("custom_objects")
        packed = None if model is None else pack(model, custom_objects=objects)
        compiling = freeze({name: values.pop(name) for name in _COMPILING if name in values})
        objects = {**registered_in(compiling), **(objects or {})}
        return {}, {"code.pkl": cloudpickle.dumps((packed, compiling, values, objects))}

    @classmethod
    def _restored(cls, metadata: Mapping[str, Any], read: Callable[[str], bytes]) -> StromEstimator:
        packed, compiling, values, *rest = loads(read("code.pkl"))
        estimator = cls()
        if packed is not None:
            estimator._set(model=packed.load())
        # Earlier versions have saved these among the values alone.
        with known_to_keras(rest[0] if rest else values.get("custom_objects") or {}):
            estimator._set(**thaw(compiling), **values)
        return estimator


_logger = logging.getLogger(__name__)

_COMPILING = ("optimizer", "loss", "loss_weights", "metrics")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Fitting:
    """What is known once everything has been checked."""

    params: Mapping[str, Any]
    specs: Mapping[str, ColumnSpec]
    model: PackedModel
    code: bytes
    outputs: Outputs
    checks: ValueChecks
    size: Size
    run: StoreRun | None
    finished: Trained | None
    seed: int
    spark: SparkSession
    recorder: Recorder

    @property
    def workers(self) -> int:
        """How many parts the rows are divided in."""
        return self.size.workers


def _remove_rows(run: StoreRun) -> None:
    """Also where the training has failed, for a run that goes on writes them anew."""
    try:
        run.store.delete(run.data)
    except errors.StoreUnavailable as error:
        _logger.warning("the rows stay in the store, for they cannot be removed: %s", error)


@contextlib.contextmanager
def _no_new_run_of_refused(fitting: _Fitting) -> Iterator[None]:
    """Leaves nothing of a run whose id was made here if the block raises: nobody knows of it."""
    try:
        yield
    except BaseException:
        if fitting.run is not None and fitting.params["run_id"] is None:
            _trained_here.pop(fitting.run.path, None)
            with contextlib.suppress(errors.StoreUnavailable):  # What was raised counts.
                fitting.run.store.delete(fitting.run.path)
        raise


def _check_together(params: Mapping[str, Any], *, has_validation: bool) -> None:
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
    if params["store"] is None and params["run_id"] is not None:
        raise errors.InvalidOption("run_id has no effect without store")
    if not has_validation and params["validation_steps_per_epoch"] is not None:
        raise errors.InvalidOption("validation_steps_per_epoch has no effect without validation")
    _wanted_size(params)
    _method(params).check(params)
    if (page := PageAddress.of(params["dashboard"])) is not None:
        page.check()


def _wanted_size(params: Mapping[str, Any]) -> WantedSize:
    return WantedSize(**{name: params[name] for name in ("num_proc", "min_proc", "max_proc")})


def _method(params: Mapping[str, Any]) -> TrainingMethod:
    given: TrainingMethod | Method = params["training"] or GradientSharing()
    return BesideJointModel(given) if isinstance(given, Method) else given


def _columns(params: Mapping[str, Any]) -> Columns:
    return Columns(
        tuple(params["feature_cols"]),
        tuple(params["label_cols"] or ()),
        params["sample_weight_col"],
    )


def _prepare(
    params: Mapping[str, Any],
    columns: Columns,
    specs: Mapping[str, ColumnSpec],
    spark: SparkSession,
    *,
    rows: str,
    df: DataFrame | None = None,
) -> _Fitting:
    """Everything that can be found wrong before the cluster is busy is found here.

    `rows` is what tells those of one DataFrame from another's, in this process. `df` is where they
    come from, unless that is files.
    """
    recorder = Recorder()
    recorder.enter("check")
    compiling = None
    if params["optimizer"] is not None:
        compiling = {name: params[name] for name in _COMPILING if params[name] is not None}
    compiled = params["model"].get_compile_config() if params["model"] is not None else None
    check_names(compiling or compiled or {})
    check_decay(params["optimizer"] or getattr(params["model"], "optimizer", None))
    strategy = _method(params).strategy(params["strategy"])
    model = pack(
        params["model"],
        model_fn=params["model_fn"],
        custom_objects=params["custom_objects"],
        compiling=compiling,
    )
    trial = dry_run(model, columns, specs, params["transformation_fn"])
    made = output_columns(trial.outputs, params)
    if df is not None:  # As Spark's own estimators do, which ask before they train.
        require_free(df, made.names)
    code = Code(params["callbacks"], trial.function, strategy).pickled()
    refuse_spark_variables("callbacks, transformation_fn or strategy", code)
    if params["model_fn"] is not None:
        model = model.with_example(trial.x)
    check_python_memory(spark)
    context = context_of(spark)
    if params["store"] is None:
        _refuse_large(model, ResultRoom.of(context))
    size = _method(params).choose_size(context, _wanted_size(params), params["start_timeout"])
    check_executors(context, size.workers)
    run, before, seed = _begin_run(params, trial.identity, columns, rows)
    recorder.leave()
    return _Fitting(
        params=params,
        specs=specs,
        model=model,
        code=code,
        outputs=trial.outputs,
        checks=ValueChecks(trial.allowed, Probe(model, columns, specs, trial.function)),
        size=size,
        run=run,
        finished=before,
        seed=seed,
        spark=spark,
        recorder=recorder,
    )


def _refuse_large(model: PackedModel, room: ResultRoom) -> None:
    """Refuses to train for a model that the chief could not return.

    Raises:
        InvalidOption: there is no room for it.
    """
    if not room.takes(len(model.file)):
        raise errors.InvalidOption(
            f"the model takes {len(model.file) >> 20} MiB, for which Spark's executors or driver "
            "have too little memory to bring it back: give store=, in which it is written, or "
            "raise spark.driver.memory and spark.executor.memory"
        )


def _begin_run(
    params: Mapping[str, Any], model: str, columns: Columns, rows: str
) -> tuple[StoreRun | None, Trained | None, int]:
    """The run in the store, what it has left if it has finished, and its random seed.

    `model` is what tells the model from others, in whatever process.

    Raises:
        InvalidOption: the run of this id is another training.
    """
    seed = params["random_seed"]
    fresh = secrets.randbelow(1 << 31) if seed is None else seed
    if params["store"] is None:
        return None, None, fresh
    run_id = params["run_id"] or time.strftime("strom-%Y%m%d-%H%M%S-") + uuid.uuid4().hex[:6]
    run: StoreRun = params["store"].run(run_id)
    identity = _digest(model, columns)
    record = f"{run.path}/run.json"
    if params["resume"] is False:
        begin_anew(run)
    done = finished(run)
    if done is not None or run.store.exists(backup_file(run)):
        before = json.loads(run.store.read_bytes(record))
        # Of earlier versions' runs nothing is known: they told models apart in another way.
        if before.get("tells") == _TELLS and before["identity"] != identity:
            raise errors.InvalidOption(
                f"run_id={run_id!r} is the {'finished' if done else 'interrupted'} training of "
                f"another model or of other columns: {_OTHERWISE}"
            )
        if seed is None:
            fresh = before["seed"]  # The same rows are held out.
    training = described([rows, *(params[name] for name in _MAKING_ANOTHER_MODEL)])
    if done is not None:
        if _trained_here.setdefault(run.path, training) != training:
            raise errors.InvalidOption(
                f"run_id={run_id!r} was trained in this process on other rows or with other "
                "Params, as where something tunes an estimator or a Pipeline with one: leave "
                f"run_id out, so that each model has a run of its own, {_OTHERWISE}"
            )
        return run, _of_finished(run_id, *done, params["epochs"]), fresh
    _trained_here[run.path] = training
    known = {"identity": identity, "tells": _TELLS, "seed": fresh}
    run.store.write_bytes(record, json.dumps(known).encode())
    return run, None, fresh


def _digest(model: str, columns: Columns) -> str:
    return hashlib.sha256(json.dumps([model, dataclasses.asdict(columns)]).encode()).hexdigest()


_TELLS = 2  # In which way a run's "identity" tells models and columns from others.

_OTHERWISE = "choose another run_id, or resume=False to begin anew"

# With other values of these a run is another training, beside model, columns and epochs.
_MAKING_ANOTHER_MODEL = (
    "optimizer",
    "loss",
    "loss_weights",
    "batch_size",
    "train_steps_per_epoch",
    "transformation_fn",
    "strategy",
    "training",
)
# By the run's folder, what this process has trained, or found to be trained, as text.
_trained_here: dict[str, str] = {}
_under_way: set[str] = set()  # The folders of runs that are trained now.
_under_way_lock = threading.Lock()


@contextlib.contextmanager
def _alone_in_its_run(params: Mapping[str, Any]) -> Iterator[None]:
    """Keeps other threads out of a run while the block trains it.

    Raises:
        InvalidOption: another one trains it.
    """
    store, run_id = params["store"], params["run_id"]
    if store is None or run_id is None:
        yield
        return
    path = store.run(run_id).path
    with _under_way_lock:
        if path in _under_way:
            raise errors.InvalidOption(
                f"run_id={run_id!r} is being trained by another thread of this process: leave it "
                "out, so that each model has a run of its own, or wait for the other"
            )
        _under_way.add(path)
    try:
        yield
    finally:
        with _under_way_lock:
            _under_way.remove(path)


def _of_finished(run_id: str, epochs: int, trained: Trained, wanted: int) -> Trained:
    if wanted != epochs:
        raise errors.InvalidOption(
            f"run_id={run_id!r} has finished its training of epochs={epochs}, and epochs={wanted} "
            f"is another: {_OTHERWISE}"
        )
    warnings.warn(
        f"run_id={run_id!r} has finished its training before: its model is returned and nothing is "
        f"trained; to train, {_OTHERWISE}",
        RuntimeWarning,
        stacklevel=2,
    )
    return trained


def _train(fitting: _Fitting, data: ExportedData, rows: Direct | None = None) -> Trained:
    fitting.recorder.leave()
    params = fitting.params
    plan = TrainingPlan(
        model=fitting.model,
        code=fitting.code,
        data=data,
        batch_size=params["batch_size"],
        val_batch_size=params["val_batch_size"] or params["batch_size"],
        epochs=params["epochs"],
        train_steps_per_epoch=params["train_steps_per_epoch"],
        validation_steps_per_epoch=params["validation_steps_per_epoch"],
        shuffle=params["shuffle"],
        seed=fitting.seed,
        verbose=params["verbose"],
        run=fitting.run,
    )
    job = TrainingJob(
        plan=plan,
        size=fitting.size,
        spark=fitting.spark,
        network=params["network"],
        max_failures=params["max_failures"],
        drain_seconds=params["drain_seconds"],
        start_timeout=params["start_timeout"],
        rows=rows,
        recorder=fitting.recorder,
        dashboard=params["dashboard"],
        use_gpu=params["use_gpu"],
    )
    return _method(params).train(job)
