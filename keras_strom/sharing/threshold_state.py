"""The state of a threshold algorithm in the training graph: one for all variables, or one for each.

`SharedStep` asks for the threshold of the step about to be shared, and afterwards has kept what the
step came to. Where each variable has its own, state and statistics are rows of tables that grow
with the flat space, in its order; so they fit on every worker that has the same layout.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_strom import errors
from keras_strom.sharing.flat_space import Entry, FlatSpace
from keras_strom.sharing.model_checks import path_of
from keras_strom.sharing.statistics import BY_VARIABLE, StepStatistics
from keras_strom.sharing.threshold import (
    AdaptiveThreshold,
    State,
    ThresholdAlgorithm,
    initial_state_of,
    is_per_variable,
    state_length,
)


class ThresholdState(Protocol):
    """What a step needs of the state of its threshold algorithm."""

    def next(self, entries: list[Entry], last: StepStatistics) -> tuple[Any, State]:
        """The threshold for a step over `entries`, as the op takes it, and the state after it.

        Args:
            entries: the step's variables, in flat order.
            last: of the step before.
        """

    def keep(self, entries: list[Entry], state: State, by_variable: Any, when: Any) -> None:
        """Keeps what `next` gave and what the step came to, where `when` is true.

        Args:
            entries: those that `next` was asked about.
            state: what `next` gave.
            by_variable: the op's output of that name.
            when: a bool scalar tensor.
        """

    def numbers(self) -> tuple[float, ...]:
        """All of the state, for another worker or a checkpoint."""

    def set_numbers(self, numbers: tuple[float, ...]) -> None:
        """Takes over what `numbers` gave on a worker with the same options and layout.

        Raises:
            Refused: it is the state of another algorithm.
        """

    def begin_anew(self, entries: list[Entry]) -> None:
        """Goes back to where it was before any step over `entries`."""

    def last_by_variable(self) -> dict[int, dict[str, float]] | None:
        """`BY_VARIABLE` of each variable's latest step, by its place in the space's entries.

        Variables that have taken part in no step are left out; None = all have one threshold.
        """


def threshold_state(algorithm: ThresholdAlgorithm, space: FlatSpace) -> ThresholdState:
    """The state of `algorithm` for steps over variables of `space`."""
    if is_per_variable(algorithm):
        return _OfEachVariable(algorithm, space)
    return _OfAllVariables(algorithm)


class _OfAllVariables:
    """One threshold."""

    def __init__(self, algorithm: ThresholdAlgorithm) -> None:
        self._algorithm = algorithm
        self._state = _variable(np.asarray(algorithm.initial_state(), np.float32))

    def next(self, entries: list[Entry], last: StepStatistics) -> tuple[Any, State]:
        state = tuple(tf.unstack(self._state)) if self._state.shape[0] else ()
        return self._algorithm.next(state, last)

    def keep(self, entries: list[Entry], state: State, by_variable: Any, when: Any) -> None:
        if state:
            self._state.assign(tf.where(when, tf.stack(state), self._state))

    def numbers(self) -> tuple[float, ...]:
        return tuple(self._state.numpy().tolist())

    def set_numbers(self, numbers: tuple[float, ...]) -> None:
        numbers = _of_now(self._algorithm, numbers, rows=1)
        if len(numbers) != self._state.shape[0]:
            raise _other_state(len(numbers), self._state.shape[0])
        self._state.assign(np.asarray(numbers, np.float32))

    def begin_anew(self, entries: list[Entry]) -> None:
        self.set_numbers(self._algorithm.initial_state())

    def last_by_variable(self) -> dict[int, dict[str, float]] | None:
        return None


class _OfEachVariable:
    """A threshold for each variable: everything has a row for each entry of the flat space.

    A row of zeros has not begun: it does with the first step that the variable takes part in, for
    what an optimizer never changes needs no threshold, and by then the variable's path is known.
    """

    def __init__(self, algorithm: ThresholdAlgorithm, space: FlatSpace) -> None:
        self._algorithm = algorithm
        self._space = space
        self._width = state_length(algorithm)  # Numbers of state that a variable has.
        self._state = _table(np.zeros((0, self._width), np.float32))
        self._last = _table(np.zeros((0, len(BY_VARIABLE))))

    def next(self, entries: list[Entry], last: StepStatistics) -> tuple[Any, State]:
        rows = self._rows(entries)
        self._begin(entries, rows)
        state = tf.unstack(tf.gather(self._state, rows), num=self._width, axis=1)
        columns = tf.unstack(tf.gather(self._last, rows), num=len(BY_VARIABLE), axis=1)
        last = last._replace(**dict(zip(BY_VARIABLE, columns, strict=True)))
        threshold, state = self._algorithm.next(tuple(state), last)
        return tf.broadcast_to(threshold, [len(entries)]), state

    def keep(self, entries: list[Entry], state: State, by_variable: Any, when: Any) -> None:
        places = tf.constant(self._rows(entries))[:, tf.newaxis]
        took_part = when & (by_variable[:, BY_VARIABLE.index("elements")] > 0)
        places = tf.boolean_mask(places, took_part)
        self._last.scatter_nd_update(places, tf.boolean_mask(by_variable, took_part))
        if state:
            rows = tf.stack([tf.broadcast_to(s, [len(entries)]) for s in state], axis=1)
            self._state.scatter_nd_update(places, tf.boolean_mask(rows, took_part))

    def numbers(self) -> tuple[float, ...]:
        self._grow()
        return tuple(self._state.numpy().ravel().tolist())

    def set_numbers(self, numbers: tuple[float, ...]) -> None:
        self._grow()
        own = self._state.numpy()
        numbers = _of_now(self._algorithm, numbers, rows=len(own))
        if len(numbers) != own.size:
            raise _other_state(len(numbers), own.size)
        given = np.asarray(numbers, np.float32).reshape(own.shape)
        self._state.assign(np.where(given.any(axis=1, keepdims=True), given, own))

    def begin_anew(self, entries: list[Entry]) -> None:
        rows = self._rows(entries)
        state, last = self._state.numpy(), self._last.numpy()
        state[rows] = self._initial(entries)
        last[rows] = 0.0
        self._state.assign(state)
        self._last.assign(last)

    def last_by_variable(self) -> dict[int, dict[str, float]] | None:
        rows = (dict(zip(BY_VARIABLE, row, strict=True)) for row in self._last.numpy().tolist())
        return {place: row for place, row in enumerate(rows) if row["elements"] > 0}

    def _initial(self, entries: list[Entry]) -> npt.NDArray[np.float32]:
        found = [initial_state_of(self._algorithm, path_of(entry.variable)) for entry in entries]
        return np.asarray(found, np.float32).reshape(len(entries), self._width)

    def _rows(self, entries: list[Entry]) -> npt.NDArray[np.int64]:
        self._grow()
        places = {id(e.variable): place for place, e in enumerate(self._space.entries)}
        return np.asarray([places[id(entry.variable)] for entry in entries], np.int64)

    def _begin(self, entries: list[Entry], rows: npt.NDArray[np.int64]) -> None:
        """Gives those of `entries` their first state that have none."""
        with tf.init_scope():
            state = self._state.numpy()
            new = [i for i, row in enumerate(rows) if not state[row].any()]
            if new:
                state[rows[new]] = self._initial([entries[i] for i in new])
                self._state.assign(state)

    def _grow(self) -> None:
        """Has rows for the variables that have been added to the space."""
        with tf.init_scope():
            state, last = self._state.numpy(), self._last.numpy()
            new = len(self._space) - len(last)
            if new:
                self._state.assign(np.pad(state, ((0, new), (0, 0))))
                self._last.assign(np.pad(last, ((0, new), (0, 0))))


def _variable(values: npt.NDArray[Any]) -> Any:
    with tf.init_scope(), tf.device("/cpu:0"):
        return tf.Variable(values, trainable=False)


def _table(values: npt.NDArray[Any]) -> Any:
    """A variable that may get more rows."""
    with tf.init_scope(), tf.device("/cpu:0"):
        return tf.Variable(values, trainable=False, shape=[None, values.shape[1]])


def _of_now(
    algorithm: ThresholdAlgorithm, numbers: tuple[float, ...], rows: int
) -> tuple[float, ...]:
    """A state with the number in each row that checkpoints of earlier versions lack."""
    width = state_length(algorithm) - 1
    if not isinstance(algorithm, AdaptiveThreshold) or len(numbers) != rows * width:
        return numbers
    table = np.asarray(numbers, np.float64).reshape(rows, width)
    return tuple(np.pad(table, ((0, 0), (0, 1))).ravel().tolist())


def _other_state(there: int, here: int) -> errors.Refused:
    return errors.Refused(
        f"another worker's threshold has {there} values of state, this one's {here}; give every "
        "worker the same options"
    )
