"""Batches for several local devices, without TensorFlow's MultiDeviceIterator.

What `MirroredStrategy.experimental_distribute_dataset` gives reads ahead in a thread of its own,
which in TensorFlow 2.21 now and then calls what was freed when an iterator is dropped in the middle
of an epoch (`tests/support/scripts/multi_device_iterator.py`). Here `tf.data` makes the parts: a
tensor of an element is one value of the strategy, which has a part for each device.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_strom import errors


def divided(dataset: tf.data.Dataset, strategy: tf.distribute.Strategy) -> tf.data.Dataset:
    """Each batch in as many parts as there are devices: equal ones, or the first a row longer.

    Where a batch has fewer rows than there are devices, the last parts are empty. On one device,
    and where it is divided already, the dataset is left alone.

    Args:
        dataset: of batches; all tensors of an element have equally many rows.
        strategy: whose devices they are.

    Raises:
        UnsupportedModel: its elements are no batches.
    """
    count = strategy.num_replicas_in_sync
    if count == 1 or _is_divided(dataset):
        return dataset
    for spec in tf.nest.flatten(dataset.element_spec):
        if _rows_of(spec) == 0:
            raise errors.UnsupportedModel(
                f"a dataset of {spec} has no batches that could be divided among {count} devices; "
                "call dataset.batch(...) first"
            )

    def parts(batch: Any) -> list[Any]:
        if batch is None:  # Of several inputs, one that has no values.
            return [None] * count
        rows = _row_count(batch)
        each, longer = rows // count, rows % count
        ends = [place * each + _least(place, longer) for place in range(count + 1)]
        return [_slice(batch, *of) for of in itertools.pairwise(ends)]

    def divide(*element: Any) -> Any:
        element = _as_given(dataset, element)
        return tf.nest.map_structure(lambda batch: _values(strategy, parts(batch)), element)

    return dataset.map(tf.autograph.experimental.do_not_convert(divide)).prefetch(1)


def grouped(dataset: tf.data.Dataset, strategy: tf.distribute.Strategy) -> tf.data.Dataset:
    """As many elements together as there are devices, each device's whole; one: left alone.

    Where the last elements are fewer, the other devices get no rows. If all elements have the same
    shape, none is without rows, and the last ones are left out.

    Args:
        dataset: what the user's function has made.
        strategy: whose devices they are.
    """
    count = strategy.num_replicas_in_sync
    if count == 1:
        return dataset
    full_only = any(_rows_of(spec) is not None for spec in tf.nest.flatten(dataset.element_spec))

    def without_rows(*element: Any) -> Any:
        element = _as_given(dataset, element)
        return tf.nest.map_structure(lambda batch: _slice(batch, 0, 0), element)

    def group(*windows: Any) -> Any:
        elements = tf.data.Dataset.zip(_as_given(dataset, windows))
        if not full_only:
            empty = elements.take(1).map(without_rows)
            elements = elements.concatenate(empty.repeat(count - 1))
        parts = [elements.skip(place).take(1).get_single_element() for place in range(count)]
        return tf.nest.map_structure(lambda *of_one: _values(strategy, of_one), *parts)

    windows = dataset.window(count, drop_remainder=full_only)
    return windows.map(tf.autograph.experimental.do_not_convert(group)).prefetch(1)


def _is_divided(dataset: tf.data.Dataset) -> bool:
    """Whether its elements have a part for each device already."""
    specs = tf.nest.flatten(dataset.element_spec)
    return any(issubclass(spec.value_type, tf.distribute.DistributedValues) for spec in specs)


def _as_given(dataset: tf.data.Dataset, arguments: tuple[Any, ...]) -> Any:
    """What `tf.data` has passed to a function, in the structure of an element."""
    return arguments if type(dataset.element_spec) is tuple else arguments[0]


def _rows_of(spec: Any) -> int | None:
    """How many rows an element has where that is fixed, 0 for a scalar; None: it varies."""
    shape = getattr(spec, "shape", tf.TensorShape(None))
    if shape.rank is None:
        return None
    return shape[0] if shape.rank else 0


def _row_count(batch: Any) -> Any:
    """An int where that is known beforehand, otherwise a tensor."""
    if isinstance(batch, tf.RaggedTensor):
        return batch.nrows()
    if isinstance(batch, tf.SparseTensor):
        return batch.dense_shape[0]
    return tf.shape(batch)[0] if batch.shape.rank is None else batch.shape[0] or tf.shape(batch)[0]


def _least(place: int, longer: Any) -> Any:
    if isinstance(longer, int):
        return min(place, longer)
    return tf.minimum(tf.cast(place, longer.dtype), longer)


def _slice(batch: Any, first: Any, last: Any) -> Any:
    """Rows of a tensor, of a ragged or of a sparse one."""
    if not isinstance(batch, tf.SparseTensor):
        return batch[first:last]
    whole = batch.dense_shape[1:]
    start = tf.concat([tf.cast([first], tf.int64), tf.zeros_like(whole)], 0)
    size = tf.concat([tf.cast([last - first], tf.int64), whole], 0)
    return tf.sparse.slice(batch, start, size)


def _values(strategy: tf.distribute.Strategy, parts: Sequence[Any]) -> Any:
    """One value of the strategy, of which each device sees its part."""
    return strategy.experimental_distribute_values_from_function(
        lambda context: parts[context.replica_id_in_sync_group]
    )
