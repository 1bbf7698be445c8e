"""What cannot be trained by sharing updates, and is refused with a reason and a remedy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import keras

from keras_strom import errors
from keras_strom.sharing.optimizers import parts_of
from keras_strom.sharing.wrapping import wrap_once

# Whether this thread is in an optimizer that applies another one, which exchanges nothing itself.
_outer = threading.local()

# Keras's optimizers that apply others.
_OUTER = ("LossScaleOptimizer", "MultiOptimizer")

# The attribute of a tf.Variable with the path of the Keras variable around it.
_PATH = "_keras_strom_path"
# ... and whether that has a constraint.
_CONSTRAINED = "_keras_strom_constrained"
# ... and whether its gradient is its new value.
_OVERWRITTEN = "_keras_strom_overwritten"


def wrap_apply(
    check: Callable[[Any, list[Any]], Callable[..., Any] | None],
    exchange: Callable[[Any, list[Any], list[Any]], list[Any]],
    penalize: Callable[[Any, list[Any], list[Any]], list[Any]],
) -> None:
    """Has every step of a Keras optimizer checked first; later calls do nothing.

    Outside `strategy.run` Keras reaches no method of the strategy at all, so this is the only place
    where such a step can be refused. It costs nothing in a traced function.

    Args:
        check: called with the optimizer and the `tf.Variable`s that it is about to change; returns
            what is to call the step, like `tf.distribute.Strategy.run`, or None.
        exchange: called with the optimizer, the gradients and the variables; returns the gradients
            that are to be taken. Of an optimizer within another it is called for the outer one
            alone, which decides by the gradients whether to step at all.
        penalize: likewise, of the inner one.
    """
    base = next(kind for kind in keras.optimizers.Optimizer.__mro__[::-1] if "apply" in vars(kind))

    def apply(
        original: Callable[..., Any], optimizer: Any, grads: Any, trainable_variables: Any = None
    ) -> Any:
        trainable_variables, values = _changed_by(optimizer, trainable_variables)
        run = check(optimizer, values)
        if run is not None:
            return run(original, args=(optimizer, grads, trainable_variables))
        grads = list(grads)
        if not getattr(_outer, "applies", False):
            grads = exchange(optimizer, grads, values)
        grads = penalize(optimizer, grads, values)
        return original(optimizer, grads, trainable_variables)

    if wrap_once(base, "apply", apply):
        for name in _OUTER:
            if hasattr(keras.optimizers, name):
                _wrap_outer(getattr(keras.optimizers, name), exchange)


def _wrap_outer(outer: Any, exchange: Callable[[Any, list[Any], list[Any]], list[Any]]) -> None:
    """Has gradients exchanged before an optimizer applies those that it consists of.

    A LossScaleOptimizer applies the one within under a condition, where one worker would exchange
    and another not. The parts of a MultiOptimizer would have an exchange each.
    """

    def apply(
        original: Callable[..., Any], optimizer: Any, grads: Any, trainable_variables: Any = None
    ) -> Any:
        if getattr(_outer, "applies", False):
            return original(optimizer, grads, trainable_variables)
        trainable_variables, values = _changed_by(optimizer, trainable_variables)
        grads = exchange(optimizer, list(grads), values)
        _outer.applies = True
        try:
            return original(optimizer, grads, trainable_variables)
        finally:
            _outer.applies = False

    wrap_once(outer, "apply", apply)


def _changed_by(optimizer: Any, given: Any) -> tuple[list[Any] | None, list[Any]]:
    """The variables that `apply` was given, to be given on, and the `tf.Variable`s behind them."""
    given = None if given is None else list(given)
    changed = getattr(optimizer, "_trainable_variables", []) if given is None else given
    return given, [value_with_path(variable) for variable in changed]


def path_of(variable: Any) -> str:
    """What users know a `tf.Variable` as: its path in the model, once an optimizer has stepped."""
    return str(getattr(variable, _PATH, variable.name))


def is_constrained(variable: Any) -> bool:
    """Whether Keras applies a constraint to a `tf.Variable` after every step."""
    return bool(getattr(variable, _CONSTRAINED, False))


def is_overwritten(variable: Any) -> bool:
    """Whether a step replaces a `tf.Variable`, as the scales of float8 layers, by its gradient."""
    return bool(getattr(variable, _OVERWRITTEN, False))


def value_with_path(variable: Any) -> Any:
    """The `tf.Variable` of a Keras variable, which `path_of` knows by its path from now on."""
    # Only the Keras variable knows its path; the tf.Variable of every layer is called "kernel".
    if not isinstance(variable, keras.Variable):
        return variable
    setattr(variable.value, _PATH, variable.path)
    setattr(variable.value, _CONSTRAINED, variable.constraint is not None)
    setattr(variable.value, _OVERWRITTEN, variable.overwrite_with_gradient)
    return variable.value


def check_optimizer(optimizer: Any, *, has_one_state: bool) -> None:
    """Refuses optimizers whose state holds absolute parameters.

    Such a state is not a function of the worker's own updates alone, so every step pushes back what
    the others have contributed.

    Args:
        optimizer: any of Keras, or None.
        has_one_state: whether it begins with the same state and gets the same gradients on all
            workers, as in a `fit` in exact mode. Then others contribute nothing behind its back,
            and any optimizer will do.

    Raises:
        UnsupportedOptimizer: with what to use instead.
    """
    for rule in [] if has_one_state else parts_of(optimizer):
        _check_rule(rule)


def _check_rule(rule: Any) -> None:
    name = type(rule).__name__
    if isinstance(rule, keras.optimizers.Ftrl):
        raise errors.UnsupportedOptimizer(
            f"{name} computes parameters from sums of its own gradients and would undo what other "
            "workers contribute, except in fit in exact mode (threshold=None); use Adagrad "
            "or Adam with l1 regularisation instead"
        )
    schedule_free = getattr(keras.optimizers, "ScheduleFreeAdamW", None)
    if schedule_free is not None and isinstance(rule, schedule_free):
        raise errors.UnsupportedOptimizer(
            f"{name} keeps absolute copies of the parameters in its state and would undo what "
            "other workers contribute, except in fit in exact mode (threshold=None); use AdamW "
            "with a learning-rate schedule instead"
        )
    if getattr(rule, "use_ema", False) and getattr(rule, "ema_overwrite_frequency", None):
        raise errors.UnsupportedOptimizer(
            f"{name}(ema_overwrite_frequency={rule.ema_overwrite_frequency}) overwrites the "
            "parameters in the middle of training, which would undo what other workers contribute, "
            "except in fit in exact mode (threshold=None); leave ema_overwrite_frequency=None: the "
            "average is taken over at the end of fit"
        )


def check_in_scope(model: Any) -> None:
    """Refuses a model of no strategy where the process trains with several workers.

    Raises:
        UnsupportedModel: with where to make it.
    """
    if getattr(model, "_distribute_strategy", None) is None:
        raise errors.UnsupportedModel(
            f"{model.name!r} was created outside strategy.scope(), so every worker would train a "
            "model of its own; create it inside (compiling it there is not enough). A model that "
            "is to stay this worker's own belongs into tf.distribute.OneDeviceStrategy's scope"
        )


def created_outside(variable: Any) -> errors.UnsupportedModel:
    """For an optimizer's step on a variable of no strategy, where there is one: with what to do."""
    remedy = "build the model inside of it"
    if "lora" in path_of(variable):
        remedy = "call enable_lora inside of it, too"
    return errors.UnsupportedModel(
        f"the optimizer updates {path_of(variable)!r}, which was created outside "
        f"strategy.scope(); {remedy}"
    )


