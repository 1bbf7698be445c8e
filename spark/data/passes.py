"""Any stretch of any pass over a worker's rows, read without what lies before it.

`reader.dataset` streams an epoch from its begin. Here a task takes the rows of a few steps from the
middle of a pass, on whatever executor it runs, and takes the same ones if it runs again: the order
is a function of seed, rank and the number of the pass. A pass takes the row groups in an order of
its own, puts neighbours together into chunks and mixes the rows within each.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .exported import TRAIN, ExportedData, Piece
from .read_plan import Arrays, ReadPlan
from .reader import gather, read

if TYPE_CHECKING:
    import tensorflow as tf

# What is mixed together; a row group of `export` has a mebibyte.
_CHUNK_BYTES = 16 << 20
# Chunks that a process keeps: those of the steps that follow, and of the other ranks it serves.
_CACHE_BYTES = 256 << 20


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Rows [begin, end) of one pass over a worker's rows."""

    number: int
    begin: int
    end: int


class Passes:
    """One worker's rows in the order of each pass.

    Args:
        data: files.
        split: "train" or "validation".
        rank: this worker.
        size: the number of workers; fewer rows than workers leave some without any.
        seed: of the order; None = as the rows lie, in every pass.
        only_first: so many rows of the split are divided among the workers; None = all.
        cache: chunks that were read before.

    Example:
        >>> passes = Passes(data, rank=0, size=2, seed=1)  # doctest: +SKIP
        >>> arrays = passes.take(Stretch(number=0, begin=0, end=64))  # doctest: +SKIP
    """

    def __init__(
        self,
        data: ExportedData,
        split: str = TRAIN,
        *,
        rank: int,
        size: int,
        seed: int | None,
        only_first: int | None = None,
        cache: ChunkCache | None = None,
    ) -> None:
        self._data = data
        self._split = split
        self._rank = rank
        self._seed = seed
        self._pieces = data.share(rank, size, split, seed=seed, rows=only_first)
        self._cache = cache or ChunkCache()

    @property
    def rows(self) -> int:
        """How many there are in a pass."""
        return sum(piece.rows for piece in self._pieces)

    def take(self, stretch: Stretch) -> Arrays:
        """Arrays [rows, *shape], in the order of the data's `columns.names`.

        Raises:
            StoreUnavailable: a file cannot be read.
        """
        found: list[Arrays] = []
        first = 0
        for index, pieces in enumerate(self._chunks(stretch.number)):
            rows = sum(piece.rows for piece in pieces)
            begin, end = max(stretch.begin - first, 0), min(stretch.end - first, rows)
            if begin < end:
                key = (self._split, self._rank, stretch.number, index)
                chunk = self._cache.get(key, functools.partial(self._read, pieces, key))
                found.append(tuple(array[begin:end] for array in chunk))
            first += rows
        return tuple(np.concatenate(parts) for parts in zip(*found, strict=True))

    def _chunks(self, number: int) -> list[list[Piece]]:
        """The row groups of a pass, in its order."""
        pieces = self._pieces
        if self._seed is not None:
            random = np.random.default_rng((self._seed, self._rank, number))
            pieces = [pieces[index] for index in random.permutation(len(pieces))]
        row_bytes = self._data.size_bytes(self._split) / max(1, self._data.rows(self._split))
        chunks: list[list[Piece]] = []
        size = float("inf")
        for piece in pieces:
            if size >= _CHUNK_BYTES:
                chunks.append([])
                size = 0.0
            chunks[-1].append(piece)
            size += piece.rows * row_bytes
        return chunks

    def _read(self, pieces: Sequence[Piece], key: tuple[str, int, int, int]) -> Arrays:
        rows = sum(piece.rows for piece in pieces)
        plan = ReadPlan(self._data, pieces, window=None, seed=())
        (chunk,) = gather(read(plan, pieces), rows)
        if self._seed is None:
            return chunk
        _, rank, number, index = key
        order = np.random.default_rng((self._seed, rank, number, index)).permutation(rows)
        return tuple(array[order] for array in chunk)


class ChunkCache:
    """The chunks used last, as many as fit in `most_bytes`, and at least one."""

    def __init__(self, most_bytes: int = _CACHE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._chunks: collections.OrderedDict[Any, Arrays] = collections.OrderedDict()
        self._bytes: dict[Any, int] = {}

    def get(self, key: Any, read_chunk: Callable[[], Arrays]) -> Arrays:
        """The chunk of this name, read if it is not here."""
        if key not in self._chunks:
            self._chunks[key] = chunk = read_chunk()
            self._bytes[key] = sum(map(_size_bytes, chunk))
            while len(self._chunks) > 1 and sum(self._bytes.values()) > self._most_bytes:
                del self._bytes[self._chunks.popitem(last=False)[0]]
        self._chunks.move_to_end(key)
        return self._chunks[key]


def _size_bytes(array: np.ndarray[Any, Any]) -> int:
    """What an array takes; of strings it has pointers only."""
    return array.nbytes + (sum(map(len, array)) if array.dtype == object else 0)


def stretches(begin: int, end: int, rows: int, batch_size: int) -> list[Stretch]:
    """The rows of steps [begin, end) of a training, which goes over the same rows again and again.

    Args:
        begin: the first step, counted from the training's begin.
        end: the step after the last.
        rows: of a pass, for this worker.
        batch_size: rows a step; a pass's last step may have fewer.

    Example:
        >>> stretches(1, 3, rows=10, batch_size=8)
        [Stretch(number=0, begin=8, end=10), Stretch(number=1, begin=0, end=8)]
    """
    steps = -(-rows // batch_size)
    found = []
    while begin < end:
        number, first = divmod(begin, steps)
        count = min(end - begin, steps - first)
        last = min((first + count) * batch_size, rows)
        found.append(Stretch(number, first * batch_size, last))
        begin += count
    return found


def batches(
    data: ExportedData,
    parts: Sequence[Arrays],
    batch_size: int,
    transformation_fn: Callable[..., Any] | None,
) -> tf.data.Dataset:
    """Rows as `fit` takes them; a batch never reaches over the end of a part.

    Args:
        data: what they are rows of.
        parts: at least one.
        batch_size: rows a batch.
        transformation_fn: the user's, applied batch by batch in their order.
    """
    import tensorflow as tf

    def of_part(arrays: Arrays) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(data.columns.arrange(arrays)).batch(batch_size)

    found = of_part(parts[0])
    for arrays in parts[1:]:
        found = found.concatenate(of_part(arrays))
    if transformation_fn is not None:
        found = found.map(transformation_fn)
    return found.prefetch(2)
