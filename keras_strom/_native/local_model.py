"""A worker's side of a joint model, owned by libstrom.so: its targets and counts of steps."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from keras_strom._native.library import check, declare
from keras_strom.method import MethodNumbers

_HANDLE = ctypes.c_int64
_FLOATS = ctypes.POINTER(ctypes.c_float)


class MethodStruct(ctypes.Structure):
    """`strom_method` (custom_ops/core/joint/joint_values.h)."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("phases", ctypes.c_int32),
        ("weighted", ctypes.c_int32),
        ("alpha", ctypes.c_double),
        ("beta", ctypes.c_double),
        ("gamma", ctypes.c_double),
        ("delta", ctypes.c_double),
        ("start_alpha", ctypes.c_double),
        ("free_cycles", ctypes.c_int64),
        ("start_cycles", ctypes.c_int64),
        ("ramp_cycles", ctypes.c_int64),
        ("min_steps", ctypes.c_int64),
        ("steps", ctypes.c_int64),
        ("bfloat16", ctypes.c_int32),
        ("gradients", ctypes.c_int32),
    )

    @classmethod
    def of(cls, numbers: MethodNumbers) -> MethodStruct:
        """A method's numbers as the C interface takes them."""
        return cls(*(getattr(numbers, name) for name, _ in cls._fields_))


class RangeStruct(ctypes.Structure):
    """`strom_range`: elements [offset, offset + size)."""

    _fields_ = (("offset", ctypes.c_int64), ("size", ctypes.c_int64))


class LocalModel:
    """The targets of one worker, and how many steps it has made towards them.

    The parameters stay in TensorFlow's variables; the op StromPull names the local model by
    `handle`. Calls on one local model are serialised by the library.

    Example:
        >>> model = LocalModel()  # doctest: +SKIP
        >>> model.begin(0, 16, MPCA().numbers(2), rank=0, workers=2)  # doctest: +SKIP
    """

    def __init__(self) -> None:
        handle = _HANDLE()
        check(declare("strom_local_model_create", ctypes.POINTER(_HANDLE))(ctypes.byref(handle)))
        self.handle: int = handle.value

    def begin(
        self,
        worker: int,
        size: int,
        method: MethodNumbers,
        *,
        rank: int,
        workers: int,
        in_gradient: bool = False,
    ) -> None:
        """Begins a generation: no targets, no steps.

        Args:
            worker: the handle of the connection; 0 = nobody is there to exchange with.
            size: elements of the joint model.
            method: as `WorkerNode.start` was given it.
            rank: this worker's; staggers exchanges that are each worker's own.
            workers: K.
            in_gradient: whether the pull is a part of the gradients (the op StromPenalty), and no
                step of its own.
        """
        function = declare(
            "strom_local_model_begin",
            _HANDLE,
            _HANDLE,
            ctypes.c_int64,
            ctypes.POINTER(MethodStruct),
            ctypes.c_int32,
            ctypes.c_int32,
            ctypes.c_int32,
        )
        numbers = ctypes.byref(MethodStruct.of(method))
        check(function(self.handle, worker, size, numbers, rank, workers, int(in_gradient)))

    def finish(self, values: npt.NDArray[np.float32], iteration: int) -> None:
        """After the last step: gives the last snapshot of all.

        Args:
            values: the local model, float32, as many elements as the joint model has.
            iteration: of the last step.

        Raises:
            NotFinite: shards of them hold a NaN or an infinity, and are not sent; the others are.
        """
        values = np.ascontiguousarray(values, np.float32)
        function = declare(
            "strom_local_model_finish", _HANDLE, _FLOATS, ctypes.c_int64, ctypes.c_int64
        )
        check(function(self.handle, values.ctypes.data_as(_FLOATS), values.size, iteration))

    def close(self) -> None:
        """Frees the targets; ops that still name the handle fail from now on. Idempotent."""
        handle, self.handle = self.handle, 0
        if handle:
            check(declare("strom_local_model_close", _HANDLE)(handle))
