"""Tries a model on examples of zeros in the driver, before the cluster is busy.

What does not fit (inputs, labels, loss, metrics) is found in a second and said in words, and the
shapes of the model's outputs are known from then on.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import keras

from keras_strom import errors

from ..data.columns import Columns, ColumnSpec
from ..data.tensors import Allowed
from .compiling import check_names
from .identity import identity_of
from .keras_losses import chosen, own_name
from .labels import LabelsByName, labels_by_name, of_each_output, of_outputs
from .outputs import Output, Outputs, meaning_of, scalar_or_shape
from .prediction import examples, flat, zeros
from .serialization import PackedModel, known_to_keras

_ROWS = 2

# Of Keras's losses those that compare a label with an output element by element: Keras would
# broadcast one of another shape.
_ELEMENTWISE = (
    "meansquared",
    "meanabsolute",
    "huber",
    "logcosh",
    "poisson",
    "hinge",
    "kldivergence",
    "cosinesimilarity",
    "crossentropy",
)

# Names of losses as `own_name` gives them, by the labels that they take.
_OF_CLASSES = {"sparsecategoricalcrossentropy", "categoricalgeneralizedcrossentropy"}
_OF_PROBABILITIES = {
    "binarycrossentropy",
    "binaryfocalcrossentropy",
    "categoricalcrossentropy",
    "categoricalfocalcrossentropy",
    "kldivergence",
}


@dataclasses.dataclass(frozen=True)
class Trial:
    """What was found.

    Attributes:
        outputs: of the model.
        x: the examples, as the model was given them.
        identity: what tells the model from others, in whatever process.
        allowed: of the label columns whose loss takes some numbers only, those.
        function: what every batch goes through: the user's, and what names the labels.
    """

    outputs: Outputs
    x: Any
    identity: str
    allowed: Mapping[str, Allowed] = dataclasses.field(default_factory=dict)
    function: Callable[..., Any] | None = None


def dry_run(
    packed: PackedModel,
    columns: Columns,
    specs: Mapping[str, ColumnSpec],
    transformation_fn: Callable[..., Any] | None = None,
    *,
    trains: bool = True,
) -> Trial:
    """One batch through the model and its loss.

    Args:
        packed: a model that is compiled, or gets compiled.
        columns: what is trained on.
        specs: what they hold.
        transformation_fn: the user's.
        trains: whether the model needs a loss that takes the labels.

    Raises:
        InvalidData: the columns do not fit the model.
        InvalidOption: Keras knows no loss or metric of a name that it was compiled with.
        UnsupportedModel: the model is not compiled, or gives no numbers.
    """
    model = packed.load()
    if trains and not model.compiled:
        raise errors.UnsupportedModel(
            "the model is not compiled: give optimizer= and loss=, or compile it"
        )
    if trains and not packed.file:  # Those of a model given as such are known.
        _check_names(model, packed)
    arrays = {name: zeros(specs[name], _ROWS) for name in columns.names}
    try:
        batch = examples(columns, arrays, transformation_fn)
    except Exception as error:
        raise errors.InvalidOption(
            f"transformation_fn fails on zeros{_besides(columns, specs)}: {_words(error)}"
        ) from error
    x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
    if transformation_fn is None:
        _check_inputs(model, columns)
    predicted = _predict(model, x, columns, specs)
    allowed: dict[str, Allowed] = {}
    names = _names(model, predicted)
    for name, one in zip(names, flat(predicted), strict=True):
        if isinstance(one, Mapping | list | tuple):
            raise errors.UnsupportedModel(
                f"the model's output {name!r} is a {type(one).__name__} of {len(one)}: give each "
                "tensor a name of its own in one dict, or a place in one list"
            )
    tensors = [
        Output(name, scalar_or_shape(one.shape[1:]), _dtype(one))
        for name, one in zip(names, flat(predicted), strict=True)
    ]
    loss = getattr(model, "loss", None)
    outputs = meaning_of(tensors, loss)
    outputs = dataclasses.replace(outputs, named=isinstance(predicted, Mapping))
    function = labels_by_name(model, outputs, columns.labels, transformation_fn)
    if trains and y is not None:
        if isinstance(function, LabelsByName):
            y = function.named(y)
        compared = _compared(outputs, loss, y, columns)
        if not outputs.named or len(tensors) < 2 or isinstance(function, LabelsByName):
            _check_labels(compared)
    if trains and type(model).train_step is keras.Model.train_step:
        _check_loss(model, x, y, predicted, weight, _strings(columns.labels, specs))
        if transformation_fn is None and y is not None:
            allowed = {
                one.column: found for one in compared if (found := _allowed(one)) is not None
            }
    compiled = json.loads(packed.configuration() or "{}").get("compile_config")
    identity = identity_of(model, compiled)
    return Trial(outputs, keras.tree.map_structure(_numpy, x), identity, allowed, function)


def _check_names(model: keras.Model, packed: PackedModel) -> None:
    """As `check_names`, of what a function has compiled its model with."""
    with known_to_keras(packed.custom_objects), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras's, that it would not read a lambda again.
        try:
            compiled = model.get_compile_config() or {}
        except Exception:  # Nothing that a function compiles with need have a configuration.
            return
        check_names(compiled)


def _besides(columns: Columns, specs: Mapping[str, ColumnSpec]) -> str:
    """What the columns of bytes and strings are tried on, in words."""
    texts = [name for name in columns.names if specs[name].dtype == "string"]
    known = ", ".join(repr(name) for name in texts if specs[name].example)
    others = ", ".join(repr(name) for name in texts if not specs[name].example)
    words = [
        *([f" and the first row's {known}"] if known else []),
        *([f", with an empty string for {others}"] if others else []),
    ]
    return "".join(words)


def _check_inputs(model: keras.Model, columns: Columns) -> None:
    """Functional models name their inputs; several features come by their names."""
    inputs = getattr(model, "inputs", None)
    if not inputs:
        return
    structure = getattr(model, "_inputs_struct", None)
    names = [tensor.name for tensor in inputs]
    if isinstance(structure, Mapping):
        names = list(structure)
    features = list(columns.features)
    if len(inputs) == 1 and len(features) == 1:
        return
    if len(inputs) == 1:
        raise errors.InvalidData(
            f"the model has one input and feature_cols has {len(features)} columns: assemble them "
            "into one (pyspark.ml.feature.VectorAssembler), or give the model an input for each, "
            "named as the column"
        )
    if set(names) != set(features) or len(features) == 1:
        raise errors.InvalidData(
            f"the model's inputs are named {', '.join(names)}, and feature_cols are "
            f"{', '.join(features)}: every input takes the column of its name"
        )


def _predict(model: keras.Model, x: Any, columns: Columns, specs: Mapping[str, ColumnSpec]) -> Any:
    try:
        return model(x, training=False)
    except Exception as error:
        held = ", ".join(
            f"{name!r} {specs[name].dtype} {specs[name].shape}" for name in columns.features
        )
        raise errors.InvalidData(
            f"the model does not take its features (an example: {held}): {_words(error)}"
            f"{_indexer(_strings(columns.features, specs), 'feature_cols')}"
        ) from error


def _names(model: keras.Model, predicted: Any) -> list[str]:
    if isinstance(predicted, Mapping):
        return list(predicted)
    count = len(flat(predicted))
    names = list(getattr(model, "output_names", []))
    return names if len(names) == count else [f"output_{index}" for index in range(count)]


@dataclasses.dataclass(frozen=True)
class _Compared:
    """A label, its column, and the output and the loss that it is compared by."""

    column: str
    label: Any
    tensor: Output
    loss: Any

    @property
    def kind(self) -> str:
        """Which of Keras's losses it is; "" = one of the user's."""
        return own_name(chosen(self.loss, self.tensor.shape, self.label.shape[1:]))


def _compared(outputs: Outputs, loss: Any, y: Any, columns: Columns) -> list[_Compared]:
    """[] for a model with a loss of its own; Keras's own says what is wrong with the labels."""
    labels = of_outputs(y, outputs, loss)
    if labels is None:
        return []
    count = len(flat(y))
    names = columns.labels if len(columns.labels) == count else ("label",) * count
    by_name = isinstance(y, Mapping) and set(y) == set(names)
    found = of_outputs({name: name for name in names} if by_name else names, outputs, loss)
    losses = of_each_output(loss, outputs)
    assert found is not None
    return [
        _Compared(*parts)
        for parts in zip(found, labels, outputs.tensors, losses, strict=True)
        if parts[1] is not None
    ]


