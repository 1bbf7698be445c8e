"""StromEstimator and StromModel on Spark's embedded cluster, with models that train in seconds."""

from __future__ import annotations

import functools
import os
import signal
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import cloudpickle
import keras
import numpy as np
import pytest

pyspark = pytest.importorskip("pyspark")

from pyspark.errors import PySparkAttributeError  # noqa: E402
from pyspark.ml import Pipeline, PipelineModel  # noqa: E402
from pyspark.ml.evaluation import (  # noqa: E402
    BinaryClassificationEvaluator,
    MulticlassClassificationEvaluator,
    RegressionEvaluator,
)
from pyspark.ml.feature import VectorAssembler  # noqa: E402
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder  # noqa: E402
from pyspark.sql import functions as F  # noqa: E402, N812

import keras_strom  # noqa: E402
from keras_strom import EASGD, MPCA, SparkNet, errors  # noqa: E402
from keras_strom.job.network import NetworkConfig  # noqa: E402
from keras_strom.spark import (  # noqa: E402
    GradientSharing,
    ParameterAveraging,
    StromEstimator,
    StromModel,
    run,
)
from keras_strom.spark.estimator import model as model_module  # noqa: E402
from keras_strom.spark.runner import executors  # noqa: E402
from keras_strom.spark.training import gradient_sharing  # noqa: E402
from keras_strom.spark.training.worker_training import WorkerResult  # noqa: E402

# Executors cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROWS = 400


@pytest.fixture(scope="module")
def flowers(spark: Any) -> Any:
    """Three classes of points around three corners, with columns that no model looks at."""
    random = np.random.default_rng(7)
    label = random.integers(0, 3, ROWS)
    corners = np.array([[0.0, 0.0, 0.0, 1.0], [2.0, 0.0, 2.0, 0.0], [0.0, 2.0, 2.0, 2.0]])
    points = corners[label] + random.normal(0, 0.3, (ROWS, 4))
    rows = [
        (int(index), *map(float, point), int(kind), float(point[0] - point[1]), f"flower {index}")
        for index, (point, kind) in enumerate(zip(points, label, strict=True))
    ]
    df = spark.createDataFrame(rows, ["id", "a", "b", "c", "d", "label", "difference", "name"])
    assembler = VectorAssembler(inputCols=["a", "b", "c", "d"], outputCol="features")
    df = df.withColumn("pair", F.array("a", "b"))
    return assembler.transform(df).repartition(3, "id").cache()


def classifier() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dense(3),
        ]
    )


def options(folder: Path, /, **others: Any) -> dict[str, Any]:
    return {
        "model": classifier(),
        "optimizer": keras.optimizers.Adam(0.02),
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "metrics": ["accuracy"],
        "feature_cols": ["features"],
        "label_cols": ["label"],
        "batch_size": 16,
        "epochs": 6,
        "random_seed": 3,
        "store": str(folder),
        "num_proc": 2,
        "verbose": 0,
        **others,
    }


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def trained(flowers: Any, store: Path) -> StromModel:
    model: StromModel = StromEstimator(
        **options(
            store,
            validation=0.25,
            run_id="flowers",
            probability_col="probability",
            output_cols=["logits"],
        )
    ).fit(flowers)
    return model


