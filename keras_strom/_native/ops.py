"""Loads the TensorFlow ops that fit this TensorFlow: _strom_ops_2.21.so and so on.

The ops use TensorFlow's C++ interface, which changes with every minor release; a library built for
another one would crash or misbehave. A wheel carries one for each release of
`keras_strom._native.tensorflows`, a build from source one for the TensorFlow that was there.
"""

from __future__ import annotations

import ctypes
import functools
import pathlib
import re
from typing import Any

import tensorflow as tf

from keras_strom import errors
from keras_strom._native.built_for import REBUILD, operators_for, read_record, why_not_loaded
from keras_strom._native.library import DIRECTORY, library

# How an op's message carries the library's code and words (custom_ops/tf/variables.cc, ToStatus);
# TensorFlow puts its own lines around them.
_MARKED = re.compile(r"\[keras-strom (-\d+)\] (.*)")


@functools.cache
def operations() -> Any:
    """The module with the ops that custom_ops/tf declares: `strom_step` and so on.

    Raises:
        UnsupportedTensorFlow: there are none for this TensorFlow.
        UnsupportedSystem: they were built for another machine or C library.
        InternalError: they are missing or cannot be loaded.
    """
    path = operators_path()
    library()  # A clear error about libstrom.so itself comes before the linker's.
    if not path.exists():
        raise errors.InternalError(f"{path} is missing: {REBUILD}")
    try:
        return tf.load_op_library(str(path))
    except (OSError, tf.errors.OpError) as error:
        raise why_not_loaded(path, str(error)) from error


def operators_path() -> pathlib.Path:
    """The library with the ops for the TensorFlow that is imported.

    Raises:
        UnsupportedTensorFlow: there is none for it.
        InternalError: build.json does not say which there are.
    """
    return DIRECTORY / operators_for(read_record(DIRECTORY / "build.json"), tf.__version__)


def input_time() -> float:
    """Seconds that this process has waited for elements of `tf.data`, as TensorFlow measures it.

    Validation's are among them. Negative where this TensorFlow measures no such thing.
    """
    return float(_input_seconds()())


@functools.cache
def _input_seconds() -> Any:
    operations()
    function = ctypes.CDLL(str(operators_path())).strom_input_seconds
    function.argtypes, function.restype = (), ctypes.c_double
    return function


def take_step_warnings() -> list[str]:
    """What the operators have to tell this process's user, each thing once."""
    words = ctypes.create_string_buffer(4096)
    found = []
    while _take_step_warning()(words, len(words)):
        found.append(words.value.decode("utf-8", "replace"))
    return found


@functools.cache
def _take_step_warning() -> Any:
    operations()
    function = ctypes.CDLL(str(operators_path())).strom_take_step_warning
    function.argtypes, function.restype = (ctypes.c_char_p, ctypes.c_int64), ctypes.c_int32
    return function


def translate(error: tf.errors.OpError) -> errors.StromError | None:
    """The exception of `keras_strom.errors` for an op of ours that failed; None for any other."""
    marked = _MARKED.search(str(error))
    return errors.error_of_code(int(marked[1]), marked[2]) if marked else None