def _check_labels(compared: list[_Compared]) -> None:
    """Keras broadcasts a label of another shape than the output's, and trains on nonsense.

    Where one of the two has a last dimension of 1 more than the other, it leaves that out. What the
    user's own losses do with a label they alone know.
    """
    for each in compared:
        tensor, kind = each.tensor, each.kind
        found = scalar_or_shape(each.label.shape[1:])
        expected = scalar_or_shape(tensor.shape[:-1] if kind in _OF_CLASSES else tensor.shape)
        if not any(part in kind for part in _ELEMENTWISE):
            continue
        if found != expected and (*found, 1) != expected and (*expected, 1) != found:
            raise errors.InvalidData(
                f"label column {each.column!r} holds {_shape_words(found)} an example, where the "
                f"loss {_shown(each.loss)!r} needs {_shape_words(expected)} for "
                f"output {tensor.name!r} of shape {tensor.shape}"
            )


def _allowed(compared: _Compared) -> Allowed | None:
    """The labels that one of Keras's losses takes for an output; None = any number, or unknown."""
    loss, tensor, kind = compared.loss, compared.tensor, compared.kind
    if kind in _OF_CLASSES:
        if not tensor.shape:
            return None
        classes = tensor.shape[-1]
        besides = loss.get_config().get("ignore_class") if isinstance(loss, keras.Loss) else None
        by = f"the loss {_shown(loss)!r} for the {classes} classes of output {tensor.name!r}"
        return Allowed(0, classes - 1, True, by, besides)
    by = f"the loss {_shown(loss)!r}"
    if kind in _OF_PROBABILITIES:
        return Allowed(0, 1, False, by)
    return Allowed(0, float("inf"), False, by) if kind == "poisson" else None


