"""Steps compiled by XLA: what `StromStrategy(jit_compile=True)` makes of the functions it runs.

The op that shares updates is none of XLA's, so it stays outside of what is compiled. That is why
Keras's own `compile(jit_compile=True)`, which would compile all of `strategy.run`, is refused. So
would a `tf.function(jit_compile=True)` within the step miss one thing: see the op's
`compare_contents` (custom_ops/tf/operations.cc), which only the strategy's option sets.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# Functions that are run eagerly, one training and one test step for a few models each.
_KEPT = 16


class XlaCompiler:
    """Compiles functions, each once as long as it is one of the latest few.

    Example:
        >>> XlaCompiler()(lambda x: x + 1)(tf.constant(1))  # doctest: +SKIP
        2
    """

    def __init__(self) -> None:
        self._compile_once = functools.lru_cache(maxsize=_KEPT)(_compile)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What does as `function` does, compiled at the first call for its arguments' shapes."""
        # A graph calls what it was traced with; only eager calls come here every time.
        return self._compile_once(function) if tf.executing_eagerly() else _compile(function)


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    # Converted by AutoGraph or not, as the caller's context has it (Keras switches it off).
    context = tf.__internal__.autograph.control_status_ctx()
    converted = tf.__internal__.autograph.tf_convert(function, context, convert_by_default=False)
    compiled: Callable[..., Any] = tf.function(
        converted, autograph=False, jit_compile=True, reduce_retracing=True
    )
    return compiled
