"""What a worker that joins late takes over from one that trains.

The parameters come from the master. What it does not hold comes from another worker, in the middle
of an epoch, as bytes that only these two read: the optimizers' state, the state that no optimizer
trains, and where that worker is. Both build the same model, so variables go by their place in it.

The bytes are those of `packed_arrays`, with the values epoch, batch, threshold and per_epoch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy.typing as npt

from keras_strom import errors
from keras_strom.recovery.packed_arrays import MALFORMED, OtherVersionError, pack, unpack, whole
from keras_strom.recovery.resume import DataPosition

_KIND = "keras-strom donation"
_VERSION = 3


@dataclasses.dataclass(frozen=True)
class Donation:
    """The state of a worker between two batches.

    Attributes:
        place: the batch that it trains next.
        threshold: the state of its threshold algorithm.
        arrays: values by the names of `donated_variables`.
        per_epoch: batches of an epoch of its data; None = not known.

    Example:
        >>> sent = Donation(DataPosition(3, 7), threshold=(1e-3,), arrays={})
        >>> Donation.from_bytes(sent.to_bytes()).place
        DataPosition(epoch=3, batch=7)
    """

    place: DataPosition
    threshold: tuple[float, ...]
    arrays: Mapping[str, npt.NDArray[Any]]
    per_epoch: int | None = None

    def to_bytes(self) -> bytes:
        """The bytes of `packed_arrays`."""
        values = {
            "epoch": self.place.epoch,
            "batch": self.place.batch,
            "threshold": self.threshold,
            "per_epoch": self.per_epoch,
        }
        return pack(_KIND, _VERSION, values, self.arrays)

    @classmethod
    def from_bytes(cls, data: bytes) -> Donation:
        """The inverse of `to_bytes`.

        Raises:
            CorruptMessage: these bytes are no donation.
            Refused: it was made by another version of keras-strom.
        """
        try:
            values, arrays = unpack(_KIND, _VERSION, data)
            return cls(
                place=DataPosition(whole(values, "epoch"), whole(values, "batch")),
                threshold=tuple(map(float, values["threshold"])),
                arrays=arrays,
                per_epoch=None if values["per_epoch"] is None else whole(values, "per_epoch"),
            )
        except OtherVersionError as other:
            raise errors.Refused(
                f"the state of another worker has version {other.version}, this worker reads "
                f"version {_VERSION}; install the same keras-strom everywhere"
            ) from other
        except MALFORMED as error:
            raise errors.CorruptMessage(
                f"another worker's state cannot be read: {error}"
            ) from error


def donated_variables(model: Any, state: Iterable[Any]) -> dict[str, Any]:
    """The variables whose values travel, by name.

    Args:
        model: a Keras model; with it go all optimizers that it has.
        state: `tf.Variable`s that no optimizer trains.
    """
    found = {f"state/{i}": variable for i, variable in enumerate(state)}
    for i, optimizer in enumerate(optimizers_of(model)):
        for j, variable in enumerate(optimizer.variables):
            found[f"optimizer {i}/{j}"] = variable.value
    return found


def unbuilt_optimizers(model: Any) -> list[str]:
    """What the names of variables of optimizers that have no state yet begin with."""
    return [
        f"optimizer {i}/"
        for i, optimizer in enumerate(optimizers_of(model))
        if not getattr(optimizer, "built", True)
    ]


def install(variables: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Assigns donated values.

    Raises:
        Refused: the donor's variables are not those of this worker.
    """
    here = {name: tuple(map(int, variable.shape)) for name, variable in variables.items()}
    there = {name: array.shape for name, array in arrays.items()}
    if here != there:
        name = min(n for n in {*here, *there} if here.get(n) != there.get(n))
        raise errors.Refused(
            f"the state of another worker does not fit: {name} has shape {there.get(name)} there "
            f"and {here.get(name)} here; build the same model and optimizer on every worker"
        )
    for name, variable in variables.items():
        variable.assign(arrays[name].astype(variable.dtype.as_numpy_dtype))


def optimizers_of(model: Any) -> list[Any]:
    """Each of a model's optimizers once, those of a GAN's `train_step` too.

    They may be attributes, or lie in one that is a list, a tuple or a dict.
    """
    held = (one for value in vars(model).values() for one in _items(value))
    own = [one for one in held if isinstance(one, keras.optimizers.Optimizer)]
    found = [getattr(model, "optimizer", None), *own]  # Keras has none before `compile`.
    return list({id(optimizer): optimizer for optimizer in found if optimizer}.values())


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else [value]
