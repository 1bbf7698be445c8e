"""Talks to custom_ops/bench/codec_bench, which times one measurement at a time on request."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import subprocess
from types import TracebackType
from typing import Any

from benchmarks import report
from benchmarks.other_encoders import check_entries

PROGRAM = report.ROOT / "build" / "bench" / "native" / "codec_bench"

#: Measurements whose entries are found in the pass itself, at the density that was asked for.
_ENCODERS = ("encode", "dl4j", "step")


@dataclasses.dataclass(frozen=True)
class Sample:
    """One answer.

    Attributes:
        seconds: of the fastest of a few passes.
        elements: that a pass went over.
        entries: that the last pass sent, coded or applied.
        bytes: of the last pass's message, 0 where it made none.
    """

    seconds: float
    elements: int
    entries: int
    bytes: int


class NativeCodec:
    """The running program; a context manager.

    Args:
        elements: of the arrays: enough that they do not fit into any cache.
        passes: of a measurement.
        program: built with `cmake -DSTROM_BENCH=ON`.
    """

    def __init__(self, elements: int, passes: int = 3, program: pathlib.Path = PROGRAM) -> None:
        if not program.exists():
            raise FileNotFoundError(f"{program} is not built; run: make bench-codec")
        self.elements = elements
        self._process = subprocess.Popen(
            [str(program), str(elements), str(passes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        description = self._answer()
        self.measurements: list[str] = description["measurements"]
        self.kernels: list[str] = description["kernels"]

    def __enter__(self) -> NativeCodec:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.communicate()

    def measure(self, name: str, density: float = 0, threads: int = 1, kernel: str = "") -> Sample:
        """One measurement.

        Args:
            name: one of `measurements`.
            density: of the updates' entries.
            threads: the caller's own included.
            kernel: one of `kernels`; "" is the fastest.

        Raises:
            RuntimeError: the program failed, or the density was not what it should have been.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name} {density} {threads} {kernel}\n")
        self._process.stdin.flush()
        sample = Sample(**self._answer())
        if name.startswith(_ENCODERS):
            check_entries(sample.entries, density * sample.elements)
        return sample

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"codec_bench ended with exit status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer
