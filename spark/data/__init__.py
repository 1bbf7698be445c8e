"""Rows of a DataFrame, or of files, on their way to `fit`.

What a training function may use itself is published here: `dataset` reads a worker's share of
Parquet or TFRecord files into `tf.data`, `from_parquet` and `from_tfrecords` say which files,
`Columns` which of their columns, and `ColumnSpec` what these hold. `from_pairs` makes a DataFrame
of pairs of arrays, `decode_images` pixels of pictures. A `Store` is where an Estimator keeps its
runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keras_strom.lazy_names import lazy_names

if TYPE_CHECKING:
    from .columns import Columns, ColumnSpec, from_pairs
    from .parquet import from_parquet
    from .reader import dataset, decode_images
    from .store import Store
    from .tfrecords import from_tfrecords

__all__ = [
    "ColumnSpec",
    "Columns",
    "Store",
    "dataset",
    "decode_images",
    "from_pairs",
    "from_parquet",
    "from_tfrecords",
]

__getattr__ = lazy_names(
    __name__,
    {
        "ColumnSpec": "columns",
        "Columns": "columns",
        "Store": "store",
        "dataset": "reader",
        "decode_images": "reader",
        "from_pairs": "columns",
        "from_parquet": "parquet",
        "from_tfrecords": "tfrecords",
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