def test_two_workers_learn_and_the_chief_leaves_its_files(trained: StromModel, store: Path) -> None:
    assert trained.run_id == "flowers"
    assert set(trained.history) >= {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert len(trained.history["loss"]) == 6
    assert trained.history["val_accuracy"][-1] > 0.9
    assert isinstance(keras.saving.load_model(store / "flowers" / "model.keras"), keras.Model)
    assert (store / "flowers" / "history.json").exists()
    assert not (store / "flowers" / "checkpoints").exists()
    assert not (store / "flowers" / "data").exists()


@pytest.mark.parametrize(
    "given",
    [{"training": MPCA()}, {"strategy": {"method": SparkNet(steps=5)}}],
    ids=["training", "strategy"],
)
def test_two_workers_learn_by_another_method(
    flowers: Any, tmp_path: Path, given: dict[str, Any]
) -> None:
    estimator = StromEstimator(**options(tmp_path / "store", validation=0.25, **given))
    model = estimator.fit(flowers)
    assert model.history["val_accuracy"][-1] > 0.9
    assert len(model.history["strom/divergence"]) == 6
    assert "strom/density" not in model.history
    estimator.save(str(tmp_path / "estimator"))
    loaded = StromEstimator.load(str(tmp_path / "estimator"))
    for name, value in given.items():
        assert loaded.getOrDefault(name) == value


def test_transform_keeps_the_columns_and_adds_what_evaluators_take(
    trained: StromModel, flowers: Any
) -> None:
    made = trained.transform(flowers)
    assert made.columns == [*flowers.columns, "prediction", "probability", "logits"]
    assert made.schema["features"] == flowers.schema["features"]
    rows = made.collect()
    assert len(rows) == ROWS
    before = {row["id"]: row for row in flowers.collect()}
    logits = trained.keras.predict(np.stack([row["features"].toArray() for row in rows]), verbose=0)
    for row, expected in zip(rows, logits, strict=True):
        assert all(row[name] == before[row["id"]][name] for name in flowers.columns)
        np.testing.assert_allclose(row["logits"], expected, rtol=1e-4, atol=1e-5)
        assert row["prediction"] == float(np.argmax(expected))
        assert abs(row["probability"].values.sum() - 1.0) < 1e-6
    evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
    assert evaluator.evaluate(made) > 0.9
    assert evaluator.setMetricName("logLoss").evaluate(made) < 0.5


def test_transform_keeps_columns_of_one_name(trained: StromModel, flowers: Any) -> None:
    twice = flowers.limit(5).select("*", F.lit(1).alias("name"))
    rows = trained.score(trained.transform(twice)).collect()
    names = [*flowers.columns, "name", "prediction", "probability", "logits", "score"]
    assert all(list(row.__fields__) == names for row in rows)
    assert {tuple(row)[names.index("name")] for row in rows} <= {f"flower {i}" for i in range(ROWS)}
    assert [tuple(row)[len(flowers.columns)] for row in rows] == [1] * 5


def test_evaluate_and_score_are_those_of_keras_on_all_rows(
    trained: StromModel, flowers: Any
) -> None:
    rows = flowers.collect()
    x = np.stack([row["features"].toArray() for row in rows]).astype("float32")
    y = np.array([row["label"] for row in rows])
    expected = trained.keras.evaluate(x, y, batch_size=len(y), verbose=0, return_dict=True)
    # Whole numbers of another width than in training are taken as they were there.
    found = trained.evaluate(flowers.withColumn("label", flowers["label"].cast("int")))
    assert set(found) == {"loss", "accuracy"}
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-4, abs=1e-5)
    scored = trained.score(flowers, "hard").collect()
    assert set(scored[0].asDict()) == {*flowers.columns, "hard"}
    assert np.mean([row["hard"] for row in scored]) == pytest.approx(expected["loss"], rel=1e-3)


@pytest.mark.parametrize("rows_a_step", [7, ROWS])
def test_evaluate_counts_all_rows_however_many_a_step_has(
    trained: StromModel, flowers: Any, rows_a_step: int
) -> None:
    expected = trained.evaluate(flowers)
    one_partition = flowers.coalesce(1)
    found = trained.copy({trained.getParam("val_batch_size"): rows_a_step}).evaluate(one_partition)
    assert found == pytest.approx(expected, rel=1e-4)


def test_a_pipeline_is_saved_and_loaded_before_and_after_it_is_fitted(
    flowers: Any, store: Path, tmp_path: Path
) -> None:
    inputs = ["a", "b", "c", "d"]
    assembler = VectorAssembler(inputCols=inputs, outputCol="assembled")
    estimator = StromEstimator(
        **options(
            store, feature_cols=["assembled"], num_proc=1, epochs=1, network=NetworkConfig(port=0)
        )
    )
    Pipeline(stages=[assembler, estimator]).write().overwrite().save(str(tmp_path / "pipeline"))
    loaded = Pipeline.load(str(tmp_path / "pipeline"))
    again = loaded.getStages()[1]
    assert again.uid == estimator.uid
    assert again.getOrDefault("store") == estimator.getOrDefault("store")
    assert float(again.getOrDefault("optimizer").learning_rate) == pytest.approx(0.02)
    fitted = loaded.fit(flowers)
    fitted.save(str(tmp_path / "fitted"))
    loaded_model = PipelineModel.load(str(tmp_path / "fitted"))
    assert loaded_model.stages[1].history == fitted.stages[1].history
    rows = fitted.transform(flowers).select("id", "prediction").collect()
    assert sorted(rows) == sorted(
        loaded_model.transform(flowers).select("id", "prediction").collect()
    )
    assert isinstance(
        keras.saving.load_model(next((tmp_path / "fitted" / "stages").glob("1_*")) / "model.keras"),
        keras.Model,
    )


