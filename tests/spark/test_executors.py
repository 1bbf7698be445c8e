"""What is looked at before executors get work: their settings, and what is sent to them."""

from __future__ import annotations

import types
from typing import Any

import keras
import pytest

pytest.importorskip("pyspark")

from keras_strom import errors
from keras_strom.spark import StromEstimator, StromModel, run
from keras_strom.spark.runner.executors import check_python_memory


def session(**settings: str) -> Any:
    """A Spark session of which nothing but the settings is asked."""
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return types.SimpleNamespace(conf=types.SimpleNamespace(get=given.get))


@pytest.mark.parametrize(
    ("memory", "cores", "each"),
    [("900m", "1", 900), ("4g", "4", 1024), ("1024", "1", 1024), ("1048576K", "2", 512)],
)
def test_a_limit_under_which_tensorflow_cannot_be_imported_is_refused(
    memory: str, cores: str, each: int
) -> None:
    words = f"pyspark\\.memory={memory} lets a Python worker have {each} MiB"
    with pytest.raises(errors.InvalidOption, match=words):
        check_python_memory(
            session(spark_executor_pyspark_memory=memory, spark_executor_cores=cores)
        )


@pytest.mark.parametrize("settings", [{}, {"memory": "3g"}, {"memory": "12gb", "cores": "4"}])
def test_a_limit_that_leaves_room_passes(settings: dict[str, str]) -> None:
    names = {"memory": "spark_executor_pyspark_memory", "cores": "spark_executor_cores"}
    check_python_memory(session(**{names[name]: value for name, value in settings.items()}))


@pytest.mark.parametrize("work", ["fit", "transform", "evaluate", "score"])
def test_whatever_python_workers_do_asks_for_it(
    spark: Any, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    df = spark.createDataFrame([(1.0, 2.0)], ["x", "y"])
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    stage: Any = StromEstimator if work == "fit" else StromModel
    method = getattr(stage(model=model, feature_cols=["x"], label_cols=["y"]), work)
    usual = type(spark.conf).get

    def get(conf: Any, name: str, *default: Any) -> Any:
        return "1g" if name == "spark.executor.pyspark.memory" else usual(conf, name, *default)

    monkeypatch.setattr(type(spark.conf), "get", get)
    with pytest.raises(errors.InvalidOption, match=r"pyspark\.memory=1g lets"):
        method(df)


@pytest.mark.parametrize("kind", ["broadcast variable", "accumulator"])
def test_variables_that_spark_shares_with_its_own_tasks_are_refused(spark: Any, kind: str) -> None:
    context = spark.sparkContext
    one: Any = context.broadcast([1]) if kind == "broadcast variable" else context.accumulator(0)
    with pytest.raises(errors.InvalidOption, match=f"fn, its .* use an? {kind} of Spark"):
        run(lambda: one, num_proc=2, spark=spark)
    for arguments in ([one], [type(one), one]):  # A pickle names a module once.
        with pytest.raises(errors.InvalidOption, match=f"arguments .* use an? {kind} of Spark"):
            run(list, (arguments,), num_proc=2, spark=spark)
    df = spark.createDataFrame([(1.0, 2.0)], ["x", "y"])
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    given: Any = {"model": model, "optimizer": "sgd", "loss": "mse"}
    given |= {"feature_cols": ["x"], "label_cols": ["y"]}

    def callbacks() -> list[Any]:
        return [keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: one)]

    with pytest.raises(errors.InvalidOption, match=f"callbacks, .* use an? {kind} of Spark"):
        StromEstimator(**given, callbacks=callbacks).fit(df)

    def model_fn() -> keras.Model:
        return one

    with pytest.raises(errors.InvalidOption, match=f"loss or metrics use an? {kind} of Spark"):
        StromEstimator(**{**given, "model": None}, model_fn=model_fn).fit(df)

    def loss(_: Any, predicted: Any) -> Any:
        return one, predicted

    class Scaled(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            return x if hasattr(x, "shape") else one

    with pytest.raises(errors.InvalidOption, match=f"loss or metrics use an? {kind} of Spark"):
        StromEstimator(**{**given, "loss": loss}).fit(df)
    scaled = keras.Sequential([keras.Input((1,)), Scaled()])
    with pytest.raises(errors.InvalidOption, match=f"layers, .* use an? {kind} of Spark"):
        StromEstimator(**{**given, "model": scaled}).fit(df)
    with pytest.raises(errors.InvalidOption, match=f"layers, .* use an? {kind} of Spark"):
        StromModel(model=scaled, feature_cols=["x"])
