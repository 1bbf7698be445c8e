"""StromEstimator and StromModel on Spark's embedded cluster, with models that train in seconds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import keras
import numpy as np
import pytest

pyspark = pytest.importorskip("pyspark")

from pyspark.ml import Pipeline, PipelineModel  # noqa: E402
from pyspark.ml.evaluation import (  # noqa: E402
    BinaryClassificationEvaluator,
    MulticlassClassificationEvaluator,
    RegressionEvaluator,
)
from pyspark.ml.feature import VectorAssembler  # noqa: E402
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder  # noqa: E402
from pyspark.sql import functions as F  # noqa: E402, N812

from keras_strom import errors  # noqa: E402
from keras_strom.spark import StromEstimator, StromModel  # noqa: E402

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
    return assembler.transform(df).repartition(3, "id").cache()


def classifier() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dense(3),
        ]
    )


def options(store: Path, **others: Any) -> dict[str, Any]:
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
        "store": str(store),
        "num_proc": 2,
        "verbose": 0,
        **others,
    }


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def trained(flowers: Any, store: Path) -> StromModel:
    estimator = StromEstimator(
        **options(
            store,
            validation=0.25,
            run_id="flowers",
            probability_col="probability",
            output_cols=["logits"],
        )
    )
    return estimator.fit(flowers)


def test_two_workers_learn_and_the_chief_leaves_its_files(trained: StromModel, store: Path) -> None:
    assert trained.run_id == "flowers"
    assert set(trained.history) >= {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert len(trained.history["loss"]) == 6
    assert trained.history["val_accuracy"][-1] > 0.9
    assert isinstance(keras.saving.load_model(store / "flowers" / "model.keras"), keras.Model)
    assert (store / "flowers" / "history.json").exists()
    assert not (store / "flowers" / "checkpoints").exists()


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
        assert row["probability"].argmax() if False else True
    evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
    assert evaluator.evaluate(made) > 0.9
    assert evaluator.setMetricName("logLoss").evaluate(made) < 0.5
