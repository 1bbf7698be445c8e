"""Keras models and what compiles them, as bytes that another process makes them from again.

A model travels as a `.keras` file together with the classes that its configuration names and that
another process could not import; a model that has no configuration as the function that makes it,
and its weights. Loading runs code from those bytes: load what you have made yourself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import keras

from keras_strom import errors

from ..data.spark_variables import refuse_spark_variables
from .pickled import loads

#: How a model's file ends, and what is in it.
MODEL, WEIGHTS = ".keras", ".weights.h5"


@dataclasses.dataclass(frozen=True)
class PackedModel:
    """A model as bytes.

    Attributes:
        code: pickled: what the file needs to become a model again.
        file: the content of a `.keras` or `.weights.h5` file; empty = as `model_fn` makes it.
        suffix: `MODEL` or `WEIGHTS`.

    Example:
        >>> packed = pack(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
        >>> packed.load().count_params()
        3
    """

    code: bytes = dataclasses.field(repr=False)
    file: bytes = dataclasses.field(default=b"", repr=False)
    suffix: str = MODEL

    def load(self) -> keras.Model:
        """A new model, compiled where one has said how.

        Keras's global dtype policy is that of `pack` meanwhile: layers that a function makes have
        it, and by it `compile` decides whether mixed precision needs a loss scale. Afterwards it is
        what it was before, whatever the function has set.
        """
        code: _Code = loads(self.code)
        with known_to_keras(code.custom_objects), _dtype_policy(code.dtype_policy):
            if code.model_fn is None:
                model = _load_file(self.file, compiled=code.compiling is None)
            else:
                model = code.model_fn()
            if code.compiling is not None:
                model.compile(**thaw(code.compiling))
            elif code.model_fn is None:
                _exempt(getattr(model, "optimizer", None), code.undecayed)
            if code.model_fn is not None and self.file:
                _load_weights(model, self.file, self.suffix, code.example)
        return model

    @property
    def custom_objects(self) -> Mapping[str, Any]:
        """What Keras must know of, by name, where a part of the model is made again."""
        code: _Code = loads(self.code)
        return code.custom_objects

    def trained(self, file: bytes, suffix: str) -> PackedModel:
        """The same model with the weights of a file that `save` has made."""
        return dataclasses.replace(self, file=file, suffix=suffix)

    def with_example(self, x: Any) -> PackedModel:
        """The same model, which is built for inputs such as `x` before weights are loaded.

        Args:
            x: one batch, NumPy arrays in the structure of the model's inputs.
        """
        code = dataclasses.replace(loads(self.code), example=x)
        return dataclasses.replace(self, code=cloudpickle.dumps(code))

    def configuration(self) -> str:
        """What the model is, without its weights: "" for one that a function makes."""
        if not self.file or self.suffix != MODEL:
            return ""
        import io
        import zipfile

        with zipfile.ZipFile(io.BytesIO(self.file)) as archive:
            return archive.read("config.json").decode()


def pack(
    model: keras.Model | None = None,
    *,
    model_fn: Callable[[], keras.Model] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compiling: Mapping[str, Any] | None = None,
) -> PackedModel:
    """Packs a model, and proves that it can be unpacked.

    Args:
        model: a Keras model; or
        model_fn: what makes one, called wherever the model is loaded.
        custom_objects: classes and functions by the names that the model's configuration uses, on
            top of what `keras.saving` knows here.
        compiling: arguments of `compile`; None = as the model is.

    Raises:
        UnsupportedModel: the model cannot be made again from its configuration.
        InvalidOption: an argument of `compile`, or `model_fn`, that cannot be pickled, or has a
            broadcast or an accumulator of Spark.
    """
    if (model is None) == (model_fn is None):
        raise errors.InvalidOption("give either model or model_fn")
    frozen = None if compiling is None else freeze(dict(compiling))
    objects = {**registered_in(frozen), **(custom_objects or {})}
    file = b""
    if model is not None:
        try:
            file, _ = save(model, whole=True)
            objects = {**_objects_used(model, file), **objects}
        except Exception as error:
            raise _cannot_be_packed(error) from error
    code = _Code(
        model_fn=model_fn,
        custom_objects=objects,
        compiling=frozen,
        undecayed=_exempted(getattr(model, "optimizer", None)),
        dtype_policy=keras.dtype_policies.serialize(keras.config.dtype_policy()),
    )
    packed = PackedModel(_pickled(code), file)
    # Before it is unpickled here, where a broadcast has no value either.
    refuse_spark_variables("layers, model_fn, custom_objects, loss or metrics", packed.code)
    if model is not None:
        try:
            packed.load()
        except Exception as error:
            raise _cannot_be_packed(error) from error
    return packed


def save(model: keras.Model, *, whole: bool = False) -> tuple[bytes, str]:
    """(content, suffix) of a model's file: `.keras`, or its weights alone where that cannot be.

    Args:
        model: a model that has been built.
        whole: True = raise what keeps it from becoming a `.keras` file.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "model" + MODEL)
        try:
            model.save(path)
        except Exception:
            if whole:
                raise
            path = Path(directory, "model" + WEIGHTS)
            model.save_weights(path)
            return path.read_bytes(), WEIGHTS
        return path.read_bytes(), MODEL


