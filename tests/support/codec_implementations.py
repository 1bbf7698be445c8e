"""Every implementation of the codec, behind one interface for tests/codec/test_codec_contract.py.

To add one, write a subclass of `Implementation` and its line in `IMPLEMENTATIONS`. A factory raises
`Unavailable` with the reason where its implementation cannot run, and its tests are skipped.
"""

import abc
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from keras_strom import codec, errors
from keras_strom._native import codec as native
from tests.support import cuda_library
from tests.support import message_oracle as oracle

Floats = npt.NDArray[np.float32]

CODINGS: tuple[tuple[codec.Coding, codec.Prefer], ...] = (
    ("auto", "size"),
    ("auto", "speed"),
    ("sparse", "size"),
    ("bitmap", "size"),
    ("bitmap4", "size"),
)

#: Those that a device encodes with, too.
DEVICE_CODINGS = tuple(options for options in CODINGS if options[0] != "bitmap4")

#: The smallest threshold of "bitmap4", whose half is exact.
LEAST_OF_BITMAP4 = 2.0**-125


# custom_ops/core/step/residual.h; a processor has some of them.
KERNELS = ("scalar", "blocks", "avx2", "avx512", "neon")


class Unavailable(Exception):
    """This implementation cannot run here; the message is the reason."""


class Encoded(NamedTuple):
    message: bytes
    residual: Floats
    entries: int


class Implementation(abc.ABC):
    """One way to encode and to apply.

    Attributes:
        codings: the codings and preferences that it encodes with.
        invalid: what it raises for arguments that it refuses.
        corrupt: what it raises for bytes that are no message.
    """

    codings: tuple[tuple[codec.Coding, codec.Prefer], ...] = CODINGS
    invalid: type[Exception] | tuple[type[Exception], ...]
    corrupt: type[Exception]

    @abc.abstractmethod
    def encode(
        self,
        update: Floats,
        residual: Floats,
        threshold: float,
        coding: codec.Coding = "auto",
        prefer: codec.Prefer = "size",
        iteration: int = 0,
    ) -> Encoded:
        """May change `residual`, but not when it raises."""

    @abc.abstractmethod
    def apply(self, message: bytes, parameters: Floats) -> Floats:
        """The parameters after the message; may be `parameters`, which no error changes."""

    def decode(self, message: bytes, size: int) -> Floats:
        """What the message adds to each element."""
        return self.apply(message, np.zeros(size, np.float32))


class Oracle(Implementation):
    """NumPy, from the text of docs/internals/message_format.md: it judges the others."""

    invalid = ValueError
    corrupt = oracle.MalformedError

    def encode(
        self,
        update: Floats,
        residual: Floats,
        threshold: float,
        coding: codec.Coding = "auto",
        prefer: codec.Prefer = "size",
        iteration: int = 0,
    ) -> Encoded:
        tau = np.float32(threshold)
        with np.errstate(over="ignore", invalid="ignore"):
            total = update + residual if update.shape == residual.shape else np.empty(0)
        if not (total.size and np.isfinite(total).all() and math.isfinite(tau) and tau > 0):
            raise ValueError("refused")
        if coding == "bitmap4":
            return self._encode_bitmap4(total, tau, iteration)
        leaves = np.abs(total) >= tau
        after = np.where(leaves, total - np.copysign(tau, total), total)
        indices = np.flatnonzero(leaves).astype(np.int64)
        negative = np.signbit(total.reshape(-1)[indices])
        header = oracle.Header(float(tau), total.size, iteration)
        message = oracle.encode(header, indices, negative, coding=coding, prefer=prefer)
        return Encoded(message, after, len(indices))

    def _encode_bitmap4(self, total: Floats, tau: np.float32, iteration: int) -> Encoded:
        if tau < LEAST_OF_BITMAP4:
            raise ValueError("refused")
        sign = np.sign(total).astype(np.int64)
        full = np.abs(total) >= tau
        turn = oracle.half_signs(total.size, iteration).reshape(total.shape)
        half = ~full & (np.abs(total) >= tau / 2) & (sign == turn)
        halves = np.where(full, 2 * sign, np.where(half, sign, 0))
        after = total - halves.astype(np.float32) * (tau / np.float32(2))
        header = oracle.Header(float(tau), total.size, iteration)
        message = oracle.encode_bitmap4(header, halves.reshape(-1))
        return Encoded(message, after, int(np.count_nonzero(halves)))

    def apply(self, message: bytes, parameters: Floats) -> Floats:
        header, _, added = oracle.decode(message)
        if header.elements != parameters.size or parameters.size == 0:
            raise ValueError("another size")
        return parameters + added.reshape(parameters.shape)


