"""The logs of an epoch: what they tell of the model's metrics becomes the average of all workers.

Keras takes the metrics for an epoch's logs where its last step has told of just these, and else
what that step has told. A `train_step` of the user's own may tell so of a loss that it has not
counted in the metric of that name: this is the worker's own figure, and stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


class EpochLogs:
    """Of one `fit`.

    Args:
        model: the one that it trains.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._told: Mapping[str, Any] = {}
        self._counted: set[str] = set()  # What Keras's logs of the epoch have of the metrics.
        self._averages: dict[str, Any] = {}

    def note_step(self, told: Mapping[str, Any] | None) -> None:
        """After a step, of which nothing is read before the epoch's end."""
        self._told = told or {}

    def end_epoch(self) -> Any:
        """Before metrics are averaged; this worker's own loss, None where a step tells of none."""
        results = self._results()
        told = results if self._told.keys() == results.keys() else self._told
        self._counted = {name for name in results if _is_same(told.get(name), results[name])}
        return plain(told.get("loss"))

    def note_averages(self) -> None:
        """Once metrics are averaged."""
        self._averages = self._results()

    def lose(self) -> None:
        """A NaN has ended the training: so is the epoch's loss."""
        self._counted.add("loss")
        self._averages["loss"] = math.nan

    def put_averages(self, logs: dict[str, Any] | None) -> None:
        """Replaces the metrics in `logs`, which Keras hands to all later callbacks."""
        for name in self._counted.intersection(logs or ()):
            logs[name] = self._averages[name]  # type: ignore[index]

    def _results(self) -> dict[str, Any]:
        results: dict[str, Any] = {}
        for name, value in self._model.get_metrics_result().items():
            results.update(value if isinstance(value, dict) else {name: value})
        return {name: plain(value) for name, value in results.items()}


def plain(result: Any) -> Any:
    """A metric's result as Keras has it in its logs: a number, or what has several (F1Score)."""
    try:
        return float(result)
    except (TypeError, ValueError):
        return result


def _is_same(told: Any, counted: Any) -> bool:
    """Whether a step has told a metric's own result, which a graph may round otherwise."""
    if told is None or np.shape(told) != np.shape(counted):
        return False
    return bool(np.allclose(told, counted, rtol=1e-4, equal_nan=True))