def halved(x: Any, y: Any) -> tuple[Any, Any]:
    return x / 2.0, y


def test_parquet_files_are_trained_on_as_they_lie(flowers: Any, tmp_path: Path) -> None:
    files = str(tmp_path / "rows")
    flowers.write.parquet(files)
    given = options(tmp_path, store=None, num_proc=1, epochs=2, train_steps_per_epoch=3)
    model = StromEstimator(**given, validation_steps_per_epoch=1).fit_on_parquet(
        files, validation=files
    )
    assert len(model.history["val_loss"]) == 2
    assert model.run_id is None
    assert model.keras.compiled
    # Prediction transforms as training did, labels or not.
    model.setParams(transformation_fn=halved, output_cols=["logits"])
    row = model.transform(flowers.drop("label").limit(3)).first()
    expected = model.keras.predict(row["features"].toArray()[None] / 2.0, verbose=0)[0]
    np.testing.assert_allclose(row["logits"], expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(errors.InvalidOption, match="give fit_on_parquet the validation"):
        StromEstimator(**given, validation=0.5).fit_on_parquet(files)
    with pytest.raises(errors.InvalidData, match="'feature'"):
        StromEstimator(**{**given, "feature_cols": ["feature"]}).fit_on_parquet(files)


def test_cross_validation_compares_regressions_without_a_store(
    flowers: Any, tmp_path: Path
) -> None:
    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    estimator = StromEstimator(
        **options(
            tmp_path,
            model=model,
            loss="mse",
            metrics=None,
            label_cols=["difference"],
            num_proc=1,
            store=None,
        )
    )
    grid = ParamGridBuilder().addGrid(estimator.epochs, [10]).build()
    validator = CrossValidator(
        estimator=estimator,
        estimatorParamMaps=grid,
        evaluator=RegressionEvaluator(labelCol="difference"),
        numFolds=2,
        seed=1,
    )
    found = validator.fit(flowers)
    assert found.avgMetrics[0] < 1.0
    assert len(found.bestModel.history["loss"]) == 10
    assert not list(tmp_path.iterdir())


class Shifted(keras.Model):  # type: ignore[misc]
    """A model that Keras cannot save: its argument is a function."""

    def __init__(self, shift: Callable[[Any], Any]) -> None:
        super().__init__()
        self.shift = shift
        self.dense = keras.layers.Dense(1, activation="sigmoid")

    def call(self, x: Any) -> Any:
        return self.dense(self.shift(x))


def shifted() -> keras.Model:
    return Shifted(lambda x: x + 1.0)


class Interrupts(keras.callbacks.Callback):  # type: ignore[misc]
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 2:
            raise RuntimeError("the power fails")


def test_an_interrupted_run_goes_on_after_its_last_epoch(flowers: Any, store: Path) -> None:
    df = flowers.withColumn("first", (flowers["label"] == 0).cast("int"))
    given = options(
        store,
        model=None,
        model_fn=shifted,
        loss="binary_crossentropy",
        metrics=None,
        label_cols=["first"],
        num_proc=1,
        epochs=4,
        run_id="interrupted",
    )
    with pytest.raises(errors.WorkerFailed, match="the power fails"):
        StromEstimator(**given, callbacks=[Interrupts()]).fit(df)
    assert {one.name for one in (store / "interrupted").iterdir()} == {"run.json", "checkpoints"}
    with pytest.raises(errors.InvalidOption, match="another model or of other columns"):
        StromEstimator(**{**given, "label_cols": ["label"]}).fit(df)
    model = StromEstimator(**given).fit(df)
    assert len(model.history["loss"]) == 4
    assert model.history["loss"][0] > model.history["loss"][2] > model.history["loss"][3]
    evaluator = BinaryClassificationEvaluator(
        rawPredictionCol="probability", labelCol="first", metricName="areaUnderROC"
    )
    made = model.copy({model.probability_col: "probability"}).transform(df)
    assert evaluator.evaluate(made) > 0.5
    assert {row["prediction"] for row in made.collect()} <= {0.0, 1.0}


def two_headed() -> keras.Model:
    name = keras.Input((1,), name="name", dtype="string")
    a, c = keras.Input((1,), name="a"), keras.Input((1,), name="c")
    buckets = keras.layers.Hashing(8)(name)
    joined = keras.layers.Concatenate()(
        [keras.layers.Flatten()(keras.layers.Embedding(8, 2)(buckets)), a, c]
    )
    hidden = keras.layers.Dense(8, activation="relu")(joined)
    return keras.Model(
        [name, a, c],
        [keras.layers.Dense(3, name="kind")(hidden), keras.layers.Dense(1, name="gap")(hidden)],
    )


def test_several_inputs_outputs_and_weights(flowers: Any, store: Path) -> None:
    df = flowers.withColumn("weight", flowers["id"] % 2)
    estimator = StromEstimator(
        **options(
            store,
            model=two_headed(),
            loss=[keras.losses.SparseCategoricalCrossentropy(from_logits=True), "mse"],
            loss_weights=[1.0, 0.5],
            metrics=None,
            feature_cols=["name", "a", "c"],
            label_cols=["label", "difference"],
            sample_weight_col="weight",
            validation="held_out",
            num_proc=1,
            epochs=1,
            partitions_per_process=2,
        )
    )
    model = estimator.fit(df.withColumn("held_out", df["id"] % 4 == 0))
    assert "val_loss" in model.history
    made = model.transform(df)
    assert made.columns == [*df.columns, "label__output", "difference__output"]
    row = made.first()
    assert len(row["label__output"]) == 3
    assert isinstance(row["difference__output"], float)
    scores = [row["score"] for row in model.score(df).collect()]
    weights = [row["weight"] for row in df.collect()]
    assert model.evaluate(df)["loss"] == pytest.approx(sum(scores) / len(weights), rel=1e-3)


def test_any_keras_model_can_predict_on_a_dataframe(flowers: Any) -> None:
    model = StromModel(model=classifier(), feature_cols=["features"], prediction_col="scores")
    row = model.transform(flowers.limit(5)).first()
    expected = model.keras.predict(row["features"].toArray()[None], verbose=0)[0]
    np.testing.assert_allclose(row["scores"], expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(errors.UnsupportedModel, match="not compiled"):
        StromModel(model=classifier(), feature_cols=["features"], label_cols=["label"]).evaluate(
            flowers
        )


@pytest.mark.parametrize("training", [None, ParameterAveraging()], ids=["direct", "averaging"])
def test_all_workers_validate_and_metrics_may_have_several_values(
    flowers: Any, tmp_path: Path, training: Any
) -> None:
    kinds = F.array(*((flowers["label"] == kind).cast("float") for kind in range(3)))
    df = flowers.withColumn("kinds", kinds)
    given = options(
        tmp_path,
        loss=keras.losses.CategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.F1Score()],
        label_cols=["kinds"],
        validation=0.25,
        training=training,
        store=None if training is None else str(tmp_path),
    )
    model = StromEstimator(**given).fit(df)
    assert len(model.history["val_f1_score"]) == 6
    assert len(model.history["val_f1_score"][-1]) == 3
    assert min(model.history["val_f1_score"][-1]) > 0.8
    assert min(model.evaluate(df)["f1_score"]) > 0.8


def die_once(directory: str) -> keras.Model:
    """Worker 1 is killed where it makes its model, the first time."""
    mark = Path(directory, "died")
    if keras_strom.rank() == 1 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return classifier()


def test_an_elastic_training_goes_on_with_those_that_are_there(
    flowers: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # Three workers for two slots; one of them dies and comes back.
    model = StromEstimator(
        **options(
            tmp_path / "store",
            model=None,
            model_fn=functools.partial(die_once, str(tmp_path)),
            store=None,
            num_proc=None,
            min_proc=2,
            max_proc=3,
            max_failures=1,
            epochs=8,
            verbose=1,
        )
    ).fit(flowers)
    output = capfd.readouterr().out
    assert "starting 2 to 3 workers" in output
    assert "it is started again (failure 1 of 1)" in output
    assert len(model.history["loss"]) == 8
    assert model.history["accuracy"][-1] > 0.8
    # The third may find a slot once one of the others has ended.
    assert set(model.timeline.totals()) >= {-1, 0, 1}


def test_a_chief_that_is_gone_at_the_end_says_what_can_be_done() -> None:
    plan = types.SimpleNamespace(run=None)
    with pytest.raises(errors.WorkerFailed, match=r"did not come back.*give store="):
        gradient_sharing._chiefs([WorkerResult((), None)], plan)  # type: ignore[arg-type]
    plan.run = types.SimpleNamespace(run_id="one")
    with pytest.raises(errors.WorkerFailed, match="run_id='one' goes on"):
        gradient_sharing._chiefs([], plan)  # type: ignore[arg-type]


class ConnectSession:
    """Has no SparkContext, as Spark Connect's sessions, and is of another application."""

    conf: ClassVar = {"spark.app.id": "app-of-another-process"}

    @property
    def sparkContext(self) -> Any:  # noqa: N802
        raise PySparkAttributeError("[JVM_ATTRIBUTE_NOT_SUPPORTED]")


def test_a_spark_connect_session_trains_nothing(tmp_path: Path) -> None:
    df = types.SimpleNamespace(sparkSession=ConnectSession())
    with pytest.raises(errors.InvalidOption, match=r"Spark Connect.*spark-submit"):
        StromEstimator(**options(tmp_path)).fit(df)
    with pytest.raises(errors.InvalidOption, match=r"Spark Connect.*spark-submit"):
        run(classifier, spark=ConnectSession())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"epochs": True}, "epochs=True"),
        ({"validation": 1.5}, "validation=1.5"),
        ({"feature_cols": "features"}, "must be a list"),
        ({"label_cols": ["label", "label"]}, "twice"),
        ({"model": "resnet"}, "must be a keras.Model"),
        ({"model_fn": 5}, "cannot be called"),
        ({"callbacks": ["EarlyStopping"]}, "must be a list of keras.callbacks"),
        ({"resume": True}, 'must be "auto" or False'),
        ({"run_id": "a/b"}, "run_id='a/b'"),
        ({"training": "averaging"}, "must be a method of training"),
        ({"use_gpu": "yes"}, "use_gpu='yes'"),
        ({"network": {"port": 1}}, "must be a NetworkConfig"),
        ({"strategy": {"tau": 1}}, "no option 'tau'"),
        ({"max_failures": -1}, "max_failures=-1"),
        ({"drain_seconds": 0}, "drain_seconds=0"),
        ({"min_proc": 0}, "min_proc=0"),
        ({"start_timeout": 0}, "start_timeout=0"),
        ({"verbose": 3}, "verbose=3"),
        ({"shuffle": 100}, "shuffle=100"),
    ],
)
def test_values_that_make_no_sense_are_refused_where_they_are_given(
    given: dict[str, Any], words: str
) -> None:
    with pytest.raises(errors.InvalidOption, match=words):
        StromEstimator(**given)