@dataclasses.dataclass(frozen=True)
class _Code:
    """What is pickled of a model."""

    model_fn: Callable[[], keras.Model] | None
    custom_objects: Mapping[str, Any]
    compiling: Any  # Frozen arguments of `compile`; None = the model's own.
    example: Any = None
    undecayed: Sequence[str | None] = ()  # By the model's own optimizer, as `_exempted` has it.
    # The global one, as Keras serialises it; None = an earlier version's, which did not note it.
    dtype_policy: Any = None


@dataclasses.dataclass(frozen=True)
class _KerasObject:
    """An optimizer, loss or metric without its variables: they belong where it is used."""

    kind: type
    config: Mapping[str, Any]
    undecayed: Sequence[str | None] = ()  # Of an optimizer, as `_exempted` has it.


def freeze(value: Any) -> Any:
    """Arguments of `compile` that can be pickled: Keras's objects as their configurations."""
    if isinstance(value, keras.Optimizer):
        return _KerasObject(type(value), value.get_config(), _exempted(value))
    if isinstance(value, keras.Loss | keras.Metric):
        return _KerasObject(type(value), _config_of(value))
    if isinstance(value, Mapping):
        return {name: freeze(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [freeze(one) for one in value]
    return value


def thaw(value: Any) -> Any:
    """What `freeze` was given, made anew."""
    if isinstance(value, _KerasObject):
        config = dict(value.config)
        if inspect.isfunction(config.get("fn")):
            made = value.kind(**config)
        else:
            made = value.kind.from_config(config)  # type: ignore[attr-defined]
        _exempt(made, value.undecayed)
        return made
    if isinstance(value, dict):
        return {name: thaw(one) for name, one in value.items()}
    if isinstance(value, list):
        return [thaw(one) for one in value]
    return value


def _config_of(value: Any) -> dict[str, Any]:
    """The configuration of a loss or metric.

    A lambda, or a function within one, in a wrapper stays as it is: Keras does not read the former
    again, and does not find the latter by its name.
    """
    fn = getattr(value, "fn", None) or getattr(value, "_fn", None)
    if not (inspect.isfunction(fn) and "<" in fn.__qualname__):
        return dict(value.get_config())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras's, that it would not read the lambda.
        config = dict(value.get_config())
    return {**config, "fn": fn, **value._fn_kwargs} if "fn" in config else config


def described(value: Any) -> str:
    """Arguments of `compile` as text: the same for objects that are made alike in one process."""
    if isinstance(value, keras.Optimizer | keras.Loss | keras.Metric):
        return described(freeze(value))
    if isinstance(value, _KerasObject):
        return described([value.kind, value.config, value.undecayed])
    if isinstance(value, Mapping):  # Keras numbers the names that it chooses.
        kept = {key: described(one) for key, one in value.items() if key != "name"}
        return repr(sorted(kept.items(), key=str))
    return repr([*map(described, value)]) if isinstance(value, list | tuple) else repr(value)


def rules_of(optimizer: Any) -> list[Any]:
    """The optimizers that change variables: those which another is made of, or itself."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return list(getattr(inner, "optimizers", [inner]))


def _exempted(optimizer: Any) -> list[str | None]:
    """What of the variables' names keeps them from weight decay, which no configuration tells.

    One for each of the optimizer's parts: a regular expression, or None.
    """
    patterns = [
        getattr(rule, "_exclude_from_weight_decay_pattern", None) for rule in rules_of(optimizer)
    ]
    return [None if one is None else one.pattern for one in patterns]


def _exempt(optimizer: Any, patterns: Sequence[str | None]) -> None:
    """Has an optimizer, built or not, leave out what `_exempted` has found of another."""
    for rule, pattern in zip(rules_of(optimizer), patterns, strict=False):
        if pattern is not None:
            rule._exclude_from_weight_decay_pattern = re.compile(pattern)
            rule._exclude_from_weight_decay_cache = {}


def registered_in(frozen: Any) -> dict[str, Any]:
    """The classes and functions, by their names, that the user has registered with Keras.

    Args:
        frozen: what names them: a configuration, or what `freeze` gave.
    """
    registered = keras.saving.get_custom_objects()
    return {name: registered[name] for name in _names_in(frozen) if name in registered}


def known_to_keras(objects: Mapping[str, Any]) -> contextlib.AbstractContextManager[Any]:
    """A block in which Keras finds objects by these names.

    What their script has registered ("package>Name") stays registered here, so that a model which
    is saved here names it as the script does; what this process has registered itself stays, too.
    """
    here = keras.saving.get_custom_objects()
    for name, one in objects.items():
        package, registered, own = name.partition(">")
        if registered and (name not in here or here[name] is _brought.get(name)):
            keras.saving.register_keras_serializable(package, own)(one)
            _brought[name] = one
    return keras.saving.custom_object_scope(dict(objects))  # type: ignore[no-any-return]


@contextlib.contextmanager
def _dtype_policy(serialized: Any) -> Iterator[None]:
    """A block with this global dtype policy of Keras's; None = with the one that there is."""
    before = keras.config.dtype_policy()
    try:
        if serialized is not None:
            keras.config.set_dtype_policy(keras.dtype_policies.deserialize(serialized))
        yield
    finally:
        keras.config.set_dtype_policy(before)


# What `known_to_keras` has registered; a later class of the same name takes its place.
_brought: dict[str, Any] = {}


def _pickled(code: _Code) -> bytes:
    try:
        return bytes(cloudpickle.dumps(code))
    except Exception as error:
        raise errors.InvalidOption(
            f"model_fn, custom_objects, loss or metrics cannot be pickled: {error}; keep sessions, "
            "open files and variables out of them"
        ) from error


def _load_file(file: bytes, *, compiled: bool) -> keras.Model:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "model" + MODEL)
        path.write_bytes(file)
        # Lambda layers are code, as are the pickled classes beside the file.
        return keras.saving.load_model(path, compile=compiled, safe_mode=False)


def _load_weights(model: keras.Model, file: bytes, suffix: str, example: Any) -> None:
    if not model.built and example is not None:
        model(example, training=False)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "model" + suffix)
        path.write_bytes(file)
        model.load_weights(path)


