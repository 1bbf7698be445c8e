"""Speed of the codec on a device, against its copy rate and against CUB's select.

`.ci/cuda` builds libstrom_cuda.so with nvcc, runs the tests of the device and then this. Memory
comes from the CUDA runtime through ctypes, so no package is needed beyond what the tests have.
Without a device every target is skipped, with the reason.
"""

import ctypes
import functools
import pathlib
import shutil
import subprocess
import time
from collections.abc import Callable

import numpy as np

from benchmarks.report import Report, interleave
from tests.support import cuda_library
from tests.support.cuda_library import Cuda, CudaRuntime, NotHereError, Options, Result, Segment

#: Far more than any cache: each array takes 1 GiB.
ELEMENTS = 1 << 28
DENSITIES = (0.0, 1e-4, 1e-3, 1e-2, 0.1)
#: An encode reads the update and the residual and writes the residual; a copy reads and writes.
ENCODE_BYTES = 12 * ELEMENTS
COPY_BYTES = 8 * ELEMENTS
THRESHOLD = 1.0


class Arrays:
    """The device's memory of one run, made once and used by all variants."""

    def __init__(self, runtime: CudaRuntime, baselines: ctypes.CDLL) -> None:
        self.runtime = runtime
        self.update, self.start, self.residual = (runtime.allocate(4 * ELEMENTS) for _ in range(3))
        self.indices = runtime.allocate(8 * ELEMENTS)
        self.count = runtime.allocate(8)
        size = ctypes.c_size_t()
        assert baselines.baseline_cub_bytes(ctypes.c_int64(ELEMENTS), ctypes.byref(size)) == 0
        self.temporary_bytes = size
        self.temporary = runtime.allocate(size.value)

    def fill(self, density: float) -> None:
        """An update and a residual, of which `density` of the sums reach the threshold."""
        random = np.random.default_rng(1)
        block = 1 << 24
        sums = random.uniform(-0.99, 0.99, block).astype(np.float32)
        reach = random.random(block) < density
        sums[reach] += np.copysign(np.float32(1.01), sums[reach])
        residual = random.uniform(-0.9, 0.9, block).astype(np.float32)
        update = sums - residual
        for first in range(0, ELEMENTS, block):
            self.runtime.copy(self.update + 4 * first, update.ctypes.data, update.nbytes)
            self.runtime.copy(self.start + 4 * first, residual.ctypes.data, residual.nbytes)

    def timed(self, call: Callable[[], None]) -> float:
        """Seconds of `call` and all that it queued, from a residual that is as at the start."""
        self.runtime.copy(self.residual, self.start, 4 * ELEMENTS)
        begin = time.perf_counter()
        call()
        self.runtime.call("cudaDeviceSynchronize")
        return time.perf_counter() - begin


def build_baselines() -> ctypes.CDLL:
    """The baselines' library, compiled for the device that is here."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise NotHereError("nvcc is needed to build the baselines")
    source = pathlib.Path(__file__).with_name("cuda_baselines.cu")
    target = cuda_library.ROOT / "build" / "bench" / "libcuda_baselines.so"
    target.parent.mkdir(parents=True, exist_ok=True)
    options = ["-O3", "-std=c++17", "-arch=native", "-shared", "-Xcompiler", "-fPIC"]
    subprocess.run([nvcc, *options, "-o", str(target), str(source)], check=True)
    return ctypes.CDLL(str(target))


def variants(
    cuda: Cuda, baselines: ctypes.CDLL, arrays: Arrays
) -> dict[str, Callable[[], float | None]]:
    """What is measured in turn: the copy, the codec without and with coding, CUB."""
    segment = Segment(0, ELEMENTS, None, arrays.update, None, arrays.residual)

    def copy() -> None:
        arrays.runtime.call(
            "cudaMemcpyAsync",
            *(ctypes.c_void_p(arrays.residual), ctypes.c_void_p(arrays.update)),
            *(ctypes.c_size_t(4 * ELEMENTS), 3, None),
        )

    def encode() -> None:
        cuda.find_entries(ELEMENTS, [segment], Options(1, THRESHOLD), Result())

    def encode_coded() -> None:
        encode()
        cuda.write_messages()

    def cub() -> None:
        code = baselines.baseline_cub(
            *(ctypes.c_void_p(arrays.update), ctypes.c_void_p(arrays.residual)),
            *(ctypes.c_int64(ELEMENTS), ctypes.c_float(THRESHOLD)),
            *(ctypes.c_void_p(arrays.indices), ctypes.c_void_p(arrays.count)),
            *(ctypes.c_void_p(arrays.temporary), arrays.temporary_bytes),
        )
        assert code == 0

    calls = {"copy": copy, "encode": encode, "encode and code": encode_coded, "CUB": cub}
    return {name: functools.partial(arrays.timed, call) for name, call in calls.items()}


def check_agreement(cuda: Cuda, arrays: Arrays, run: dict[str, Callable[[], float | None]]) -> None:
    """Codec and CUB find the same number of entries, so they did the same work."""
    run["CUB"]()
    found = int(arrays.runtime.get(arrays.count, np.empty(1, np.int64))[0])
    arrays.runtime.copy(arrays.residual, arrays.start, 4 * ELEMENTS)
    result = Result()
    segment = Segment(0, ELEMENTS, None, arrays.update, None, arrays.residual)
    cuda.find_entries(ELEMENTS, [segment], Options(1, THRESHOLD), result)
    if result.count != found:
        raise AssertionError(f"the codec found {result.count} entries and CUB {found}")


def measure(report: Report) -> None:
    """Adds all rows and targets."""
    cuda, baselines, runtime = cuda_library.device(), build_baselines(), CudaRuntime()
    arrays = Arrays(runtime, baselines)
    run = variants(cuda, baselines, arrays)
    of_copy, over_cub = [], []
    for density in DENSITIES:
        arrays.fill(density)
        check_agreement(cuda, arrays, run)
        timings = interleave(run)
        of_copy.append(timings.speedup("encode", "copy") * ENCODE_BYTES / COPY_BYTES)
        over_cub.append(timings.speedup("encode", "CUB"))
        report.row(
            f"density {density:g}",
            group=f"{ELEMENTS:,} elements",
            copy_GBps=COPY_BYTES / timings.median("copy") / 1e9,
            encode_GBps=ENCODE_BYTES / timings.median("encode") / 1e9,
            encode_ms=timings.median("encode") * 1e3,
            coded_ms=timings.median("encode and code") * 1e3,
            CUB_ms=timings.median("CUB") * 1e3,
            of_copy_rate=of_copy[-1],
            times_CUB=over_cub[-1],
        )
    report.target("gpu_encode_copy", min(of_copy), 0.85)
    report.target("gpu_encode_cub", min(over_cub), 1.15)


def main() -> None:
    """Measures, or says why not."""
    report = Report("cuda", "The codec on a CUDA device")
    try:
        measure(report)
    except NotHereError as reason:
        for target in ("gpu_encode_copy", "gpu_encode_cub"):
            report.skip(target, str(reason))
    report.finish()


if __name__ == "__main__":
    main()