def test_unknown_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="num_procs"):
        StromEstimator(num_procs=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="num_procs"):
        StromEstimator().setParams(num_procs=2)


@pytest.mark.parametrize(
    ("changed", "kind", "words"),
    [
        ({"model": None}, errors.InvalidOption, "model= or model_fn="),
        ({"optimizer": None}, errors.InvalidOption, "loss, metrics without optimizer"),
        ({"optimizer": None, "loss": None, "metrics": None}, errors.UnsupportedModel, "compiled"),
        ({"feature_cols": None}, errors.InvalidOption, "feature_cols is not set"),
        ({"store": None, "partitions_per_process": 2}, errors.InvalidOption, "without store"),
        ({"feature_cols": ["feature"]}, errors.InvalidData, "no column 'feature'"),
        ({"feature_cols": ["a"]}, errors.InvalidData, "does not take its features"),
        ({"feature_cols": ["a", "b"]}, errors.InvalidData, "VectorAssembler"),
        ({"label_cols": ["pair"]}, errors.InvalidData, "holds an array of shape"),
        ({"label_cols": ["name"]}, errors.InvalidData, "does not take the label"),
        ({"loss": "mse"}, errors.InvalidData, r"needs an array of shape \(3,\)"),
        ({"validation_steps_per_epoch": 2}, errors.InvalidOption, "without validation"),
        ({"strategy": {"max_staleness": -1}}, errors.InvalidOption, "max_staleness"),
        (
            {"training": MPCA(), "strategy": {"max_staleness": 0}},
            errors.InvalidOption,
            r"max_staleness=0 .*no effect with method=MPCA\(",
        ),
        (
            {"training": MPCA(), "strategy": {"method": EASGD()}},
            errors.InvalidOption,
            r"beside training=MPCA\(.*leave one of them out",
        ),
        (
            {"training": MPCA(), "strategy": keras_strom.StromStrategy},
            errors.InvalidOption,
            r"makes a strategy, which training=MPCA\(.* cannot change",
        ),
        (
            {"training": GradientSharing(), "strategy": {"method": MPCA()}},
            errors.InvalidOption,
            r"another way to train than training=GradientSharing\(\)",
        ),
        ({"probability_col": "p", "loss": "mse", "model": "wide"}, errors.InvalidOption, "no clas"),
        ({"output_cols": ["x", "y"]}, errors.InvalidOption, "2 names for 1 outputs"),
        ({"batch_size": None}, errors.InvalidOption, "batch_size=None"),
        ({"store": None, "run_id": "one"}, errors.InvalidOption, "run_id has no effect"),
        ({"num_proc": 7}, errors.NotEnoughSlots, "num_proc=2"),
        ({"min_proc": 1}, errors.InvalidOption, "num_proc=2 .*leave it out"),
        ({"num_proc": None, "min_proc": 7}, errors.NotEnoughSlots, "min_proc=2"),
        ({"num_proc": None, "min_proc": 3, "max_proc": 2}, errors.InvalidOption, "min_proc=3 is"),
    ],
)
def test_what_does_not_fit_is_found_before_the_cluster_is_busy(
    flowers: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, Any],
    kind: type[Exception],
    words: str,
) -> None:
    from keras_strom.spark.runner import slots

    monkeypatch.setattr(slots, "_STARTING_SECONDS", 0.0)
    monkeypatch.setattr(slots, "_GROWING_SECONDS", 0.0)
    if changed.get("model") == "wide":
        wide = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        changed = {**changed, "model": wide, "label_cols": ["difference"], "metrics": None}
    with pytest.raises(kind, match=words):
        StromEstimator(**options(tmp_path, **changed)).fit(flowers)
    assert not list(tmp_path.iterdir())


