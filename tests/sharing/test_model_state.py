"""What models hold beside their weights: the metrics of several workers' parts as one's of all."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from keras_strom.sharing.model_state import assign_mean, metric_sums, read

CLASSES = 5


class Share(keras.metrics.Metric):
    """Of the labels that are 0; it counts in whole numbers beside a sum that is none."""

    def __init__(self) -> None:
        super().__init__(name="share")
        self.total = self.add_variable((), "zeros", name="total")
        self.count = self.add_variable((), "zeros", dtype="int32", name="count")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(keras.ops.sum(y_true[:, 0]))
        self.count.assign_add(keras.ops.shape(y_true)[0])

    def result(self) -> Any:
        return self.total / keras.ops.cast(self.count, "float32")


def _model() -> keras.Model:
    keras.utils.set_random_seed(4)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(CLASSES, activation="softmax")])
    iou = keras.metrics.OneHotMeanIoU(CLASSES)
    counts = [
        keras.metrics.TruePositives(0.2, name="found"),
        keras.metrics.FalseNegatives(0.2, name="missed"),
    ]
    metrics = ["accuracy", iou, Share(), *counts]
    model.compile("sgd", "categorical_crossentropy", metrics=metrics)
    return model


def test_metrics_of_all_workers_are_as_of_one_that_has_seen_all() -> None:
    """Also those that count in whole numbers, few of which each of eight workers has."""
    random = np.random.default_rng(3)
    x = random.normal(size=(40, 3)).astype(np.float32)
    y = np.eye(CLASSES, dtype=np.float32)[random.integers(0, CLASSES, 40)]
    model = _model()
    expected = model.evaluate(x, y, batch_size=5, verbose=0, return_dict=True)
    states = []
    for rank in range(8):
        model.evaluate(x[rank::8], y[rank::8], batch_size=5, verbose=0)
        states.append(read(metric_sums([model])))
    assign_mean([model], metric_sums([model]), np.mean(states, axis=0), 8)
    found = {name: float(value) for name, value in model.get_metrics_result().items()}
    assert set(found) == {"loss", "accuracy", "one_hot_mean_io_u", "share", "found", "missed"}
    np.testing.assert_allclose([found[name] for name in expected], list(expected.values()), 1e-5)
