"""Which columns of a DataFrame are trained on, what they hold, and how they leave Spark.

`inspect` looks at the schema, and at one row where the schema does not tell a size. `select` makes
the Spark expressions that bring every column to a form which Arrow carries in bulk; nothing here
touches rows one by one, except `from_pairs`, whose input is made of Python objects.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from keras_strom import errors

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructField

#: The dtypes that a column can have.
DTYPES = ("float32", "int32", "int64", "bool", "uint8", "string")
#: What a column can be.
KINDS = ("scalar", "vector", "array", "image", "binary", "string")
#: What follows the faults of rows.
REPAIR = "drop or repair these rows (df.dropna(), df.fillna(), df.filter())"

_MOST_ELEMENTS = 1 << 31


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns that make an example.

    Args:
        features: one gives the model a tensor, several a dict by name.
        labels: one gives the loss a tensor, several a tuple in this order (which an estimator makes
            a dict for a model whose dict of outputs has these names).
        sample_weight: a scalar column, or None.

    Raises:
        InvalidOption: no feature, a name twice, or something that is no name.

    Example:
        >>> Columns(("age", "fare"), ("survived",)).names
        ('age', 'fare', 'survived')
    """

    features: tuple[str, ...]
    labels: tuple[str, ...]
    sample_weight: str | None = None

    def __post_init__(self) -> None:
        for field in ("features", "labels"):
            names = getattr(self, field)
            if isinstance(names, str) or not isinstance(names, Iterable):
                raise errors.InvalidOption(f"{field}={names!r} must be a list of column names")
            object.__setattr__(self, field, tuple(names))
        if not self.features:
            raise errors.InvalidOption("features=() must name a column at least")
        for name in self.names:
            if not isinstance(name, str) or not name:
                raise errors.InvalidOption(f"{name!r} is no column name")
        if self.sample_weight is not None and not self.labels:
            raise errors.InvalidOption(
                f"sample_weight={self.sample_weight!r} weighs a loss, which needs labels"
            )
        twice = sorted({name for name in self.names if self.names.count(name) > 1})
        if twice:
            raise errors.InvalidOption(
                f"columns named twice: {', '.join(map(repr, twice))}; where one is wanted twice, "
                "as by an autoencoder, give a copy a name of its own "
                f"(df.withColumn('copy', df[{twice[0]!r}]))"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """All of them: features, labels, weight."""
        weight = () if self.sample_weight is None else (self.sample_weight,)
        return (*self.features, *self.labels, *weight)

    def arrange(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Values of the columns, in the order of `names`, as a model takes them.

        Returns:
            (x,) without labels, else (x, y) or (x, y, weight). x is the value where there is one
            feature, else a dict by name; y the value where there is one label, else a tuple.
        """
        x, rest = values[: len(self.features)], values[len(self.features) :]
        y, weight = rest[: len(self.labels)], rest[len(self.labels) :]
        inputs = x[0] if len(x) == 1 else dict(zip(self.features, x, strict=True))
        if not self.labels:
            return (inputs,)
        return (inputs, y[0] if len(y) == 1 else tuple(y), *weight)


@dataclasses.dataclass(frozen=True)
class ColumnSpec:
    """What a column holds, and so the tensor that a worker gets.

    Attributes:
        kind: "scalar", "vector" (Spark ML, dense or sparse), "array", "image" (Spark's schema),
            "binary" (bytes, such as an encoded picture) or "string".
        dtype: "float32", "int32", "int64", "bool", "uint8" or "string", which is bytes to
            TensorFlow.
        shape: of one example; () is a scalar. An image's is (height, width, channels).
        example: of a binary or string column, the bytes of one row, so that a `transformation_fn`
            is tried on something that it can decode or parse; b"" = not known.

    Nothing is checked here: whoever is given one refuses what it cannot use.

    Example:
        >>> ColumnSpec("array", "float32", (28, 28)).size
        784
    """

    kind: str
    dtype: str
    shape: tuple[int, ...] = ()
    example: bytes = dataclasses.field(default=b"", compare=False, repr=False)

    @property
    def size(self) -> int:
        """Elements of one example."""
        return math.prod(self.shape)

    def to_json(self) -> dict[str, Any]:
        """All but the example, as `from_json` takes it."""
        return {"kind": self.kind, "dtype": self.dtype, "shape": list(self.shape)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ColumnSpec:
        """What `to_json` gave.

        Raises:
            KeyError, TypeError, ValueError: it gave something else.
        """
        kind, dtype, shape = value["kind"], value["dtype"], tuple(value["shape"])
        if kind not in KINDS or dtype not in DTYPES:
            raise ValueError(f"no column is of kind {kind!r} and dtype {dtype!r}")
        if any(type(size) is not int or not 0 <= size < _MOST_ELEMENTS for size in shape):
            raise ValueError(f"no column has the shape {shape!r}")
        return cls(kind, dtype, shape)


def inspect(
    df: DataFrame,
    columns: Columns,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    *,
    with_strings: bool = False,
) -> dict[str, ColumnSpec]:
    """What the chosen columns hold, in `columns.names`' order.

    A vector's size comes from the column's ML attributes, or else, as arrays' and images' shapes
    and an example of bytes do, from one row that has a value: a Spark job over as many partitions
    as that takes. That all other rows have the same shape, and no nulls, is checked where the rows
    are read. No row of a streaming DataFrame can be looked at.

    Args:
        df: a DataFrame.
        columns: the chosen ones.
        shapes: of the columns, where neither the schema nor a row tells them: no row has a value,
            or the DataFrame is a streaming one.
        with_strings: whether a row is looked at for an example of strings as well, which a
            `transformation_fn` may parse.

    Raises:
        InvalidData: a column that is missing, has a type that is no tensor, or holds no value.
    """
    check_dataframe(df)
    fields = Fields(df)
    missing = [name for name in columns.names if not fields.of(name)]
    if missing:
        raise errors.InvalidData(
            f"no column {', '.join(map(repr, missing))} in the DataFrame; it has "
            f"{', '.join(map(repr, df.columns))}{_hint_of_fields(missing, df.columns)}"
        )
    fields.refuse_several(columns.names)
    specs: dict[str, ColumnSpec] = {}
    for name in columns.names:
        (field,) = fields.of(name)
        kind, dtype, depth = _kind_of(name, field.dataType)
        shape: tuple[int, ...] = ()
        example = b""
        if kind == "vector":
            size = _vector_size(field.metadata)
            shape = (size,) if size else _shape_of(df, name, kind, depth, shapes)
        elif kind in ("array", "image"):
            shape = _shape_of(df, name, kind, depth, shapes)
        elif kind == "binary" and not df.isStreaming:
            row = _of_a_row(df, name, [_column(name)], optional=name in (shapes or {}))
            example = b"" if row is None else bytes(row[0])
        elif kind == "string" and with_strings and not df.isStreaming:
            row = _of_a_row(df, name, [_column(name)], optional=True)
            example = b"" if row is None else row[0].encode()
        specs[name] = ColumnSpec(kind, dtype, shape, example)
    return with_weight(columns, specs)


def check_dataframe(df: Any) -> None:
    """Refuses what is no DataFrame of Spark, pandas's among them.

    Raises:
        InvalidData: the message says what makes one of it.
    """
    if hasattr(df, "sparkSession"):
        return
    kind, remedy = type(df), "spark.createDataFrame(...) makes one of rows"
    if kind.__module__.startswith("pyspark.pandas"):
        remedy = "its to_spark() gives one"
    elif kind.__module__.startswith("pandas"):
        remedy = "spark.createDataFrame(...) makes one of it"
    raise errors.InvalidData(
        f"a {kind.__module__}.{kind.__qualname__} is no DataFrame of Spark: {remedy}"
    )


class Fields:
    """A DataFrame's columns by name, as Spark finds them: in any case, unless it is told otherwise.

    Args:
        df: its schema, and its session's `spark.sql.caseSensitive`, are looked at once.
    """

    def __init__(self, df: DataFrame) -> None:
        sensitive = df.sparkSession.conf.get("spark.sql.caseSensitive", "false")
        self._is_case_sensitive = str(sensitive).lower() == "true"
        self._found: dict[str, list[StructField]] = {}
        for field in df.schema.fields:
            self._found.setdefault(self._key(field.name), []).append(field)

    def of(self, name: str) -> list[StructField]:
        """All to which a name refers; several of them are one too many for Spark."""
        return self._found.get(self._key(name), [])

    def refuse_several(self, names: Sequence[str]) -> None:
        """Refuses names each of which refers to several columns.

        Raises:
            InvalidData: the message has those names.
        """
        ambiguous = [name for name in names if len(self.of(name)) > 1]
        if ambiguous:
            raise errors.InvalidData(
                f"the DataFrame has several columns {', '.join(map(repr, ambiguous))}: rename them"
            )

    def _key(self, name: str) -> str:
        return name if self._is_case_sensitive else name.lower()


def with_weight(columns: Columns, specs: dict[str, ColumnSpec]) -> dict[str, ColumnSpec]:
    """The specs with the sample weight as a float32.

    Raises:
        InvalidData: it is no number.
    """
    name = columns.sample_weight
    if name is None or name not in specs:
        return specs
    if specs[name].kind != "scalar" or specs[name].dtype == "bool":
        raise errors.InvalidData(
            f"the sample weight {name!r} must be a number, not of kind {specs[name].kind}"
        )
    return {**specs, name: ColumnSpec("scalar", "float32")}


def select(
    df: DataFrame,
    specs: Mapping[str, ColumnSpec],
    *extra: Column,
    refuse_nulls: bool = False,
) -> DataFrame:
    """The columns of `specs` alone, in a form that Arrow carries: numbers cast, vectors as arrays.

    They are named c0, c1 and so on: Spark's mapInArrow trips over names with dots.

    Args:
        df: as given to `inspect`.
        specs: as `inspect` gave them.
        *extra: further expressions, kept as they are.
        refuse_nulls: whether a row that is null ends the query, before Python sees it. (What an
            array holds is looked at there.)
    """
    refused = _refusing_null if refuse_nulls else lambda _, column: column
    columns = (
        refused(name, _expression(df, name, spec)).alias(f"c{index}")
        for index, (name, spec) in enumerate(specs.items())
    )
    return df.select(*columns, *extra)


def _refusing_null(name: str, column: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    null = F.raise_error(F.lit(f"column {name!r} has rows with nulls: {REPAIR}"))
    return F.when(_column(name).isNotNull(), column).otherwise(null)


def from_pairs(
    pairs: RDD[tuple[Any, Any]],
    spark: SparkSession | None = None,
    *,
    features: str = "features",
    label: str = "label",
) -> DataFrame:
    """A DataFrame of an RDD of (x, y) pairs of NumPy arrays or numbers.

    Types and numbers of dimensions are those of the first pair.

    Args:
        pairs: any number of partitions.
        spark: the session; None = the active one.
        features: the name of x's column.
        label: the name of y's column.

    Raises:
        InvalidData: the RDD is empty, or its first element is no pair of arrays of numbers.
    """
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructField, StructType

    first = pairs.take(1)
    if not first:
        raise errors.InvalidData("the RDD is empty")
    if not isinstance(first[0], tuple | list) or len(first[0]) != 2:
        raise errors.InvalidData(f"the RDD's first element is {type(first[0])}, no pair (x, y)")
    schema = StructType(
        [
            StructField(name, _type_of_value(name, value))
            for name, value in zip((features, label), first[0], strict=True)
        ]
    )
    session = spark or SparkSession.builder.getOrCreate()
    return session.createDataFrame(pairs.map(_as_lists), schema)


def _as_lists(pair: tuple[Any, Any]) -> tuple[Any, Any]:
    import numpy as np

    return np.asarray(pair[0]).tolist(), np.asarray(pair[1]).tolist()


def _type_of_value(name: str, value: Any) -> DataType:
    import numpy as np
    from pyspark.sql import types

    array = np.asarray(value)
    of_kind = {"f": types.DoubleType(), "b": types.BooleanType()}
    of_kind |= {"i": types.LongType(), "u": types.LongType()}
    element: DataType | None = of_kind.get(array.dtype.kind)
    if element is None:
        raise errors.InvalidData(f"the RDD's {name} is of type {array.dtype}, no numbers")
    if array.dtype in (np.float32, np.float16):
        element = types.FloatType()
    elif array.dtype.kind in "iu" and array.dtype.itemsize < 8 and array.dtype != np.uint32:
        element = types.IntegerType()
    for _ in range(array.ndim):
        element = types.ArrayType(element)
    return element


def _hint_of_fields(missing: Sequence[str], there: Sequence[str]) -> str:
    """Where a name means a field of a column: how that becomes a column of its own."""
    for name in missing:
        column, dot, field = name.partition(".")
        if dot and column in there:
            return (
                f"; a field becomes a column by df.withColumn({field!r}, "
                f"pyspark.sql.functions.col({name!r}))"
            )
    return ""


def _kind_of(name: str, of: DataType) -> tuple[str, str, int]:
    """(kind, dtype, depth of nesting) of a Spark type."""
    from pyspark.sql import types

    if isinstance(of, types.UserDefinedType) and of.simpleString() == "vector":
        return "vector", "float32", 1
    if isinstance(of, types.StringType):
        return "string", "string", 0
    if isinstance(of, types.BinaryType):
        return "binary", "string", 0
    if isinstance(of, types.StructType) and set(_IMAGE_FIELDS) <= set(of.names):
        return "image", "uint8", 3
    element, depth = of, 0
    while isinstance(element, types.ArrayType):
        element, depth = element.elementType, depth + 1
    dtype = _dtype_of(element)
    if dtype is None:
        raise errors.InvalidData(
            f"column {name!r} is of type {of.simpleString()}, which is no tensor: give numbers, "
            "booleans, strings, binary, arrays of numbers, ML vectors or images, or cast it"
        )
    return ("array" if depth else "scalar"), dtype, depth


_IMAGE_FIELDS = ("height", "width", "nChannels", "mode", "data")


def _dtype_of(of: DataType) -> str | None:
    from pyspark.sql import types

    if isinstance(of, types.FloatType | types.DoubleType | types.DecimalType):
        return "float32"
    if isinstance(of, types.LongType):
        return "int64"
    if isinstance(of, types.IntegerType | types.ShortType | types.ByteType):
        return "int32"
    return "bool" if isinstance(of, types.BooleanType) else None


def _vector_size(metadata: Mapping[str, Any]) -> int:
    """The size that Spark ML's transformers leave in a column's metadata; 0 = not there."""
    attributes = metadata.get("ml_attr", {})
    if "num_attrs" in attributes:
        return int(attributes["num_attrs"])
    return sum(len(group) for group in attributes.get("attrs", {}).values())


def _shape_of(
    df: DataFrame, name: str, kind: str, depth: int, shapes: Mapping[str, tuple[int, ...]] | None
) -> tuple[int, ...]:
    shape = (shapes or {}).get(name, ())
    if not df.isStreaming:
        found = _shape_of_a_row(df, name, kind, depth, optional=len(shape) == depth)
        return shape if found is None else found
    if len(shape) != depth:
        raise errors.InvalidData(
            f"the schema of the streaming DataFrame does not tell the shape of column {name!r} "
            f"({kind}), and the model has been trained on {shape or 'no such column'}: cast it to "
            "what it was in training"
        )
    return shape


def _shape_of_a_row(
    df: DataFrame, name: str, kind: str, depth: int, *, optional: bool
) -> tuple[int, ...] | None:
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql import functions as F  # noqa: N812

    column = _column(name)
    sizes: list[Column]
    if kind == "image":
        sizes = [column[field] for field in _IMAGE_FIELDS[:3]]
    else:
        nested = vector_to_array(column) if kind == "vector" else column
        sizes = []
        for _ in range(depth):
            sizes.append(F.size(nested))
            nested = F.get(nested, F.lit(0))
    row = _of_a_row(df, name, sizes, optional=optional)
    if row is None:
        return None
    shape = tuple(-1 if size is None else int(size) for size in row)
    if min(shape) < 1:
        found = f"an empty {kind}" if 0 in shape else f"a null within the {kind}"
        raise errors.InvalidData(f"column {name!r} has {found} in its first row")
    return shape


def _of_a_row(
    df: DataFrame, name: str, wanted: Sequence[Column], *, optional: bool
) -> Sequence[Any] | None:
    """Expressions over the first row that has a value in a column; None = there is none.

    Raises:
        InvalidData: there is none, and it is not optional.
    """
    row = df.filter(_column(name).isNotNull()).select(*wanted).first()
    if row is not None:
        return tuple(row)
    if optional:
        return None
    if df.isEmpty():
        raise errors.InvalidData(
            f"the DataFrame has no rows: what column {name!r} holds cannot be told"
        )
    raise errors.InvalidData(f"column {name!r} has no row with a value")


def _expression(df: DataFrame, name: str, spec: ColumnSpec) -> Column:
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql import functions as F  # noqa: N812

    column = _column(name)
    if spec.kind == "vector":  # Spark's function fails at a null, which is to be counted.
        return F.when(column.isNotNull(), vector_to_array(column, "float32"))
    if spec.kind in ("scalar", "array"):
        narrow = spec.dtype == "int32" and "bigint" in df.select(column).dtypes[0][1]
        if narrow or spec.dtype == "uint8":
            column = _within(name, column, len(spec.shape), spec.dtype)
        cast = _SPARK_TYPES[spec.dtype]
        for _ in spec.shape:
            cast = f"array<{cast}>"
        return column.cast(cast)
    return column


_SPARK_TYPES = {
    "float32": "float",
    "int32": "int",
    "int64": "bigint",
    "bool": "boolean",
    "uint8": "smallint",  # Spark's numbers have signs.
}
_BOUNDS = {"int32": (-(2**31), 2**31 - 1), "uint8": (0, 255)}


def _within(name: str, column: Column, depth: int, dtype: str) -> Column:
    """Whole numbers, of which one that a narrower dtype does not hold ends the query."""
    from pyspark.sql import functions as F  # noqa: N812

    if depth:
        return F.transform(column, lambda item: _within(name, item, depth - 1, dtype))
    beyond = F.raise_error(
        F.concat(
            F.lit(f"column {name!r} has the value "),
            column.cast("string"),
            F.lit(f", and the model has been trained on {dtype}: train it on wider integers"),
        )
    )
    return F.when(column.between(*_BOUNDS[dtype]) | column.isNull(), column).otherwise(beyond)


def _column(name: str) -> Column:
    """A column by its plain name, whatever characters that has."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.col("`" + name.replace("`", "``") + "`")
