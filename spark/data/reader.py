"""`dataset`: a worker's share of exported data as a `tf.data.Dataset` for Keras's `fit`.

pyarrow reads row groups into large NumPy batches, in a thread of tf.data's that is ahead of the
training; tf.data cuts those into the batches that Keras sees. No Python runs per row, and little
per batch. With `shuffle`, every epoch takes the row groups in another order and mixes the rows
within a window that holds many of them. Nothing here knows Spark.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_strom import errors
from keras_strom.checks import whole_number
from keras_strom.stale_files import anew_if_stale

from . import spool
from .exported import TRAIN, ExportedData, Piece
from .read_plan import Arrays, ReadPlan
from .tensors import decode

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    import tensorflow as tf

READERS = ("pyarrow", "tfio")

#: The rows that are mixed: as many as fit in these bytes, within these bounds.
WINDOW_BYTES = 64 << 20
_FEWEST_WINDOW_ROWS = 1 << 10
_MOST_WINDOW_ROWS = 1 << 17
# Without mixing, what is handed to TensorFlow at once.
_BLOCK_ROWS = 1 << 14
_OPEN_FILES = 32


def dataset(
    exported: ExportedData,
    split: str = TRAIN,
    *,
    rank: int = 0,
    size: int = 1,
    batch_size: int,
    shuffle: bool = False,
    seed: int = 0,
    transformation_fn: Callable[..., Any] | None = None,
    drop_remainder: bool = False,
    shuffle_rows: int | None = None,
    reader: str = "pyarrow",
) -> tf.data.Dataset:
    """Batches of one worker's rows, as `fit` takes them: (x, y), or (x, y, sample weight).

    x is a tensor [batch, *shape] where there is one feature, and a dict by name where there are
    several; y likewise, but a tuple in the labels' order; without labels an element is (x,).
    Numbers are float32, int32 or int64, Booleans bool, images uint8 in RGB, strings and binary
    columns tf.string (for encoded pictures see `decode_images`).

    The dataset can be iterated again and again, and with `shuffle` each time in another order. It
    is divided already (AutoShardPolicy.OFF). Its cardinality is known and the same on all workers:
    as many batches as the worker with the fewest rows has. The others have one row more at most,
    so with a batch size that divides the smaller number, that row is left out of an epoch.

    Args:
        exported: what there is to read.
        split: "train" or "validation".
        rank: this worker.
        size: the number of workers; each reads its own rows.
        batch_size: rows a batch of this worker.
        shuffle: mix the rows.
        seed: of the mixing, and of who gets which row groups: the same on all workers.
        transformation_fn: called with a batch's x, y and weight, as TensorFlow's `Dataset.map`
            does; what it returns takes their place.
        drop_remainder: leave the last, smaller batch out, so that all shapes are fixed.
        shuffle_rows: the window that rows are mixed in; None = what fits in 64 MiB.
        reader: "pyarrow", or "tfio" for tensorflow-io's operators (Parquet with scalars only).

    Raises:
        InvalidData: fewer rows than workers, or no such split.
        InvalidOption: an argument that makes no sense, or a reader that cannot be used here.

    Example:
        >>> train = dataset(data, rank=0, size=2, batch_size=64, shuffle=True)  # doctest: +SKIP
        >>> model.fit(train, epochs=5)  # doctest: +SKIP
    """
    whole_number("seed", seed, least=0)
    _check_options(batch_size, shuffle_rows, transformation_fn, reader)
    import tensorflow as tf

    from keras_strom.strategy.data_sharding import keep_whole

    steps = exported.steps(size, batch_size, split)
    if drop_remainder:
        steps = exported.rows(split) // size // batch_size
        if not steps:
            raise errors.InvalidOption(
                f"drop_remainder leaves no batch of {batch_size} in {exported.rows(split)} rows of "
                f"{split} data for {size} workers: choose a smaller batch_size"
            )
    source, place, places = exported, rank, size
    if exported.format == spool.FORMAT:
        source, place, places = spool.laid_down(exported, split, size), 0, 1
    plan = ReadPlan(
        source,
        pieces=source.share(place, places, split, seed=seed if shuffle else None),
        window=(shuffle_rows or _window_rows(exported, split)) if shuffle else None,
        seed=(seed, rank),
    )
    batches = _blocks(plan, reader).rebatch(batch_size, drop_remainder=drop_remainder).take(steps)
    if transformation_fn is not None:
        batches = batches.map(transformation_fn, num_parallel_calls=2, deterministic=True)
    options = tf.data.Options()
    options.deterministic = True
    batches = batches.apply(tf.data.experimental.assert_cardinality(steps))
    return keep_whole(batches.prefetch(4).with_options(options))


def decode_images(
    encoded: tf.Tensor, height: int, width: int, channels: int = 3, dtype: str = "float32"
) -> tf.Tensor:
    """Encoded pictures (JPEG, PNG, GIF, BMP) as one tensor, for a `transformation_fn`.

    Args:
        encoded: strings [batch].
        height: of the result; pictures of another size are resized, bilinearly.
        width: of the result.
        channels: 1 or 3.
        dtype: of the result; values are 0 to 255.

    Returns:
        [batch, height, width, channels].

    Example:
        >>> def transform(x, y):
        ...     return decode_images(x, 224, 224) / 255.0, y
    """
    import tensorflow as tf

    def one(content: tf.Tensor) -> tf.Tensor:
        picture = tf.io.decode_image(content, channels=channels, expand_animations=False)
        return tf.cast(tf.image.resize(picture, (height, width)), dtype)

    shape = tf.TensorSpec((height, width, channels), dtype)
    return tf.map_fn(one, encoded, fn_output_signature=shape)


def epoch(plan: ReadPlan, number: int) -> Iterator[Arrays]:
    """One pass over the rows in blocks of many: arrays [rows, *shape] in `columns.names`' order.

    Args:
        plan: what to read.
        number: of the pass, which decides the order.
    """
    pieces: Sequence[Piece] = plan.pieces
    if plan.window is None:
        return gather(read(plan, pieces), _BLOCK_ROWS)
    random = np.random.default_rng((*plan.seed, number))
    pieces = [pieces[index] for index in random.permutation(len(pieces))]
    return mix(read(plan, pieces), plan.window, random)


def gather(blocks: Iterable[Arrays], rows: int) -> Iterator[Arrays]:
    """The same rows in blocks of at least `rows`, but for the last."""
    waiting: list[Arrays] = []
    for block in blocks:
        waiting.append(block)
        if sum(len(one[0]) for one in waiting) >= rows:
            yield _join(waiting)
            waiting = []
    if waiting:
        yield _join(waiting)


def mix(blocks: Iterable[Arrays], window: int, random: np.random.Generator) -> Iterator[Arrays]:
    """The same rows, mixed within a window that is half renewed each time.

    Args:
        blocks: arrays of equal length, the columns of some rows.
        window: how many rows are held, at least.
        random: decides.
    """
    left: list[Arrays] = []
    for block in gather(blocks, max(1, window // 2)):
        whole = _join([*left, block])
        order = random.permutation(len(whole[0]))
        # What is kept meets the next block; what leaves has met the one before.
        keep = min(len(order), window - window // 2)
        leaving, staying = order[keep:], order[:keep]
        if len(leaving):
            yield tuple(array[leaving] for array in whole)
        left = [tuple(array[staying] for array in whole)]
    yield from left


def read(plan: ReadPlan, pieces: Iterable[Piece]) -> Iterator[Arrays]:
    """The rows of each piece.

    Raises:
        InvalidData: nulls, or another shape than the others', in files that nobody has checked.
        StoreUnavailable: a file is gone, or is no Parquet.
    """
    columns = list(plan.exported.columns.names)
    files = _Files(plan.exported)
    try:
        for piece in pieces:
            with files.explained(piece.path):
                table = files.read(piece.path, piece.group, columns)
            rows = table.slice(piece.begin, piece.rows)
            yield tuple(
                decode(rows.column(name), spec, name, piece.path)
                for name, spec in zip(columns, plan.specs, strict=True)
            )
    finally:
        files.close()


class _Files:
    """The Parquet files in use; the latest ones stay open, with what their footers say."""

    def __init__(self, exported: ExportedData) -> None:
        self._store = exported.store
        self._opened: collections.OrderedDict[str, pq.ParquetFile] = collections.OrderedDict()

    def read(self, path: str, group: int, columns: list[str]) -> pa.Table:
        """One row group."""

        def read() -> pa.Table:
            try:
                return self._open(path).read_row_group(group, columns=columns)
            except OSError:
                if path in self._opened:  # It is opened anew, if it is asked for again.
                    self._opened.pop(path).close(force=True)
                raise

        return anew_if_stale(read)

    def _open(self, path: str) -> pq.ParquetFile:
        """The file, opened now or before."""
        import pyarrow.parquet as pq

        if path not in self._opened:
            while len(self._opened) >= _OPEN_FILES:
                self._opened.popitem(last=False)[1].close(force=True)
            filesystem, inside = self._store.resolve(path)
            # Where a read is a request over the network, a row group's columns come with one.
            self._opened[path] = pq.ParquetFile(
                filesystem.open_input_file(inside), pre_buffer=not self._store.is_local
            )
        self._opened.move_to_end(path)
        return self._opened[path]

    @contextlib.contextmanager
    def explained(self, path: str) -> Iterator[None]:
        """Errors of pyarrow as ours."""
        import pyarrow as pa

        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise errors.StoreUnavailable(f"{path} cannot be read: {error}") from error

    def close(self) -> None:
        """Closes all."""
        for file in self._opened.values():
            file.close(force=True)
        self._opened.clear()


def _blocks(plan: ReadPlan, reader: str) -> tf.data.Dataset:
    """The rows in large blocks, as `fit`'s elements."""
    if plan.exported.format == "tfrecord":
        from . import tfrecords

        return tfrecords.examples(plan)
    if reader == "tfio":
        from . import tfio

        return tfio.examples(plan)
    return _from_arrays(plan)