def _strings(names: tuple[str, ...], specs: Mapping[str, ColumnSpec]) -> list[str]:
    return [name for name in names if specs[name].kind == "string"]


def _indexer(names: list[str], option: str) -> str:
    """What makes numbers of strings, in words."""
    if not names:
        return ""
    return (
        f"\n{', '.join(map(repr, names))} holds strings: make numbers of them with pyspark.ml."
        f"feature.StringIndexer(inputCol={names[0]!r}, outputCol={names[0] + '_index'!r}), and "
        f"name the new column in {option}; what is numbers already, as out of a CSV file, needs a "
        f"cast alone: df.withColumn({names[0]!r}, df[{names[0]!r}].cast('double'))"
    )


def _check_loss(
    model: keras.Model, x: Any, y: Any, predicted: Any, weight: Any, strings: list[str]
) -> None:
    try:
        model.compute_loss(x=x, y=y, y_pred=predicted, sample_weight=weight)
        model.compute_metrics(x, y, predicted, sample_weight=weight)
    except Exception as error:
        raise errors.InvalidData(
            f"the loss or a metric does not take the label columns: {_words(error)}"
            f"{_indexer(strings, 'label_cols')}"
        ) from error


def _shown(loss: Any) -> str:
    """A loss as its user has written it."""
    if isinstance(loss, keras.Loss):
        return type(loss).__name__
    return loss if isinstance(loss, str) else str(getattr(loss, "__name__", ""))


def _shape_words(shape: tuple[int, ...]) -> str:
    return f"an array of shape {shape}" if shape else "one number"


def _dtype(tensor: Any) -> str:
    name = keras.backend.standardize_dtype(tensor.dtype)
    return "float32" if name in ("float16", "bfloat16") else str(name)


def _numpy(tensor: Any) -> Any:
    return keras.ops.convert_to_numpy(tensor) if tensor.dtype != "string" else tensor.numpy()


def _words(error: Exception) -> str:
    return str(error).strip() or type(error).__name__
