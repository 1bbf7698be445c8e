"""Where in a `fit` a worker goes on that takes the place of another.

Its predecessor's place follows from the last of its steps that the master has accepted, where the
number of batches of an epoch is known. The batches before it are skipped in the first epoch.
"""

from __future__ import annotations

import dataclasses
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
    """Stands where Keras keeps its dataset; the first iterator after `skip` leaves batches out.

    Args:
        dataset: a `tf.data.Dataset`.
        distribute: what turns a dataset into what Keras iterates over.
    """

    def __init__(self, dataset: Any, distribute: Callable[[Any], Any]) -> None:
        self._dataset = dataset
        self._distribute = distribute
        self._whole = distribute(dataset)
        self._skip = 0

    def skip(self, batches: int) -> None:
        """The next iterator leaves out so many batches; those after it none."""
        self._skip = batches

    def __iter__(self) -> Iterator[Any]:
        skip, self._skip = self._skip, 0
        return iter(self._distribute(self._dataset.skip(skip)) if skip else self._whole)