def _from_arrays(plan: ReadPlan) -> tf.data.Dataset:
    import tensorflow as tf

    arrange = plan.exported.columns.arrange
    signature = arrange([tf.TensorSpec((None, *spec.shape), spec.dtype) for spec in plan.specs])

    def one_pass(number: Any) -> tf.data.Dataset:
        return tf.data.Dataset.from_generator(
            lambda drawn: map(arrange, epoch(plan, int(drawn))),
            args=(number,),
            output_signature=signature,
        )

    # Each iterator draws its number as one of tf.data's own shuffled datasets draws its order, so
    # a worker that takes another's place can pass over those of the epochs before it.
    seed = hash(plan.seed) & 0x7FFFFFFF  # Python's hash of integers is the same everywhere.
    numbers = tf.data.Dataset.random(seed, rerandomize_each_iteration=True).take(1)
    blocks = one_pass(0) if plan.window is None else numbers.flat_map(one_pass)
    return blocks.prefetch(1)  # A thread that reads the next block while this one is used.


def _join(blocks: Sequence[Arrays]) -> Arrays:
    if len(blocks) == 1:
        return blocks[0]
    return tuple(np.concatenate(arrays) for arrays in zip(*blocks, strict=True))


def _window_rows(exported: ExportedData, split: str) -> int:
    row_bytes = max(1, exported.size_bytes(split) // exported.rows(split))
    return min(max(WINDOW_BYTES // row_bytes, _FEWEST_WINDOW_ROWS), _MOST_WINDOW_ROWS)


def _check_options(
    batch_size: int, shuffle_rows: int | None, transformation_fn: Any, reader: str
) -> None:
    whole_number("batch_size", batch_size, least=1)
    if shuffle_rows is not None:
        whole_number("shuffle_rows", shuffle_rows, least=1)
    if transformation_fn is not None and not callable(transformation_fn):
        raise errors.InvalidOption(f"transformation_fn={transformation_fn!r} cannot be called")
    if reader not in READERS:
        raise errors.InvalidOption(f"reader={reader!r} must be one of {', '.join(READERS)}")
