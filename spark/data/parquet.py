"""Parquet files that are there already, as data that workers can read.

Only footers are read here, and first rows where a shape or some bytes must be found;
`reader.dataset` does the rest.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_strom import errors

from .columns import Columns, ColumnSpec, with_weight
from .exported import TRAIN, VALIDATION, DataFile, ExportedData
from .store import Store
from .tensors import counted

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from .tensors import Allowed

#: The key of a Parquet field's metadata under which `export` leaves its `ColumnSpec`.
SPEC_KEY = b"keras_strom"

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_FOOTERS_AT_ONCE = 8


def from_parquet(
    train: Paths,
    columns: Columns,
    *,
    validation: Paths | None = None,
    with_strings: bool = False,
) -> ExportedData:
    """Parquet files, written by Spark or anything else.

    Columns may be numbers, Booleans, strings, binary, lists of numbers (nested ones too) of one
    shape, and Spark ML vectors. Nulls are refused: here where the footers count them, otherwise
    when they are read.

    Args:
        train: files, or folders of them, as paths or URLs; hidden files are left out.
        columns: what makes an example.
        validation: the same for validation data.
        with_strings: whether the first row is read for an example of strings as well, which a
            `transformation_fn` may parse, and not of bytes only.

    Raises:
        InvalidData: no files, a missing or mistyped column, files that differ, or nulls.
        StoreUnavailable: a file that cannot be read, or is no Parquet.

    Example:
        >>> data = from_parquet("/data/flights", Columns(("x",), ("y",)))  # doctest: +SKIP
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    store, paths = list_files(train, validation)
    specs: dict[str, ColumnSpec] = {}
    splits: dict[str, tuple[DataFile, ...]] = {}

    def look(path: str) -> tuple[DataFile, dict[str, ColumnSpec]]:
        filesystem, inside = store.resolve(path)
        try:
            with pq.ParquetFile(filesystem.open_input_file(inside)) as file:
                groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
                found = DataFile(
                    path,
                    tuple(group.num_rows for group in groups),
                    sum(group.total_byte_size for group in groups),
                )
                return found, _parquet_specs(file, path, columns)
        except (OSError, pa.ArrowInvalid) as error:
            raise errors.StoreUnavailable(f"{path} cannot be read: {error}") from error

    with concurrent.futures.ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
        for split, files in paths.items():
            looked = list(pool.map(look, files))
            for file, own in looked:
                for name, spec in own.items():
                    if specs.setdefault(name, spec) != spec:
                        raise errors.InvalidData(
                            f"column {name!r} is {specs[name]} in the first file and {spec} in "
                            f"{file.path}"
                        )
            splits[split] = tuple(file for file, _ in looked)
    missing = [name for name in columns.names if name not in specs]
    if missing:
        raise errors.InvalidData(f"no file has a row, so nothing is known of {missing}")
    filled = [file.path for files in splits.values() for file in files if sum(file.rows)]
    if filled:
        kinds = ("binary", "string") if with_strings else ("binary",)
        specs |= _with_examples(store, filled[0], specs, kinds)
    return ExportedData(store, columns, {name: specs[name] for name in columns.names}, splits)


def refuse_labels(data: ExportedData, allowed: Mapping[str, Allowed]) -> None:
    """Refuses labels that a loss does not take, where the footers tell the least and the most.

    Args:
        data: of `from_parquet`.
        allowed: by column.

    Raises:
        InvalidData: names the column and the file.
    """
    import pyarrow.parquet as pq

    def look(path: str) -> None:
        filesystem, inside = data.store.resolve(path)
        with unavailable(path), pq.ParquetFile(filesystem.open_input_file(inside)) as file:
            for name, statistics in _statistics(file):
                if name not in allowed or not statistics.has_min_max:
                    continue
                ends = np.array([statistics.min, statistics.max], "float64")
                if allowed[name].refuses(ends).any():
                    raise errors.InvalidData(
                        f"{path}: label column {name!r} has labels from {ends[0]:g} to "
                        f"{ends[1]:g}, where {allowed[name].by} takes {allowed[name]}"
                    )

    paths = [file.path for files in data.splits.values() for file in files]
    with concurrent.futures.ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
        list(pool.map(look, paths if allowed else ()))


