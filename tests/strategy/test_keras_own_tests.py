"""Keras's own tests pass with every model under StromStrategy wherever they do under TensorFlow's.

They need Keras's source, of the version that is installed, for the package comes without its tests:

    KERAS_SOURCE=/path/to/keras make test-net
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import keras
import pytest

from tests.support import keras_in_scope

pytestmark = [pytest.mark.jobs, pytest.mark.net, pytest.mark.timeout(3000)]

# Of layers, models and trainers; below keras/src of the source.
FILES = (
    "layers/normalization/batch_normalization_test.py",
    "models/functional_test.py",
    "models/model_test.py",
    "models/sequential_test.py",
    "trainers/trainer_test.py",
)


@pytest.fixture(scope="module")
def source() -> Path:
    folder = os.environ.get("KERAS_SOURCE")
    if not folder:
        pytest.skip("KERAS_SOURCE names no folder with Keras's source")
    src = Path(folder, "keras", "src")
    found = re.search(r'__version__ = "(.+)"', (src / "version.py").read_text())
    assert found is not None, f"{src / 'version.py'} has no version"
    if found.group(1) != keras.__version__:
        pytest.skip(f"KERAS_SOURCE is Keras {found.group(1)}, installed is {keras.__version__}")
    return src


# TensorFlow's own strategy may end a process (scripts/multi_device_iterator.py): so often is a file
# of tests begun anew in another one.
ATTEMPTS = {"one_device": 5, "strom": 1}


def passed(source: Path, file: str, scope: str) -> frozenset[str]:
    """Of a file, what passes with every model in a scope of tests/support/keras_in_scope."""
    for _ in range(ATTEMPTS[scope]):
        with tempfile.TemporaryDirectory() as folder:
            # Its folder has no Keras, so that it imports the installed one.
            copy = shutil.copy(source / file, folder)
            report = Path(folder, "report.xml")
            options = ["-q", "-p", keras_in_scope.__name__, "-p", "no:cacheprovider", "--tb=line"]
            options += [f"--strom-scope={scope}", f"--junitxml={report}", "-c", os.devnull]
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *options, copy],
                cwd=folder,
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"},
                capture_output=True,
                text=True,
                timeout=1400,
                check=False,
            )
            if report.exists():
                return frozenset(
                    str(case.get("name"))
                    for case in ElementTree.parse(report).iter("testcase")
                    if not len(case)  # No failure, error or reason to skip.
                )
            words = f"exit status {done.returncode}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
            assert done.returncode == -signal.SIGSEGV, words
    raise AssertionError(f"with {scope} every process has died of SIGSEGV; the last: {words}")


@pytest.mark.parametrize("file", FILES)
def test_what_passes_under_tensorflows_strategy_passes_here(file: str, source: Path) -> None:
    theirs, ours = (passed(source, file, scope) for scope in ("one_device", "strom"))
    assert theirs
    assert not theirs - ours
