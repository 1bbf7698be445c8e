"""The history of a `fit` as numbers, for a worker that comes after its end."""

from __future__ import annotations

import numpy as np
import pytest

from keras_strom.recovery import final_history


@pytest.mark.parametrize("epochs", [1, 250, 251, 400])
def test_each_value_stands_in_the_place_of_its_epoch_however_long_the_fit_was(epochs: int) -> None:
    loss = np.arange(epochs, 0, -1.0)
    said = final_history.to_numbers({"loss": loss.tolist(), "val_loss": [2.0]}, epochs)
    assert said.size == final_history.length(epochs)
    found = final_history.of((said + final_history.to_numbers({}, epochs)) / 2)
    missing = max(0, epochs - 250)
    np.testing.assert_array_equal(found["loss"], [*[np.nan] * missing, *loss[missing:]])
    assert found["val_loss"] == [2.0]
