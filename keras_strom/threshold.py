"""How tau, the threshold of what is sent, follows the density of the messages.

An algorithm is a frozen value. Its `next` is traced once into the training step; its state lives
in a variable that belongs to the strategy, so it neither appears in `model.save` nor costs Python
time.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, runtime_checkable

import tensorflow as tf

from keras_strom import errors
from keras_strom.checks import check_number
from keras_strom.statistics import StepStatistics

State = tuple[Any, ...]


@runtime_checkable
class ThresholdAlgorithm(Protocol):
    """Chooses each step's threshold; each worker adapts on its own."""

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


@dataclasses.dataclass(frozen=True)
class FixedThreshold:
    """The same threshold in every step.

    One that is too small stalls learning, as an element moves by at most tau a step.

    Attributes:
        threshold: tau > 0, in units of the parameters.

    Example:
        >>> strategy = StromStrategy(threshold=FixedThreshold(1e-3))  # doctest: +SKIP
    """

    threshold: float

    def __post_init__(self) -> None:
        _require_positive("threshold", self.threshold)

    def initial_state(self) -> tuple[float, ...]:
        """No state."""
        return ()

    def next(self, state: State, statistics: StepStatistics) -> tuple[Any, State]:
        """Always the same threshold."""
        return tf.constant(self.threshold, tf.float32), ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _FollowingDensity:
    """Moves the threshold by the density of the message before."""

    initial: float = 1e-3
    minimum: float = 1e-8
    maximum: float = 1.0

    def __post_init__(self) -> None:
        for name in ("initial", "minimum", "maximum"):
            _require_positive(name, getattr(self, name))
        if not self.minimum <= self.initial <= self.maximum:
            raise errors.InvalidOption(
                f"initial={self.initial} must lie between minimum={self.minimum} and "
                f"maximum={self.maximum}"
            )

    def initial_state(self) -> tuple[float, ...]:
        """The first threshold."""
        return (self.initial,)

    def next(self, state: State, statistics: StepStatistics) -> tuple[Any, State]:
        """Follows the density of the step before; the first step takes `initial`."""
        (threshold,) = state
        density = statistics.count / tf.maximum(statistics.elements, 1.0)
        moved = tf.where(statistics.elements > 0, self._moved(threshold, density), threshold)
        bounded = tf.clip_by_value(moved, self.minimum, self.maximum)
        return bounded, (bounded,)

    def _moved(self, threshold: Any, density: Any) -> Any:
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaptiveThreshold(_FollowingDensity):
    """Keeps the density of the messages within a band (Deeplearning4j's rule, in a lower band).

    Density of the last message under the band: tau is multiplied by `factor`; over it: divided. So
    tau halves or doubles in 20 steps with the default. Start rather high: a start that is too low
    is expensive, because all the progress beyond tau waits in the residual.

    Attributes:
        initial: the first step's threshold.
        min_density, max_density: the band, as a fraction of the elements. Short trainings want to
            send more: where steps x density stays below 5 or so, raise `max_density`.
        factor: between 0 and 1.
        minimum, maximum: bounds of the threshold itself.

    Example:
        >>> AdaptiveThreshold(max_density=5e-2).min_density
        0.0001
    """

    min_density: float = 1e-4
    max_density: float = 3e-3
    factor: float = 0.5 ** (1 / 20)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("min_density", "max_density", "factor"):
            _require_positive(name, getattr(self, name))
        if not self.min_density <= self.max_density <= 1:
            raise errors.InvalidOption(
                f"min_density={self.min_density} and max_density={self.max_density} must ascend "
                "and be at most 1"
            )
        if self.factor >= 1:
            raise errors.InvalidOption(f"factor={self.factor} must be smaller than 1")

    def _moved(self, threshold: Any, density: Any) -> Any:
        factor = tf.constant(self.factor, tf.float32)
        return tf.where(
            density < self.min_density,
            threshold * factor,
            tf.where(density > self.max_density, threshold / factor, threshold),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetDensityThreshold(_FollowingDensity):
    """Steers towards one density of the messages, so that every step sends about as much.

    Each step multiplies tau by (density of the last message / `density`) ^ `gain`, within a factor
    of 2 in ten steps. The density then stays near the target whatever the size of the updates,
    where `AdaptiveThreshold` lets it move within its band.

    Attributes:
        density: the target, as a fraction of the elements.
        initial: the first step's threshold.
        gain: how strongly tau answers; between 0 and 1.
        minimum, maximum: bounds of the threshold itself.

    Example:
        >>> TargetDensityThreshold(density=1e-2).initial
        0.001
    """

    density: float = 1e-3
    gain: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("density", "gain"):
            _require_positive(name, getattr(self, name))
            if getattr(self, name) > 1:
                raise errors.InvalidOption(f"{name}={getattr(self, name)} must be at most 1")

    def _moved(self, threshold: Any, density: Any) -> Any:
        answer = tf.cast((density / self.density) ** self.gain, tf.float32)
        return threshold * tf.clip_by_value(answer, 0.5**0.1, 2**0.1)


def _require_positive(name: str, value: float) -> None:
    check_number(name, value)
    if not 0 < value < float("inf"):
        raise errors.InvalidOption(f"{name}={value!r} must be positive and finite")
