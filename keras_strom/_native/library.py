"""Loads libstrom.so and turns its result codes into exceptions.

Every other module here declares the functions that it calls (`declare`) and passes each result
through `check`. custom_ops/capi/strom.h is the documentation of the functions themselves.
"""

from __future__ import annotations

import ctypes
import functools
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_strom import errors
from keras_strom._native.built_for import why_not_loaded

#: The declarations in custom_ops/capi/strom.h that this package was written for.
ABI_VERSION = 23

#: Where the build puts libstrom.so, the operators and build.json.
DIRECTORY = pathlib.Path(__file__).resolve().parent

#: strom_allocate: what gives the memory for a result of (context, bytes).
Allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)

# As long as the library waits at most, 36 years: a few of them are still counted in 64 bits.
_LONGEST_WAIT_NS = 1 << 60

_REBUILD = "build it with `pip install --no-build-isolation -e .`"


@functools.cache
def library() -> ctypes.CDLL:
    """The loaded library; loads it on the first call.

    Raises:
        UnsupportedSystem: it was built for another machine or C library, or the package lies in an
            archive, out of which the system loads no library.
        InternalError: it is missing, cannot be loaded or is of another version.
    """
    path = DIRECTORY / "libstrom.so"
    archive = next((parent for parent in path.parents if parent.is_file()), None)
    if archive is not None:
        raise errors.UnsupportedSystem(
            f"keras_strom lies in the archive {archive}, as where Spark got it by --py-files or "
            "addPyFile, and no library is loaded out of one: install the wheel in the Python of "
            "every executor, or send a whole environment (--archives)"
        )
    if not path.exists():
        raise errors.InternalError(f"{path} is missing: {_REBUILD}")
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise why_not_loaded(path, str(error)) from error
    loaded.strom_abi_version.restype = ctypes.c_int32
    version = loaded.strom_abi_version()
    if version != ABI_VERSION:
        raise errors.InternalError(
            f"{path} has interface version {version}, this package needs {ABI_VERSION}: {_REBUILD}"
        )
    loaded.strom_last_error.restype = ctypes.c_char_p
    return loaded


@functools.cache
def declare(name: str, *argument_types: Any) -> Any:
    """The library's function `name`, which takes `argument_types` and returns a result code."""
    function = library()[name]
    function.argtypes = argument_types
    function.restype = ctypes.c_int
    return function


def check(code: int) -> None:
    """Raises the exception for a negative result `code`, with the library's words."""
    if code != 0:
        words = library().strom_last_error()
        raise errors.error_of_code(code, words.decode("utf-8", "replace"))


def nanoseconds(seconds: float) -> int:
    """A time to wait as the library takes it; what it cannot count is as long as it can.

    Example:
        >>> nanoseconds(1.5), nanoseconds(1e10) == nanoseconds(1e300)
        (1500000000, True)
    """
    return int(min(seconds * 1e9, _LONGEST_WAIT_NS))


def layout_hash(shapes: Sequence[tuple[str, Sequence[int]]]) -> int:
    """Names a layout: the 64-bit hash over (dtype, shape) of each variable in order."""
    text = ";".join(f"{dtype}{list(shape)}" for dtype, shape in shapes)
    return array_hash(np.frombuffer(text.encode("ascii"), np.uint8))


def array_hash(values: npt.NDArray[Any]) -> int:
    """The 64-bit hash of an array's bytes, to compare parameters between workers."""
    values = np.ascontiguousarray(values)
    function = library().strom_hash
    function.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64)
    function.restype = ctypes.c_uint64
    return int(function(values.ctypes.data, values.nbytes, 0))
