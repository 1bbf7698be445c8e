"""TFRecord files that are there already: what they hold, and a worker's rows of them.

Only the records' lengths are read to divide them; TensorFlow itself reads and parses.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from keras_strom import errors

from .columns import DTYPES, Columns, ColumnSpec
from .exported import DataFile, ExportedData
from .parquet import Paths, list_files, unavailable
from .read_plan import ReadPlan
from .store import Store

if TYPE_CHECKING:
    import tensorflow as tf

# Records that are parsed at once.
_BLOCK_ROWS = 1 << 10
# Files that are read in turn when rows are mixed.
_OPEN_FILES = 8
_HEADER = struct.Struct("<QI")
_FOOTER_BYTES = 4


def from_tfrecords(
    train: Paths,
    columns: Columns,
    *,
    validation: Paths | None = None,
    specs: Mapping[str, ColumnSpec] | None = None,
) -> ExportedData:
    """TFRecord files of `tf.train.Example`s, uncompressed, on a file system that TensorFlow reads.

    Args:
        train: files, or folders of them, as paths or URLs; hidden files are left out.
        columns: what makes an example.
        validation: the same for validation data.
        specs: what the features hold; those left out are as in the first record, where one value
            is a scalar and several are a vector.

    Raises:
        InvalidData: no files, a missing feature, or a file that is no TFRecord.
        InvalidOption: a dtype in `specs` that no column has, or files that TensorFlow cannot read
            where they are.
        StoreUnavailable: a file that cannot be read.

    Example:
        >>> data = from_tfrecords(  # doctest: +SKIP
        ...     "/data/digits", Columns(("image",), ("digit",)),
        ...     specs={"image": ColumnSpec("array", "float32", (28, 28))})
    """
    store, paths = list_files(train, validation)
    splits = {
        split: tuple(_index_records(store, path) for path in files)
        for split, files in paths.items()
    }
    filled = [file.path for files in splits.values() for file in files if sum(file.rows)]
    if not filled:
        raise errors.InvalidData("no TFRecord file has a record")
    found = _features_of_the_first(store, filled[0], columns, specs or {})
    return ExportedData(store, columns, found, splits, format="tfrecord")


def examples(plan: ReadPlan) -> tf.data.Dataset:
    """The rows in blocks, as `fit`'s elements; mixed anew in every iteration where asked for."""
    import tensorflow as tf

    pieces = tf.data.Dataset.from_tensor_slices(
        (
            [piece.path for piece in plan.pieces],
            tf.constant([piece.begin for piece in plan.pieces], tf.int64),
            tf.constant([piece.rows for piece in plan.pieces], tf.int64),
        )
    )

    def records(path: Any, begin: Any, rows: Any) -> tf.data.Dataset:
        return tf.data.TFRecordDataset(path).skip(begin).take(rows)

    if plan.window is None:
        serialized = pieces.flat_map(records)
    else:
        seed = hash(plan.seed) & 0x7FFFFFFF
        mixed = pieces.shuffle(len(plan.pieces), seed, reshuffle_each_iteration=True)
        serialized = mixed.interleave(records, cycle_length=_OPEN_FILES).shuffle(
            plan.window, seed, reshuffle_each_iteration=True
        )
    columns = plan.exported.columns
    features = {name: _feature(plan.exported.specs[name]) for name in columns.names}

    def parse(block: tf.Tensor) -> tuple[Any, ...]:
        values = tf.io.parse_example(block, features)
        return columns.arrange(
            [
                tf.cast(values[name], spec.dtype) if spec.dtype != "string" else values[name]
                for name, spec in zip(columns.names, plan.specs, strict=True)
            ]
        )

    return serialized.batch(_BLOCK_ROWS).map(parse, num_parallel_calls=2).prefetch(2)


def _feature(spec: ColumnSpec) -> tf.io.FixedLenFeature:
    import tensorflow as tf

    # The only types that an Example stores.
    stored = spec.dtype if spec.dtype in ("float32", "string") else "int64"
    return tf.io.FixedLenFeature(spec.shape, stored)


def _index_records(store: Store, path: str) -> DataFile:
    """How many records a file holds, by hopping from length to length."""
    filesystem, inside = store.resolve(path)
    if not (store.is_local or path.startswith("gs://")):
        raise errors.InvalidOption(
            f"TensorFlow reads TFRecord files from local or mounted paths and gs://, not {path}"
        )
    with unavailable(path), filesystem.open_input_file(inside) as file:
        end, place, count = file.size(), 0, 0
        while place < end:
            file.seek(place)
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size:
                break
            length, _ = _HEADER.unpack(header)
            place += _HEADER.size + length + _FOOTER_BYTES
            count += 1
    if place != end:
        raise errors.InvalidData(
            f"{path} is no whole TFRecord file (compressed ones must be unpacked first)"
        )
    return DataFile(path, (count,), end)


def _features_of_the_first(
    store: Store, path: str, columns: Columns, given: Mapping[str, ColumnSpec]
) -> dict[str, ColumnSpec]:
    import tensorflow as tf

    record = next(iter(tf.data.TFRecordDataset(path).take(1))).numpy()
    features = tf.train.Example.FromString(record).features.feature
    missing = [name for name in columns.names if name not in features]
    if missing:
        raise errors.InvalidData(
            f"no feature {', '.join(map(repr, missing))} in the first record of {path}; it has "
            f"{', '.join(map(repr, sorted(features)))}"
        )
    specs = {}
    for name in columns.names:
        kind = features[name].WhichOneof("kind")
        dtype = {"float_list": "float32", "int64_list": "int64", "bytes_list": "string"}.get(kind)
        if name in given:
            specs[name] = given[name]
            if given[name].dtype not in DTYPES:
                raise errors.InvalidOption(f"specs[{name!r}] has an unknown dtype: {given[name]}")
        elif dtype is None:
            raise errors.InvalidData(f"feature {name!r} is empty in the first record of {path}")
        else:
            count = len(getattr(features[name], kind).value)
            shape = () if count == 1 else (count,)
            scalar = "binary" if dtype == "string" else "scalar"
            example = features[name].bytes_list.value[0] if scalar == "binary" else b""
            specs[name] = ColumnSpec("array" if shape else scalar, dtype, shape, example)
        if name == columns.sample_weight and specs[name].shape:
            raise errors.InvalidData(f"the sample weight {name!r} must be a number a record")
    return specs
