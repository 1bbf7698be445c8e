"""Speed of the codec on a device: against its copy rate, CUB's select and composites of PyTorch.

`.ci/cuda` builds libstrom_cuda.so with nvcc, runs the tests of the device and then this. Memory
comes from the CUDA runtime through ctypes, so no package is needed beyond what the tests have;
where PyTorch is, what deep gradient compression makes of its operators is measured too: the largest
k of all sums (`topk`), or those over a threshold that a sample of 1 in 1000 has given (Lin et al.,
2018), which leave the residual with all that they hold.
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

from benchmarks import pictures
from benchmarks.report import Report, interleave
from tests.support import cuda_library
from tests.support.cuda_library import Cuda, CudaRuntime, NotHereError, Options, Result, Segment

#: 100 million, in whole blocks of `BLOCK`: each array is eight times an H100's cache.
BLOCK = 1 << 24
ELEMENTS = 6 * BLOCK
DENSITIES = (0.0, 1e-4, 1e-3, 1e-2, 0.1)
#: An encode reads the update and the residual and writes the residual; a copy reads and writes.
ENCODE_BYTES = 12 * ELEMENTS
#: The default step reads the parameters before and after it besides.
FULL_BYTES = 16 * ELEMENTS
COPY_BYTES = 8 * ELEMENTS
#: Of which the targets are.
USUAL = (1e-3, 1e-2)
THRESHOLD = 1.0
MILLISECONDS = "Milliseconds"
TARGETS = {
    "gpu_encode_copy": 0.85,
    "gpu_step_copy": 0.85,
    "gpu_apply_copy": 0.85,
    "gpu_encode_cub": 1.15,
}


def of_density(density: float) -> str:
    """The name of its rows."""
    return f"density {density:g}"


class Arrays:
    """The device's memory of one run, made once and used by all variants."""

    def __init__(self, runtime: CudaRuntime, baselines: ctypes.CDLL) -> None:
        self.runtime = runtime
        arrays = (runtime.allocate(4 * ELEMENTS) for _ in range(5))
        self.update, self.start, self.residual, self.before, self.after = arrays
        self.indices = runtime.allocate(8 * ELEMENTS)
        self.count = runtime.allocate(8)
        size = ctypes.c_size_t()
        assert baselines.baseline_cub_bytes(ctypes.c_int64(ELEMENTS), ctypes.byref(size)) == 0
        self.temporary_bytes = size
        self.temporary = runtime.allocate(size.value)

    def fill(self, density: float) -> None:
        """An update and a residual, of which `density` of the sums reach the threshold."""
        random = np.random.default_rng(1)
        sums = random.uniform(-0.99, 0.99, BLOCK).astype(np.float32)
        reach = random.random(BLOCK) < density
        sums[reach] += np.copysign(np.float32(1.01), sums[reach])
        residual = random.uniform(-0.9, 0.9, BLOCK).astype(np.float32)
        before = random.normal(size=BLOCK).astype(np.float32)
        update = sums - residual
        filled = (self.update, update), (self.start, residual)
        filled += (self.before, before), (self.after, before + update)
        for first in range(0, ELEMENTS, BLOCK):
            for to, values in filled:
                self.runtime.copy(to + 4 * first, values.ctypes.data, values.nbytes)

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

    after = Segment(0, ELEMENTS, arrays.before, arrays.after, arrays.after, arrays.residual)

    def full() -> None:
        cuda.find_entries(ELEMENTS, [after], Options(1, THRESHOLD, full=1), Result())

    def step() -> None:
        cuda.step(ELEMENTS, [after], Options(1, THRESHOLD, full=1), Result())

    calls = {"copy": copy, "encode": encode, "encode and code": encode_coded}
    calls |= {"full step": full, "full step and code": step, "CUB": cub}
    return {name: functools.partial(arrays.timed, call) for name, call in calls.items()}


def applying(cuda: Cuda, arrays: Arrays) -> Callable[[], float | None]:
    """What adds a message of the latest arrays to as many values."""
    arrays.runtime.copy(arrays.residual, arrays.start, 4 * ELEMENTS)
    segment = Segment(0, ELEMENTS, None, arrays.update, None, arrays.residual)
    cuda.find_entries(ELEMENTS, [segment], Options(1, THRESHOLD), Result())
    (message,) = cuda.write_messages()
    values = Segment(0, ELEMENTS, None, None, arrays.residual, None)

    def apply() -> None:
        assert cuda.add(message, ELEMENTS, [values]) == 0

    return functools.partial(arrays.timed, apply)


