"""With which optimizers a training begins as a first one."""

from __future__ import annotations

import types
from typing import Any

import keras
import pytest

from keras_strom.job.environment import ClusterEnvironment
from keras_strom.strategy.new_optimizers import KnownOptimizers


class Step:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def begin_anew(self, entries: Any) -> None:
        self.told.append("anew")

    def forget_residuals(self, entries: Any) -> float:
        self.told.append("forget")
        return 1.0


@pytest.mark.parametrize(
    ("order", "told"),
    [
        ("aa", []),
        ("ab", ["anew", "forget"]),
        ("aba", ["anew", "forget", "anew"]),
        ("abba", ["anew", "forget", "anew"]),
    ],
)
def test_a_training_with_other_optimizers_than_the_last_has_a_threshold_of_its_own(
    order: str, told: list[str]
) -> None:
    models = {name: types.SimpleNamespace(optimizer=keras.optimizers.SGD()) for name in "ab"}
    known, here = KnownOptimizers(), ClusterEnvironment.from_environ()
    step: Any = Step()
    for name in order:
        known.begin([models[name]], step, [], here)
    assert step.told == told