def test_a_model_that_cannot_be_saved_points_to_model_fn(flowers: Any, tmp_path: Path) -> None:
    with pytest.raises(errors.UnsupportedModel, match="pass model_fn="):
        StromEstimator(**options(tmp_path, model=shifted())).fit(flowers)


def test_a_run_id_cannot_serve_several_models(flowers: Any, tmp_path: Path) -> None:
    estimator = StromEstimator(**options(tmp_path, run_id="one"))
    maps = ParamGridBuilder().addGrid(estimator.batch_size, [8, 16]).build()
    with pytest.raises(errors.InvalidOption, match="run of 2 models"):
        estimator.fit(flowers, maps)
    # Each fold would have the model of the first one, with the rows that it is validated on.
    grid = ParamGridBuilder().addGrid(estimator.epochs, [1]).build()
    tuning = CrossValidator(
        estimator=estimator, estimatorParamMaps=grid, evaluator=RegressionEvaluator(), numFolds=2
    )
    with pytest.raises(errors.InvalidOption, match="again on other rows: leave it out"):
        tuning.fit(flowers)
    with pytest.raises(errors.InvalidOption, match="run_id='two'"):
        estimator.copy({estimator.run_id: None}).fit(flowers, [{estimator.run_id: "two"}])


def test_executors_with_another_version_are_named(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = executors.installed()
    monkeypatch.setattr(executors, "installed", lambda: {**versions, "keras": "1.0"})
    with pytest.raises(errors.ExecutorMismatch, match=r"keras [\d.]+ \(driver: 1\.0\)"):
        executors.check_executors(spark.sparkContext, 1)
    monkeypatch.setattr(executors, "PACKAGES", ("keras_strom", "no_such_package"))
    with pytest.raises(errors.ExecutorMismatch, match="cannot import no_such_package"):
        executors.check_executors(spark.sparkContext, 1)


def test_words_of_spark_that_mean_another_package_are_explained() -> None:
    with pytest.raises(errors.ExecutorMismatch) as raised:
        executors.check_version("0.0.1")
    traceback = f"Traceback (most recent call last):\nkeras_strom.errors.{raised.typename}: "
    for text, words in (
        (traceback + str(raised.value), r"\(driver: 0\.0\.1\)"),
        ("ModuleNotFoundError: No module named 'keras_strom'", "node7 has no keras-strom"),
        (
            "AttributeError: Can't get attribute 'Task' on <module "
            "'keras_strom.spark.runner.task' from",
            "another version",
        ),
        (
            "  import tensorflow\nModuleNotFoundError: No module named 'tensorflow'\n",
            "node7 has keras-strom but no tensorflow: install",
        ),
        (
            "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python "
            "in worker has different version: 3.12 than that in driver: 3.11, PySpark cannot run "
            "with different minor versions.\nPlease check environment variables",
            "node7 runs Python 3.12, and the driver Python 3.11: set PYSPARK_PYTHON",
        ),
        (
            "RuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version (3, 9) "
            "than that in driver 3.11, PySpark cannot run with different minor versions",
            "node7 runs Python 3.9, and the driver Python 3.11",
        ),
        (
            'java.io.IOException: Cannot run program "./env/bin/python": error=2, No such file',
            r"node7 cannot run ./env/bin/python \(No such file\), which PYSPARK_PYTHON",
        ),
    ):
        with pytest.raises(errors.ExecutorMismatch, match=words):
            executors.refuse_mismatch("node7", text)
    for module in ("pandas", "tensorflow_text", "tensorflow.text"):
        executors.refuse_mismatch("node7", f"ModuleNotFoundError: No module named '{module}'")


def test_a_prediction_never_replaces_a_column(trained: StromModel, flowers: Any) -> None:
    with pytest.raises(errors.InvalidData, match="'prediction' already"):
        trained.transform(flowers.withColumn("prediction", flowers["a"]))
    with pytest.raises(errors.InvalidData, match="'label' already"):
        trained.score(flowers, "label")
    with pytest.raises(errors.InvalidData, match="trained on float32 of shape"):
        trained.transform(flowers.withColumn("features", flowers["a"]))


def test_nulls_are_named_where_they_are_met(trained: StromModel, flowers: Any, spark: Any) -> None:
    context = spark.sparkContext
    context.setJobGroup("nulls", "")
    some = flowers.withColumn("label", F.when(flowers["id"] > 5, flowers["label"]))
    with pytest.raises(errors.InvalidData, match=r"'label' has .* nulls"):
        trained.evaluate(some)
    some = flowers.withColumn("features", F.when(flowers["id"] > 5, flowers["features"]))
    with pytest.raises(errors.InvalidData, match=r"'features' has .* nulls"):
        trained.evaluate(some)
    context.setLocalProperty("spark.jobGroup.id", None)
    # Other attempts would meet them, too.
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup("nulls")]
    stages = [tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds]
    assert sum(stage.numCompletedTasks for stage in stages) > 0
    assert sum(stage.numFailedTasks for stage in stages) == 0


def test_a_label_outside_the_classes_is_named(trained: StromModel, flowers: Any) -> None:
    other = flowers.withColumn("label", F.when(flowers["id"] > 5, flowers["label"]).otherwise(7))
    words = "the loss or a metric does not take the labels: .*label value of 7 which is outside"
    with pytest.raises(errors.InvalidData, match=words):
        trained.evaluate(other)
    with pytest.raises(Exception, match=words):
        trained.score(other, "hard").collect()


def test_a_model_travels_anew_to_another_application(
    trained: StromModel, flowers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = trained.copy()
    columns, specs = model._examined(flowers, with_labels=True)
    first = model._broadcast(flowers, columns, specs)
    assert model._broadcast(flowers, columns, specs) is first
    other = types.SimpleNamespace(applicationId="another", broadcast=lambda value: value)
    monkeypatch.setattr(model_module, "context_of", lambda session: other)
    assert isinstance(model._broadcast(flowers, columns, specs).pickled, bytes)