def composites(density: float) -> dict[str, Callable[[], float | None]]:
    """PyTorch's ways to the largest sums; none where it is missing."""
    try:
        import torch
    except ImportError:
        return {}
    update, residual = (torch.randn(ELEMENTS, device="cuda") for _ in range(2))
    k = int(density * ELEMENTS)

    def largest() -> None:
        sums = residual.add_(update)
        indices = torch.topk(sums.abs(), k, sorted=False).indices
        taken = sums[indices]
        sums[indices] = 0
        del taken

    def sampled() -> None:
        sums = residual.add_(update)
        sizes = sums.abs()
        sample = sizes[torch.randint(ELEMENTS, (ELEMENTS // 1000,), device="cuda")]
        threshold = torch.topk(sample, max(int(density * len(sample)), 1)).values[-1]
        indices = (sizes >= threshold).nonzero().squeeze(1)
        taken = sums[indices]
        sums[indices] = 0
        del taken

    def timed(call: Callable[[], None]) -> float:
        residual.normal_()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    calls = {"PyTorch topk": largest, "PyTorch sampled": sampled}
    return {name: functools.partial(timed, call) for name, call in calls.items()}


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
    rates: dict[str, list[float]] = {name: [] for name in TARGETS}
    for density in DENSITIES:
        arrays.fill(density)
        check_agreement(cuda, arrays, run)
        peers = composites(density) if density in USUAL else {}
        timings = interleave({**run, "apply": applying(cuda, arrays), **peers})
        ms = {name: 1e3 * timings.median(name) for name in timings.rounds}
        of_copy = {
            "gpu_encode_copy": timings.speedup("encode", "copy") * ENCODE_BYTES / COPY_BYTES,
            "gpu_step_copy": timings.speedup("full step", "copy") * FULL_BYTES / COPY_BYTES,
            "gpu_apply_copy": timings.speedup("apply", "copy"),
            "gpu_encode_cub": timings.speedup("encode", "CUB"),
        }
        report.row(
            of_density(density),
            group=f"{ELEMENTS:,} elements",
            copy_GBps=COPY_BYTES / timings.median("copy") / 1e9,
            encode_of_copy=of_copy["gpu_encode_copy"],
            step_of_copy=of_copy["gpu_step_copy"],
            apply_of_copy=of_copy["gpu_apply_copy"],
            times_CUB=of_copy["gpu_encode_cub"],
        )
        report.row(
            of_density(density),
            group=MILLISECONDS,
            **{name.replace(" ", "_") + "_ms": value for name, value in ms.items()},
        )
        for name, value in of_copy.items():
            if density in USUAL:
                rates[name].append(value)
    for name, goal in TARGETS.items():
        report.target(name, min(rates[name]), goal)


def draw(report: Report) -> None:
    """Bars of the ways to what is sent, a panel a density."""
    names = {"full_step_and_code_ms": ("keras-strom, a whole step", pictures.ORANGE)}
    names |= {"CUB_ms": ("CUB, indices alone", pictures.GREY)}
    names |= {f"PyTorch_{way}_ms": (f"PyTorch, {way}", pictures.SKY) for way in ("sampled", "topk")}
    rows = [row for row in report.rows if row["group"] == MILLISECONDS]
    rows = [row for row in rows if row["name"] in map(of_density, USUAL)]
    figure, panels = pictures.picture(len(rows), width=5.5, height=2.6)
    for axes, row in zip(panels, rows, strict=True):
        found = [(row[key], *name) for key, name in names.items() if key in row]
        pictures.bars(axes, [[pictures.Bar(name, ms, color) for ms, name, color in found]])
        pictures.caption(axes, row["name"], f"ms, {ELEMENTS // 10**6} million elements", "")
    pictures.save(figure, report.name)


def main() -> None:
    """Measures, or says why not."""
    report = Report("cuda", "The codec on a CUDA device")
    try:
        measure(report)
        draw(report)
    except NotHereError as reason:
        report.skip_all(TARGETS, str(reason))
    report.finish()


if __name__ == "__main__":
    main()
