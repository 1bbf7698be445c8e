"""Spark Connect's DataFrames and sessions: writes what is done with them and what is refused.

spark_connect.py serve        a server, until its input ends; writes its URL
spark_connect.py far URL      a client of a server in another process: predicts, trains nothing
spark_connect.py near FOLDER  a server in this process, with two executors: trains, too
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ["PYSPARK_PYTHON"] = sys.executable

CONFIG = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def write(found: object) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def builder() -> Any:
    from pyspark.sql import SparkSession

    made = SparkSession.builder
    for key, value in CONFIG.items():
        made = made.config(key, value)
    return made


def serve() -> None:
    """Spark Connect's server is a plugin of an application's driver."""
    plugin = "org.apache.spark.sql.connect.SparkConnectPlugin"
    made = builder().master("local[2]").config("spark.plugins", plugin)
    session = (
        made.config("spark.connect.grpc.binding.address", "127.0.0.1")
        .config("spark.connect.grpc.binding.port", "0")
        .getOrCreate()
    )
    package = session._jvm.org.apache.spark.sql.connect.service
    service = getattr(getattr(package, "SparkConnectService$"), "MODULE$")  # Scala's object.
    write(f"sc://127.0.0.1:{service.localPort()}")
    sys.stdin.read()
    session.stop()


def data(session: Any) -> tuple[Any, Any]:
    """Rows whose y is 2 a + b, as an array and as a DataFrame of them."""
    import numpy as np

    x = np.random.default_rng(1).normal(size=(200, 2)).astype("float32")
    rows = [(row.tolist(), float(2 * row[0] + row[1])) for row in x]
    return x, session.createDataFrame(rows, "x array<float>, y double")


def stages(**options: Any) -> tuple[Any, Any, Any]:
    """A model, a StromModel of it, and an estimator."""
    import keras

    from keras_strom.spark import StromEstimator, StromModel

    keras.utils.set_random_seed(1)
    network = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    network.compile(keras.optimizers.SGD(0.05), "mse")
    columns = {"feature_cols": ["x"], "label_cols": ["y"]}
    model = StromModel(model=network, **columns)
    return network, model, StromEstimator(model=network, verbose=0, **columns, **options)


def refused(work: Any, *given: object, **options: object) -> str:
    from keras_strom import errors

    try:
        work(*given, **options)
    except errors.StromError as error:
        return str(error)
    return "it was not refused"


def far(url: str) -> None:
    from keras_strom.spark import run
    from keras_strom.spark.estimator import model as stage
    from keras_strom.spark.runner.session import active_session

    session = builder().remote(url).getOrCreate()
    x, df = data(session)
    network, model, estimator = stages()
    y = [row["y"] for row in df.collect()]
    import numpy as np

    found = {
        "expected": network.predict(x, verbose=0)[:, 0].tolist(),
        "predicted": [row["prediction"] for row in model.transform(df).collect()],
        "loss": network.evaluate(x, np.asarray(y), verbose=0),
        "evaluated": model.evaluate(df)["loss"],
        "fit": refused(estimator.fit, df),
        "run": refused(run, len, num_proc=1),
        "save": refused(model.save, "file:/nowhere"),
        "session": refused(active_session),
    }
    stage._MOST_IN_PLAN = 1000
    found["too large"] = refused(model.transform, df)
    write(found)
    session.stop()


def ranks() -> tuple[int, int]:
    """What a worker returns."""
    import keras_strom

    return keras_strom.rank(), keras_strom.size()


def near(folder: str) -> None:
    from keras_strom.spark import ParameterAveraging, StromModel, run

    session = builder().remote("local-cluster[2,1,1024]").getOrCreate()
    _, df = data(session)
    _, untrained, straight = stages(epochs=6, batch_size=10, num_proc=2)
    stored = stages(epochs=1, num_proc=2, store=folder)[-1]
    averaging = ParameterAveraging()
    averaged = stages(epochs=1, num_proc=2, store=folder, training=averaging)[-1]
    fitted = straight.fit(df)
    fitted.save(f"{folder}/saved")
    write(
        {
            "ranks": list(run(ranks, num_proc=2, stream_logs=False)),
            "before": untrained.evaluate(df)["loss"],
            "after": fitted.evaluate(df)["loss"],
            "loaded": StromModel.load(f"{folder}/saved").evaluate(df)["loss"],
            "predicted": fitted.transform(df).count(),
            "stored": list(stored.fit(df).history),
            "averaged": list(averaged.fit(df).history),
        }
    )
    session.stop()


if __name__ == "__main__":
    {"serve": serve, "far": far, "near": near}[sys.argv[1]](*sys.argv[2:])
