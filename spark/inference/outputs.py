"""What a model's outputs mean, and the columns that they become.

A model with one output gives a prediction that Spark's evaluators take: the class for a classifier
(its loss tells), the number for a regression. The outputs as they are become columns too where one
asks for them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from keras_strom import errors

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField

_KINDS = ("class", "binary", "value", "tensor")


@dataclasses.dataclass(frozen=True)
class Output:
    """One tensor that a model gives.

    Attributes:
        name: the model's name for it.
        shape: of one example; () is a scalar, and so is a last dimension of 1 of a vector.
        dtype: of NumPy; float16 and bfloat16 count as float32.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"

    def spark_type(self) -> DataType:
        """A number, or arrays of numbers as deep as the shape is."""
        from pyspark.sql import types

        numbers: dict[str, DataType] = {
            "float32": types.FloatType(),
            "float64": types.DoubleType(),
            "int32": types.IntegerType(),
            "int64": types.LongType(),
            "bool": types.BooleanType(),
        }
        if self.dtype not in numbers:
            raise errors.UnsupportedModel(
                f"the model's output {self.name!r} is {self.dtype}, which is no column of numbers"
            )
        of = numbers[self.dtype]
        for _ in self.shape:
            of = types.ArrayType(of, containsNull=False)
        return of


@dataclasses.dataclass(frozen=True)
class Outputs:
    """All outputs of a model.

    Attributes:
        tensors: in the model's order.
        kind: of a single output: "class" = one score a class, "binary" = one score, "value" = a
            number, "tensor" = anything else, several outputs among them.
        from_logits: whether scores are logits rather than probabilities.
        named: whether the model gives them as a dict by their names.
    """

    tensors: tuple[Output, ...]
    kind: str = "tensor"
    from_logits: bool = False
    named: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors' names."""
        return tuple(tensor.name for tensor in self.tensors)

    def ordered(self, names: Sequence[str]) -> Outputs:
        """The same outputs in the order of their names."""
        found = {tensor.name: tensor for tensor in self.tensors}
        return dataclasses.replace(self, tensors=tuple(found[name] for name in names))

    @property
    def is_classifier(self) -> bool:
        """Whether there are classes and their probabilities."""
        return self.kind in ("class", "binary")

    def to_json(self) -> dict[str, Any]:
        """A value that json takes."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Outputs:
        """What `to_json` gave."""
        tensors = tuple(Output(t["name"], tuple(t["shape"]), t["dtype"]) for t in value["tensors"])
        return cls(tensors, value["kind"], value["from_logits"], value.get("named", False))


@dataclasses.dataclass(frozen=True)
class OutputColumns:
    """The columns that are added to a DataFrame.

    Attributes:
        outputs: of the model.
        prediction: the column for the class (double), the value (double) or the tensor (array);
            None = none.
        probability: the column for the classes' probabilities (ML vector), or None.
        raw: a column for each output as it is; () = none.

    Raises:
        InvalidOption: a column that this model cannot fill, or a name twice.
    """

    outputs: Outputs
    prediction: str | None
    probability: str | None
    raw: tuple[str, ...]

    def __post_init__(self) -> None:
        count = len(self.outputs.tensors)
        if self.prediction is not None and count > 1:
            raise errors.InvalidOption(
                f"prediction_col={self.prediction!r}: the model has {count} outputs; name their "
                "columns in output_cols and set prediction_col=None"
            )
        if self.probability is not None and not self.outputs.is_classifier:
            raise errors.InvalidOption(
                f"probability_col={self.probability!r}: the model is no classifier (a single "
                "output, with a categorical or binary cross-entropy for a loss)"
            )
        if self.raw and len(self.raw) != count:
            raise errors.InvalidOption(
                f"output_cols={list(self.raw)} has {len(self.raw)} names for {count} outputs: "
                + ", ".join(tensor.name for tensor in self.outputs.tensors)
            )
        if not self.names:
            raise errors.InvalidOption(
                "nothing to predict: prediction_col, probability_col and output_cols are all None"
            )
        if len(set(self.names)) < len(self.names):
            raise errors.InvalidOption(f"output columns named twice: {', '.join(self.names)}")

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, in the order in which they are added."""
        return (*filter(None, (self.prediction, self.probability)), *self.raw)

    def fields(self) -> list[StructField]:
        """Their Spark types."""
        from pyspark.ml.linalg import VectorUDT
        from pyspark.sql.types import DoubleType, StructField

        fields = []
        if self.prediction is not None:
            of = DoubleType()
            if self.outputs.kind == "tensor":
                of = self.outputs.tensors[0].spark_type()
            fields.append(StructField(self.prediction, of, nullable=False))
        if self.probability is not None:
            fields.append(StructField(self.probability, VectorUDT(), nullable=False))
        for name, tensor in zip(self.raw, self.outputs.tensors, strict=False):
            fields.append(StructField(name, tensor.spark_type(), nullable=False))
        return fields

    def arrays(self, tensors: Sequence[np.ndarray[Any, Any]]) -> list[pa.Array]:
        """Their values in Arrow.

        Args:
            tensors: what the model gave, [rows, *shape] each.
        """
        tensors = [
            tensor.reshape(len(tensor), *output.shape).astype(output.dtype, copy=False)
            for tensor, output in zip(tensors, self.outputs.tensors, strict=True)
        ]
        arrays = []
        if self.outputs.is_classifier and (self.prediction or self.probability):
            probabilities = _probabilities(tensors[0], self.outputs)
        if self.prediction is not None:
            if self.outputs.is_classifier:
                arrays.append(pa.array(probabilities.argmax(axis=1).astype("float64")))
            elif self.outputs.kind == "value":
                arrays.append(pa.array(tensors[0].astype("float64")))
            else:
                arrays.append(nested(tensors[0]))
        if self.probability is not None:
            arrays.append(_vectors(probabilities))
        return [*arrays, *(nested(tensor) for tensor in tensors if self.raw)]