def spec_metadata(spec: ColumnSpec) -> dict[bytes, bytes]:
    """What `export` leaves with a Parquet field, so that `from_parquet` knows its shape."""
    return {SPEC_KEY: json.dumps(spec.to_json()).encode()}


def _with_examples(
    store: Store, path: str, specs: Mapping[str, ColumnSpec], kinds: Sequence[str]
) -> dict[str, ColumnSpec]:
    """The specs of these kinds, each with the bytes of the first row of a file that has rows."""
    import pyarrow.parquet as pq

    names = [name for name, spec in specs.items() if spec.kind in kinds]
    if not names:
        return {}
    filesystem, inside = store.resolve(path)
    with unavailable(path), pq.ParquetFile(filesystem.open_input_file(inside)) as file:
        row = next(file.iter_batches(batch_size=1, columns=names)).to_pylist()[0]
    found = {name: row[name] or b"" for name in names}
    return {
        name: dataclasses.replace(
            specs[name], example=value.encode() if isinstance(value, str) else value
        )
        for name, value in found.items()
    }


def list_files(train: Paths, validation: Paths | None) -> tuple[Store, dict[str, list[str]]]:
    """The store that holds all the paths, and the files of each split in order.

    Raises:
        InvalidData: there are none.
        InvalidOption: they lie in several file systems.
    """
    given = {TRAIN: train} if validation is None else {TRAIN: train, VALIDATION: validation}
    roots: dict[str, list[Store]] = {}
    for split, paths in given.items():
        several = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
        roots[split] = [Store.create(path) for path in several]
        if not several:
            raise errors.InvalidData(f"no {split} files: {paths!r} is empty")
    store = _common_store([root for several in roots.values() for root in several])
    files: dict[str, list[str]] = {}
    for split, stores in roots.items():
        files[split] = [path for root in stores for path in _files_below(store, root.url)]
        if not files[split]:
            raise errors.InvalidData(f"no {split} files in {given[split]}")
    return store, files


def _common_store(roots: Sequence[Store]) -> Store:
    """The folder above all of them."""
    first = roots[0]
    parts = first.url.split("/")
    for root in roots[1:]:
        pairs = zip(parts, root.url.split("/"), strict=False)
        parts = [own for own, other in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)]
    # scheme://host is the least that URLs of one file system share.
    if len({root.options for root in roots}) > 1 or len(parts) < (1 if first.is_local else 3):
        raise errors.InvalidOption(
            f"all files must lie in one file system, unlike {', '.join(root.url for root in roots)}"
        )
    return Store("/".join(parts) or "/", first.options)


def _files_below(store: Store, url: str) -> list[str]:
    from pyarrow import fs

    filesystem, inside = store.resolve(url)
    with unavailable(url):
        kind = filesystem.get_file_info(inside).type
        if kind == fs.FileType.NotFound:
            raise errors.InvalidData(f"there is no {url}")
        if kind == fs.FileType.File:
            return [url]
        found = filesystem.get_file_info(fs.FileSelector(inside, recursive=True))
    names = sorted(
        one.path[len(inside) :].strip("/")
        for one in found
        if one.type == fs.FileType.File and one.size
    )
    hidden = ("_", ".")
    return [
        f"{url}/{name}"
        for name in names
        if not any(part.startswith(hidden) and "=" not in part for part in name.split("/"))
    ]


@contextlib.contextmanager
def unavailable(path: str) -> Iterator[None]:
    """Errors of the file system as ours."""
    try:
        yield
    except OSError as error:
        raise errors.StoreUnavailable(f"{path} cannot be read: {error}") from error


