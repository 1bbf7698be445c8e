"""Spark Connect: a StromModel works on its DataFrames; workers train where the driver is here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.scripts import spark_connect

pytest.importorskip("pyspark")
for needed in ("grpc_status", "google.rpc", "zstandard"):
    pytest.importorskip(needed, reason="Spark Connect needs it: pip install 'keras-strom[test]'")

DEADLINE = 280.0
SCRIPT = Path(spark_connect.__file__)
ENVIRONMENT = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}


def done(*arguments: str) -> dict[str, Any]:
    """What a script of a process of its own finds: one has sessions of Spark or of Connect."""
    process = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    found: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return found


@pytest.fixture
def server() -> Iterator[str]:
    """The URL of a server in another process."""
    command = [sys.executable, str(SCRIPT), "serve"]
    with subprocess.Popen(
        command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
        process.communicate(timeout=DEADLINE)


def test_a_model_predicts_where_nothing_can_be_trained(server: str) -> None:
    found = done("far", server)
    np.testing.assert_allclose(found["predicted"], found["expected"], rtol=1e-4, atol=1e-5)
    assert found["evaluated"] == pytest.approx(found["loss"], rel=1e-4)
    for work in ("fit", "run", "session", "save"):
        assert "Spark Connect session cannot run workers" in found[work]
        assert "spark-submit" in found[work]
    assert "travels" in found["too large"]
    assert "spark-submit" in found["too large"]


def test_workers_train_where_the_server_is_in_this_process(tmp_path: Path) -> None:
    found = done("near", str(tmp_path))
    assert found["ranks"] == [[0, 2], [1, 2]]
    assert found["after"] < 0.01 * found["before"]
    assert found["loaded"] == pytest.approx(found["after"], rel=1e-4)
    assert found["predicted"] == 200
    assert "loss" in found["stored"]
    assert "loss" in found["averaged"]
