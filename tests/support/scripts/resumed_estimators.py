"""A driver that fits two estimators at the same time, one with model= and one with model_fn=.

With "wait" their third epoch never begins: it leaves a mark and waits to be killed.
"""

from __future__ import annotations

import json
import signal
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cloudpickle
import keras
import numpy as np
from pyspark.sql import SparkSession

from keras_strom import errors
from keras_strom.spark import StromEstimator, StromModel

# Executors cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

EPOCHS, MARKED = 4, 2
KINDS = ("model", "model_fn")


class Waits(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self, mark: str) -> None:
        super().__init__()
        self._mark = mark

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == MARKED:
            Path(self._mark).touch()
            signal.pause()


def network() -> keras.Model:
    """Two layers: Keras notes the address of what they share."""
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dense(1),
        ]
    )


def estimator(kind: str, folder: Path, **others: Any) -> StromEstimator:
    made = {"model": network()} if kind == "model" else {"model_fn": network}
    return StromEstimator(
        **{
            **made,
            "optimizer": "adam",
            "loss": "mse",
            "feature_cols": ["x"],
            "label_cols": ["y"],
            "batch_size": 8,
            "epochs": EPOCHS,
            "store": str(folder / "store"),
            "run_id": f"of_{kind}",
            "num_proc": 1,
            "verbose": 0,
            **others,
        }
    )


def main(folder: Path, waits: bool) -> None:
    session = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    )
    x = np.random.default_rng(1).normal(size=(64, 4))
    rows = [(row.tolist(), float(row.sum())) for row in x]
    df = session.createDataFrame(rows, ["x", "y"]).repartition(2).cache()

    def fit(kind: str) -> StromModel:
        callbacks = [Waits(str(folder / kind))] if waits else None
        return estimator(kind, folder, callbacks=callbacks).fit(df)

    if not waits:
        network()  # Keras numbers the layers of the next one otherwise than the first driver's.
    with ThreadPoolExecutor(len(KINDS)) as threads:
        trained = dict(zip(KINDS, threads.map(fit, KINDS), strict=True))
    found: dict[str, Any] = {kind: model.history["loss"] for kind, model in trained.items()}
    for kind in KINDS:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            again = fit(kind)
        first = [one.predict(x, verbose=0) for one in (again.keras, trained[kind].keras)]
        found[f"{kind} again"] = {
            "history": again.history["loss"],
            "equal": bool(np.array_equal(*first)),
            "warnings": [str(one.message) for one in caught if one.category is RuntimeWarning],
        }
    try:
        estimator("model", folder, epochs=EPOCHS + 1).fit(df)
    except errors.InvalidOption as error:
        found["more epochs"] = str(error)
    anew = estimator("model", folder, epochs=1, resume=False).fit(df)
    found["anew"] = anew.history["loss"]
    (folder / "found.json").write_text(json.dumps(found))
    session.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), waits=sys.argv[2] == "wait")
