"""Tries copies of a model's parameters on the 10000 test pictures, when nothing is timed."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np

from benchmarks.horovod_training import pictures
from benchmarks.tta_training import Parameters, compiled


def accuracy(task: str, parameters: Parameters) -> float:
    """Of a copy: float32 [parameters], in the order of the model's weights in either Keras."""
    model = _model(task)
    shapes = [weight.shape for weight in model.get_weights()]
    ends = np.cumsum([np.prod(shape, dtype=int) for shape in shapes])
    parts = np.split(parameters, ends[:-1])
    model.set_weights([part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)])
    _, found = model.evaluate(*pictures("t10k", 10_000), batch_size=1000, verbose=0)
    return float(found)


@functools.cache
def _model(task: str) -> Any:
    return compiled(keras, task, keras.optimizers.SGD())
