"""Scripts as Keras's users write them, in plain Keras, with one worker, and with two.

The scripts are tests/support/keras_examples/*.py; each job runs several in turn. `make test-net`
runs all of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.support import two_workers
from tests.support.kept import once
from tests.support.scripts import keras_examples
from tests.support.scripts.keras_examples import BARS, FAST, FOLDER, OTHERS, check_both
from tests.support.two_workers import run_two_workers

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(3000)]

SCRIPT = Path(keras_examples.__file__)

each = pytest.mark.parametrize(
    "name", [*FAST, *(pytest.param(name, marks=pytest.mark.net) for name in OTHERS)]
)


def jobs_names(name: str) -> tuple[str, ...]:
    """All that are run in the processes that run this one."""
    return FAST if name in FAST else OTHERS


@once
def alone(names: tuple[str, ...]) -> dict[str, dict[str, dict[str, Any]]]:
    """What one process has made of the scripts, by way and name."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(SCRIPT), folder, *names]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=2800, check=False
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        ways: dict[str, dict[str, dict[str, Any]]]
        ways = json.loads(Path(folder, "alone.json").read_text())
        return ways


@once
def in_two_workers(names: tuple[str, ...]) -> list[dict[str, dict[str, Any]]]:
    """What two workers have made of them, by rank and name."""
    with tempfile.TemporaryDirectory() as folder:
        run_two_workers(SCRIPT, folder, *names)
        return two_workers.results(folder)


def test_every_script_has_its_bar() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == set(BARS)


@each
def test_one_worker_gives_the_bits_of_plain_keras(name: str) -> None:
    ways = alone(jobs_names(name))
    plain, lone = ways["plain"][name], ways["lone"][name]
    assert not plain["failure"], plain["failure"]
    assert not lone["failure"], lone["failure"]
    assert plain["loss"] < BARS[name]
    assert lone["digest"] == plain["digest"]
    assert lone["loss"] == pytest.approx(plain["loss"])


@each
def test_two_workers_have_learnt_at_least_what_one_learns_of_its_half(name: str) -> None:
    loss = check_both(in_two_workers(jobs_names(name)), name)
    half = alone(jobs_names(name))["half"][name]["loss"]
    # What another order of the updates changes.
    assert loss < 1.15 * half + 0.05 * BARS[name]
