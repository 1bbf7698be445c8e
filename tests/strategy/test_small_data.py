"""A few hundred rows are enough for two workers: they end where one ends that has them all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.scripts import small_data
from tests.support.two_workers import results, run_two_workers

pytestmark = [pytest.mark.jobs, pytest.mark.net, pytest.mark.timeout(1200)]

SEEDS = ("0", "1", "2")


@pytest.mark.parametrize("pictures", ["digits", "clothes"])
def test_two_workers_are_not_behind_one_by_more_than_a_point(pictures: str, tmp_path: Path) -> None:
    if pictures == "digits":
        pytest.importorskip("sklearn", reason="scikit-learn, which has the digits, is missing")
    script = Path(small_data.__file__)
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, str(script), str(tmp_path), pictures, *SEEDS]
    subprocess.run(command, env=environment, timeout=500, check=True)
    one = json.loads((tmp_path / "0.json").read_text())
    run_two_workers(script, str(tmp_path), pictures, *SEEDS)
    two, same = results(tmp_path)
    assert two == same
    assert np.mean(two) > np.mean(one) - 0.01
