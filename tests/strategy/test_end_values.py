"""What a worker says it has when a `fit` ends, so that only what differs comes from the master."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.scripts import end_values
from tests.support.two_workers import results, run_two_workers

pytestmark = pytest.mark.jobs


def test_a_worker_has_the_masters_parameters_but_for_rounding(tmp_path: Path) -> None:
    """Of what is averaged as state these are as they were at the start."""
    run_two_workers(Path(end_values.__file__), str(tmp_path))
    for found in results(tmp_path):
        assert found["moved"] > 0.1
        assert found["apart"] < 1e-5
