"""Keras's own tests pass with every model under StromStrategy wherever they do under TensorFlow's.

They need Keras's source, of the version that is installed, for the package comes without its tests:

    KERAS_SOURCE=/path/to/keras make test-net
"""

from __future__ import annotations

import functools
import os
import re
import shutil
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


@functools.cache
def passed(source: Path, scope: str) -> frozenset[tuple[str, str]]:
    """Of all files, what passes with every model in a scope of tests/support/keras_in_scope.

    By the name of the file's copy and the test's.
    """
    with tempfile.TemporaryDirectory() as folder:
        copies = [shutil.copy(source / file, Path(folder, copy_of(file))) for file in FILES]
        report = Path(folder, "report.xml")
        options = ["-q", "-p", keras_in_scope.__name__, "-p", "no:cacheprovider", "--tb=line"]
        options += [f"--strom-scope={scope}", f"--junitxml={report}", "-c", os.devnull]
        done = subprocess.run(
            # Their folder has no Keras, so that they import the installed one.
            [sys.executable, "-m", "pytest", *options, *map(str, copies)],
            cwd=folder,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"},
            capture_output=True,
            text=True,
            timeout=2500,
            check=False,
        )
        assert report.exists(), done.stdout[-3000:] + done.stderr[-3000:]
        return frozenset(
            (str(case.get("classname")).partition(".")[0], str(case.get("name")))
            for case in ElementTree.parse(report).iter("testcase")
            if not len(case)  # No failure, error or reason to skip.
        )


def copy_of(file: str) -> str:
    """A name without folders."""
    return file.replace("/", "_")


@pytest.mark.parametrize("file", FILES)
def test_what_passes_under_tensorflows_strategy_passes_here(file: str, source: Path) -> None:
    copy = copy_of(file).removesuffix(".py")
    theirs, ours = (
        {test for where, test in passed(source, scope) if where == copy}
        for scope in ("one_device", "strom")
    )
    assert theirs
    assert not theirs - ours
