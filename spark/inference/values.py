"""Which values of the columns a training cannot take: NaN, infinity, labels that no loss knows.

Tasks count them in the one pass over the rows (`odd_values`). Whether NaN and infinity do harm the
model itself says, in the driver and only where there are some (`Probe`): one that masks them, in a
layer, a loss or `transformation_fn`, is left alone. It is asked about one value in a row that it
takes, of zeros or of other numbers; where it takes none of these, nobody can tell.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np

from ..data.columns import Columns, ColumnSpec
from .prediction import examples, flat, zeros
from .serialization import PackedModel


@dataclasses.dataclass(frozen=True)
class Probe:
    """Trains a model for one step on rows of one value, as far as the gradients.

    Attributes:
        packed: the model.
        columns, specs: what it is trained on.
        transformation_fn: the user's.
    """

    packed: PackedModel
    columns: Columns
    specs: Mapping[str, ColumnSpec]
    transformation_fn: Callable[..., Any] | None = None

    def __call__(self, name: str, value: float) -> bool | None:
        """Whether the value, in this column alone, spoils a step; None = that cannot be told.

        Loss or gradients are NaN or infinite with it, or an operation does not take it: it is no
        class, or no index of an embedding. It cannot be told where they are so without it, too.
        """
        arrays = self._sound
        if arrays is None:
            return None
        return not self._takes({**arrays, name: np.full_like(arrays[name], value)})

    @functools.cached_property
    def _sound(self) -> dict[str, np.ndarray[Any, Any]] | None:
        """A row that the model takes; None = none was found."""
        return next(filter(self._takes, self._rows()), None)

    def _rows(self) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
        """Rows of zeros, of ones, and of numbers between that differ, as whole ones cannot.

        A logarithm is infinite at 0, and so is the slope of a distance between equal columns.
        """
        none = {one: zeros(self.specs[one], 1) for one in self.columns.names}
        ones = {
            one: array if array.dtype == object else np.ones_like(array)
            for one, array in none.items()
        }
        random = np.random.default_rng(0)
        yield none
        yield ones
        yield {
            one: random.uniform(0.1, 0.9, array.shape).astype(array.dtype)
            if array.dtype.kind == "f"
            else array
            for one, array in ones.items()
        }

    @functools.cached_property
    def _model(self) -> keras.Model:
        return self.packed.load()

    def _takes(self, arrays: Mapping[str, Any]) -> bool:
        import tensorflow as tf

        try:
            return self._is_finite(arrays)
        except tf.errors.InvalidArgumentError:
            return False

    def _is_finite(self, arrays: Mapping[str, Any]) -> bool:
        import tensorflow as tf

        model = self._model
        batch = examples(self.columns, arrays, self.transformation_fn)
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        with tf.GradientTape() as tape:
            predicted = model(x, training=False)
            found = flat(predicted)
            if y is not None and type(model).train_step is keras.Model.train_step:
                found = [model.compute_loss(x=x, y=y, y_pred=predicted, sample_weight=weight)]
            gradients = tape.gradient(found, [one.value for one in model.trainable_variables])
        tensors = [tf.convert_to_tensor(one) for one in (*found, *gradients) if one is not None]
        return all(bool(tf.reduce_all(tf.math.is_finite(one))) for one in tensors)
