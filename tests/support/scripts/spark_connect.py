"""A StromModel on Spark Connect's DataFrames: writes what it gives and what is refused."""

from __future__ import annotations

import json
import os
import sys

os.environ["PYSPARK_PYTHON"] = sys.executable

import keras
import numpy as np
from pyspark.sql import SparkSession

from keras_strom import errors
from keras_strom.spark import StromEstimator, StromModel, run
from keras_strom.spark.estimator import model as stage
from keras_strom.spark.runner.session import active_session


def refused(work: object, *given: object, **options: object) -> str:
    try:
        work(*given, **options)  # type: ignore[operator]
    except errors.StromError as error:
        return str(error)
    return "it was not refused"


session = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
keras.utils.set_random_seed(1)
network = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
network.compile("sgd", "mse")
x = np.arange(20, dtype="float32").reshape(10, 2)
rows = [(row.tolist(), 1.0) for row in x]
df = session.createDataFrame(rows, "x array<float>, y double").coalesce(1)
model = StromModel(model=network, feature_cols=["x"], label_cols=["y"])
estimator = StromEstimator(model=network, feature_cols=["x"], label_cols=["y"])
found = {
    "expected": network.predict(x, verbose=0)[:, 0].tolist(),
    "predicted": [row["prediction"] for row in model.transform(df).collect()],
    "loss": network.evaluate(x, np.ones(10), verbose=0),
    "evaluated": model.evaluate(df)["loss"],
    "fit": refused(estimator.fit, df),
    "run": refused(run, len, num_proc=1),
    "session": refused(active_session),
}
stage._MOST_IN_PLAN = 1000
found["too large"] = refused(model.transform, df)
sys.stdout.write(json.dumps(found) + "\n")
session.stop()
