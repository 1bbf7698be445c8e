"""What `make bench-start` times: a driver with Spark's embedded cluster that does one thing.

    python -m benchmarks.start_job tasks|runs|strom|elephas

It prints a line of JSON, the last of its output. Clocks of driver and workers are one, the
machine's.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from keras_strom.spark.runner.slots import count_slots

WORKERS = 2
WARM_RUNS = 5
EPOCHS = 12
BATCH = 32


def session() -> Any:
    """Two executors of a core each, both of them there."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master(f"local-cluster[{WORKERS},1,1024]")
        .appName("keras-strom start")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    while count_slots(spark.sparkContext) < WORKERS:
        time.sleep(0.05)
    return spark


def tasks() -> dict[str, Any]:
    """How long Spark takes to start a task of Python in each executor, for the first time."""
    context = session().sparkContext
    begin = time.monotonic()
    context.parallelize(range(WORKERS), WORKERS).mapPartitions(lambda rows: [sum(rows)]).collect()
    return {"seconds": time.monotonic() - begin}


def first_step() -> float:
    """On a worker: when its first training step has ended."""
    import keras
    import numpy as np

    import keras_strom

    ends: list[float] = []
    with keras_strom.StromStrategy().scope():
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)])
        model.compile("adam", "mse")
    note = keras.callbacks.LambdaCallback(on_batch_end=lambda batch, logs: ends.append(time.time()))
    x, y = np.zeros((256, 64), np.float32), np.zeros((256, 10), np.float32)
    model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[note])
    return ends[0]


def runs() -> dict[str, Any]:
    """How long `run` takes to every worker's first step: in a new application, and later on."""
    from keras_strom.spark import run

    spark = session()
    seconds = []
    for _ in range(1 + WARM_RUNS):
        begin = time.time()
        ends = run(first_step, num_proc=WORKERS, stream_logs=False, verbose=0, spark=spark)
        seconds.append(max(ends) - begin)
    return {"cold": seconds[0], "warm": seconds[1:]}


def strom() -> dict[str, Any]:
    """Five fits of `StromEstimator`."""
    from keras_strom.spark import StromEstimator

    return cross_validate(
        lambda model: StromEstimator(
            model=model,
            optimizer="adam",
            loss="sparse_categorical_crossentropy",
            feature_cols=["features"],
            label_cols=["label"],
            num_proc=WORKERS,
            batch_size=BATCH,
            epochs=EPOCHS,
            verbose=0,
        )
    )


def elephas() -> dict[str, Any]:
    """Five fits of elephas's estimator, in its synchronous mode."""
    from elephas.ml_model import ElephasEstimator
    from keras import optimizers

    return cross_validate(
        lambda model: ElephasEstimator(
            keras_model_config=model.to_json(),
            optimizer_config=optimizers.serialize(optimizers.Adam()),
            loss="categorical_crossentropy",
            metrics=["accuracy"],
            mode="synchronous",
            categorical=True,
            nb_classes=10,
            num_workers=WORKERS,
            batch_size=BATCH,
            epochs=EPOCHS,
            verbose=0,
        )
    )


def cross_validate(estimator_of: Callable[[Any], Any]) -> dict[str, Any]:
    """Two candidates on two folds, and the better one on all digits: five fits."""
    import keras
    from pyspark.ml.linalg import Vectors
    from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
    from sklearn.datasets import load_digits

    spark = session()
    pixels, labels = load_digits(return_X_y=True)
    pairs = zip(pixels / 16.0, labels, strict=True)
    rows = [(Vectors.dense(x), float(label)) for x, label in pairs]
    digits = spark.createDataFrame(rows, ["features", "label"]).repartition(WORKERS).cache()
    digits.count()
    layers = [keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10, "softmax")]
    estimator = estimator_of(keras.Sequential(layers))
    grid = ParamGridBuilder().addGrid(estimator.batch_size, [BATCH, 2 * BATCH]).build()
    validator = CrossValidator(
        estimator=estimator,
        estimatorParamMaps=grid,
        evaluator=accuracy_evaluator(),
        numFolds=2,
        seed=1,
    )
    begin = time.monotonic()
    found = validator.fit(digits)
    return {"seconds": time.monotonic() - begin, "accuracy": max(found.avgMetrics)}


def accuracy_evaluator() -> Any:
    """Of predictions that are classes, or a score for each class."""
    import numpy as np
    from pyspark.ml.evaluation import Evaluator

    class Accuracy(Evaluator):  # type: ignore[misc]
        def _evaluate(self, dataset: Any) -> float:
            rows = dataset.select("label", "prediction").collect()
            predicted = [np.argmax(p) if np.ndim(p) else p for _, p in map(tuple, rows)]
            return float(
                np.mean([label == p for (label, _), p in zip(rows, predicted, strict=True)])
            )

    return Accuracy()


if __name__ == "__main__":
    what = {f.__name__: f for f in (tasks, runs, strom, elephas)}[sys.argv[1]]
    print(json.dumps(what()))  # noqa: T201
