"""Loads _strom_ops.so, the TensorFlow ops, after checking that it fits this TensorFlow.

The ops use TensorFlow's C++ interface, which changes from version to version; a library built for
another one would crash or misbehave, so the version recorded at build time must match exactly.
"""

from __future__ import annotations

import ctypes
import functools
import json
import pathlib
import re
from typing import Any

import tensorflow as tf

from keras_strom import errors
from keras_strom._native.library import DIRECTORY, library

# How an op's message carries the library's code and words (custom_ops/tf/variables.cc, ToStatus);
# TensorFlow puts its own lines around them.
_MARKED = re.compile(r"\[keras-strom (-\d+)\] (.*)")

_REBUILD = "rebuild them with `pip install --no-build-isolation -e .`"


@functools.cache
def operations() -> Any:
    """The module with the ops that custom_ops/tf declares: `strom_step` and so on.

    Raises:
        UnsupportedTensorFlow: they were built for another TensorFlow.
        InternalError: they are missing or cannot be loaded.
    """
    check_version(DIRECTORY / "build.json", tf.__version__)
    library()  # A clear error about libstrom.so itself comes before the linker's.
    path = DIRECTORY / "_strom_ops.so"
    if not path.exists():
        raise errors.InternalError(f"{path} is missing: {_REBUILD}")
    try:
        return tf.load_op_library(str(path))
    except (OSError, tf.errors.OpError) as error:
        raise errors.InternalError(f"{path} cannot be loaded ({error}): {_REBUILD}") from error


def input_time() -> float:
    """Seconds that this process has waited for elements of `tf.data`, as TensorFlow measures it.

    Validation's are among them. Negative where this TensorFlow measures no such thing.
    """
    return float(_input_seconds()())


@functools.cache
def _input_seconds() -> Any:
    operations()
    function = ctypes.CDLL(str(DIRECTORY / "_strom_ops.so")).strom_input_seconds
    function.argtypes, function.restype = (), ctypes.c_double
    return function


def check_version(build_record: pathlib.Path, installed: str) -> None:
    """Refuses ops that were built for another TensorFlow than the `installed` one.

    Args:
        build_record: build.json, which the build writes beside the ops.
        installed: `tf.__version__`.
    """
    try:
        built_for = json.loads(build_record.read_text("utf-8"))["tensorflow"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise errors.InternalError(
            f"{build_record} does not say which TensorFlow the operations were built for "
            f"({type(error).__name__}): {_REBUILD}"
        ) from error
    if built_for != installed:
        raise errors.UnsupportedTensorFlow(
            f"keras-strom's operations were built for TensorFlow {built_for}, found {installed}: "
            f"{_REBUILD}"
        )


def translate(error: tf.errors.OpError) -> errors.StromError | None:
    """The exception of `keras_strom.errors` for an op of ours that failed; None for any other."""
    marked = _MARKED.search(str(error))
    return errors.error_of_code(int(marked[1]), marked[2]) if marked else None