def _parquet_specs(file: pq.ParquetFile, path: str, columns: Columns) -> dict[str, ColumnSpec]:
    """What the columns of one file hold; nothing for those whose shape no row tells."""
    schema = file.schema_arrow
    missing = [name for name in columns.names if name not in schema.names]
    if missing:
        raise errors.InvalidData(
            f"no column {', '.join(map(repr, missing))} in {path}; it has "
            f"{', '.join(map(repr, schema.names))}"
        )
    _refuse_nulls(file, path, columns)
    specs = {}
    for name in columns.names:
        spec = _parquet_spec(file, path, schema.field(name))
        if spec is not None:
            specs[name] = spec
    return with_weight(columns, specs)


def _parquet_spec(file: pq.ParquetFile, path: str, field: pa.Field) -> ColumnSpec | None:
    import pyarrow as pa

    if field.metadata and SPEC_KEY in field.metadata:
        return ColumnSpec.from_json(json.loads(field.metadata[SPEC_KEY]))
    of = field.type
    if pa.types.is_string(of) or pa.types.is_large_string(of):
        return ColumnSpec("string", "string")
    if pa.types.is_binary(of) or pa.types.is_large_binary(of):
        return ColumnSpec("binary", "string")
    is_vector = pa.types.is_struct(of) and {one.name for one in of} == _VECTOR_FIELDS
    if is_vector:
        kind, dtype, depth = "vector", "float32", 1
    else:
        depth = 0
        while pa.types.is_list(of) or pa.types.is_large_list(of) or pa.types.is_fixed_size_list(of):
            of, depth = of.value_type, depth + 1
        kind, dtype = ("array" if depth else "scalar"), _dtype_of(of)
    if not dtype:
        raise errors.InvalidData(
            f"column {field.name!r} of {path} is of type {field.type}, which is no tensor: write "
            "numbers, Booleans, strings, binary, lists of numbers or ML vectors"
        )
    if not depth:
        return ColumnSpec(kind, dtype)
    shape = _shape_of_a_row(file, field.name)
    if shape is None:
        return None
    if 0 in shape:
        raise errors.InvalidData(f"column {field.name!r} of {path} has an empty list in a row")
    if len(shape) != depth:
        raise errors.InvalidData(f"column {field.name!r} of {path} has a null in a row")
    return ColumnSpec(kind, dtype, shape)


# How Spark's VectorUDT is stored.
_VECTOR_FIELDS = {"type", "size", "indices", "values"}


def _dtype_of(of: pa.DataType) -> str:
    import pyarrow as pa

    types = pa.types
    if types.is_floating(of) or types.is_decimal(of):
        return "float32"
    if types.is_boolean(of):
        return "bool"
    if types.is_uint8(of):
        return "uint8"
    if types.is_int64(of) or types.is_uint32(of):
        return "int64"
    return "int32" if types.is_integer(of) and not types.is_uint64(of) else ""


def _shape_of_a_row(file: pq.ParquetFile, name: str) -> tuple[int, ...] | None:
    """The shape of the first value, up to an empty list or a null; None where there is none."""
    for batch in file.iter_batches(batch_size=1, columns=[name]):
        value = batch.column(0)[0].as_py()
        if isinstance(value, dict):
            value = [0.0] * value["size"] if value["size"] is not None else value["values"]
        shape = []
        while isinstance(value, list):
            shape.append(len(value))
            value = value[0] if value else None
        return tuple(shape)
    return None


def _refuse_nulls(file: pq.ParquetFile, path: str, columns: Columns) -> None:
    nulls: dict[str, int] = {}
    for name, statistics in _statistics(file):
        if name in columns.names and statistics.has_null_count:
            nulls[name] = nulls.get(name, 0) + statistics.null_count
    words = [
        f"column {name!r} has {counted(count)} with nulls" for name, count in nulls.items() if count
    ]
    if words:
        raise errors.InvalidData(f"{path}: {'; '.join(words)}: drop or repair these rows")


def _statistics(file: pq.ParquetFile) -> Iterator[tuple[str, Any]]:
    """What the footer tells of each row group's columns, where it tells anything.

    Parts of nested columns have names of their own (a.list.element): they may be null without the
    value being so.
    """
    for group in range(file.num_row_groups):
        meta = file.metadata.row_group(group)
        for index in range(meta.num_columns):
            column = meta.column(index)
            if column.statistics is not None:
                yield column.path_in_schema, column.statistics