def _objects_used(model: keras.Model, file: bytes) -> dict[str, Any]:
    """The custom classes and functions that a model's configuration names."""
    known = dict(keras.saving.get_custom_objects())
    for layer in [model, *model._flatten_layers()]:
        kind = type(layer)
        if not kind.__module__.startswith("keras."):
            known.setdefault(keras.saving.get_registered_name(kind), kind)
    names = _names_in(json.loads(PackedModel(b"", file).configuration()))
    return {name: known[name] for name in names if name in known}


def _names_in(config: Any) -> set[str]:
    """Every string of a configuration, and all names of classes: registered ones are among them."""
    if isinstance(config, _KerasObject):
        return _names_in([config.kind, config.config])
    if inspect.isclass(config) or inspect.isfunction(config):
        return {keras.saving.get_registered_name(config)}
    if isinstance(config, Mapping):
        return set().union(*map(_names_in, config.values()))
    if isinstance(config, list):
        return set().union(*map(_names_in, config))
    return {config} if isinstance(config, str) else set()


def _cannot_be_packed(error: Exception) -> errors.UnsupportedModel:
    words = str(error).strip() or type(error).__name__
    return errors.UnsupportedModel(
        f"the model cannot be saved and loaded again: {words}\nGive its classes get_config and "
        "name them in custom_objects, or pass model_fn=, a function that makes the model"
    )
