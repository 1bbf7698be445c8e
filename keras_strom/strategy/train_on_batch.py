"""Keras's `train_on_batch` in a custom loop: an error of it is as short as one of `fit`.

With several workers a step belongs between `strategy.begin` and `strategy.synchronize`. Elsewhere
it is refused before it has trained: a step that Keras has traced already would first change this
worker's weights, and then end in an operator's error, of which TensorFlow makes many lines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_strom.sharing.wrapping import definer_of, wrap_once
from keras_strom.strategy.generation import Sharing
from keras_strom.strategy.user_errors import as_told, cause_of, outside_of_training


def wrap_train_on_batch() -> None:
    """Wraps Keras's `train_on_batch` once; later calls do nothing."""
    name = "train_on_batch"
    wrap_once(definer_of(keras.Model, name), name, _train_on_batch)


def _train_on_batch(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    strategy = getattr(model, "distribute_strategy", None)
    sharing: Sharing | None = getattr(strategy, "_sharing", None)
    if sharing is None:
        return original(model, *args, **kwargs)
    if sharing.worker is not None and sharing.generation is None:
        raise outside_of_training()
    try:
        return original(model, *args, **kwargs)
    except tf.errors.OpError as error:
        if told := as_told(cause_of(error, sharing.environment) or error, error):
            raise told from told.__cause__
        raise