class Door(Implementation):
    """keras_strom.codec, with the kernel that this processor runs fastest."""

    invalid = (errors.InvalidOption, errors.NotFinite)
    corrupt = errors.CorruptMessage

    def encode(
        self,
        update: Floats,
        residual: Floats,
        threshold: float,
        coding: codec.Coding = "auto",
        prefer: codec.Prefer = "size",
        iteration: int = 0,
    ) -> Encoded:
        message = codec.encode(
            update, residual, threshold, coding=coding, prefer=prefer, iteration=iteration
        )
        return Encoded(message.bytes, residual, message.count)

    def apply(self, message: bytes, parameters: Floats) -> Floats:
        codec.apply(message, parameters)
        return parameters


class Kernel(Door):
    """One of the native kernels, into a buffer of its own."""

    def __init__(self, name: str) -> None:
        names = native.kernels()
        if name not in names:
            raise Unavailable(f"this processor has only the kernels {', '.join(names)}")
        self._index = names.index(name)

    def encode(
        self,
        update: Floats,
        residual: Floats,
        threshold: float,
        coding: codec.Coding = "auto",
        prefer: codec.Prefer = "size",
        iteration: int = 0,
    ) -> Encoded:
        if update.size == 0 or update.shape != residual.shape:  # what the door sees to
            raise errors.InvalidOption("refused")
        after = np.full_like(residual, np.nan)
        message, count = native.encode(
            *(update, residual, after, threshold),
            coding=coding,
            prefer=prefer,
            kernel=self._index,
            iteration=iteration,
        )
        return Encoded(message, after, count)


class Operations(Implementation):
    """keras_strom.ops, eagerly or in a graph whose shapes are not known when it is traced."""

    def __init__(self, *, graph: bool) -> None:
        try:
            import tensorflow as tf
        except ImportError as error:
            raise Unavailable(str(error)) from error
        from keras_strom import ops

        self.invalid = tf.errors.InvalidArgumentError
        self.corrupt = tf.errors.DataLossError
        floats = tf.TensorSpec(None, tf.float32)
        bytes_ = tf.TensorSpec([None], tf.uint8)

        def encode(
            coding: codec.Coding, prefer: codec.Prefer, *inputs: Any
        ) -> tuple[Any, Any, Any]:
            update, residual, threshold, iteration = inputs
            return ops.threshold_encode(
                *(update, residual, threshold), coding=coding, prefer=prefer, iteration=iteration
            )

        def compiled(function: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
            return tf.function(function, input_signature=arguments) if graph else function

        self._encode = {
            options: compiled(
                functools.partial(encode, *options),
                *(floats, floats, tf.TensorSpec([], tf.float32), tf.TensorSpec([], tf.int64)),
            )
            for options in CODINGS
        }
        self._apply = compiled(ops.apply, bytes_, floats)

    def encode(
        self,
        update: Floats,
        residual: Floats,
        threshold: float,
        coding: codec.Coding = "auto",
        prefer: codec.Prefer = "size",
        iteration: int = 0,
    ) -> Encoded:
        encode = self._encode[coding, prefer]
        step = np.int64(iteration)
        message, after, count = encode(update, residual, np.float32(threshold), step)
        return Encoded(message.numpy().tobytes(), after.numpy(), int(count))

    def apply(self, message: bytes, parameters: Floats) -> Floats:
        after: Floats = self._apply(np.frombuffer(message, np.uint8), parameters).numpy()
        return after


class Cuda(Implementation):
    """libstrom_cuda.so on this machine's device."""

    codings = DEVICE_CODINGS
    invalid = errors.InvalidOption
    corrupt = errors.CorruptMessage

    def __init__(self) -> None:
        try:
            self._cuda = cuda_library.device()
        except cuda_library.NotHereError as reason:
            raise Unavailable(str(reason)) from reason

    def encode(
        self,
        update: Floats,
        residual: Floats,
        threshold: float,
        coding: codec.Coding = "auto",
        prefer: codec.Prefer = "size",
        iteration: int = 0,
    ) -> Encoded:
        if update.size == 0 or update.shape != residual.shape:  # what a door would see to
            raise errors.InvalidOption("refused")
        try:
            return Encoded(
                *self._cuda.encode(update, residual, threshold, coding, prefer, iteration)
            )
        except cuda_library.CallError as error:
            raise errors.error_of_code(error.code, str(error)) from error

    def apply(self, message: bytes, parameters: Floats) -> Floats:
        if native.describe(message).size != parameters.size:  # or else a part of it would do
            raise errors.InvalidOption("another size")
        try:
            return self._cuda.apply(message, parameters)
        except cuda_library.CallError as error:
            raise errors.error_of_code(error.code, str(error)) from error


#: Name -> factory.
IMPLEMENTATIONS: Mapping[str, Callable[[], Implementation]] = {
    "oracle": Oracle,
    "door": Door,
    **{f"kernel-{name}": functools.partial(Kernel, name) for name in KERNELS},
    "ops-eager": lambda: Operations(graph=False),
    "ops-graph": lambda: Operations(graph=True),
    "cuda": Cuda,
}