def scalar_or_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape, where a vector of one element counts as the element."""
    return () if tuple(shape) == (1,) else tuple(shape)


def meaning_of(tensors: Sequence[Output], loss: Any) -> Outputs:
    """The outputs of a model that trains with `loss`, as `compile` takes it."""
    import keras

    from .keras_losses import chosen

    if len(tensors) != 1:
        return Outputs(tuple(tensors))
    shape = tensors[0].shape
    while isinstance(loss, dict | list | tuple) and len(loss) == 1:
        loss = next(iter(loss.values())) if isinstance(loss, dict) else loss[0]
    name, from_logits = "", False
    if isinstance(loss, str):
        loss = keras.losses.get(chosen(loss, shape))
    if isinstance(loss, keras.Loss):
        name = type(loss).__name__
        from_logits = bool(loss.get_config().get("from_logits", False))
    elif callable(loss):
        name = getattr(loss, "__name__", "")
    name = name.replace("_", "").lower()
    if len(shape) == 1 and "categorical" in name and "crossentropy" in name:
        return Outputs(tuple(tensors), "class", from_logits)
    if shape == () and "binary" in name and "crossentropy" in name:
        return Outputs(tuple(tensors), "binary", from_logits)
    return Outputs(tuple(tensors), "value" if shape == () else "tensor")


def nested(values: np.ndarray[Any, Any]) -> pa.Array:
    """An array [rows, *shape] as numbers, or lists of numbers as deep as the shape is."""
    array = pa.array(np.ascontiguousarray(values).reshape(-1))
    for depth in range(values.ndim - 1, 0, -1):
        rows, size = math.prod(values.shape[:depth]), values.shape[depth]
        array = pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype="int32") * size), array)
    return array


def _probabilities(scores: np.ndarray[Any, Any], outputs: Outputs) -> np.ndarray[Any, Any]:
    """[rows, classes] float64; a binary model has the classes 0 and 1."""
    scores = scores.astype("float64")
    if outputs.kind == "binary":
        if outputs.from_logits:
            scores = 0.5 * (1.0 + np.tanh(0.5 * scores))  # The sigmoid, without overflow.
        # A score of just 0.5 counts as class 0, as in Keras's binary accuracy.
        return np.stack([1.0 - scores, scores], axis=1)
    if outputs.from_logits and len(scores):
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
    return scores


def _vectors(values: np.ndarray[Any, Any]) -> pa.Array:
    """[rows, size] as dense ML vectors: the struct that Spark stores them in."""
    rows = len(values)
    return pa.StructArray.from_arrays(
        [
            pa.array(np.ones(rows, "int8")),  # 1 = dense.
            pa.nulls(rows, pa.int32()),
            pa.nulls(rows, pa.list_(pa.int32())),
            nested(values),
        ],
        names=["type", "size", "indices", "values"],
    )
