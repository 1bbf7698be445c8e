"""A worker's copy of the model in parameter averaging: its variables in and out, as arrays.

Driver and executors make the same model of the same plan, so that the n-th array of one is the n-th
variable of the other.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import cloudpickle
import keras
import numpy as np
import numpy.typing as npt

from keras_strom import errors
from keras_strom.sharing.optimizers import parts_of, scales_loss

from ..inference.prediction import examples, metric_results, metric_state, zeros
from ..inference.serialization import known_to_keras
from .worker_training import Code, TrainingPlan

Array = npt.NDArray[Any]

# What of a model may be the user's own.
_STEPS = ("train_step", "test_step")


@dataclasses.dataclass(frozen=True)
class State:
    """What all workers begin a round with.

    Attributes:
        weights: of the model.
        optimizer: of its optimizer: all variables, or learning rates and loss scale alone.
        step: how many steps have been trained, by the epochs' count of them.
        iterations: how many the optimizer has counted: of a training that goes on with another
            number of workers, other ones, and before the training perhaps.
    """

    weights: Sequence[Array]
    optimizer: Sequence[Array]
    step: int
    iterations: int


class LocalModel:
    """A compiled model whose state can be read and assigned.

    Args:
        plan: what is trained.
        save_updater: whether the optimizer's state belongs to the model's; without it every round
            begins with a new optimizer, at the learning rate of the steps trained so far and the
            loss scale that these have found.

    Raises:
        UnsupportedModel: a model whose training has a state that is not seen here.
        UnsupportedOptimizer: one that makes no sense without its state.
    """

    def __init__(self, plan: TrainingPlan, *, save_updater: bool) -> None:
        self.code: Code = cloudpickle.loads(plan.code)
        self._packed = plan.model
        self.model = plan.model.load()
        self._save_updater = save_updater
        _check_optimizers(self.model, save_updater)
        # Metrics and layers have variables once they have seen a batch.
        columns, specs = plan.data.columns, plan.data.specs
        arrays = {name: zeros(specs[name], 2) for name in columns.names}
        _build(self.model, examples(columns, arrays, self.code.transformation_fn))
        self.model.optimizer.build(self.model.trainable_variables)
        self._fresh: list[Array] | None = None
        self._shifted: list[_Shifted] = []

    def state(self, step: int) -> State:
        """A copy of the state after `step` steps."""
        return State(
            [_value(one) for one in self.model.weights],
            [_value(one) for one in self._travelling()],
            step,
            self._iterations(),
        )

    def assign_weights(self, state: State) -> None:
        """Takes over a state's weights."""
        _assign("weights", self.model.weights, state.weights)

    def begin_round(self, state: State) -> None:
        """Takes over all of a state, to train on from it."""
        if self._fresh is None:
            self._prepare_rounds()
        self.assign_weights(state)
        _assign("optimizer state", self._dropped(), self._fresh or ())
        _assign("optimizer state", self._travelling(), state.optimizer)
        for schedule in self._shifted:
            schedule.begin.assign(state.iterations)

    def end_round(self, values: Sequence[Array], steps: int) -> None:
        """Takes over, in the driver, what a round of `steps` steps came to."""
        count = len(self.model.weights)
        iterations = self._iterations() + steps
        _assign("weights", self.model.weights, values[:count])
        _assign("optimizer state", self._returning(), values[count:])
        if not self._save_updater:
            for rule in parts_of(self.model.optimizer):
                rule.iterations.assign(iterations)

    def values(self) -> list[Array]:
        """What is averaged after a round: weights, and what is kept of the optimizer's state."""
        return [_value(one) for one in (*self.model.weights, *self._returning())]

    def seed(self, *entropy: int) -> None:
        """Makes all randomness of a round (dropout, augmentation) a function of some numbers."""
        random = np.random.default_rng(entropy)
        keras.utils.set_random_seed(int(random.integers(1 << 31)))
        weights = {id(one) for one in self.model.weights}
        for one in self.model.variables:
            if id(one) not in weights:
                drawn = random.integers(1 << 31, size=one.shape)
                one.assign(keras.ops.cast(drawn, one.dtype))

    def counts(self) -> list[Array]:
        """What the metrics have counted since their reset."""
        return [_value(one).astype(np.float64) for one in metric_state(self.model)]

    def results(
        self, counts: Sequence[Array], logs: Mapping[str, float] | None = None
    ) -> dict[str, Any]:
        """What is logged of a training or an evaluation.

        Args:
            counts: of the metrics.
            logs: what a step of the user's own has returned, which stands for metrics that have
                counted nothing: it need not use them. None = Keras's own step, which does.
        """
        _assign("metric state", metric_state(self.model), counts)
        results = metric_results(self.model)
        if logs is None:
            return results
        uncounted = self._uncounted()
        counted = {name: one for name, one in results.items() if name not in uncounted}
        return {**logs, **counted}

    def fit(self, batches: Any) -> Mapping[str, float] | None:
        """Trains a step on each of the batches.

        Returns:
            The numbers that the last step of the user's own has returned; None = Keras's own.
        """
        returned = self._returned_by("train_step")
        self.model.fit(batches, shuffle=False, verbose=0, callbacks=returned)
        return returned[0].logs if returned else None

    def evaluate(self, batches: Any) -> Mapping[str, float] | None:
        """As `fit`, of an evaluation."""
        returned = self._returned_by("test_step")
        self.model.evaluate(batches, verbose=0, callbacks=returned)
        return returned[0].logs if returned else None

    def finish(self) -> None:
        """Ends the training, as Keras's `fit` does: averages of the weights take their place."""
        self.model.optimizer.finalize_variable_values(self.model.trainable_weights)

    def _returned_by(self, step: str) -> list[_Returned]:
        own = getattr(type(self.model), step) is not getattr(keras.Model, step)
        return [_Returned()] if own else []

    def _uncounted(self) -> set[str]:
        """The names of metrics that have counted nothing."""
        names: set[str] = set()
        for metric in self.model.metrics:
            if not any(_value(one).any() for one in metric.variables):
                result = metric.result()
                names |= set(result) if isinstance(result, Mapping) else {metric.name}
        return names

    def _iterations(self) -> int:
        return max(int(rule.iterations) for rule in parts_of(self.model.optimizer))

    def _travelling(self) -> list[Any]:
        """The optimizer's variables that every round begins with."""
        optimizer = self.model.optimizer
        if self._save_updater:
            return list(optimizer.variables)
        rates = [rule._learning_rate for rule in parts_of(optimizer)]
        rates = [rate for rate in rates if isinstance(rate, keras.Variable)]
        return [*rates, *self._returning()]

    def _returning(self) -> list[Any]:
        """Those of them that the steps of a round change, for the next one.

        A loss scale falls by half in a step whose gradients overflow, which changes no weight: were
        it new in every round, a round might be over before it has fallen far enough.
        """
        optimizer = self.model.optimizer
        if self._save_updater:
            return list(optimizer.variables)
        return [optimizer.dynamic_scale, optimizer.step_counter] if scales_loss(optimizer) else []

    def _dropped(self) -> list[Any]:
        """The optimizer's variables that are new in every round."""
        return [] if self._save_updater else list(self.model.optimizer.variables)

    def _prepare_rounds(self) -> None:
        optimizer = self.model.optimizer
        self._fresh = []
        if not self._save_updater:
            with known_to_keras(self._packed.custom_objects):
                new = type(optimizer).from_config(optimizer.get_config())
            new.build(self.model.trainable_variables)
            self._fresh = [_value(one) for one in new.variables]
            self._shifted = _shift_schedules(optimizer)
        # A round's end is not the training's, where Keras installs averages of the weights.
        optimizer.finalize_variable_values = _leave_as_they_are


