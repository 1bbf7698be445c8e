"""A TFX pipeline component that trains on Spark: `StromTrainer` in `Trainer`'s place.

    from keras_strom.tfx import StromTrainer
    trainer = StromTrainer(examples=..., module_file="model.py", strom={"num_proc": 8})

`StromTrainer` needs the whole TFX (`pip install tfx`) or its light `ml-pipelines-sdk`; what runs
on the workers needs neither. Importing this package loads neither TFX, pyspark nor TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from .installation import require_sdk

if TYPE_CHECKING:
    from .component import StromTrainer
    from .examples import read_examples
    from .fn_args import FnArgs

__all__ = ["FnArgs", "StromTrainer", "read_examples"]

_EXPORTS = {"FnArgs": "fn_args", "StromTrainer": "component", "read_examples": "examples"}


def __getattr__(name: str) -> object:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "StromTrainer":
        require_sdk()
    value: object = getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
