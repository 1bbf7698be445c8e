"""What one step changes: noted while optimizers announce it, told once the step is over."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_strom import errors
from keras_strom.sharing.flat_space import Entry, FlatSpace
from keras_strom.sharing.model_checks import path_of
from keras_strom.sharing.optimizers import has_plain_momentum, momentum_of
from keras_strom.sharing.touched import Rows, Touched, VariableChange


class MaskedMomenta:
    """Where optimizers keep the momentum that is masked, of all steps so far.

    A function that was traced before announces nothing when it is called again, so what it has
    announced once is kept.

    Args:
        masking: the strategy's `momentum_masking`.
    """

    def __init__(self, masking: bool | str) -> None:
        self._masking = masking
        self._momenta: dict[int, Any] = {}  # By the id of the variable that they move.

    def note(self, variable: Any, optimizer: Any) -> None:
        """`optimizer` is about to change `variable`.

        Raises:
            UnsupportedOptimizer: all are to be masked, and it keeps none.
        """
        masks = self._masking
        if masks == "auto":
            masks = has_plain_momentum(optimizer)
        momentum = momentum_of(optimizer, variable) if masks else None
        if self._masking is True and momentum is None:
            raise errors.UnsupportedOptimizer(
                f"momentum_masking=True, but {type(optimizer).__name__} keeps no momentum of "
                f"{path_of(variable)!r}; leave momentum_masking='auto', or use an optimizer with "
                "momentum, such as SGD(momentum=0.9)"
            )
        self._momenta[id(variable)] = momentum

    def of(self, entry: Entry) -> Entry | None:
        """The momentum of a variable, at the place of that; None = there is none to mask."""
        momentum = self._momenta.get(id(entry.variable))
        return None if momentum is None else Entry(momentum, entry.offset, entry.size)


class StepTrace:
    """One step of a strategy, while it is traced or runs eagerly.

    Args:
        space: the variables of the strategy; the trained ones are read now.
        momenta: the strategy's.
        by_rows: whether a change of a few rows may be told as such.

    Attributes:
        optimizers: those that have begun their step, the one under way last.
    """

    def __init__(self, space: FlatSpace, momenta: MaskedMomenta, *, by_rows: bool) -> None:
        self._space = space
        self._momenta = momenta
        self._by_rows = by_rows
        self._before = {
            id(entry.variable): tf.raw_ops.ReadVariableOp(
                resource=entry.primary.handle, dtype=tf.float32
            )
            for entry in space.entries
            if entry.variable.trainable
        }
        self._touched = Touched(by_rows)
        self.optimizers: list[Any] = []

    def note_update(self, variable: Any, gradient: Any) -> None:
        """The optimizer is about to change `variable`: from now on its changes are sent."""
        if variable in self._space:
            optimizer = self.optimizers[-1] if self.optimizers else None
            self._touched.note(variable, gradient, optimizer)
            self._space.touch(variable)
            self._momenta.note(variable, optimizer)

    @property
    def touched(self) -> set[int]:
        """The ids of the variables that the step changes."""
        return self._touched.variables

    @property
    def has_created(self) -> bool:
        """Whether it changes variables that were not there when it began."""
        return not self.touched.issubset(self._before)

    @property
    def looked_up(self) -> list[Any]:
        """The variables of which the step's gradient has a few rows alone."""
        return self._touched.looked_up

    def before(self, entry: Entry) -> Any:
        """The value of a variable before the step; as long as a graph uses it, its buffer stays."""
        return self._before[id(entry.variable)]

    def changes(self) -> list[VariableChange]:
        """What the step, which is over, tells of each participant, in flat order."""
        return [self._change(entry) for entry in self._space.participants]

    def _change(self, entry: Entry) -> VariableChange:
        rows = self._rows(entry.variable) if self._by_rows else None
        return VariableChange(
            entry,
            shares=self._space.is_sent(entry),
            # Where only rows change, nothing takes the value read before, nor does a graph keep it.
            since=self._before[id(entry.variable)] if rows is None else rows,
            momentum=self._momenta.of(entry),
        )

    def _rows(self, variable: Any) -> Rows | None:
        """The rows that change; None where all of the variable may."""
        rows = self._touched.rows(variable)
        if rows is not None:
            self._space.change_rows(variable)
        elif self._space.has_changed_rows(variable) and self._touched.leaves_alone(variable):
            return Rows.none()  # To read the value from before would copy the whole table.
        return rows
