"""Parameter averaging of what is not plain: loss scales, own train steps, dtype policies."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np
import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq

from keras_strom.spark import ParameterAveraging
from keras_strom.spark.data.columns import Columns
from keras_strom.spark.data.exported import ExportedData
from keras_strom.spark.data.parquet import from_parquet
from keras_strom.spark.inference.serialization import PackedModel, pack
from keras_strom.spark.training.worker_training import Code, TrainingPlan
from tests.support.averaging import train_here

ROWS = 48
COLUMNS = Columns(("x",), ("label",))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> ExportedData:
    """Points of a plane, also to validate on: 3 steps of 8 for each of two workers."""
    x = np.random.default_rng(11).normal(size=(ROWS, 3)).astype("float32")
    y = (x @ [1.0, -2.0, 0.5]).astype("float32")
    folder = tmp_path_factory.mktemp("points")
    table = pa.table({"x": pa.array(list(x), pa.list_(pa.float32(), 3)), "label": y})
    pq.write_table(table, folder / "points.parquet", row_group_size=ROWS // 4)
    return from_parquet(str(folder), COLUMNS)


def plan_of(data: ExportedData, model: PackedModel, **others: Any) -> TrainingPlan:
    plan = TrainingPlan(
        model=model,
        code=Code().pickled(),
        data=data,
        batch_size=8,
        val_batch_size=8,
        epochs=1,
        train_steps_per_epoch=None,
        validation_steps_per_epoch=None,
        shuffle=False,
        seed=1,
        verbose=0,
        run=None,
    )
    return dataclasses.replace(plan, **others)


def plane(**options: Any) -> keras.Model:
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, **options)])


# ---------------------------------------------------------------- loss scales


def steep(y_true: Any, y_pred: Any) -> Any:
    """A loss whose gradients overflow in float16 until the scale is some powers of two lower."""
    return 1e4 * keras.ops.square(keras.ops.cast(y_pred, "float32") - y_true)


@pytest.mark.parametrize("save_updater", [True, False])
def test_a_loss_scale_that_overflows_falls_over_the_rounds(
    data: ExportedData, save_updater: bool
) -> None:
    model = plane(dtype="mixed_float16")
    before = model.get_weights()
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1e-6))
    packed = pack(
        model,
        compiling={"optimizer": optimizer, "loss": steep},
        custom_objects={"steep": steep},
    )
    method = ParameterAveraging(averaging_frequency=2, save_updater=save_updater)
    trained = train_here(plan_of(data, packed, epochs=8), method)
    left = packed.trained(trained.file, trained.suffix).load()
    assert any((a != b).any() for a, b in zip(before, left.get_weights(), strict=True))
