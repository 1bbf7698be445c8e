"""What a user reads where an error of ours, or of TensorFlow, needs other words."""

from __future__ import annotations

from typing import Any

import pytest

from keras_strom.strategy.user_errors import outside_of_training


@pytest.mark.parametrize(
    ("caller", "words"),
    [
        ("tf_keras.src.engine.training", "this is a model of Keras 2"),
        ("tf_keras_like", "a custom training loop with several workers must call strategy.begin"),
    ],
)
def test_a_fit_of_keras_2_is_told_from_a_custom_loop(caller: str, words: str) -> None:
    module: dict[str, Any] = {"__name__": caller, "step": outside_of_training}
    exec("def fit():\n    return step()", module)
    assert str(module["fit"]()).startswith(words)
