"""Columns of tensors: from Spark's Arrow to bytes of fixed width, and from there to NumPy.

A Parquet list is slow to read, for it stores where every list begins. All examples of a column
have the same shape, so `encode` stores a tensor as that many raw little-endian bytes (a fixed-size
binary, whose elements `decode` finds without a copy), and scalars and strings as they are. `decode`
also takes the lists of files that others wrote.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keras_strom import errors

from .columns import ColumnSpec

_SCALARS = {
    "float32": pa.float32(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "bool": pa.bool_(),
    "uint8": pa.uint8(),
}
# OpenCV's types of an 8-bit image, by channels: what Spark's `mode` holds.
_IMAGE_MODES = {1: 0, 3: 16, 4: 24}


@dataclasses.dataclass(frozen=True)
class Allowed:
    """The labels that a loss takes.

    Attributes:
        least, most: the numbers from here to there.
        whole: and only whole ones.
        besides: and this one; None = no other.
        by: what takes them, in words.
    """

    least: float
    most: float
    whole: bool
    by: str
    besides: float | None = None

    def __str__(self) -> str:
        kind = "whole numbers" if self.whole else "numbers"
        to = f"of {self.least:g} or more"
        if self.most != float("inf"):
            to = f"from {self.least:g} to {self.most:g}"
        return f"{kind} {to}" + ("" if self.besides is None else f", and {self.besides:g}")

    def refuses(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Which of the values it does not take; NaN is another matter."""
        wrong = (values < self.least) | (values > self.most)
        if self.whole and values.dtype.kind == "f":
            wrong |= (values != np.floor(values)) & ~np.isnan(values)
        return wrong if self.besides is None else wrong & (values != self.besides)


@dataclasses.dataclass(frozen=True)
class Faults:
    """Rows of a column that cannot be used.

    Attributes:
        nulls: rows that are null, or an array with a null in it.
        misshapen: rows of another shape than the column's.
        example: what one of those looks like.
        nans: rows with NaN in them.
        infinities: rows with infinity in them.
        refused: rows with labels that the loss does not take.
        label: one of those.
    """

    nulls: int = 0
    misshapen: int = 0
    example: str = ""
    nans: int = 0
    infinities: int = 0
    refused: int = 0
    label: str = ""

    def __bool__(self) -> bool:
        return self.is_fatal or bool(self.nans or self.infinities)

    @property
    def is_fatal(self) -> bool:
        """Whether no model at all could be trained; NaN and infinity some models mask."""
        return bool(self.nulls or self.misshapen or self.refused)

    def __add__(self, other: Faults) -> Faults:
        return Faults(
            self.nulls + other.nulls,
            self.misshapen + other.misshapen,
            self.example or other.example,
            self.nans + other.nans,
            self.infinities + other.infinities,
            self.refused + other.refused,
            self.label or other.label,
        )

    def describe(self, name: str, spec: ColumnSpec, allowed: Allowed | None = None) -> str:
        """What is wrong with the column, in words; "" = nothing."""
        words = []
        if self.nulls:
            words.append(f"column {name!r} has {counted(self.nulls)} with nulls")
        if self.misshapen:
            words.append(
                f"column {name!r} has {counted(self.misshapen)} of another shape than "
                f"{spec.shape}, such as {self.example}"
            )
        if self.nans:
            words.append(f"column {name!r} has {counted(self.nans)} with NaN")
        if self.infinities:
            words.append(f"column {name!r} has {counted(self.infinities)} with infinity")
        if self.refused and allowed is not None:
            words.append(
                f"label column {name!r} has {counted(self.refused)} such as {self.label}, where "
                f"{allowed.by} takes {allowed}"
            )
        return "; ".join(words)


def odd_values(values: np.ndarray[Any, Any], allowed: Allowed | None) -> Faults:
    """How many rows have values that a training may not take.

    Args:
        values: [rows, ...], as `decode` gives them.
        allowed: where they are labels that a loss takes some of only.
    """
    if values.dtype.kind not in "fiu" or not values.size:
        return Faults()
    rows = values.reshape(len(values), -1)
    faults = Faults()
    if rows.dtype.kind == "f" and not np.isfinite(rows).all():
        nans, infinities = np.isnan(rows).any(axis=1), np.isinf(rows).any(axis=1)
        faults = Faults(nans=int(nans.sum()), infinities=int(infinities.sum()))
    if allowed is not None and (wrong := allowed.refuses(rows)).any():
        count = int(wrong.any(axis=1).sum())
        faults += Faults(refused=count, label=f"{rows[wrong][0]:g}")
    return faults


def counted(rows: int) -> str:
    """A number of rows in words."""
    return "1 row" if rows == 1 else f"{rows} rows"


def storage_type(spec: ColumnSpec) -> pa.DataType:
    """The Arrow type that `encode` gives."""
    if spec.dtype == "string":
        return pa.large_binary() if spec.kind == "binary" else pa.string()
    if not spec.shape:
        return _SCALARS[spec.dtype]
    return pa.binary(spec.size * np.dtype(spec.dtype).itemsize)


def encode(column: pa.Array, spec: ColumnSpec) -> tuple[pa.Array | None, Faults]:
    """A column as it is stored, or None and what is wrong with it.

    Args:
        column: as `columns.select` lets Spark give it.
        spec: what it should hold.
    """
    if not spec.shape:
        if column.null_count:
            return None, Faults(nulls=column.null_count)
        return column.cast(storage_type(spec)), Faults()
    if spec.kind == "image":
        values, faults = _image_elements(column, spec)
    else:
        values, faults = _list_elements(column, spec)
    if values is None:
        return None, faults
    content = pa.py_buffer(np.ascontiguousarray(values, spec.dtype))
    return pa.Array.from_buffers(storage_type(spec), len(column), [None, content]), faults


