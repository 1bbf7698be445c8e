"""Where a training stands, as the chief tells the others."""

from __future__ import annotations

from typing import Any

import keras
import pytest

from keras_strom.sharing.progress import Progress


def _model(**options: Any) -> keras.Model:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01, **options), "mse")
    return model


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 4}])
def test_every_worker_takes_over_the_chiefs_count_of_steps(options: dict[str, Any]) -> None:
    chief, other = _model(**options), _model(**options)
    chief.optimizer._iterations.assign(70_001)
    values = Progress(chief).start_values(initial_epoch=3, shared_steps=5)
    assert Progress(other).install_start(values) == (3, 5)
    assert int(other.optimizer._iterations.numpy()) == 70_001
