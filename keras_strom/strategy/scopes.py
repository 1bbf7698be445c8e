"""A strategy's scope, and what it is told there: which variables optimizers change."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from keras_strom import errors
from keras_strom.sharing import model_checks

# The strategies whose scopes are open, in each thread the innermost last.
_open = threading.local()


def watch_updates(extended: Any, note_update: Callable[[Any, Any], None]) -> None:
    """Has optimizers announce what they change.

    Args:
        extended: of a strategy, which tf.distribute's own constructor makes: it takes no class.
        note_update: a method of the strategy, which this does not keep: of the variable that is
            about to change, and its gradient.
    """
    extended.__class__ = type("StromExtended", (_WatchedUpdates, type(extended)), {})
    extended._note_update = weakref.WeakMethod(note_update)


@contextlib.contextmanager
def scope_of(strategy: Any, outer: Any, inner: Any) -> Iterator[Any]:
    """Both contexts, the scope of `strategy`, with words where it has ended before its end."""
    scopes = _open.__dict__.setdefault("scopes", [])
    raised: BaseException | None = None
    ended = False
    try:
        with outer as entered, inner:
            scopes.append(strategy)
            try:
                yield entered
            except BaseException as error:
                raised = error
                raise
            finally:
                ended = not tf.distribute.has_strategy()
                scopes.pop()
    except IndexError:  # TensorFlow has no scope to leave.
        if not ended:
            raise
        raise (raised or _scope_ended()) from None


def check_open_scope() -> None:
    """Refuses what follows a scope that has ended before its end.

    Raises:
        UnsupportedModel: one has.
    """
    if _open.__dict__.get("scopes") and not tf.distribute.has_strategy():
        raise _scope_ended()


def _scope_ended() -> errors.UnsupportedModel:
    return errors.UnsupportedModel(
        "keras.backend.clear_session() (or keras.utils.clear_session) was called inside of "
        "strategy.scope() and has ended the scope, so what was made after it is not part of the "
        "strategy; call it before `with strategy.scope():`"
    )


class _WatchedUpdates:
    """Mixed into a strategy's `extended`, where optimizers announce which variable they change."""

    _note_update: weakref.WeakMethod[Callable[[Any, Any], None]]

    def update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        group: bool = True,
    ) -> Any:
        note = self._note_update()
        if note is not None:
            note(var, args[0] if args else None)
        return super().update(var, fn, args, kwargs, group)  # type: ignore[misc]

    def colocate_vars_with(self, colocate_with_variable: Any) -> Any:
        # Optimizers make their slots so.
        if not self.variable_created_in_scope(colocate_with_variable):  # type: ignore[attr-defined]
            raise model_checks.created_outside(colocate_with_variable)
        return super().colocate_vars_with(colocate_with_variable)  # type: ignore[misc]
