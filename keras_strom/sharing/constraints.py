"""What a model shows where it is looked at: its constraints hold, and averages may be swapped in.

Keras applies a variable's constraint in each step of the optimizer. What workers share of such a
step is cut at thresholds, and added to what the others send, so in between their sum may leave what
the constraint allows. While an epoch's validation and callbacks look at the model, its variables
are projected, and get the values back from which training goes on; at the end they stay projected,
on all workers alike, as all have the same bits then.

Keras's SwapEMAWeights swaps the variables with their moving averages for as long. Other workers and
a new master that ask meanwhile get neither: both are taken back for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from keras_strom.sharing.flat_space import Entry, FlatSpace, update_copies


def project(models: Sequence[Any], space: FlatSpace) -> None:
    """Has the trained variables of `models` satisfy their constraints from now on."""
    for entry, constraint in _constrained(models, space):
        entry.primary.assign(constraint(entry.primary.read_value()))
        update_copies([entry])


class Projection:
    """Has a model's trained variables satisfy their constraints for a while.

    Args:
        model: the one that is trained.
        space: its strategy's variables.

    Attributes:
        swappers: the callbacks that swap variables with their averages (`SwapEMAWeights`).
    """

    def __init__(self, model: Any, space: FlatSpace) -> None:
        self._model = model
        self._space = space
        self._shown: list[tuple[Entry, Any, Any]] = []
        self.swappers: Sequence[Any] = ()

    def show(self) -> None:
        """Projects the variables until `take_back`."""
        for entry, constraint in _constrained([self._model], self._space):
            # The variable's own buffer, by which the step knows that nobody has assigned it.
            own = entry.primary.read_value()
            projected = constraint(own)
            if bool(tf.reduce_any(projected != own)):
                entry.primary.assign(projected)
                update_copies([entry])
                self._shown.append((entry, own, projected))

    def take_back(self) -> None:
        """Gives the variables their values back, but for what has been assigned meanwhile."""
        shown, self._shown = self._shown, []
        for entry, own, projected in shown:
            if bool(tf.reduce_all(entry.primary == projected)):
                entry.primary.assign(own)
                update_copies([entry])

    @contextlib.contextmanager
    def lifted(self) -> Iterator[None]:
        """Takes the projection, and averages in the variables' place, back for a while."""
        swapped = [callback for callback in self.swappers if callback._ema_weights_in_model]
        is_shown = bool(self._shown)
        for callback in swapped:
            callback._swap_variables()
        self.take_back()
        yield
        if is_shown:
            self.show()
        for callback in swapped:
            callback._swap_variables()


def _constrained(models: Sequence[Any], space: FlatSpace) -> Iterator[tuple[Entry, Any]]:
    trained = {id(entry.variable): entry for entry in space.participants}
    for model in models:
        for variable in model.trainable_variables:
            entry = trained.pop(id(variable.value), None)
            if entry is not None and variable.constraint is not None:
                yield entry, variable.constraint
