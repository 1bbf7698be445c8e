"""Two workers end a `fit`: how far apart are what each says it has and what it gets?

    keras-strom run -np 2 end_values.py FOLDER

FOLDER/RANK.json has the largest difference, and how far BatchNormalization's means have moved.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_strom
from keras_strom._native.node import WorkerNode

_found: dict[str, float] = {}
_result = WorkerNode.result


def _compared(self: WorkerNode, state: np.ndarray, values: np.ndarray, **options: Any) -> Any:
    told = values.copy()
    averaged, parameters = _result(self, state, values, **options)
    _found["apart"] = max(_found.get("apart", 0.0), float(np.abs(told - parameters).max()))
    return averaged, parameters


def main(folder: str) -> None:
    """What every worker runs."""
    WorkerNode.result = _compared  # type: ignore[method-assign]
    keras.utils.set_random_seed(1)
    with keras_strom.StromStrategy().scope():
        model = keras.Sequential(
            [keras.Input((8,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        )
        model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(3, 2, (256, 8)).astype(np.float32)
    model.fit(x, x.sum(1), batch_size=16, verbose=0)
    _found["moved"] = float(np.abs(model.layers[0].moving_mean.numpy()).min())
    Path(folder, f"{keras_strom.rank()}.json").write_text(json.dumps(_found))


if __name__ == "__main__":
    main(sys.argv[1])
