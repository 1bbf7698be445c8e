"""Runs a script as users do, `keras-strom run -np 2`, with a real relay on the loopback."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from keras_strom import cli

WORKERS = 2
#: Of every job, so that all fork from one process.
VARIABLES = {"TF_CPP_MIN_LOG_LEVEL": "3"}


@dataclasses.dataclass(frozen=True)
class Ended:
    """What a job has shown, and the exit code of `keras-strom run`."""

    returncode: int
    stdout: str
    stderr: str


def launch(
    script: Path,
    *arguments: str,
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    workers: int = WORKERS,
) -> Ended:
    """Runs a job to its end, which may be a failure.

    The jobs of a test process fork their workers from one process that has imported TensorFlow.

    Args:
        script: what all workers run.
        arguments: of the script.
        options: of `keras-strom run`.
        env: variables on top of this process's own.
        workers: how many there are.
    """
    command = ["run", "-np", str(workers), "--warm-start", *options, str(script), *arguments]
    stdout, stderr = io.StringIO(), io.StringIO()
    handler = signal.getsignal(signal.SIGTERM)  # The command has one of its own.
    try:
        with (
            mock.patch.dict(os.environ, {**VARIABLES, **(env or {})}),
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(stderr),
        ):
            code = cli.main(command)
    finally:
        signal.signal(signal.SIGTERM, handler)
        sys.stdout.write(stdout.getvalue() + stderr.getvalue())  # Shown where the test fails.
    return Ended(code, stdout.getvalue(), stderr.getvalue())


def run_two_workers(script: Path, *arguments: str, env: Mapping[str, str] | None = None) -> None:
    """The same for a job that ends well.

    Raises:
        AssertionError: it has not; with the end of what it has shown.
    """
    done = launch(script, *arguments, env=env)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-4000:]


def results(folder: Path | str) -> list[dict[str, Any]]:
    """What the workers have written to RANK.json, by rank."""
    return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(WORKERS)]


def weights(folder: Path | str) -> list[dict[str, np.ndarray]]:
    """What they have written to RANK.npz, by rank; by name."""
    return [dict(np.load(Path(folder, f"{rank}.npz"))) for rank in range(WORKERS)]
