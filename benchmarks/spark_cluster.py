"""A standalone Spark cluster on nodes of a network of namespaces: one core for each worker.

Node 0 holds Spark's master, and the driver of whoever uses the cluster; every other node one worker
daemon. Where there can be no namespaces, an embedded cluster ("local-cluster[...]") does instead.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from benchmarks import namespaces

PORT = 7077
_START_SECONDS = 180.0
_POLL_SECONDS = 0.2
_END_SECONDS = 20.0
_LAST_WORDS = 2000


@contextlib.contextmanager
def spark_session(
    name: str, master: str, address: str, settings: Mapping[str, str] | None = None
) -> Iterator[Any]:
    """A session whose executors find this tree.

    Args:
        name: of the application.
        master: Spark's.
        address: of the driver, which is this process.
        settings: more of them.
    """
    from pyspark.sql import SparkSession

    all_settings = {
        "spark.driver.host": address,
        "spark.driver.bindAddress": address,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        **(settings or {}),
    }
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in all_settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


class SparkCluster:
    """The daemons; a context manager that ends them.

    Args:
        network: its nodes from 1 on become workers.

    Raises:
        RuntimeError: the master does not start; its last words follow.

    Example:
        >>> with SparkCluster(network) as cluster:  # doctest: +SKIP
        ...     print(cluster.master)
        spark://10.77.0.1:7077
    """

    def __init__(self, network: namespaces.Network) -> None:
        self._network = network
        self._folder = tempfile.TemporaryDirectory(prefix="strom-spark-")
        self._daemons: list[subprocess.Popen[bytes]] = []

    @property
    def master(self) -> str:
        """The master's URL."""
        return f"spark://{self._network.address(0)}:{PORT}"

    def __enter__(self) -> SparkCluster:
        try:
            here = self._network.address(0)
            master = self._start(
                0, "master.Master", "--host", here, "--port", str(PORT), "--webui-port", "0"
            )
            self._wait_for(master)
            for node in range(1, self._network.nodes):
                # fmt: off
                self._start(
                    node, "worker.Worker", "--host", self._network.address(node),
                    "--cores", "1", "--memory", "1g", "--webui-port", "0",
                    "--work-dir", os.path.join(self._folder.name, f"work-{node}"), self.master,
                )
                # fmt: on
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def _start(self, node: int, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        import pyspark

        home = pathlib.Path(pyspark.__file__).parent
        program = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
        with self._log(node).open("wb") as log:
            daemon = subprocess.Popen(
                [*self._network.inside(node), *program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "SPARK_HOME": str(home),
                    "SPARK_LOCAL_IP": self._network.address(node),
                },
            )
        self._daemons.append(daemon)
        return daemon

    def _wait_for(self, master: subprocess.Popen[bytes]) -> None:
        """Until it listens; workers and drivers would give up after a while."""
        knock = f"exec 3<>/dev/tcp/{self._network.address(0)}/{PORT}"
        deadline = time.monotonic() + _START_SECONDS
        while subprocess.run(
            [*self._network.inside(0), "bash", "-c", knock], stderr=subprocess.DEVNULL
        ).returncode:
            if master.poll() is not None or time.monotonic() > deadline:
                words = self._log(0).read_text(errors="replace")
                raise RuntimeError(f"Spark's master does not start:\n{words[-_LAST_WORDS:]}")
            time.sleep(_POLL_SECONDS)

    def _log(self, node: int) -> pathlib.Path:
        return pathlib.Path(self._folder.name, f"node-{node}.log")

    def _end(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._daemons.clear()
        self._folder.cleanup()
