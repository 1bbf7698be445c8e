"""The logs of an epoch: which of them are metrics, and so are averaged."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_strom.strategy.epoch_logs import EpochLogs
from keras_strom.strategy.not_finite import of_loss
from keras_strom.strategy.strategy import StromStrategy


class TellsOfItsOwn(keras.Sequential):
    """Its step tells of a loss that it has not counted, and of a metric that it has."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = tf.reduce_mean(tf.square(predicted - y)) + 5.0
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.error.update_state(y, predicted)
        return {
            "loss": loss,
            "error": self.error.result(),
            "norm": tf.linalg.global_norm(gradients),
        }


def history(strategy: Any) -> dict[str, list[float]]:
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(2).normal(size=(32, 4)).astype("float32")
    with strategy.scope():
        model = TellsOfItsOwn([keras.Input((4,)), keras.layers.Dense(1)])
        model.error = keras.metrics.MeanAbsoluteError(name="error")
        model.compile(keras.optimizers.SGD(0.1))
    options = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
    found: dict[str, list[float]] = model.fit(x, x[:, :1], **options).history
    return {name: values for name, values in found.items() if not name.startswith("strom/")}


def test_a_loss_that_no_metric_has_counted_is_what_the_step_tells() -> None:
    want = history(tf.distribute.OneDeviceStrategy("/cpu:0"))
    got = history(StromStrategy(always_encode=True))
    assert got.keys() == want.keys() == {"loss", "error", "norm"}
    for name, values in want.items():
        assert got[name] == pytest.approx(values, rel=1e-5)
    assert min(got["loss"]) > 5


class Metrics:
    """A model of which only the metrics' results count."""

    def __init__(self) -> None:
        self.results: dict[str, Any] = {"loss": 0.0, "each": np.float32([1, 2])}

    def get_metrics_result(self) -> dict[str, Any]:
        return dict(self.results)


def end_epoch(told: dict[str, Any]) -> EpochLogs:
    model = Metrics()
    logs = EpochLogs(model)
    logs.note_step(told)
    logs.end_epoch()
    model.results = {"loss": 7.0, "each": np.float32([3, 4])}
    logs.note_averages()
    return logs


def test_what_a_step_tells_of_metrics_alone_becomes_their_average() -> None:
    # As in Keras, also where it tells of another loss than the metric's.
    logs = end_epoch({"loss": 5.0, "each": np.float32([1, 2])})
    found = {"loss": 0.0, "each": np.float32([1, 2]), "val_loss": 1.0}
    logs.put_averages(found)
    assert found["loss"] == 7.0
    np.testing.assert_array_equal(found["each"], [3, 4])
    assert found["val_loss"] == 1.0


def test_of_what_it_tells_besides_the_metrics_become_their_average() -> None:
    logs = end_epoch({"loss": 5.0, "each": np.float32([1, 2]), "norm": 2.0})
    found = {"loss": 5.0, "each": np.float32([1, 2]), "norm": 2.0}
    logs.put_averages(found)
    assert (found["loss"], found["norm"]) == (5.0, 2.0)
    np.testing.assert_array_equal(found["each"], [3, 4])


def test_where_a_nan_has_ended_the_training_so_is_the_loss() -> None:
    logs = end_epoch({"loss": 5.0, "norm": 2.0})
    logs.lose()
    found = {"loss": 5.0, "norm": 2.0}
    logs.put_averages(found)
    assert math.isnan(found["loss"])
    assert found["norm"] == 2.0


@pytest.mark.parametrize(
    ("loss", "is_lost"),
    [(1.5, False), (None, False), ([1.0, 2.0], False), (math.inf, True), ([1.0, math.nan], True)],
)
def test_a_batchs_loss_may_be_of_each_example(loss: Any, is_lost: bool) -> None:
    logs = {} if loss is None else {"loss": tf.constant(loss)}
    assert (of_loss(logs) is not None) == is_lost
