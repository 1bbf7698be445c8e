"""Which label is compared with which output of a model that gives a dict.

Keras sorts a dict's outputs by their names, and gives a tuple's labels to them in that order, which
is seldom the order in which a user has written them down. So labels whose columns are named as the
outputs become a dict, and others are refused where the sorted order is not the written one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from keras_strom import errors

from .outputs import Outputs


@dataclasses.dataclass(frozen=True)
class LabelsByName:
    """Does to a batch what `transformation_fn` does, and gives its labels the outputs' names.

    Attributes:
        labels: the label columns.
        outputs: the names of all outputs, as they stand in the model's dict.
        compared: those that have a loss.
        function: the user's; None = there is none.

    Raises:
        InvalidData: by the call: it is not clear which label belongs to which output.
    """

    labels: tuple[str, ...]
    outputs: tuple[str, ...]
    compared: tuple[str, ...]
    function: Callable[..., Any] | None = None

    def __call__(self, *values: Any) -> Any:
        """A batch (x, y[, weight]) as the model takes it."""
        changed = values if self.function is None else self.function(*values)
        if not isinstance(changed, tuple) or len(changed) < 2:
            return changed
        x, y, *weight = changed
        return (x, self.named(y), *weight)

    def named(self, y: Any) -> Any:
        """Labels in a tuple as a dict, where the columns have the outputs' names."""
        if not isinstance(y, tuple | list) or len(y) < 2:
            return y
        if len(y) == len(self.labels) and set(self.labels) <= set(self.outputs):
            return dict(zip(self.labels, y, strict=True))
        if not in_order(self.labels, self.compared):
            names = ", ".join(map(repr, self.outputs))
            raise errors.InvalidData(
                f"the model's outputs are a dict of {names}, which Keras sorts by name, and the "
                f"label columns are {', '.join(map(repr, self.labels))}: give these the names of "
                "the outputs that they belong to (df.withColumnRenamed), or let transformation_fn "
                "return a dict of labels by output"
            )
        return y


def labels_by_name(
    model: keras.Model,
    outputs: Outputs,
    labels: Sequence[str],
    function: Callable[..., Any] | None,
) -> Callable[..., Any] | None:
    """What a batch goes through on its way to the model: the user's function where that is all.

    Args:
        model: compiled; one with a `train_step` or `compute_loss` of its own gets labels as a
            tuple, and knows what to do with them.
        outputs: of the model.
        labels: the label columns.
        function: the user's, or None.
    """
    loss = getattr(model, "loss", None)
    own = any(
        getattr(type(model), name) is not getattr(keras.Model, name)
        for name in ("train_step", "compute_loss")
    )
    if not labels or not outputs.named or len(outputs.tensors) < 2 or loss is None or own:
        return function
    compared = _compared(outputs, loss)
    return LabelsByName(tuple(labels), outputs.names, compared, function)


def in_order(labels: Sequence[str], outputs: Sequence[str]) -> bool:
    """Whether labels that go to a dict's outputs by place can mean no other ones.

    Example:
        >>> in_order(["price", "kind"], ["a", "b"]), in_order(["b", "x"], ["a", "b"])
        (True, False)
    """
    if list(outputs) != sorted(outputs):
        return False
    places = dict(zip(labels, outputs, strict=False))
    return all(places.get(name, name) == name for name in outputs)


def of_outputs(y: Any, outputs: Outputs, loss: Any) -> list[Any] | None:
    """The label of each output, None for one that has none, as Keras compares them.

    Returns:
        A list as long as `outputs.tensors`, or None where that many labels are not there.
    """
    if isinstance(y, Mapping) and set(y) <= set(outputs.names):
        return [y.get(name) for name in outputs.names]
    values = list(y.values()) if isinstance(y, Mapping) else y
    values = list(values) if isinstance(values, list | tuple) else [values]
    if not outputs.named:
        return values if len(values) == len(outputs.tensors) else None
    compared = sorted(_compared(outputs, loss))
    if len(values) != len(compared):
        return None
    found = dict(zip(compared, values, strict=True))
    return [found.get(name) for name in outputs.names]


def of_each_output(value: Any, outputs: Outputs) -> list[Any]:
    """What `compile` was given for all outputs, output by output: a list's, as Keras sorts them."""
    names = outputs.names
    if isinstance(value, Mapping):
        return [value.get(name) for name in names]
    if not isinstance(value, list | tuple):
        return [value] * len(names)
    order = sorted(names) if outputs.named else names
    found = [*value, *[None] * (len(names) - len(value))]
    return [found[order.index(name)] for name in names] if outputs.named else found


def _compared(outputs: Outputs, loss: Any) -> tuple[str, ...]:
    return tuple(name for name in outputs.names if not isinstance(loss, Mapping) or name in loss)
