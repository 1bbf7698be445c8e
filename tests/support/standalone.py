"""A Spark standalone cluster of real daemons on the loopback, made with what pip's pyspark has."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyspark

HOME = Path(pyspark.__file__).parent
_DEADLINE = 120.0

# An executor whose JVM starts once the file is there.
_LATE_JAVA = """#!/bin/bash
if [[ "$*" == *ExecutorBackend* ]]; then
  while [[ ! -e {gate} ]]; do sleep 0.1; done
fi
exec {java} "$@"
"""


@contextlib.contextmanager
def cluster(folder: Path, workers: int = 2, *, late: Path | None = None) -> Iterator[str]:
    """The master's URL, of a cluster whose workers have a core each.

    Args:
        folder: for logs and the executors' files.
        workers: so many daemons.
        late: the first worker's executors start once this file is there; None = at once.
    """
    with contextlib.ExitStack() as stack:
        master = _daemon(stack, folder / "master.log", "master.Master", "--port", "0")
        url = _find(folder / "master.log", r"Starting Spark master at (spark://\S+)", master)
        for number in range(workers):
            environment = {}
            if number == 0 and late is not None:
                environment["JAVA_HOME"] = str(_late_java(folder / "java", late))
            log = folder / f"worker{number}.log"
            limits = ["--port", "0", "--cores", "1", "--memory", "1g"]
            limits += ["--work-dir", str(folder / f"work{number}")]
            daemon = _daemon(stack, log, "worker.Worker", *limits, url, environment=environment)
            _find(log, r"(Successfully registered) with master", daemon)
        yield url


def _daemon(
    stack: contextlib.ExitStack,
    log: Path,
    name: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
    command += ["--host", "127.0.0.1", "--webui-port", "0", *arguments]
    own = {"SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1", **(environment or {})}
    output = stack.enter_context(log.open("wb"))
    daemon = stack.enter_context(
        subprocess.Popen(command, env={**os.environ, **own}, stdout=output, stderr=output)
    )
    stack.callback(daemon.terminate)
    return daemon


def _find(log: Path, pattern: str, daemon: subprocess.Popen[bytes]) -> str:
    deadline, tick = time.monotonic() + _DEADLINE, threading.Event()
    while (found := re.search(pattern, log.read_text())) is None:
        assert daemon.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        tick.wait(0.05)
    return found.group(1)


def _late_java(folder: Path, gate: Path) -> Path:
    java = shutil.which("java")
    assert java is not None
    (folder / "bin").mkdir(parents=True)
    script = folder / "bin" / "java"
    script.write_text(_LATE_JAVA.format(gate=gate, java=java))
    script.chmod(0o755)
    return folder
