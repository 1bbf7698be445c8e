"""libstrom_cuda.so through ctypes, with whatever memory its pointers mean.

`device()` is the library on a real device, whose memory the CUDA runtime gives (by ctypes,
no package is needed). `emulated()` is the same sources without nvcc, in the host's memory.
"""

import ctypes
import functools
import glob
import os
import pathlib
import sysconfig
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from keras_strom import codec
from tests.support import emulated_gpu
from tests.support.compiled import ROOT, NotHereError

Floats = npt.NDArray[np.float32]

CODINGS = {"auto": 0, "sparse": 1, "bitmap": 2, "bitmap4": 3}
PREFERENCES = {"size": 0, "speed": 1}
CORRUPT = -9
NOT_FINITE = -12


class CallError(Exception):
    """A call was refused or failed.

    Attributes:
        code: of the C interface.
    """

    def __init__(self, code: int, words: str) -> None:
        super().__init__(f"{words} [{code}]")
        self.code = code


class Segment(ctypes.Structure):
    """strom_cuda_segment."""

    _fields_ = (
        ("offset", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("before", ctypes.c_void_p),
        ("after", ctypes.c_void_p),
        ("value", ctypes.c_void_p),
        ("residual", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
    )


class Options(ctypes.Structure):
    """strom_step_options."""

    _fields_ = (
        ("scale", ctypes.c_float),
        ("threshold", ctypes.c_float),
        ("clip_multiple", ctypes.c_float),
        ("apply_own", ctypes.c_int32),
        ("take_received", ctypes.c_int32),
        ("iteration", ctypes.c_int64),
        ("norm_limit", ctypes.c_float),
        ("momenta", ctypes.c_void_p),
        ("send_mean", ctypes.c_int32),
        ("full", ctypes.c_int32),
        ("includes_residual", ctypes.c_void_p),
        ("thresholds", ctypes.c_void_p),
        ("segment_results", ctypes.c_void_p),
        ("draws_threshold", ctypes.c_int32),
    )


class Result(ctypes.Structure):
    """strom_step_result."""

    _fields_ = (
        ("stepped", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("elements", ctypes.c_int64),
        ("message_bytes", ctypes.c_int64),
        ("received", ctypes.c_int64),
        ("max_residual", ctypes.c_float),
        ("threshold", ctypes.c_float),
        ("sum_residual", ctypes.c_double),
        ("clipped_mass", ctypes.c_double),
        ("clipped_count", ctypes.c_int64),
        ("staleness", ctypes.c_int64),
        ("update_norm", ctypes.c_double),
        ("value", ctypes.c_float),
        ("limited_mass", ctypes.c_double),
        ("values_written", ctypes.c_int64),
    )


# ------------------------------------------------------------------ memory


class Memory(Protocol):
    """Where device pointers point to."""

    def put(self, values: npt.NDArray[Any]) -> int: ...
    def get(self, pointer: int, like: npt.NDArray[Any]) -> npt.NDArray[Any]: ...
    def free(self, pointer: int) -> None: ...


class HostMemory:
    """The emulation's device memory."""

    def __init__(self) -> None:
        self._arrays: dict[int, npt.NDArray[Any]] = {}

    def put(self, values: npt.NDArray[Any]) -> int:
        copy = np.array(values, order="C")
        self._arrays[copy.ctypes.data] = copy
        return int(copy.ctypes.data)

    def get(self, pointer: int, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
        out = np.empty_like(like, order="C")
        ctypes.memmove(out.ctypes.data, pointer, out.nbytes)
        return out

    def free(self, pointer: int) -> None:
        del self._arrays[pointer]


class CudaRuntime:
    """A device's memory and events, by libcudart's functions."""

    def __init__(self) -> None:
        self._library = _load_runtime()
        for name in ("cudaMalloc", "cudaFree", "cudaMemcpy", "cudaGetErrorString"):
            getattr(self._library, name)  # fails where it is something else
        self._library.cudaGetErrorString.restype = ctypes.c_char_p

    def call(self, name: str, *arguments: Any) -> None:
        code = self._library[name](*arguments)
        if code != 0:
            words = self._library.cudaGetErrorString(code).decode()
            raise NotHereError(f"{name} failed: {words}")

    def allocate(self, size: int) -> int:
        pointer = ctypes.c_void_p()
        self.call("cudaMalloc", ctypes.byref(pointer), ctypes.c_size_t(max(size, 1)))
        return int(pointer.value or 0)

    def copy(self, to: int, source: int, size: int) -> None:
        """In any direction; returns when it is done."""
        default = 4
        self.call(
            "cudaMemcpy",
            ctypes.c_void_p(to),
            ctypes.c_void_p(source),
            ctypes.c_size_t(size),
            default,
        )
        self.call("cudaDeviceSynchronize")

    def put(self, values: npt.NDArray[Any]) -> int:
        values = np.ascontiguousarray(values)
        pointer = self.allocate(values.nbytes)
        self.copy(pointer, values.ctypes.data, values.nbytes)
        return pointer

    def get(self, pointer: int, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
        out = np.empty_like(like, order="C")
        self.copy(out.ctypes.data, pointer, out.nbytes)
        return out

    def free(self, pointer: int) -> None:
        self.call("cudaFree", ctypes.c_void_p(pointer))


def _load_runtime() -> ctypes.CDLL:
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    packages = sysconfig.get_path("purelib")
    patterns = [
        f"{home}/lib64/libcudart.so*",
        f"{home}/targets/*/lib/libcudart.so*",
        f"{packages}/nvidia/*/lib/libcudart.so*",
    ]
    found = [path for pattern in patterns for path in sorted(glob.glob(pattern))]
    for path in ["libcudart.so", *found]:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise NotHereError("there is no libcudart.so; CUDA_HOME says where to look")


# ------------------------------------------------------------------ the library


class Cuda:
    """One codec of the library, and the memory that its pointers mean."""

    def __init__(self, path: pathlib.Path, memory: Memory) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.strom_cuda_last_error.restype = ctypes.c_char_p
        self.memory = memory
        self._codec = ctypes.c_int64()
        self.call("codec_create", ctypes.c_int64(2**32 - 1), None, ctypes.byref(self._codec))

    def call(self, name: str, *arguments: Any) -> None:
        """strom_cuda_`name`; raises CallError."""
        code = self.library[f"strom_cuda_{name}"](*arguments)
        if code != 0:
            raise CallError(code, self.library.strom_cuda_last_error().decode())

    def find_entries(
        self, elements: int, segments: list[Segment], options: Options, result: Result
    ) -> None:
        self._run("find_entries", elements, segments, options, result)

    def step(
        self, elements: int, segments: list[Segment], options: Options, result: Result
    ) -> None:
        """find_entries and write_messages in one."""
        self._run("step", elements, segments, options, result)

    def _run(
        self, name: str, elements: int, segments: list[Segment], options: Options, result: Result
    ) -> None:
        array = (Segment * len(segments))(*segments)
        self.call(
            name,
            *(self._codec, ctypes.c_int64(elements), array, ctypes.c_int64(len(segments))),
            *(ctypes.byref(options), None, ctypes.byref(result)),
        )

    def write_messages(
        self, coding: codec.Coding = "auto", prefer: codec.Prefer = "size"
    ) -> list[bytes]:
        written, count = ctypes.c_int64(), ctypes.c_int64()
        self.call(
            "write_messages",
            *(self._codec, CODINGS[coding], PREFERENCES[prefer], None, ctypes.byref(written)),
        )
        self.call("messages", self._codec, ctypes.byref(count))
        messages = [self._message(i) for i in range(count.value)]
        assert written.value == sum(map(len, messages))
        return messages

    def _message(self, index: int) -> bytes:
        size = ctypes.c_int64()
        arguments = (self._codec, ctypes.c_int64(index))
        self.call("message", *arguments, None, ctypes.c_int64(0), ctypes.byref(size))
        out = np.empty(size.value, np.uint8)
        self.call(
            "message",
            *(*arguments, ctypes.c_void_p(out.ctypes.data), size, ctypes.byref(size)),
        )
        return out.tobytes()

    def encode(
        self,
        update: Floats,
        residual: Floats,
        threshold: float,
        coding: codec.Coding = "auto",
        prefer: codec.Prefer = "size",
        iteration: int = 0,
    ) -> tuple[bytes, Floats, int]:
        """The message, the residual after it and the number of entries."""
        after, held = self.memory.put(update), self.memory.put(residual)
        try:
            result = Result()
            segment = Segment(0, update.size, None, after, None, held)
            options = Options(1, threshold, iteration=iteration)
            self.find_entries(update.size, [segment], options, result)
            (message,) = self.write_messages(coding, prefer)
            return message, self.memory.get(held, residual), result.count
        finally:
            self.memory.free(after)
            self.memory.free(held)

    def apply(self, message: bytes, parameters: Floats) -> Floats:
        """The parameters after the message."""
        value = self.memory.put(parameters)
        try:
            segment = Segment(0, parameters.size, None, None, value, None)
            assert self.add(message, parameters.size, [segment]) == 0
            return self.memory.get(value, parameters)
        finally:
            self.memory.free(value)

    def add(self, message: bytes, elements: int, segments: list[Segment]) -> int:
        """Adds a message to the segments' values; returns how many entries have no place there."""
        skipped = ctypes.c_int64(-1)
        array = (Segment * len(segments))(*segments)
        self.call(
            "apply",
            *(self._codec, message, ctypes.c_int64(len(message)), ctypes.c_int64(elements)),
            *(array, ctypes.c_int64(len(segments)), None, ctypes.byref(skipped)),
        )
        return skipped.value

    def close(self) -> None:
        self.call("codec_close", self._codec)


def library_path() -> pathlib.Path:
    """Where libstrom_cuda.so is.

    Raises:
        NotHereError: nothing has built it.
    """
    for folder in ("keras_strom/_native", "build/native"):
        path = ROOT / folder / "libstrom_cuda.so"
        if path.exists():
            return path
    raise NotHereError("libstrom_cuda.so is not built: that needs nvcc (make cuda)")


@functools.cache
def device() -> Cuda:
    """The library on this machine's current device.

    Raises:
        NotHereError: it, the CUDA runtime or a device is missing.
    """
    path = library_path()
    count = ctypes.c_int32()
    if ctypes.CDLL(str(path)).strom_cuda_device_count(ctypes.byref(count)) != 0 or not count.value:
        raise NotHereError("there is no CUDA device here, or no driver for it")
    return Cuda(path, CudaRuntime())


@functools.cache
def emulated() -> Cuda:
    """The same code on the processor.

    Raises:
        NotHereError: it cannot be built here.
    """
    return Cuda(emulated_gpu.build_kernels(), HostMemory())
