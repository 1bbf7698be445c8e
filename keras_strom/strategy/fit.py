"""How a StromStrategy knows where Keras's `fit` is: the one wrap around `TensorFlowTrainer.fit`.

Keras tells a strategy nothing of epochs. The wrap acts on models of a StromStrategy only, and puts
callbacks around the user's (`fit_callbacks`), which tell how far training is (`one_fit`).

A `fit` that fails on one worker fails on all, unless the job starts workers again that fail
(`fit_failure`), and one that meets a NaN ends on all as its callbacks say (`not_finite`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras

from keras_strom.sharing import model_checks
from keras_strom.sharing.progress import begin_fit_at, first_epoch_of
from keras_strom.sharing.wrapping import definer_of, is_wrapped, wrap_once
from keras_strom.strategy.building import building_once
from keras_strom.strategy.callbacks import early_stoppings, writers_between_batches
from keras_strom.strategy.data_sharding import shard_fit_arguments
from keras_strom.strategy.fit_callbacks import listed, may_assign_at_the_end, put_around, validates
from keras_strom.strategy.fit_checks import mark_fit, refuse_within_another
from keras_strom.strategy.generation import Sharing
from keras_strom.strategy.one_fit import Training
from keras_strom.strategy.status_reports import Reporter, StatusReports, alone, doing
from keras_strom.strategy.trackers import autologging_apart, pruned_elsewhere
from keras_strom.strategy.user_errors import as_told, cause_of


def wrap_fit(sharing_of: Callable[[Any], Sharing | None]) -> None:
    """Wraps Keras's `fit` once; later calls do nothing.

    Args:
        sharing_of: gives what a model's strategy shares, or None for any model that does not train
            under a sharing StromStrategy; then `fit` is Keras's own.
    """
    kinds = [kind for kind in keras.Model.__mro__ if "fit" in vars(kind)]
    if any(is_wrapped(kind.fit) for kind in kinds):
        return

    def fit(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        sharing = sharing_of(model)
        reports = None if sharing is not None else alone()
        if sharing is None and reports is None:
            return original(model, *args, **kwargs)
        try:
            bound = inspect.signature(original).bind(model, *args, **kwargs)
        except TypeError:  # Of which Keras's own words name `fit`.
            return original(model, *args, **kwargs)
        bound.apply_defaults()
        if sharing is None:
            assert reports is not None
            return _fit_alone(original, bound, reports)
        with doing(sharing.environment, "joining"):
            return _fit(original, bound, sharing)

    with autologging_apart():
        wrap_once(definer_of(keras.Model, "fit"), "fit", fit)


def _fit_alone(
    original: Callable[..., Any], bound: inspect.BoundArguments, reports: StatusReports
) -> Any:
    """Keras's own `fit`, of which somebody wants to know."""
    given = bound.arguments["callbacks"]
    if not isinstance(given, keras.callbacks.CallbackList):
        bound.arguments["callbacks"] = [*listed(given), Reporter(reports)]
    with reports.doing("training"):
        return original(bound.arguments["self"], **_given(bound))


def _fit(original: Callable[..., Any], bound: inspect.BoundArguments, sharing: Sharing) -> Any:
    arguments = bound.arguments
    model = arguments["self"]
    refuse_within_another(sharing)
    sharing.join_again()
    users = listed(arguments["callbacks"])
    assigns_last = any(map(may_assign_at_the_end, users))
    training = Training(sharing, model, arguments["initial_epoch"], assigns_last)
    training.stoppings = early_stoppings(users)
    if sharing.environment.is_chief:
        training.writers = writers_between_batches(users)
    initial_epoch = first_epoch_of(model)
    sharing.training_data = None
    restore = mark_fit(sharing)
    try:
        model_checks.check_compiled(model)
        if getattr(model, "optimizer", None) is not None:  # Keras itself asks for compile().
            one_state = sharing.step.has_one_state
            model_checks.check_optimizer(model.optimizer, has_one_state=one_state)
        if sharing.environment.size > 1:
            here = sharing.environment
            training.rows = shard_fit_arguments(arguments, here.rank, here.size)
            if not here.is_chief:
                arguments["verbose"] = 0
        training.shows_epochs = sharing.environment.is_chief or validates(arguments)
        put_around(arguments, training, sharing, restore)
        with building_once(arguments):
            return original(model, **_given(bound))
    except BaseException as error:
        cause = cause_of(error, sharing.environment) or error
        training.abandon(cause)
        if pruned := pruned_elsewhere(cause):
            raise pruned from cause
        if told := as_told(cause, error):
            raise told from told.__cause__
        raise
    finally:
        training.watch.end()
        restore.close()
        # The first epoch set here is this fit's alone; a later fit must not begin there.
        begin_fit_at(model, initial_epoch)


def _given(bound: inspect.BoundArguments) -> dict[str, Any]:
    """All arguments but the model and those left at their default, by name.

    What else has replaced `fit` (Comet does) looks for `callbacks` there, to add its own.
    """
    defaults = {name: one.default for name, one in bound.signature.parameters.items()}
    found = {name: v for name, v in bound.arguments.items() if v is not defaults[name]}
    return {name: value for name, value in found.items() if name != "self"}
