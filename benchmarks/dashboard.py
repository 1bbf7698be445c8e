"""`make bench-dashboard`: what a step costs more while the job's live page is open.

The same job of two workers runs in turn with a page that is read as a browser reads it, and without
one; the target compares the mean time of worker 0's steps. On a machine that does other work the
ratio is as noisy as its steps, so the processor time that the workers' reports take stands beside
it: a share of one core, which no noise changes much.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import report
from benchmarks.other_work import OtherWork

ROUNDS = 7
SECONDS = 12.0
_START_SECONDS = 300.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Times both and shows the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of training, each time")
    parser.add_argument("--quick", action="store_true", help="two rounds of three seconds")
    parser.add_argument("--output", type=pathlib.Path, default=report.OUTPUT)
    chosen = parser.parse_args(arguments)
    rounds, seconds = (2, 3.0) if chosen.quick else (chosen.rounds, chosen.seconds)
    title = "A step while the live page is open"
    result = report.Report("dashboard", title, chosen.output, quick=chosen.quick)
    others = OtherWork()
    figures: dict[bool, list[dict[str, float]]] = {False: [], True: []}

    def run(page: bool) -> float:
        found = train(page, seconds)
        figures[page].append(found)
        return found["step_seconds"]

    timings = report.interleave(
        {"page": lambda: run(True), "no page": lambda: run(False)}, rounds=rounds, warm_ups=0
    )
    for name, page in (("without a page", False), ("with the page open", True)):
        shares = [one["reports_cpu_share"] for one in figures[page]]
        result.row(
            name,
            group="Two workers, a perceptron of 1.3 million parameters",
            step_ms=1e3 * timings.median("page" if page else "no page"),
            reports_cpu_percent_of_a_core=100 * statistics.median(shares),
        )
    overhead = timings.speedup("no page", over="page")
    low, high = timings.spread("no page", over="page")
    result.row("ratio of the rounds", group="Noise", lower_quartile=low, upper_quartile=high)
    others.add_row(result)
    result.target("dashboard_overhead", overhead, goal=1.005, better="lower")
    result.finish()


def train(page: bool, seconds: float) -> dict[str, float]:
    """One job; what worker 0 has measured.

    Raises:
        RuntimeError: it failed; its output follows.
    """
    with tempfile.TemporaryDirectory(prefix="strom-bench-") as folder:
        result = pathlib.Path(folder, "result.json")
        job = pathlib.Path(__file__).with_name("dashboard_job.py")
        command = [sys.executable, "-m", "keras_strom", "run", "-np", "2"]
        process = subprocess.Popen(
            [*command, *(["--dashboard"] if page else []), str(job), str(seconds), str(result)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "XDG_STATE_HOME": folder, "XDG_RUNTIME_DIR": ""},
        )
        assert process.stdout is not None
        said = []
        with process, contextlib.ExitStack() as reading:
            for line in process.stdout:
                said.append(line)
                if "page is http" in line:
                    reading.enter_context(_open_page(line.split()[-1]))
        if process.returncode:
            raise RuntimeError(f"the job has failed:\n{''.join(said)}")
        found: dict[str, float] = json.loads(result.read_text(encoding="utf-8"))
    return found


@contextlib.contextmanager
def _open_page(url: str) -> Iterator[None]:
    """Reads as the page in a browser does."""
    over = threading.Event()

    def read() -> None:
        number = 0
        while not over.wait(1.0):
            number += 1
            with contextlib.suppress(OSError):
                _get(f"{url}state.json")
                if number % 3 == 0:
                    _get(f"{url}series.json?metric=loss&ranks=0,1")
                    _get(f"{url}series.json?metric=step%20seconds&ranks=0,1")

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


if __name__ == "__main__":
    main()
