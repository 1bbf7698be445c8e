"""`read_examples`: a worker's part of TFRecord files of tf.train.Examples, as a `tf.data` dataset.

With F files and K workers each file is cut into K / gcd(F, K) parts (a part is every so manyth
record) and each worker takes as many parts as any other, one after the other: so it opens a few
files only, and two workers' records differ in number by at most one a part.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from keras_strom import errors
from keras_strom.checks import whole_number
from keras_strom.job import environment


@dataclasses.dataclass(frozen=True)
class FilePart:
    """Record j of `file` belongs to it when first <= j % parts < last.

    Attributes:
        file: the path.
        parts: into how many parts the file is cut.
        first, last: the parts taken, of 0 to `parts` - 1.
    """

    file: str
    parts: int
    first: int
    last: int


def divide(files: Sequence[str], rank: int, size: int) -> list[FilePart]:
    """Worker `rank`'s parts of the files; all workers' parts together are everything, once.

    Example:
        >>> [part.file for part in divide(["a", "b", "c"], rank=0, size=2)]
        ['a', 'b']
    """
    common = math.gcd(len(files), size)
    parts, count = size // common, len(files) // common
    begin, end = rank * count, (rank + 1) * count
    return [
        FilePart(
            file,
            parts,
            max(begin - index * parts, 0),
            min(end - index * parts, parts),
        )
        for index, file in enumerate(files)
        if index * parts < end and begin < (index + 1) * parts
    ]


def read_examples(
    patterns: str | Sequence[str],
    features: Mapping[str, Any],
    *,
    batch_size: int,
    label: str | None = None,
    epochs: int | None = 1,
    shuffle_buffer: int = 0,
    seed: int | None = None,
    shared: bool = True,
) -> Any:
    """A dataset of batches of parsed examples, ready for `fit`.

    Args:
        patterns: files or patterns such as `FnArgs.train_files`; names that end in .gz are gzip.
        features: what `tf.io.parse_example` takes: name -> FixedLenFeature, VarLenFeature, ...
        batch_size: examples a batch.
        label: the feature that is the label; None = elements are features only.
        epochs: passes over the files; None = without end.
        shuffle_buffer: how many examples wait to be drawn from; 0 = in the files' order.
        seed: of the drawing; None = another one each time.
        shared: True: this worker's part, of which `fit` takes everything. False: all, for
            evaluation.

    Returns:
        A `tf.data.Dataset` of ({name: tensor [batch_size, ...]}, label) or of the mapping alone.

    Raises:
        InvalidOption: no file matches, there is no such label, or a number is out of range.

    Example:
        >>> data = read_examples(  # doctest: +SKIP
        ...     fn_args.train_files, {"x": tf.io.FixedLenFeature([4], tf.float32),
        ...     "y": tf.io.FixedLenFeature([], tf.int64)}, batch_size=64, label="y", epochs=None)
        >>> model.fit(data, steps_per_epoch=fn_args.train_steps)  # doctest: +SKIP
    """
    import tensorflow as tf

    from keras_strom.strategy.data_sharding import keep_whole

    if label is not None and label not in features:
        raise errors.InvalidOption(f"label={label!r} is none of the features {sorted(features)}")
    whole_number("batch_size", batch_size, least=1)
    whole_number("shuffle_buffer", shuffle_buffer, least=0)
    files = matching_files(patterns)
    here = (environment.rank(), environment.size()) if shared else (0, 1)
    records = _records(divide(files, *here))
    if shuffle_buffer:
        records = records.shuffle(shuffle_buffer, seed=seed)
    records = records.repeat(epochs).batch(batch_size)

    def parse(batch: Any) -> Any:
        values = tf.io.parse_example(batch, dict(features))
        return values if label is None else (values, values.pop(label))

    parsed = records.map(parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    return keep_whole(parsed)


def matching_files(patterns: str | Sequence[str]) -> list[str]:
    """The files that match the patterns, in one order on all workers.

    Raises:
        InvalidOption: there are none.
    """
    import tensorflow as tf

    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    files = sorted({file for pattern in patterns for file in tf.io.gfile.glob(pattern)})
    if not files:
        raise errors.InvalidOption(f"no file matches {', '.join(patterns)}")
    return files


def _records(parts: Sequence[FilePart]) -> Any:
    """The serialized examples of the parts, a few files at a time."""
    import tensorflow as tf

    def read(file: Any, compression: Any, count: Any, first: Any, last: Any) -> Any:
        records = tf.data.TFRecordDataset(file, compression_type=compression)
        if all(part.parts == 1 for part in parts):
            return records
        chosen = records.enumerate().filter(
            lambda index, _: tf.logical_and(index % count >= first, index % count < last)
        )
        return chosen.map(lambda _, record: record)

    columns = (
        tf.constant([part.file for part in parts]),
        tf.constant(["GZIP" if part.file.endswith(".gz") else "" for part in parts]),
        *(
            tf.constant([getattr(part, name) for part in parts], tf.int64)
            for name in ("parts", "first", "last")
        ),
    )
    return tf.data.Dataset.from_tensor_slices(columns).interleave(
        read, cycle_length=min(4, len(parts)), num_parallel_calls=tf.data.AUTOTUNE
    )
