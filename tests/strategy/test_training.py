"""It really communicates: what one worker has never seen, it learns from the other."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run_two_workers(script: str, output: pathlib.Path, *flags: str) -> list[dict[str, Any]]:
    """`keras-strom run -np 2 script`; returns what each rank wrote."""
    path = os.pathsep.join((str(ROOT), str(ROOT / "examples")))
    launch = [sys.executable, "-m", "keras_strom", "run", "-np", "2"]
    completed = subprocess.run(
        [*launch, str(ROOT / "tests" / "scripts" / script), str(output), *flags],
        env={**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout[-4000:] + completed.stderr[-4000:]
    return [json.loads((output / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.timeout(900)
def test_each_worker_learns_the_classes_that_only_the_other_holds(tmp_path: pathlib.Path) -> None:
    together, silent = tmp_path / "together", tmp_path / "silent"
    together.mkdir()
    silent.mkdir()
    shared = run_two_workers("split_classes.py", together)
    alone = run_two_workers("split_classes.py", silent, "--silent")
    assert all(worker["accuracy"] >= 0.80 for worker in shared), shared
    assert all(worker["accuracy"] < 0.55 for worker in alone), alone
    # Measured before any final copy.
    assert all(worker["report"]["max_replica_difference"] == 0 for worker in shared), shared
