"""Where in a `fit` a worker goes on that takes the place of another.

Its predecessor's place follows from the last of its steps that the master has accepted, where the
number of batches of an epoch is known. The batches before it are skipped in the first epoch.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterator
from typing import Any


@dataclasses.dataclass(frozen=True)
class DataPosition:
    """A worker's place in `fit`.

    Attributes:
        epoch: from 0.
        batch: from 0, within the epoch; the one that it trains next.
    """

    epoch: int
    batch: int


@dataclasses.dataclass(frozen=True)
class Fit:
    """A `fit` that a worker takes part in.

    Attributes:
        number: which of its strategy's, from 1; the same on all workers.
        model: the one that it trains.
        per_epoch: batches of an epoch of this worker's data; None = not known.
    """

    number: int
    model: Any
    per_epoch: int | None


@dataclasses.dataclass(frozen=True)
class Start:
    """Where all workers have begun a training.

    Attributes:
        first_epoch: of `fit`.
        shared_steps: the count of steps at its beginning.
        layout_size: elements of the flat space.
    """

    first_epoch: int = 0
    shared_steps: int = 0
    layout_size: int = 0


def place_after(batches: int, *, first_epoch: int, per_epoch: int | None) -> DataPosition | None:
    """The place of a worker that has trained `batches` batches since `first_epoch` began.

    Args:
        batches: 0 or more.
        first_epoch: of `fit`.
        per_epoch: batches of an epoch; None = not known.

    Returns:
        None where it cannot be told.

    Example:
        >>> place_after(25, first_epoch=2, per_epoch=10)
        DataPosition(epoch=4, batch=5)
    """
    if batches == 0:
        return DataPosition(first_epoch, 0)
    if not per_epoch:
        return None
    epochs, batch = divmod(batches, per_epoch)
    return DataPosition(first_epoch + epochs, batch)


def batches_before(place: DataPosition, *, first_epoch: int, per_epoch: int | None) -> int | None:
    """The inverse of `place_after`: the batches from the start of `first_epoch` to `place`.

    Example:
        >>> batches_before(DataPosition(4, 5), first_epoch=2, per_epoch=10)
        25
    """
    epochs = place.epoch - first_epoch
    if epochs and not per_epoch:
        return None
    return epochs * (per_epoch or 0) + place.batch


class ResumableData:
    """Stands where Keras keeps its dataset, and has it go on where a predecessor was.

    A dataset that shuffles draws its next order for each iterator. Workers that divide it must have
    the same one in each epoch, so one that comes later has it draw those of the epochs before.

    Args:
        dataset: a `tf.data.Dataset`.
        distribute: what turns a dataset into what Keras iterates over.
    """

    def __init__(self, dataset: Any, distribute: Callable[[Any], Any]) -> None:
        self._dataset = dataset
        self._distribute = distribute
        self._whole = distribute(dataset)
        self._epochs: weakref.ref[Any] | None = None
        self._skip = 0
        self._orders: list[int] = []  # That are left out before each of the next iterators.

    def go_on(self, *, epochs: int, batches: int, per_epoch: int | None) -> None:
        """The next iterator is of the epoch after so many, without so many batches.

        Args:
            epochs: that a predecessor has read, of the `fit` that runs.
            batches: of the epoch that comes.
            per_epoch: of each; None = not known.
        """
        self._skip = batches
        orders = self._orders_of(epochs, per_epoch)
        self._orders = [orders]
        if batches > 0:  # Keras leaves the epoch early.
            self._orders.append(min(1, self._orders_of(1, per_epoch)))

    def pass_over(self, epochs: int, per_epoch: int | None) -> None:
        """Leaves out all of a `fit` that is over, for the next one with the same dataset."""
        self._draw(self._orders_of(epochs, per_epoch))

    def read_by(self, epochs: Any) -> None:
        """What reads it: Keras's `EpochIterator`, which has the data as the user has given them."""
        self._epochs = weakref.ref(epochs)

    def end_epoch(self) -> None:
        """After an epoch that Keras has left early, of which it tells the user's data nothing.

        A `PyDataset` could not begin the next one else.
        """
        reader = None if self._epochs is None else self._epochs()
        if reader is not None:
            reader.data_adapter.on_epoch_end()

    def __iter__(self) -> Iterator[Any]:
        if self._orders:
            self._draw(self._orders.pop(0))
        skip, self._skip = self._skip, 0
        return iter(self._distribute(self._dataset.skip(skip)) if skip else self._whole)

    def _orders_of(self, epochs: int, per_epoch: int | None) -> int:
        """How many iterators Keras makes in so many epochs; 0 where it is the same for all."""
        count = int(self._dataset.cardinality())
        # Else an epoch is no pass (`steps_per_epoch`), and goes on where the last one has ended.
        is_pass = count == (_UNKNOWN if per_epoch is None else per_epoch)
        if epochs <= 0 or not is_pass or not _reshuffles(self._dataset):
            return 0
        # Keras begins a pass after an epoch, too, which nobody reads; but not after one that ends
        # early, as where it does not know the number of batches.
        return epochs if per_epoch is None else 2 * epochs

    def _draw(self, orders: int) -> None:
        for _ in range(orders):
            iter(self._whole)


# What `cardinality()` of a dataset says of itself where it cannot tell.
_UNKNOWN = -2


def _reshuffles(dataset: Any) -> bool:
    """Whether each iterator has an order of its own, which no cache keeps."""
    kind = type(dataset).__name__
    if kind == "_RandomDataset":  # Of which an order may be made.
        return bool(getattr(dataset, "_rerandomize", False))
    if kind in ("_ShuffleDataset", "CacheDataset"):
        return kind == "_ShuffleDataset"
    return any(map(_reshuffles, dataset._inputs()))