class _Returned(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps the numbers that the last step has returned.

    Those that `fit` and `evaluate` return are the metrics', where their names are the same.
    """

    def __init__(self) -> None:
        super().__init__()
        self.logs: Mapping[str, float] = {}

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """A step has been trained."""
        self.logs = {
            name: float(value)
            for name, value in (logs or {}).items()
            if isinstance(value, int | float)
        }

    def on_test_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """A batch has been evaluated."""
        self.on_train_batch_end(batch, logs)


class _Shifted(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """A schedule for an optimizer that counts from 0 again: `begin` says where it really is."""

    def __init__(self, schedule: Any) -> None:
        self.schedule = schedule
        self.begin = keras.Variable(0, dtype="int64", trainable=False, name="begin")

    def __call__(self, step: Any) -> Any:
        return self.schedule(keras.ops.cast(step, "int64") + self.begin.value)


def _shift_schedules(optimizer: Any) -> list[_Shifted]:
    found = []
    for rule in parts_of(optimizer):
        if isinstance(rule._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
            rule._learning_rate = _Shifted(rule._learning_rate)
            found.append(rule._learning_rate)
    return found


def _build(model: keras.Model, batch: tuple[Any, ...]) -> None:
    """Has a model, and what it was compiled with, make their variables, as Keras's `fit` does.

    A step of the user's own need not take what Keras's takes: sample weights, or labels that the
    loss compares with the outputs. It is tried as well, for metrics that begin with their first
    values.
    """
    x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
    predicted = model(x, training=False)
    own = {name for name in _STEPS if getattr(type(model), name) is not getattr(keras.Model, name)}
    with contextlib.suppress(Exception) if own else contextlib.nullcontext():
        if model._compile_metrics is not None:
            model.compute_metrics(x, y, predicted, sample_weight=weight)
        if model.loss is not None:
            model.compute_loss(x=x, y=y, y_pred=predicted, sample_weight=weight)
    if "test_step" in own:
        with contextlib.suppress(Exception):
            model.test_on_batch(*batch)
        model.test_function = None  # Where it has failed TensorFlow would take it up half-way.
    model.reset_metrics()


def _check_optimizers(model: keras.Model, save_updater: bool) -> None:
    optimizer = getattr(model, "optimizer", None)
    others = [
        name
        for name, value in vars(model).items()
        if isinstance(value, keras.Optimizer) and value is not optimizer
    ]
    if optimizer is None or others:
        raise errors.UnsupportedModel(
            f"the model trains with optimizers of its own ({', '.join(others) or 'in train_step'}),"
            " and ParameterAveraging knows the one of compile() only: use "
            "training=GradientSharing()"
        )
    for rule in parts_of(optimizer):
        if save_updater:
            continue
        for option in ("use_ema", "gradient_accumulation_steps"):
            if getattr(rule, option, None):
                raise errors.UnsupportedOptimizer(
                    f"{type(rule).__name__}({option}={getattr(rule, option)}) keeps a state over "
                    "the steps, which ParameterAveraging(save_updater=False) drops after each "
                    "round: leave save_updater out"
                )


def _leave_as_they_are(_: Any) -> None:
    """Stands for `finalize_variable_values` where the training goes on."""


def _value(variable: Any) -> Array:
    return np.asarray(keras.ops.convert_to_numpy(variable))


def _assign(what: str, variables: Sequence[Any], values: Sequence[Array]) -> None:
    if len(variables) != len(values):
        raise errors.UnsupportedModel(
            f"the model has {len(variables)} variables as {what} here, and {len(values)} in the "
            "process that this state comes from: driver and executors must make the same model, so "
            "model_fn must not depend on where it runs, and no layer, optimizer or metric may make "
            "its variables later than the model's first call"
        )
    for variable, value in zip(variables, values, strict=True):
        variable.assign(keras.ops.cast(value, variable.dtype))
