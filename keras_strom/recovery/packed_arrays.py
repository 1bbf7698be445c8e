"""Named arrays and a few values as bytes: what a worker gives to another, or leaves on disk.

The format is safetensors' (https://github.com/huggingface/safetensors), so that other programs can
open a checkpoint's part. Of its metadata, which are text, four are ours:

    format    what this is
    version   of the format and of what the values mean
    values    a JSON object
    crc32     of all bytes, in hexadecimal, taken with eight zeros in its own place

Nothing of it is executed when it is read, so the bytes need not be trusted.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

Arrays = Mapping[str, npt.NDArray[Any]]

_ZEROS = b"00000000"
_CHECKSUM = re.compile(rb'"crc32":"([0-9a-f]{8})"')
_MOST = 1 << 62
_LENGTH_BYTES = 8  # safetensors' own: of the header, before it

# What versions before 0.1.0 wrote began with these, and the format's version as u32.
_OLD_MAGICS = (b"STROMCKP", b"STROMDON")

_DTYPES = {
    "BOOL": np.dtype(np.bool_),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "C64": np.dtype(np.complex64),
    **{f"I{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"U{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
}


#: What bytes raise that somebody has made up, with a checksum that fits.
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)


class OtherVersionError(ValueError):
    """Bytes that another version of keras-strom has packed; `version` is theirs."""

    def __init__(self, version: int) -> None:
        super().__init__(f"they have version {version}")
        self.version = version


def pack(kind: str, version: int, values: Mapping[str, Any], arrays: Arrays) -> bytes:
    """The layout at the top of this file.

    Args:
        kind: what this is.
        version: of the layout and of what the values mean.
        values: of JSON's types.
        arrays: numbers of a type that safetensors has and of any shape, by name.
    """
    metadata = {
        "format": kind,
        "version": str(version),
        "values": json.dumps(values),
        "crc32": _ZEROS.decode(),
    }
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    packed = bytearray(safetensors.numpy.save(contiguous, metadata))
    place = _place_of_checksum(packed)
    packed[place : place + len(_ZEROS)] = b"%08x" % zlib.crc32(packed)
    return bytes(packed)


def unpack(
    kind: str, version: int, data: bytes
) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """The inverse of `pack`: the values and the arrays.

    Raises:
        OtherVersionError: they were packed with another version.
        one of MALFORMED: these are no such bytes, or damaged.
    """
    if data[: len(_OLD_MAGICS[0])] in _OLD_MAGICS:
        raise OtherVersionError(int.from_bytes(data[8:12], "little"))
    _check(data)
    metadata = json.loads(_header(data))["__metadata__"]
    if metadata["format"] != kind:
        raise ValueError(f"it is a {metadata['format']}, not a {kind}")
    if metadata["version"] != str(version):
        raise OtherVersionError(int(metadata["version"]))
    try:
        tensors = safetensors.deserialize(data)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise ValueError(str(error)) from error
    arrays = {
        name: np.frombuffer(found["data"], _DTYPES[found["dtype"]]).reshape(found["shape"])
        for name, found in tensors
    }
    return json.loads(metadata["values"]), arrays


def whole(values: Mapping[str, Any], name: str) -> int:
    """One of the values, which counts something.

    Raises:
        one of MALFORMED: it is missing, or no whole number of 0 to 2^62.
    """
    value = values[name]
    if type(value) is not int or not 0 <= value <= _MOST:
        raise ValueError(f"its {name} makes no sense")
    return value


def _header(data: bytes | bytearray) -> bytes:
    end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    return bytes(data[_LENGTH_BYTES:end])


def _place_of_checksum(data: bytes | bytearray) -> int:
    found = _CHECKSUM.search(_header(data))
    if found is None:
        raise ValueError("it has no checksum")
    return _LENGTH_BYTES + found.start(1)


def _check(data: bytes) -> None:
    """Refuses bytes of which any has changed."""
    place = _place_of_checksum(data)
    after = place + len(_ZEROS)
    checksum = zlib.crc32(_ZEROS, zlib.crc32(memoryview(data)[:place]))
    checksum = zlib.crc32(memoryview(data)[after:], checksum)
    if data[place:after] != b"%08x" % checksum:
        raise ValueError("its checksum differs")
