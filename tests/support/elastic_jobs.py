"""Runs jobs of tests/support/scripts/elastic.py, whose workers or master die as they are told."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from keras_strom import NetworkConfig
from keras_strom.recovery.checkpoint_files import Part, read_part
from keras_strom.runner.console import Console
from keras_strom.runner.launcher import Job, launch
from keras_strom.runner.master_options import Master, MasterOptions
from keras_strom.runner.start_master import start_master
from keras_strom.runner.work import Script
from tests.support import faults
from tests.support.faults import Fault
from tests.support.scripts import elastic
from tests.support.two_workers import VARIABLES

#: Seconds until a job has a checkpoint, at most.
DEADLINE = 200.0


class Ended:
    """What the workers of a job have written and shown, and what the master has seen."""

    def __init__(self, workers: int, folder: Path, output: str, status: dict[str, Any]) -> None:
        self.results = [json.loads((folder / f"{r}.json").read_text()) for r in range(workers)]
        self.weights = [dict(np.load(folder / f"{r}.npz")) for r in range(workers)]
        self.output = output
        self.events = [(event["type"], event["rank"]) for event in status["events"]]

    def check(self) -> None:
        """All have the same bits, and have learnt."""
        for other in self.weights[1:]:
            for name, value in self.weights[0].items():
                np.testing.assert_array_equal(other[name], value)
        # What undisturbed jobs learn is right for 0.96 of the test data.
        assert all(result["accuracy"] > 0.93 for result in self.results)


class WatchedMaster:
    """Starts a job's master and keeps hold of it."""

    master: Master | None = None

    def start(self, options: MasterOptions) -> Master:
        self.master = start_master(options)
        return self.master

    def status(self) -> dict[str, Any]:
        return {} if self.master is None else dict(self.master.status())


def run_until_killed(
    folder: Path, work: elastic.Job, checkpoints: Path, workers: int
) -> dict[int, Part]:
    """Kills a job without warning once it has a checkpoint; returns the parts of the latest."""
    command = [sys.executable, "-m", "keras_strom", "run", "-np", str(workers)]
    command += ["--checkpoint-dir", str(checkpoints), "--checkpoint-interval", "0.4"]
    command += [elastic.__file__, str(folder), json.dumps(vars(work))]
    with subprocess.Popen(command, env={**os.environ}, start_new_session=True) as job:
        deadline, tick = time.monotonic() + DEADLINE, threading.Event()
        try:
            while not list(checkpoints.glob("checkpoint-*")):
                assert job.poll() is None, "the job has ended by itself"
                assert time.monotonic() < deadline, "no checkpoint was made"
                tick.wait(0.02)
        finally:
            job.send_signal(signal.SIGKILL)
    return latest_parts(checkpoints)


def latest_parts(checkpoints: Path) -> dict[int, Part]:
    """The newest checkpoint's parts by rank; a worker that was slow or dead has left none."""
    latest = max(checkpoints.glob("checkpoint-*"))
    return {part.rank: part for part in map(read_part, latest.iterdir())}


def run(
    folder: Path,
    work: elastic.Job,
    *what: Fault,
    workers: int = 2,
    network: NetworkConfig | None = None,
    master: WatchedMaster | None = None,
    min_workers: int | None = None,
    consequences: int = 0,
) -> Ended:
    """Runs a job to its end, in which `consequences` workers fail for what others have met."""
    output, master = io.StringIO(), master or WatchedMaster()
    job = Job(
        work=Script(elastic.__file__, (str(folder), json.dumps(vars(work)), faults.to_json(*what))),
        workers=workers,
        network=network or NetworkConfig(),
        env=VARIABLES,
        max_failures=consequences
        + sum(fault.attempts for fault in what if fault.mode not in faults.DRAINS),
        min_workers=min_workers,
        warm_start=True,
    )
    try:
        launch(job, Console(workers, output), master.start)
    finally:
        sys.stdout.write(output.getvalue())  # Shown where the test fails.
    return Ended(workers, folder, output.getvalue(), master.status())
