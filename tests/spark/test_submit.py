"""The script of docs/spark_cluster.md, submitted as its page says to a standalone cluster."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import keras_strom.spark
from keras_strom import errors
from tests.support import standalone

DEADLINE = 280.0


def test_the_documented_script_learns_on_a_standalone_cluster(
    repository: Path, tmp_path: Path
) -> None:
    section = (repository / "docs" / "spark_cluster.md").read_text().split("\n## Standalone\n")[1]
    found = re.search(r"```python\n(.*?)```", section, re.S)
    assert found is not None
    script = tmp_path / "train.py"
    script.write_text(found.group(1))
    submit = [str(standalone.HOME / "bin" / "spark-submit")]
    settings = ["spark.ui.enabled=false", f"spark.pyspark.python={sys.executable}"]
    for setting in (*settings, "spark.executor.memory=512m"):
        submit += ["--conf", setting]
    with standalone.cluster(tmp_path) as url:
        done = subprocess.run(
            [*submit, "--master", url, str(script)],
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(standalone.HOME)},
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    accuracy = re.search(r"accuracy on \d+ others: ([\d.]+)", done.stdout)
    assert accuracy is not None, done.stdout
    assert float(accuracy.group(1)) > 0.85


def test_without_java_it_is_said_what_to_install(tmp_path: Path) -> None:
    program = (
        "import keras_strom.spark as spark\n"
        "for start in (lambda: spark.run(print, num_proc=1), lambda: spark.doctor(num_proc=1)):\n"
        "    try:\n"
        "        start()\n"
        "    except Exception as error:\n"
        "        print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=True,
    )
    words = r"^Unreachable Spark .*JAVA_GATEWAY_EXITED.* Install Java 17 or later here"
    assert len(re.findall(words, done.stdout, re.MULTILINE)) == 2, done.stdout


def test_without_cloudpickle_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(errors.InvalidOption, match="pip install cloudpickle"):
        keras_strom.spark.run(print, num_proc=1)
