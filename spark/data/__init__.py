"""Rows of a DataFrame, or of files, on their way to `fit`.

What a training function may use itself is published here: `dataset` reads a worker's share of
Parquet or TFRecord files into `tf.data`, `from_parquet` and `from_tfrecords` say which,
`from_pairs` makes a DataFrame of pairs of arrays, and `decode_images` makes pixels of pictures.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .columns import from_pairs
    from .parquet import from_parquet
    from .reader import dataset, decode_images
    from .tfrecords import from_tfrecords

__all__ = ["dataset", "decode_images", "from_pairs", "from_parquet", "from_tfrecords"]

_EXPORTS = {
    "dataset": "reader",
    "decode_images": "reader",
    "from_pairs": "columns",
    "from_parquet": "parquet",
    "from_tfrecords": "tfrecords",
}


def __getattr__(name: str) -> object:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
