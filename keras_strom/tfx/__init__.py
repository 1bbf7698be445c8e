"""A TFX pipeline component that trains on Spark: `StromTrainer` in `Trainer`'s place.

    from keras_strom.tfx import StromTrainer
    trainer = StromTrainer(examples=..., module_file="model.py", strom={"num_proc": 8})

`StromTrainer` needs the whole TFX (`pip install tfx`) or its light `ml-pipelines-sdk`; what runs
on the workers needs neither. Importing this package loads neither TFX, pyspark nor TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keras_strom.lazy_names import lazy_names

from .installation import require_sdk

if TYPE_CHECKING:
    from .component import StromTrainer
    from .examples import read_examples
    from .fn_args import FnArgs

__all__ = ["FnArgs", "StromTrainer", "read_examples"]

_get = lazy_names(
    __name__, {"FnArgs": "fn_args", "StromTrainer": "component", "read_examples": "examples"}
)


def __getattr__(name: str) -> object:
    if name == "StromTrainer":
        require_sdk()
    return _get(name)


def __dir__() -> list[str]:
    return sorted(__all__)
