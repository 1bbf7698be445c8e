"""What tells a model from another, in whatever process."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from typing import Any

import keras

# What differs from one to the next that the same code makes, or says how a model is trained.
_LEFT_OUT = {
    *("name", "seed", "shared_object_id", "module", "registered_name"),
    *("build_config", "compile_config"),
}
_ADDRESS = re.compile(r"\b0x[0-9a-f]+\b")
_NUMBER = re.compile(r"_\d+$")


def identity_of(model: keras.Model, compiled: Mapping[str, Any] | None = None) -> str:
    """A built model's layers, how they are connected, and its weights' shapes and dtypes, as text.

    The same code's models all have the same, whatever was made before: Keras numbers the names that
    it chooses, draws seeds, and notes addresses, which are left out, as is the code of lambdas. Of
    a model that has no configuration its weights are all that is told.

    Args:
        model: one that has been built.
        compiled: the configuration of its `compile`, where that belongs to it.

    Example:
        >>> made = [keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]) for _ in range(2)]
        >>> identity_of(made[0]) == identity_of(made[1])
        True
    """
    weights = [
        [_NUMBER.sub("", one.name), [*map(int, one.shape)], str(one.dtype)] for one in model.weights
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras's, that it would not read a lambda again.
        try:
            config = keras.saving.serialize_keras_object(model)
            text = json.dumps(_lasting(config, _places(config, {})), sort_keys=True)
        except Exception:  # Whatever a user's get_config raises, or one that there is not.
            text = ""
    training = json.dumps(_lasting(compiled, {}), sort_keys=True)
    return json.dumps([_ADDRESS.sub("0x", text), weights, _ADDRESS.sub("0x", training)])


def _places(config: Any, places: dict[str, int]) -> dict[str, int]:
    """Which of all names a name is, in the order in which they come."""
    if isinstance(config, Mapping):
        if isinstance(name := config.get("name"), str):
            places.setdefault(name, len(places))
        for one in config.values():
            _places(one, places)
    elif isinstance(config, list | tuple):
        for one in config:
            _places(one, places)
    return places


def _lasting(config: Any, places: Mapping[str, int]) -> Any:
    """A configuration without what differs; where it names the layer before, that one's place."""
    if isinstance(config, Mapping):
        if config.get("class_name") == "__lambda__":
            return "lambda"
        kept = {key: one for key, one in config.items() if key not in _LEFT_OUT}
        return {key: _lasting(one, places) for key, one in kept.items()}
    if isinstance(config, list | tuple):
        # (layer, how often it was called before, which of its outputs).
        if [type(one) for one in config] == [str, int, int]:
            return [places.get(config[0], config[0]), *config[1:]]
        return [_lasting(one, places) for one in config]
    return config
