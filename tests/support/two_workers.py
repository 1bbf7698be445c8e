"""Runs a script as users do, `keras-strom run -np 2`, with a real relay on the loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

WORKERS = 2


def launch(
    script: Path,
    *arguments: str,
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    timeout: float = 250,
) -> subprocess.CompletedProcess[str]:
    """Runs a job to its end, which may be a failure.

    Args:
        script: what both workers run.
        arguments: of the script.
        options: of `keras-strom run`.
        env: variables on top of this process's own.
        timeout: seconds.
    """
    command = [sys.executable, "-m", "keras_strom", "run", "-np", str(WORKERS), *options]
    return subprocess.run(
        [*command, str(script), *arguments],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def run_two_workers(
    script: Path, *arguments: str, env: Mapping[str, str] | None = None, timeout: float = 250
) -> None:
    """The same for a job that ends well.

    Raises:
        AssertionError: it has not; with the end of what it has shown.
    """
    done = launch(script, *arguments, env=env, timeout=timeout)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-4000:]


def results(folder: Path | str) -> list[dict[str, Any]]:
    """What the workers have written to RANK.json, by rank."""
    return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(WORKERS)]


def weights(folder: Path | str) -> list[dict[str, np.ndarray]]:
    """What they have written to RANK.npz, by rank; by name."""
    return [dict(np.load(Path(folder, f"{rank}.npz"))) for rank in range(WORKERS)]