def adopt_optimizer(optimizer: Any, strategy: Any) -> None:
    """Lets an optimizer that was made outside the scope, as by `compile` there, train inside.

    It belongs to the scope in which it was made, which shows when it makes its slots.

    Args:
        optimizer: a Keras optimizer, or None.
        strategy: that of the model.

    Raises:
        UnsupportedOptimizer: several devices, each of which would count its steps in one variable.
    """
    for rule in () if optimizer is None else (optimizer, *parts_of(optimizer)):
        if rule.built or rule._distribution_strategy is strategy:
            continue
        if strategy.num_replicas_in_sync > 1:
            raise errors.UnsupportedOptimizer(
                f"{type(rule).__name__} was made outside strategy.scope() and does not know the "
                "devices of the worker; make it, or call compile(), inside"
            )
        rule._distribution_strategy = strategy


def check_accumulation(optimizer: Any, devices: int) -> None:
    """Refuses gradient accumulation on several devices.

    Raises:
        UnsupportedOptimizer: with what to use instead.
    """
    for rule in parts_of(optimizer) if devices > 1 else []:
        steps = getattr(rule, "gradient_accumulation_steps", None)
        if steps:
            raise errors.UnsupportedOptimizer(
                f"{type(rule).__name__}(gradient_accumulation_steps={steps}) does not work on "
                "several devices of one worker; use larger batches or one device, such as "
                'devices="/gpu:0"'
            )


def check_compiled(model: Any) -> None:
    """Refuses a model that Keras compiles for XLA; its own "auto" never chooses that here.

    Raises:
        UnsupportedModel: with the option that compiles a step.
    """
    if getattr(model, "jit_compile", False) is True:
        raise errors.UnsupportedModel(
            "compile(jit_compile=True) would compile the sharing of updates too, which runs "
            "outside XLA; leave it out and make the strategy with StromStrategy(jit_compile=True), "
            "which compiles all the rest of a step"
        )


def check_not_eager(model: Any) -> None:
    """Refuses to compile the steps of a model that asks for eager ones.

    Raises:
        UnsupportedModel: with the two options that contradict each other.
    """
    if getattr(model, "run_eagerly", False):
        raise errors.UnsupportedModel(
            "StromStrategy(jit_compile=True) compiles every step and compile(run_eagerly=True) "
            "asks for none to be compiled; leave out one of the two"
        )


def check_dtype(variable: Any) -> None:
    """Refuses to share a variable that is not float32.

    Raises:
        UnsupportedModel: with the policy to use instead.
    """
    dtype = variable.dtype.name
    if dtype != "float32":
        why = "" if dtype == "float64" else " (small updates would round away in half precision)"
        raise errors.UnsupportedModel(
            f"the optimizer updates {variable.name!r}, a {dtype} variable; StromStrategy shares "
            f"float32 variables only{why}: use the policy 'float32', 'mixed_float16' or "
            "'mixed_bfloat16', which keep variables in float32"
        )
