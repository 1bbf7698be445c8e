"""What the optimizers of one step change: variables as a whole, or rows of an embedding.

An optimizer that applies the sparse gradient of an embedding as it is changes the rows that were
looked up and nothing else. The step then costs what those rows cost, not the whole table.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import keras
import tensorflow as tf

from keras_strom.sharing.flat_space import Entry
from keras_strom.sharing.model_checks import is_constrained, path_of

_logger = logging.getLogger("keras_strom")

_ASSIGNMENTS = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")

# What may be done with a variable by a step that certainly leaves it alone.
_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape")

# Smaller variables are passed over in less time than the words would take to read.
_LARGE = 1 << 20

# What one element of a pass over the whole variable moves: three floats read, two written.
_BYTES_PER_ELEMENT = 20


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows that a step changes in a variable.

    Attributes:
        indices: int64 [n], in any order, also repeatedly.
        before: float32 [n, elements of a row], their values before the step.
    """

    indices: Any
    before: Any

    @classmethod
    def none(cls) -> Rows:
        """Those of a step that leaves the variable alone."""
        return cls(tf.zeros([0], tf.int64), tf.zeros([0]))


@dataclasses.dataclass(frozen=True)
class VariableChange:
    """What is known of one variable of a step.

    Attributes:
        entry: its place in the flat space.
        shares: whether its changes are sent.
        since: its value before the optimizer ran, or the rows that alone can have changed.
        momentum: where the optimizer keeps its momentum, if that is to be masked; it has the place
            of the variable.
    """

    entry: Entry
    shares: bool
    since: Any | Rows
    momentum: Entry | None = None


class Touched:
    """Collects what the optimizers announce while a step is traced, or runs eagerly.

    Args:
        by_rows: whether anybody asks for `rows`.

    Attributes:
        looked_up: the variables of which the gradient has a few rows alone.
    """

    def __init__(self, by_rows: bool) -> None:
        self.looked_up: list[Any] = []
        self._by_rows = by_rows
        self._graph = _graph()
        self._variables: dict[int, Any] = {}
        self._rows: dict[int, list[Rows]] = {}
        self._whole: set[int] = set()

    @property
    def variables(self) -> set[int]:
        """The ids of all variables that some optimizer changes."""
        return set(self._variables)

    def note(self, variable: Any, gradient: Any, optimizer: Any) -> None:
        """`optimizer` is about to apply `gradient` to `variable`, which has not changed so far."""
        self._variables[id(variable)] = variable
        if not isinstance(gradient, tf.IndexedSlices):
            self._whole.add(id(variable))
            return
        self.looked_up.append(variable)
        if not self._by_rows:
            self._whole.add(id(variable))
            return
        reason = _why_whole(optimizer, variable)
        if reason is None and _graph() is not self._graph:
            reason = "it is applied under a condition, or compiled"
        if reason is not None:
            self._whole.add(id(variable))
            _warn_of_cost(variable, reason)
            return
        before = tf.raw_ops.ResourceGather(
            resource=variable.handle, indices=gradient.indices, dtype=tf.float32
        )
        rows = Rows(tf.cast(gradient.indices, tf.int64), before)
        self._rows.setdefault(id(variable), []).append(rows)

    def rows(self, variable: Any) -> Rows | None:
        """The rows of `variable` that change; None where all of it may."""
        found = self._rows.get(id(variable))
        if found is None or id(variable) in self._whole:
            return None
        if self._is_assigned(variable):
            _warn_of_cost(variable, "the step assigns all of it, too")
            return None
        if len(found) == 1:
            return found[0]
        # Of a row that is changed twice the first `before` counts, and comes first.
        indices = tf.concat([rows.indices for rows in found], axis=0)
        return Rows(indices, tf.concat([rows.before for rows in found], axis=0))

    def leaves_alone(self, variable: Any) -> bool:
        """Whether the traced step certainly changes nothing of `variable`.

        False also where nobody can tell: in an eager step, or where a function that was traced
        before has the variable.
        """
        if self._graph is None or id(variable) in self._variables:
            return False
        return all(operation.type in _READS for operation in self._uses(variable))

    def _is_assigned(self, variable: Any) -> bool:
        """Whether the traced step holds an assignment of the user's own, to all rows."""
        if self._graph is None:
            return False
        return any(operation.type in _ASSIGNMENTS for operation in self._uses(variable))

    def _uses(self, variable: Any) -> list[Any]:
        """The traced step's operations on a variable."""
        return list(self._graph.capture(variable.handle).consumers())


def _graph() -> Any:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _why_whole(optimizer: Any, variable: Any) -> str | None:
    """Why a sparse gradient changes more than its rows; None: it does not.

    What each optimizer does with one is written in its `update_step`;
    tests/sharing/test_embeddings.py holds the list against Keras.
    """
    name = type(optimizer).__name__
    if type(optimizer) not in (
        keras.optimizers.SGD,
        keras.optimizers.Adagrad,
        keras.optimizers.RMSprop,
    ):
        return f"{name} moves every row in every step"
    if getattr(optimizer, "momentum", 0):
        return f"{name}(momentum={optimizer.momentum}) moves every row in every step"
    if optimizer.weight_decay:
        return f"{name}(weight_decay={optimizer.weight_decay}) moves every row in every step"
    if optimizer.gradient_accumulation_steps:
        return "gradients are accumulated for every row"
    if is_constrained(variable):
        return "its constraint is applied to every row"
    if isinstance(variable, tf.distribute.DistributedValues):
        return "it has a copy on each of several devices"
    return None


def _warn_of_cost(variable: Any, reason: str) -> None:
    """Says once a variable what a step costs that goes over all of it."""
    size = int(variable.shape.num_elements())
    if size < _LARGE or getattr(variable, "_keras_strom_warned", False):
        return
    variable._keras_strom_warned = True
    _logger.warning(
        "%s has %.1f million elements, of which a step looks up a few rows, but %s: sharing its "
        "updates goes over all of it, %.2f GB of memory a step. SGD without momentum, Adagrad and "
        "RMSprop without momentum (no weight decay, accumulation or constraint) change the rows "
        "looked up only, and cost as much",
        path_of(variable),
        size / 1e6,
        reason,
        size * _BYTES_PER_ELEMENT / 1e9,
    )
