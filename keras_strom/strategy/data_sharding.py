"""This worker's part of the training data that is given to `fit`.

All workers are given the same data; worker r of K takes every K-th element from the r-th on. What
is one element depends on the data: an array's row, a dataset's element (usually a batch), the batch
of a PyDataset, a generator, or what PyTorch or Grain reads (`foreign_data`). Validation data is
never divided.
"""

from __future__ import annotations

import itertools
import logging
import math
import types
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_strom import errors
from keras_strom.strategy.foreign_data import is_divided, own_part

_logger = logging.getLogger("keras_strom")

_BATCH_SIZE = 32  # Keras's own of arrays, where `fit` is given none.


def shard_fit_arguments(arguments: dict[str, Any], rank: int, size: int) -> int:
    """Replaces `fit`'s training data in `arguments` by worker `rank`'s part of it, of `size`.

    Args:
        arguments: fit's arguments by name, as bound; changed in place.
        rank: this worker.
        size: the number of workers.

    Returns:
        How many rows the arrays had; 0 = the data are no arrays.

    Raises:
        UnsupportedModel: the data cannot be divided; the message says what to pass.
        ValueError: arrays have different numbers of rows.
    """
    x = arguments.get("x")
    _refuse_stateful(arguments.get("self"), x, rank, size)
    if isinstance(x, tf.data.Dataset):
        arguments["x"] = shard_dataset(x, rank, size)
        if rank == 0 and not _keeps_all(x):
            _warn_of_steps(arguments, int(x.cardinality()) // size)
    elif isinstance(x, tf.distribute.DistributedDataset):
        return 0  # Made by the user's own distribute_datasets_from_function, with (K, rank).
    elif isinstance(x, keras.utils.PyDataset):
        arguments["x"] = ShardedPyDataset(x, rank, size)
        if rank == 0:
            _warn_of_steps(arguments, (x.num_batches or 0) // size)
    elif isinstance(x, types.GeneratorType):
        # Keras takes generators only, no other iterators.
        arguments["x"] = _own_batches(x, rank, size)
    elif (part := own_part(x, rank, size)) is not None:
        arguments["x"] = part
        if rank == 0 and part is not x:
            _warn_of_steps(arguments, _batches_of(x) // size)
    else:
        for name in ("x", "y", "sample_weight"):
            value = arguments.get(name)
            if not _is_arrays(value) and (name == "x" or value is not None):
                raise errors.UnsupportedModel(_indivisible(name, value, rank, size))
        return _shard_arrays(arguments, rank, size)
    return 0


def _refuse_stateful(model: Any, x: Any, rank: int, size: int) -> None:
    """A layer whose state goes on from batch to batch would skip those of the other workers."""
    if isinstance(x, tf.distribute.DistributedDataset) or _keeps_all(x) or is_divided(x):
        return
    for layer in [] if model is None else model._flatten_layers():
        if isinstance(layer, keras.layers.RNN) and layer.stateful:
            raise errors.UnsupportedModel(
                f"worker {rank}: the layer {layer.name!r} goes on from batch to batch "
                f"(stateful=True), and each of the {size} workers would get one of {size} elements "
                "of the data in turn; give each a tf.data.Dataset of its own sequences, with "
                "AutoShardPolicy.OFF in its options, which then keeps all of them"
            )


def _keeps_all(x: Any) -> bool:
    """Whether a worker trains on all of a dataset."""
    if not isinstance(x, tf.data.Dataset):
        return False
    policy = x.options().experimental_distribute.auto_shard_policy
    return bool(policy == tf.data.experimental.AutoShardPolicy.OFF)


def _batches_of(x: Any) -> int:
    """0 = nobody knows."""
    try:
        return len(x)
    except TypeError:
        return 0


def _warn_of_steps(arguments: dict[str, Any], share: int) -> None:
    """Keras says of a worker that runs out of data to repeat them, which makes epochs longer.

    Args:
        arguments: fit's.
        share: batches of the smallest worker's part; below 1 = that is not known, or endless.
    """
    steps = arguments.get("steps_per_epoch")
    if steps is not None and 0 < share < steps:
        _logger.warning(
            "steps_per_epoch=%d counts the steps of each worker, and a worker's share of the data "
            "has %d: give %d, or leave it out",
            steps,
            share,
            share,
        )


def _own_batches(batches: Iterator[Any], rank: int, size: int) -> Iterator[Any]:
    """The batches rank, rank + size, ... of a generator, as another generator.

    Of each group of `size` all have been taken when its own is given, so that where a training ends
    every worker's generator stands behind whole groups: the next one may go on with it.
    """
    while True:
        group = enumerate(itertools.islice(batches, size))
        own = [batch for place, batch in group if place == rank]
        if not own:
            return
        yield own.pop()


def _indivisible(name: str, value: object, rank: int, size: int) -> str:
    return (
        f"worker {rank}: fit cannot divide {name} of type {type(value).__name__} among {size} "
        "workers; pass arrays, a generator of batches, a keras.utils.PyDataset, a DataLoader of "
        "PyTorch, a MapDataset or IterDataset of Grain, or a tf.data.Dataset (with "
        "AutoShardPolicy.OFF in its options each worker keeps all of its own data)"
    )


class ShardedPyDataset(keras.utils.PyDataset):  # type: ignore[misc]
    """The batches rank, rank + size, rank + 2 size, ... of another PyDataset.

    Args:
        whole: the dataset that all workers have.
        rank: this worker.
        size: the number of workers.

    Example:
        >>> ShardedPyDataset(batches, rank=0, size=2).num_batches  # doctest: +SKIP
        5
    """

    def __init__(self, whole: keras.utils.PyDataset, rank: int, size: int) -> None:
        super().__init__(
            workers=whole.workers,
            use_multiprocessing=whole.use_multiprocessing,
            max_queue_size=whole.max_queue_size,
        )
        self._whole = whole
        self._rank = rank
        self._size = size

    def __getitem__(self, index: int) -> Any:
        return self._whole[index * self._size + self._rank]

    @property
    def num_batches(self) -> int | None:
        """This worker's number of batches; None where the whole has no end."""
        whole: int | None = self._whole.num_batches
        if whole is None:
            return None
        return max(0, math.ceil((whole - self._rank) / self._size))

    def on_epoch_begin(self) -> None:
        """Passed on to the whole dataset."""
        self._whole.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """Passed on to the whole dataset."""
        self._whole.on_epoch_end()


def shard_dataset(dataset: tf.data.Dataset, rank: int, size: int) -> tf.data.Dataset:
    """The elements rank, rank + size, ... of a dataset, or all where it must not be sharded."""
    if _keeps_all(dataset):
        return dataset
    if rank == 0 and size > 1 and any(map(_is_random, _with_inputs(dataset))):
        _logger.warning(
            "the training data is shuffled without a seed before it is divided, so each worker "
            "divides another order: an epoch has some examples twice and others not at all. Give "
            "shuffle() a seed, or call keras.utils.set_random_seed with the same number on all "
            "workers before"
        )
    return dataset.shard(size, rank)


def _with_inputs(dataset: Any) -> Iterable[Any]:
    """A dataset and all that it is made of, each once."""
    found, left = dict[int, Any](), [dataset]
    while left:
        one = left.pop()
        if id(one) not in found:
            found[id(one)] = one
            left += getattr(one, "_inputs", tuple)()
    return found.values()


def _is_random(dataset: Any) -> bool:
    """Whether a dataset shuffles, and neither it nor TensorFlow has been given a seed."""
    if type(dataset).__name__ != "_ShuffleDataset":
        return False
    seeds = [getattr(dataset, name, None) for name in ("_seed", "_seed2")]
    return all(seed is not None and tf.get_static_value(seed) == 0 for seed in seeds)


def keep_whole(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset, marked (AutoShardPolicy.OFF) so that `fit` divides it no further."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(options)


def without_autotune(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset without tf.data's tuning thread, unless its options ask for `autotune.enabled`.

    An iterator is deleted in the middle of an epoch, when Python comes to it, and waits for its
    tuning thread. TensorFlow 2.21 can wake that thread a moment before it says that the work is
    cancelled (`CancellationManager::StartCancel`); the thread then sleeps on, up to 60 s, and the
    worker with it: on a busy machine once in 20 to 40 iterators. `AUTOTUNE` now means as many calls
    as the pool has threads; prefetching still adapts.
    """
    if dataset.options().autotune.enabled is not None:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def _shard_arrays(arguments: dict[str, Any], rank: int, size: int) -> int:
    """Divides x, y and sample_weight by rows, after the validation split has taken its part.

    Returns:
        How many rows there were.
    """
    names = [name for name in ("x", "y", "sample_weight") if arguments.get(name) is not None]
    arrays = {name: arguments[name] for name in names}
    _check_rows(arrays, rank)
    leaves = keras.tree.flatten(arrays["x"])
    rows = next(int(leaf.shape[0]) for leaf in leaves if leaf is not None)
    own = rows // size
    split = arguments.get("validation_split") or 0.0
    if split and arguments.get("validation_data") is None:
        if not 0 < split < 1:
            raise ValueError(f"validation_split={split} must lie between 0 and 1")
        # Keras's own rule: the last rows, before any shuffling.
        boundary = math.floor(rows * (1.0 - split))
        held_out = _take(arrays, slice(boundary, None))
        arguments["validation_data"] = tuple(held_out.get(n) for n in ("x", "y", "sample_weight"))
        arguments["validation_split"] = 0.0
        arrays = _take(arrays, slice(0, boundary))
        own = boundary // size
    if rank == 0:
        _warn_of_steps(arguments, math.ceil(own / (arguments.get("batch_size") or _BATCH_SIZE)))
    arguments.update(_take(arrays, slice(rank, None, size)))
    return rows


def _check_rows(arrays: dict[str, Any], rank: int) -> None:
    """As Keras does with what it is given, which here are parts: those may be equally long.

    Raises:
        UnsupportedModel: the whole arrays have no rows.
        ValueError: with the sizes of the whole arrays, in Keras's words.
    """
    sizes = {
        name: [int(leaf.shape[0]) for leaf in keras.tree.flatten(array) if leaf is not None]
        for name, array in arrays.items()
    }
    if len({size for each in sizes.values() for size in each}) > 1:
        found = "; ".join(f"'{name}' sizes: {str(each)[1:-1]}" for name, each in sizes.items())
        raise ValueError(
            "Data cardinality is ambiguous. Make sure all arrays contain the same number of "
            f"samples. {found}"
        )
    if not any(map(any, sizes.values())):
        raise errors.UnsupportedModel(
            f"worker {rank}: the training data has no rows; look at what it was read or selected "
            "from"
        )


def _take(arrays: dict[str, Any], rows: slice) -> dict[str, Any]:
    def take(array: Any) -> Any:
        if array is None:  # Of several outputs, one without sample weights.
            return None
        if isinstance(array, tf.SparseTensor):
            return _rows_of_sparse(array, rows)
        if hasattr(array, "tocsr"):  # SciPy's sparse matrices, of which some have no rows to take.
            return array.tocsr()[rows]
        return array.iloc[rows] if hasattr(array, "iloc") else array[rows]

    taken: dict[str, Any] = keras.tree.map_structure(take, arrays)
    return taken


def _rows_of_sparse(tensor: tf.SparseTensor, rows: slice) -> tf.SparseTensor:
    first, last, step = rows.indices(int(tensor.shape[0]))
    places = tensor.indices[:, 0] - first
    taken = (places >= 0) & (places < last - first) & (places % step == 0)
    inner = tf.boolean_mask(tensor.indices, taken)[:, 1:]
    indices = tf.concat([tf.boolean_mask(places, taken)[:, None] // step, inner], axis=1)
    shape = tf.concat([[len(range(first, last, step))], tensor.dense_shape[1:]], axis=0)
    return tf.SparseTensor(indices, tf.boolean_mask(tensor.values, taken), shape)


def _is_arrays(x: Any) -> bool:
    leaves = [leaf for leaf in keras.tree.flatten(x) if leaf is not None]
    return bool(leaves) and all(map(_has_rows, leaves))


def _has_rows(leaf: Any) -> bool:
    if isinstance(leaf, tf.SparseTensor):
        return leaf.shape[0] is not None
    return hasattr(leaf, "shape") and (hasattr(leaf, "__getitem__") or hasattr(leaf, "tocsr"))
