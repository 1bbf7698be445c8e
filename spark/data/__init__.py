"""Rows of a DataFrame, or of files, on their way to `fit`.

What a training function may use itself is published here: `dataset` reads a worker's share of
Parquet or TFRecord files into `tf.data`, `from_parquet` and `from_tfrecords` say which,
`from_pairs` makes a DataFrame of pairs of arrays, and `decode_images` makes pixels of pictures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keras_strom.lazy_names import lazy_names

if TYPE_CHECKING:
    from .columns import from_pairs
    from .parquet import from_parquet
    from .reader import dataset, decode_images
    from .tfrecords import from_tfrecords

__all__ = ["dataset", "decode_images", "from_pairs", "from_parquet", "from_tfrecords"]

__getattr__ = lazy_names(
    __name__,
    {
        "dataset": "reader",
        "decode_images": "reader",
        "from_pairs": "columns",
        "from_parquet": "parquet",
        "from_tfrecords": "tfrecords",
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
