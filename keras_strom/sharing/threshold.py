"""How tau, the threshold of what is sent, follows the messages' density and the learning rate.

An algorithm is a frozen value. Its `next` is traced once into the training step; its state lives
in a variable that belongs to the strategy, so it neither appears in `model.save` nor costs Python
time.

There is one tau for the whole model, or with `per_variable=True` one for each variable: layers with
small updates (embeddings, biases, the first ones) then send as large a part of theirs as others.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import tensorflow as tf

from keras_strom import errors
from keras_strom.checks import check_number, flag
from keras_strom.sharing.rate_history import RateChange
from keras_strom.sharing.statistics import StepStatistics

State = tuple[Any, ...]

# Where the threshold of a small variable falls more slowly: at least so much as another's.
_LEAST_FALL = 0.25

# Where a threshold starts by itself: at so many times the mean |update| of the first step, and in a
# short training at one more for each so many steps. What it has no time to send is lost to it.
_FIRST_UPDATES = 10.0
_STEPS_A_MULTIPLE = 40

# Below this part of the highest learning rate so far tau does not fall with it.
_LEAST_RATE_LEFT = 1e-4

# The upper end of the band. In a short training it is where all workers' steps together could send
# each element so often, up to the second of these.
_MOST_DENSITY, _MOST_DENSITY_OF_SHORT = 5e-3, 5e-2
_SENT_OF_EACH_ELEMENT = 20.0


@runtime_checkable
class ThresholdAlgorithm(Protocol):
    """Chooses each step's threshold; each worker adapts on its own.

    One with an attribute `per_variable` that is true is asked about all variables of a step at
    once: the state and, of the statistics, `BY_VARIABLE` are vectors then, an element a variable,
    and so is the threshold. Written elementwise, an algorithm needs to know no more of it. A
    message rounds such thresholds to 8 significant bits.
    """

    def initial_state(self) -> tuple[float, ...]:
        """The state before the first step, as plain numbers."""

    def next(self, state: State, statistics: StepStatistics) -> tuple[Any, State]:
        """The threshold of the step about to be shared, and the state after it.

        Args:
            state: float32 scalar tensors, as many as `initial_state` has.
            statistics: float64 scalar tensors of the step before; `elements` is 0 when there was
                none.

        Returns:
            A float32 scalar tensor > 0, and the new state, which is kept only when the step shares
            something.
        """


def is_per_variable(algorithm: ThresholdAlgorithm) -> bool:
    """Whether the algorithm gives each variable a threshold of its own."""
    return bool(getattr(algorithm, "per_variable", False))


def initial_state_of(algorithm: ThresholdAlgorithm, path: str) -> tuple[float, ...]:
    """The state before the first step of the variable with this path, such as "dense/kernel"."""
    if isinstance(algorithm, FixedThreshold):
        return algorithm.initial_state_of(path)
    return algorithm.initial_state()


def state_length(algorithm: ThresholdAlgorithm) -> int:
    """How many numbers of state a variable has where each has its own."""
    return 1 if isinstance(algorithm, FixedThreshold) else len(algorithm.initial_state())


@dataclasses.dataclass(frozen=True)
class FixedThreshold:
    """The same threshold in every step.

    One that is too small stalls learning, as an element moves by at most tau a step.

    Attributes:
        threshold: tau > 0, in units of the parameters. Or a mapping from regular expressions to
            tau: a variable takes that of the first one which is found in its path; "" is found in
            all.

    Example:
        >>> strategy = StromStrategy(threshold=FixedThreshold(1e-3))  # doctest: +SKIP
        >>> FixedThreshold({"embedding": 1e-4, "": 1e-3}).initial_state_of("embedding/embeddings")
        (0.0001,)
    """

    threshold: float | Mapping[str, float]

    def __post_init__(self) -> None:
        if not isinstance(self.threshold, Mapping):
            _require_positive("threshold", self.threshold)
            return
        if not self.threshold:
            raise errors.InvalidOption("threshold={} holds no pattern; '' is found in all paths")
        for pattern, threshold in self.threshold.items():
            _require_positive(f"threshold[{pattern!r}]", threshold)
            try:
                re.compile(pattern)
            except (re.error, TypeError) as error:
                raise errors.InvalidOption(
                    f"threshold: {pattern!r} is no regular expression ({error})"
                ) from error

    @property
    def per_variable(self) -> bool:
        """Whether variables may have different ones."""
        return isinstance(self.threshold, Mapping)

    def initial_state(self) -> tuple[float, ...]:
        """No state."""
        return ()

    def initial_state_of(self, path: str) -> tuple[float, ...]:
        """The threshold of the variable with this path, where variables may have different ones.

        Raises:
            InvalidOption: no expression is found in the path.
        """
        if not isinstance(self.threshold, Mapping):
            return ()
        for pattern, threshold in self.threshold.items():
            if re.search(pattern, path):
                return (threshold,)
        raise errors.InvalidOption(
            f"threshold: none of {', '.join(map(repr, self.threshold))} is found in {path!r}; add "
            "'' as the last one, for all other variables"
        )

    def next(self, state: State, statistics: StepStatistics) -> tuple[Any, State]:
        """Always the same threshold."""
        return (state[0], state) if state else (tf.constant(self.threshold, tf.float32), ())


@dataclasses.dataclass(frozen=True, kw_only=True)
class _FollowingDensity:
    """Moves the threshold by the density of the message before."""

    initial: float | None = None
    minimum: float = 1e-8
    maximum: float = 1.0
    per_variable: bool = False

    def __post_init__(self) -> None:
        flag("per_variable", self.per_variable)
        for name in ("minimum", "maximum"):
            _require_positive(name, getattr(self, name))
        if self.initial is None:
            if self.minimum > self.maximum:
                raise errors.InvalidOption(
                    f"minimum={self.minimum} must not exceed maximum={self.maximum}"
                )
            return
        _require_positive("initial", self.initial)
        if not self.minimum <= self.initial <= self.maximum:
            raise errors.InvalidOption(
                f"initial={self.initial} must lie between minimum={self.minimum} and "
                f"maximum={self.maximum}"
            )

    def initial_state(self) -> tuple[float, ...]:
        """The first threshold.

        Where `initial` is None, minus a factor: the threshold will be that many times the mean
        |update| of the first step.
        """
        return (-_FIRST_UPDATES if self.initial is None else self.initial,)

    def state_before(
        self, state: tuple[float, ...], steps: int | None, workers: int
    ) -> tuple[float, ...]:
        """The state with which a training begins of which so many steps a worker are to come.

        Args:
            state: after the training before, or the initial one.
            steps: None = nobody knows.
            workers: how many train.
        """
        first, *others = state
        if first > 0:
            return state
        if steps is None:
            return (-_FIRST_UPDATES, *others)
        return (-min(_FIRST_UPDATES, max(1.0, steps / _STEPS_A_MULTIPLE)), *others)

    def next(self, state: State, statistics: StepStatistics) -> tuple[Any, State]:
        """Follows the density of the step before; the first step takes `initial`.

        Without an `initial` the first step sends nothing (but what reaches `maximum`), so that its
        residual shows how large updates are.
        """
        threshold, *others = state
        is_known = threshold > 0
        density = _part(statistics.count, statistics)
        moved = self._moved(threshold, density, *others)
        if self.per_variable:
            # A small variable is above the band with a single entry, and no entry tells little
            # about it: if its threshold fell as fast as others', every bias would send in half of
            # the steps.
            expected = tf.cast(statistics.elements * self._most_density, tf.float32)
            patience = tf.clip_by_value(expected, _LEAST_FALL, 1.0)
            slowed = threshold * (moved / threshold) ** patience
            moved = tf.where(moved < threshold, slowed, moved)
        moved = tf.where(statistics.elements > 0, moved, threshold)
        if self.initial is None:
            update = _part(statistics.sum_residual, statistics)
            first = -threshold * tf.cast(update, tf.float32)
            moved = tf.where(is_known, moved, first)
            # A first step that is still to come has told nothing, and neither has one of zeros.
            is_known |= first > 0
        bounded = tf.clip_by_value(moved, self.minimum, self.maximum)
        if self.initial is None:
            return (
                tf.where(is_known, bounded, self.maximum),
                (tf.where(is_known, bounded, threshold), *others),
            )
        return bounded, (bounded, *others)

    @property
    def _most_density(self) -> float:
        """That is wanted."""
        raise NotImplementedError

    def _moved(self, threshold: Any, density: Any, *others: Any) -> Any:
        """The next threshold; `others` is the rest of the state, which stays as it is."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaptiveThreshold(_FollowingDensity):
    """Keeps the density of the messages within a band (Deeplearning4j's rule, in a lower band).

    Density of the last message under the band: tau is multiplied by `factor`; over it: divided. So
    tau halves or doubles in 20 steps with the default. Start rather high: while a start that is too
    low climbs, messages are dense, and can be most of what a training sends.

    Where the learning rate rises to a new highest one, in a warm-up, a tau that was measured rises
    as much: updates do. Where it falls, as a schedule or a callback has it, tau falls with it: what
    noise there is in the parameters falls with the square root of the learning rate (Mandt et al.
    2017, section 3.1), and so should what is held back.

    Attributes:
        initial: the first step's threshold. None = the first step sends nothing, and the second
            one's is ten times the mean |update| of the first; less in a `fit` of under 400 steps,
            down to once in one of 40, which has no time to send what a high threshold holds back
            (`per_variable=True`: always ten times).
        min_density, max_density: the band, as a fraction of the elements. A `max_density` of None
            is 5e-3; in a `fit` of which all workers together take fewer than 4000 steps, 20 over
            their number, up to 5e-2: what has no time to be sent is lost (`per_variable=True` stays
            at 5e-3).
        factor: between 0 and 1.
        learning_rate_power: of the learning rate over its highest so far, which tau is multiplied
            by; from 0, which has tau go by the density alone, to 1. It falls by a part a step that
            the band's upper end leaves room for, and no further than at 1e-4 of the highest. An
            `initial` that is given does not rise.
        minimum, maximum: bounds of the threshold itself.
        per_variable: True = each variable has its own threshold, which follows its own density.

    Example:
        >>> AdaptiveThreshold(max_density=5e-2).min_density
        0.0001
    """

    min_density: float = 1e-4
    max_density: float | None = None
    factor: float = 0.5 ** (1 / 20)
    learning_rate_power: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_positive("min_density", self.min_density)
        _require_positive("factor", self.factor)
        if self.max_density is not None:
            _require_positive("max_density", self.max_density)
        if not self.min_density <= self._most_density <= 1:
            raise errors.InvalidOption(
                f"min_density={self.min_density} and max_density={self._most_density} must ascend "
                "and be at most 1"
            )
        if self.factor >= 1:
            raise errors.InvalidOption(f"factor={self.factor} must be smaller than 1")
        check_number("learning_rate_power", self.learning_rate_power)
        if not 0 <= self.learning_rate_power <= 1:
            raise errors.InvalidOption(
                f"learning_rate_power={self.learning_rate_power} must be from 0 to 1"
            )

    def initial_state(self) -> tuple[float, ...]:
        """The first threshold; the upper end of the band where it depends on the training; 0.

        The last is the logarithm of what tau has been multiplied by for the learning rate's sake.
        """
        return (*super().initial_state(), *([_MOST_DENSITY] if self._goes_by_steps else []), 0.0)

    def state_before(
        self, state: tuple[float, ...], steps: int | None, workers: int
    ) -> tuple[float, ...]:
        """The state with which a training begins of which so many steps a worker are to come."""
        threshold, *_, followed = super().state_before(state, steps, workers)
        if not self._goes_by_steps:
            return (threshold, followed)
        most = _MOST_DENSITY
        if steps is not None:
            most = max(most, _SENT_OF_EACH_ELEMENT / max(1, steps * workers))
        return (threshold, min(most, _MOST_DENSITY_OF_SHORT), followed)

    def next(self, state: State, statistics: StepStatistics) -> tuple[Any, State]:
        """Follows the learning rate, and the density of the step before.

        What a lower tau sets free is as large a part of the elements as tau falls by, where
        residuals are spread evenly below it; so it falls by what is left of the band at most.
        """
        threshold, *others, followed = state
        was_known = threshold > 0
        wanted = self._for_the_rate(statistics.rate)
        density = tf.cast(_part(statistics.count, statistics), tf.float32)
        room = tf.maximum((others[0] if others else self._most_density) - density, 0.0)
        # What a bound has kept tau from, it does not come back by.
        to_bounds = tf.math.log([self.minimum, self.maximum] / tf.abs(threshold[..., tf.newaxis]))
        least, most = tf.unstack(to_bounds, axis=-1)
        least, most = tf.maximum(tf.minimum(least, 0.0), -room), tf.maximum(most, 0.0)
        move = tf.clip_by_value(wanted - followed, least, most)
        moved = tf.where(was_known, threshold * tf.exp(move), threshold)
        threshold, state = super().next((moved, *others), statistics)
        # One that is measured is so at the learning rate of the step before.
        measured = tf.where(state[0] > 0, followed, wanted)
        return threshold, (*state, tf.where(was_known, followed + move, measured))

    def _for_the_rate(self, rate: RateChange) -> Any:
        """The logarithm of what tau is to be multiplied by for the learning rate's sake."""
        left = tf.maximum(tf.cast(rate.left, tf.float32), _LEAST_RATE_LEFT)
        wanted = self.learning_rate_power * tf.math.log(left)
        if self.initial is None and self.learning_rate_power > 0:
            wanted += tf.math.log(tf.cast(rate.risen, tf.float32))
        return wanted

    @property
    def _goes_by_steps(self) -> bool:
        return self.max_density is None and not self.per_variable

    @property
    def _most_density(self) -> float:
        return _MOST_DENSITY if self.max_density is None else self.max_density

    def _moved(self, threshold: Any, density: Any, *others: Any) -> Any:
        factor = tf.constant(self.factor, tf.float32)
        most = others[0] if others else self._most_density
        return tf.where(
            density < self.min_density,
            threshold * factor,
            tf.where(density > tf.cast(most, density.dtype), threshold / factor, threshold),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetDensityThreshold(_FollowingDensity):
    """Steers towards one density of the messages, so that every step sends about as much.

    Each step multiplies tau by (density of the last message / `density`) ^ `gain`, within a factor
    of 2 in ten steps. The density then stays near the target whatever the size of the updates,
    where `AdaptiveThreshold` lets it move within its band.

    Attributes:
        density: the target, as a fraction of the elements.
        initial: the first step's threshold; None as with `AdaptiveThreshold`.
        gain: how strongly tau answers; between 0 and 1.
        minimum, maximum: bounds of the threshold itself.
        per_variable: True = each variable has its own threshold, which follows its own density.

    Example:
        >>> TargetDensityThreshold(density=1e-2).gain
        0.05
    """

    density: float = 1e-3
    gain: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("density", "gain"):
            _require_positive(name, getattr(self, name))
            if getattr(self, name) > 1:
                raise errors.InvalidOption(f"{name}={getattr(self, name)} must be at most 1")

    @property
    def _most_density(self) -> float:
        return self.density

    def _moved(self, threshold: Any, density: Any, *others: Any) -> Any:
        answer = tf.cast((density / self.density) ** self.gain, tf.float32)
        return threshold * tf.clip_by_value(answer, 0.5**0.1, 2**0.1)


def _part(figure: Any, statistics: StepStatistics) -> Any:
    """A figure of a step for each of its elements; 0 before the first step."""
    return figure / tf.maximum(statistics.elements, 1.0)


def _require_positive(name: str, value: float) -> None:
    check_number(name, value)
    if not 0 < value < float("inf"):
        raise errors.InvalidOption(f"{name}={value!r} must be positive and finite")
