"""Keras's `train_on_batch` in a custom loop: an error of it is as short as one of `fit`.

With several workers a step belongs between `strategy.begin` and `strategy.synchronize`. Elsewhere
it is refused before it has trained: a step that Keras has traced already would first change this
worker's weights, and then end in an operator's error, of which TensorFlow makes many lines.
"""

from __future__ import annotations

import functools
from typing import Any

import keras
import tensorflow as tf

from keras_strom.strategy.generation import Sharing
from keras_strom.strategy.user_errors import cause_of, outside_of_training, without_own_frames


def wrap_train_on_batch() -> None:
    """Wraps Keras's `train_on_batch` once; later calls do nothing."""
    trainer = next(kind for kind in keras.Model.__mro__ if "train_on_batch" in vars(kind))
    original = trainer.train_on_batch
    if getattr(original, "_keras_strom_wrap", False):
        return

    @functools.wraps(original)
    def train_on_batch(model: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = getattr(model, "distribute_strategy", None)
        sharing: Sharing | None = getattr(strategy, "_sharing", None)
        if sharing is None:
            return original(model, *args, **kwargs)
        if sharing.worker is not None and sharing.generation is None:
            raise outside_of_training()
        try:
            return original(model, *args, **kwargs)
        except tf.errors.OpError as error:
            cause = cause_of(error, sharing.environment)
            if cause is None:
                raise
            if not keras.config.is_traceback_filtering_enabled():
                raise cause from error
            raise cause.with_traceback(without_own_frames(error.__traceback__)) from None

    train_on_batch._keras_strom_wrap = True  # type: ignore[attr-defined]
    trainer.train_on_batch = train_on_batch
