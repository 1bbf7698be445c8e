"""Spark Connect: a StromModel works on its DataFrames, and training is refused in words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyspark")
for needed in ("grpc_status", "google.rpc", "zstandard"):
    pytest.importorskip(needed, reason="Spark Connect needs it: pip install 'keras-strom[test]'")

DEADLINE = 280.0


def test_a_model_predicts_where_nothing_can_be_trained(repository: Path) -> None:
    # In a process of its own: a process has sessions of Spark or of Spark Connect.
    done = subprocess.run(
        [sys.executable, str(repository / "tests/support/scripts/spark_connect.py")],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    np.testing.assert_allclose(found["predicted"], found["expected"], rtol=1e-4, atol=1e-5)
    assert found["evaluated"] == pytest.approx(found["loss"], rel=1e-4)
    for work in ("fit", "run", "session"):
        assert "Spark Connect session cannot run workers" in found[work]
        assert "spark-submit" in found[work]
    assert "travels" in found["too large"]
    assert "spark-submit" in found["too large"]
