"""How shared variables differ from what a training has left, or is to leave, in them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_strom._native.library import array_hash
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.sharing.flat_space import Entry, FlatSpace
from keras_strom.sharing.model_state import tf_variables
from keras_strom.sharing.step import SharedStep

_logger = logging.getLogger("keras_strom")

# Elements that are compared at a time: temporary arrays of whole variables would be large.
_BLOCK = 1 << 20


def hash_of(entry: Entry) -> int:
    """Of a variable's bits."""
    return array_hash(entry.variable.numpy())


def fingerprint(models: Sequence[Any]) -> dict[int, int]:
    """The hash of each trained variable's bits, by the variable's id."""
    found = tf_variables(v for model in models for v in model.trainable_variables)
    return {id(variable): array_hash(variable.numpy()) for variable in found}


def forget_residuals(
    step: SharedStep, space: FlatSpace, results: Mapping[int, int], here: ClusterEnvironment
) -> None:
    """Of what was assigned since the last result: they belong to the values before.

    Args:
        step: the strategy's.
        space: its flat space, with the values from which a training starts.
        results: the hashes, by offset, of what the last training has left.
        here: this worker; the chief logs it.
    """
    assigned = [
        entry
        for entry in space.entries
        if entry.offset in results and results[entry.offset] != hash_of(entry)
    ]
    mass = step.forget_residuals(assigned)
    if mass > 0 and here.is_chief:
        _logger.info(
            "assigned since the last training: %d of the variables. What was not sent of their "
            "old values' updates is left out (on worker %d a sum of %.3g of |residual|)",
            len(assigned),
            here.rank,
            mass,
        )


def largest_difference(entries: Iterable[Entry], parameters: npt.NDArray[np.float32]) -> float:
    """Of the variables from the master's values of the flat space; 0 where there are none."""
    difference = 0.0
    for entry in entries:
        values = entry.variable.numpy().ravel()
        masters = parameters[entry.place]
        for start in range(0, values.size, _BLOCK):
            part = slice(start, start + _BLOCK)
            difference = max(difference, float(np.max(np.abs(values[part] - masters[part]))))
    return difference
