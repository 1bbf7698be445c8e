"""Stages that an earlier version has saved still load: their classes have moved since."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyspark")

from pyspark.ml import Pipeline, PipelineModel

import keras_strom
from keras_strom import errors
from keras_strom.spark import GradientSharing, StromEstimator, StromModel
from keras_strom.spark.inference import pickled

SAVED = Path(__file__).parent / "testdata" / "saved_by_0.1.0.dev0"


def test_a_pipeline_of_an_earlier_version_has_its_params(spark: Any) -> None:
    estimator = Pipeline.load(str(SAVED / "pipeline")).getStages()[1]
    assert isinstance(estimator, StromEstimator)
    assert isinstance(estimator.getOrDefault("training"), GradientSharing)
    assert isinstance(estimator.getOrDefault("network"), keras_strom.NetworkConfig)
    threshold = estimator.getOrDefault("strategy")["threshold"]
    assert isinstance(threshold, keras_strom.AdaptiveThreshold)
    assert estimator.getOrDefault("epochs") == 2


def test_a_model_of_an_earlier_version_predicts(spark: Any) -> None:
    pipeline = PipelineModel.load(str(SAVED / "fitted"))
    model = pipeline.stages[1]
    assert isinstance(model, StromModel)
    assert len(model.history["loss"]) == 2
    df = spark.createDataFrame([(1.0, 2.0), (0.5, -1.0)], ["a", "b"])
    rows = pipeline.transform(df).select("a", "b", "prediction").collect()
    expected = model.keras.predict(np.array([[row.a, row.b] for row in rows]), verbose=0)[:, 0]
    assert [row.prediction for row in rows] == pytest.approx(expected.tolist())


def test_a_stage_is_loaded_as_what_it_is(spark: Any) -> None:
    saved = next((SAVED / "fitted" / "stages").glob("1_*"))
    words = "holds a StromModel, not a StromEstimator: load it with StromModel.load"
    with pytest.raises(errors.InvalidOption, match=words):
        StromEstimator.load(str(saved))


def test_stages_are_saved_under_names_that_stay() -> None:
    for kind in (StromEstimator, StromModel):
        assert f"{kind.__module__}.{kind.__name__}" == f"keras_strom.spark.{kind.__name__}"
        assert pickle.loads(pickle.dumps(kind)) is kind


def test_a_class_that_is_no_more_names_the_versions() -> None:
    # A pickled reference to a class, as any version could have written it.
    old = b"ckeras_strom.spark.forgotten\nThing\n."
    with pytest.raises(errors.UnsupportedModel, match="another version of keras-strom") as raised:
        pickled.loads(old)
    assert keras_strom.__version__ in str(raised.value)
    assert "keras_strom.spark.forgotten.Thing" in str(raised.value)


def test_a_missing_module_of_somebody_else_is_no_matter_of_versions() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        pickled.loads(b"cno_such_module\nThing\n.")
