"""It really communicates: what one worker has never seen, it learns from the other."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import pytest

from tests.support.two_workers import results, run_two_workers

pytestmark = pytest.mark.jobs

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "support" / "scripts" / "split_classes.py"


def accuracies_and_reports(output: pathlib.Path, *flags: str) -> list[dict[str, Any]]:
    """What each worker has written of a training on its half of the classes."""
    output.mkdir()
    path = os.pathsep.join((os.environ["PYTHONPATH"], str(ROOT / "examples")))
    run_two_workers(SCRIPT, str(output), *flags, env={"PYTHONPATH": path})
    return results(output)


@pytest.mark.timeout(900)
def test_each_worker_learns_the_classes_that_only_the_other_holds(tmp_path: pathlib.Path) -> None:
    shared = accuracies_and_reports(tmp_path / "together")
    alone = accuracies_and_reports(tmp_path / "silent", "--silent")
    assert all(worker["accuracy"] >= 0.80 for worker in shared), shared
    assert all(worker["accuracy"] < 0.55 for worker in alone), alone
    # Measured before any final copy.
    assert all(worker["report"]["max_replica_difference"] == 0 for worker in shared), shared
