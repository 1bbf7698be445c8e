"""Named arrays and a few values as bytes: what a worker gives to another, or leaves on disk.

    packed = 8 bytes magic, u32 version, u32 length of the header, header, arrays
    header = a JSON object: the values, and under "arrays" of each array name, dtype and shape
    arrays = their bytes, little-endian, in the header's order

Nothing of it is executed when it is read, so the bytes need not be trusted.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray[Any]]

_PREFIX = struct.Struct("<8sII")


class OtherVersionError(ValueError):
    """Bytes that another version of keras-strom has packed; `version` is theirs."""

    def __init__(self, version: int) -> None:
        super().__init__(f"they have version {version}")
        self.version = version


def pack(magic: bytes, version: int, values: Mapping[str, Any], arrays: Arrays) -> bytes:
    """The layout at the top of this file.

    Args:
        magic: 8 bytes that say what this is.
        version: of the layout and of what the values mean.
        values: of JSON's types; "arrays" is taken.
        arrays: numbers of any type and shape, by name.
    """
    little = {
        name: np.asarray(array, np.dtype(array.dtype).newbyteorder("<"), order="C")
        for name, array in arrays.items()
    }
    described = [[name, array.dtype.str, array.shape] for name, array in little.items()]
    header = json.dumps({**values, "arrays": described}).encode()
    parts = [_PREFIX.pack(magic, version, len(header)), header]
    return b"".join([*parts, *(array.tobytes() for array in little.values())])


def unpack(
    magic: bytes, version: int, data: bytes | memoryview
) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """The inverse of `pack`: the values and the arrays, which are views of `data`.

    Raises:
        OtherVersionError: they were packed with another version.
        ValueError, KeyError, TypeError, struct.error: these are no such bytes.
    """
    found_magic, found_version, length = _PREFIX.unpack_from(data)
    if found_magic != magic:
        raise ValueError("it starts with other bytes")
    if found_version != version:
        raise OtherVersionError(found_version)
    offset = _PREFIX.size + length
    values = json.loads(bytes(data[_PREFIX.size : offset]))
    arrays = {}
    for name, dtype, shape in values.pop("arrays"):
        count = int(np.prod(shape, dtype=np.int64))
        found = np.frombuffer(data, np.dtype(dtype), count, offset)
        arrays[name] = found.reshape(shape)
        offset += found.nbytes
    if offset != len(data):
        raise ValueError(f"{len(data) - offset} bytes follow its end")
    return values, arrays