def decode(column: pa.ChunkedArray, spec: ColumnSpec, name: str, path: str) -> np.ndarray[Any, Any]:
    """A column as an array (rows, *shape); strings as objects of type bytes.

    Args:
        column: as `encode` made it, or lists of numbers.
        spec: what it holds.
        name: the column's, for the error.
        path: the file's, for the error.

    Raises:
        InvalidData: nulls, or rows of another shape.
    """
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # What older versions give.
        array = array.chunk(0) if array.num_chunks else pa.array([], column.type)
    values: np.ndarray[Any, Any] | None = None
    faults = Faults(nulls=array.null_count)
    if faults:
        pass
    elif spec.dtype == "string":
        values = array.cast(pa.large_binary()).to_numpy(zero_copy_only=False)
    elif not spec.shape:
        values = array.to_numpy(zero_copy_only=False).astype(spec.dtype, copy=False)
    elif array.type == storage_type(spec):
        values = _raw_elements(array, spec)
    elif pa.types.is_struct(array.type):
        values, faults = _vector_elements(array, spec)
    else:
        values, faults = _list_elements(array, spec)
    if values is None:
        raise errors.InvalidData(f"{path}: {faults.describe(name, spec)}")
    return values.reshape(len(array), *spec.shape)


def _raw_elements(column: pa.Array, spec: ColumnSpec) -> np.ndarray[Any, Any]:
    """The elements that `encode` stored, in place."""
    if not len(column):
        return np.empty(0, spec.dtype)
    elements = np.frombuffer(column.buffers()[1], spec.dtype)
    return elements[column.offset * spec.size : (column.offset + len(column)) * spec.size]


def _list_elements(
    column: pa.Array, spec: ColumnSpec
) -> tuple[np.ndarray[Any, Any] | None, Faults]:
    """All elements of nested lists in one array, or what is wrong."""
    values = column
    for size in spec.shape:
        if values.null_count or pc.any(pc.not_equal(pc.list_value_length(values), size)).as_py():
            return None, _list_faults(column, spec)
        values = values.flatten()
    if values.null_count:
        return None, _list_faults(column, spec)
    elements = values.to_numpy(zero_copy_only=False)
    return elements.astype(spec.dtype, copy=False), Faults()


def _list_faults(column: pa.Array, spec: ColumnSpec) -> Faults:
    rows = np.arange(len(column))  # Which row each of the values belongs to.
    null, wrong = np.zeros((2, len(column)), bool)
    example = ""
    values = column
    for depth, size in enumerate(spec.shape):
        null[rows[np.asarray(values.is_null())]] = True
        lengths = np.asarray(pc.list_value_length(values).fill_null(size))
        off = lengths != size
        wrong[rows[off]] = True
        if off.any() and not example:
            example = str((*spec.shape[:depth], int(lengths[off][0]), *spec.shape[depth + 1 :]))
        rows = np.repeat(rows, np.asarray(pc.list_value_length(values).fill_null(0)))
        values = values.flatten()
    null[rows[np.asarray(values.is_null())]] = True
    return Faults(int(null.sum()), int((wrong & ~null).sum()), example)


def _vector_elements(
    column: pa.Array, spec: ColumnSpec
) -> tuple[np.ndarray[Any, Any] | None, Faults]:
    """The elements of Spark's vectors as they are stored, sparse ones filled up with zeros."""
    (size,) = spec.shape
    dense = np.asarray(column.field("type")) == 1
    values = column.field("values")
    lengths = np.asarray(pc.list_value_length(values))
    sizes = np.where(dense, lengths, np.asarray(column.field("size").fill_null(-1)))
    wrong = sizes != size
    if wrong.any():
        example = str((int(sizes[wrong][0]),))
        return None, Faults(misshapen=int(wrong.sum()), example=example)
    elements = np.zeros((len(column), size), spec.dtype)
    mask = pa.array(dense)
    elements[dense] = values.filter(mask).flatten().to_numpy().reshape(-1, size)
    rows = np.repeat(np.flatnonzero(~dense), lengths[~dense])
    places = column.field("indices").filter(pc.invert(mask)).flatten().to_numpy()
    elements[rows, places] = values.filter(pc.invert(mask)).flatten().to_numpy()
    return elements, Faults()


def _image_elements(
    column: pa.Array, spec: ColumnSpec
) -> tuple[np.ndarray[Any, Any] | None, Faults]:
    """The pixels of Spark's image structs, RGB rather than OpenCV's BGR, or what is wrong."""
    names = ("height", "width", "nChannels", "mode")
    parts = [*(column.field(name) for name in names), pc.binary_length(column.field("data"))]
    null = np.any([np.asarray(part.is_null()) for part in (column, *parts)], axis=0)
    channels = spec.shape[2]
    expected = (*spec.shape, _IMAGE_MODES.get(channels, -1), spec.size)
    found = np.stack([np.asarray(part.fill_null(-1)) for part in parts], axis=1)
    wrong = (found != expected).any(axis=1) & ~null
    if null.any() or wrong.any():
        example = ""
        if wrong.any():
            height, width, depth, mode, size = found[wrong][0].tolist()
            example = f"({height}, {width}, {depth}) of OpenCV type {mode} with {size} bytes"
        return None, Faults(int(null.sum()), int(wrong.sum()), example)
    joined = b"".join(value.as_py() for value in column.field("data"))
    pixels = np.frombuffer(joined, np.uint8).reshape(len(column), -1, channels)
    if channels > 1:
        pixels = pixels[:, :, [2, 1, 0, 3][:channels]]
    return pixels, Faults()
