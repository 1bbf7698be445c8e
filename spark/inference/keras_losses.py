"""Which of Keras's losses a loss is, as `compile` takes it.

Keras makes a cross-entropy of "crossentropy" and "ce" by the shapes that it finds. What a loss does
with labels is known of Keras's own alone: one of the user's may do anything, whatever its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

#: What Keras chooses a cross-entropy for, in whatever case.
CROSSENTROPY = ("crossentropy", "ce")


def chosen(loss: Any, output: Sequence[int], label: Sequence[int] | None = None) -> Any:
    """The loss that Keras takes for an output: the same, but for the two names of `CROSSENTROPY`.

    Args:
        loss: what `compile` was given for this output.
        output: the shape of one example's output; () is one number.
        label: of one example's label; None = not known, and of several classes either will do.

    Example:
        >>> chosen("ce", (10,), ()), chosen("ce", (10,), (10,)), chosen("mse", (), ())
        ('sparse_categorical_crossentropy', 'categorical_crossentropy', 'mse')
    """
    if not isinstance(loss, str) or loss.lower() not in CROSSENTROPY:
        return loss
    if not output or output[-1] == 1:
        return "binary_crossentropy"
    if label is not None and len(label) == len(output) and label[-1] != 1:
        return "categorical_crossentropy"
    return "sparse_categorical_crossentropy"


def own_name(loss: Any) -> str:
    """The name of a loss of Keras's own, without case and underscores; "" for any other.

    Example:
        >>> own_name("mse"), own_name(keras.losses.Huber()), own_name(lambda y, p: y - p)
        ('meansquarederror', 'huber', '')
    """
    if isinstance(loss, str):
        loss = keras.losses.get(loss)
    kind = type(loss) if isinstance(loss, keras.Loss) else loss
    if not str(getattr(kind, "__module__", "")).startswith("keras."):
        return ""
    return str(getattr(kind, "__name__", "")).replace("_", "").lower()
