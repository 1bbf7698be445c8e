"""What a worker that joins late takes over from one that trains.

The parameters come from the master. What it does not hold comes from another worker, in the middle
of an epoch, as bytes that only these two read: the optimizers' state, the state that no optimizer
trains, and where that worker is. Both build the same model, so variables go by their place in it.

    donation = 8 bytes b"STROMDON", u32 version, u32 length of the header, header, arrays
    header   = a JSON object: epoch, batch, threshold, and of each array name, dtype and shape
    arrays   = the values, little-endian, in the header's order
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from keras_strom import errors
from keras_strom.resume import Place

_MAGIC = b"STROMDON"
_VERSION = 1
_PREFIX = struct.Struct("<8sII")


@dataclasses.dataclass(frozen=True)
class Donation:
    """The state of a worker between two batches.

    Attributes:
        place: the batch that it trains next.
        threshold: the state of its threshold algorithm.
        arrays: values by the names of `donated_variables`.

    Example:
        >>> sent = Donation(Place(3, 7), threshold=(1e-3,), arrays={})
        >>> Donation.from_bytes(sent.to_bytes()).place
        Place(epoch=3, batch=7)
    """

    place: Place
    threshold: tuple[float, ...]
    arrays: Mapping[str, npt.NDArray[Any]]

    def to_bytes(self) -> bytes:
        """The layout at the top of this file."""
        arrays = {
            name: np.asarray(array, np.dtype(array.dtype).newbyteorder("<"), order="C")
            for name, array in self.arrays.items()
        }
        header = json.dumps(
            {
                "epoch": self.place.epoch,
                "batch": self.place.batch,
                "threshold": self.threshold,
                "arrays": [[name, array.dtype.str, array.shape] for name, array in arrays.items()],
            }
        ).encode()
        parts = [_PREFIX.pack(_MAGIC, _VERSION, len(header)), header]
        return b"".join([*parts, *(array.tobytes() for array in arrays.values())])

    @classmethod
    def from_bytes(cls, data: bytes) -> Donation:
        """The inverse of `to_bytes`.

        Raises:
            CorruptMessage: these bytes are no donation.
            Refused: it was made by another version of keras-strom.
        """
        try:
            magic, version, length = _PREFIX.unpack_from(data)
            if magic == _MAGIC and version != _VERSION:
                raise errors.Refused(
                    f"the state of another worker has version {version}, this worker reads version "
                    f"{_VERSION}; install the same keras-strom everywhere"
                )
            if magic != _MAGIC:
                raise ValueError("it starts with other bytes")
            offset = _PREFIX.size + length
            header = json.loads(data[_PREFIX.size : offset])
            arrays = {}
            for name, dtype, shape in header["arrays"]:
                count = int(np.prod(shape, dtype=np.int64))
                found = np.frombuffer(data, np.dtype(dtype), count, offset)
                arrays[name] = found.reshape(shape)
                offset += found.nbytes
            if offset != len(data):
                raise ValueError(f"{len(data) - offset} bytes follow its end")
            return cls(
                place=Place(int(header["epoch"]), int(header["batch"])),
                threshold=tuple(map(float, header["threshold"])),
                arrays=arrays,
            )
        except (struct.error, ValueError, KeyError, TypeError) as error:
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
    for i, optimizer in enumerate(_optimizers(model)):
        for j, variable in enumerate(optimizer.variables):
            found[f"optimizer {i}/{j}"] = variable.value
    return found


def unbuilt_optimizers(model: Any) -> list[str]:
    """What the names of variables of optimizers that have no state yet begin with."""
    return [
        f"optimizer {i}/"
        for i, optimizer in enumerate(_optimizers(model))
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


def _optimizers(model: Any) -> list[Any]:
    """Each of a model's optimizers once, those of a GAN's `train_step` too."""
    own = [v for v in vars(model).values() if isinstance(v, keras.optimizers.Optimizer)]
    found = [model.optimizer, *own]
    return list({id(optimizer): optimizer for optimizer in found if optimizer}.values())
