"""A NaN or an infinity in an update ends a `fit` as Keras users expect, and harms no later one.

The native step refuses such an update (`NotFinite`) and leaves the parameters as they were. Beside
a joint model a worker's own parameters are looked at when an epoch ends, and make way for the joint
ones. Keras meanwhile has seen a step whose loss is NaN: its callbacks get it, and TerminateOnNaN,
or one of the user's own, ends the training. If none does, `fit` raises NotFinite. What the step has
spoilt beside the parameters gets back a value from which training can go on: the state that no
optimizer trains what it had when the epoch began, the optimizers' moments zero.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_strom import errors
from keras_strom._native.ops import translate
from keras_strom.recovery.donation import optimizers_of
from keras_strom.sharing.flat_space import FlatSpace, update_copies
from keras_strom.sharing.model_state import assign, averaged_state, read, tf_variables
from keras_strom.sharing.optimizers import averages_of, parts_of

_logger = logging.getLogger("keras_strom")


class NotFiniteWatch:
    """Stands around the steps of one `fit`.

    Args:
        model: the one that `fit` trains.
        space: its strategy's variables.

    Attributes:
        caught: the update that was refused; None = none so far.
    """

    def __init__(self, model: Any, space: FlatSpace) -> None:
        self._model = model
        self._space = space
        self._sound = np.zeros(0, np.float64)
        self._restore: Callable[[], None] = lambda: None
        self.caught: errors.NotFinite | None = None

    def begin(self) -> None:
        """Once Keras has made its training function."""
        model, step = self._model, self._model.train_function

        def watched(iterator: Any) -> Any:
            try:
                return step(iterator)
            except tf.errors.OpError as error:
                cause = translate(error)
                if not isinstance(cause, errors.NotFinite):
                    raise
                self.catch(cause)
                return {**model.get_metrics_result(), "loss": math.nan}

        def restore() -> None:
            if model.train_function is watched:
                model.train_function = step

        model.train_function = watched
        self._restore = restore
        self.note_sound_state()

    def catch(self, cause: errors.NotFinite) -> None:
        """A step has met `cause`; what it has spoilt beside the parameters is made good."""
        self.caught = cause
        self._repair()

    def end(self) -> None:
        """Gives the model its own training function back. Harmless when repeated."""
        self._restore()

    def note_sound_state(self) -> None:
        """At the start and after an epoch: what state that no optimizer trains may return to."""
        self._sound = read(averaged_state([self._model], self._space))

    def _repair(self) -> None:
        # The native step works on the worker's first device only.
        update_copies(self._space.participants)
        state = averaged_state([self._model], self._space)
        values = read(state)
        if values.size == self._sound.size:
            assign(state, np.where(np.isfinite(values), values, self._sound))
        for optimizer in optimizers_of(self._model):
            for part in parts_of(optimizer):
                trained = getattr(part, "_trainable_variables", [])
                for average, variable in zip(averages_of(part), trained, strict=False):
                    _replace(average.value, variable.value.numpy())
            for moment in tf_variables(optimizer.variables):
                _replace(moment, 0.0)


def of_loss(logs: dict[str, Any]) -> errors.NotFinite | None:
    """What no step refuses, for loss scaling leaves such an update out: `logs` have such a loss."""
    loss = logs.get("loss")
    is_sound = loss is None or np.isfinite(np.asarray(loss, np.float64)).all()
    return None if is_sound else errors.NotFinite(f"a batch's loss is {loss}")


def _replace(variable: Any, sound: Any) -> None:
    """Replaces the elements of a variable that are not finite."""
    if variable.dtype.is_floating:
        values = variable.numpy()
        finite = np.isfinite(values.astype(np.float64))
        if not finite.all():
            variable.assign(np.where(finite, values, sound).astype(values.dtype))
