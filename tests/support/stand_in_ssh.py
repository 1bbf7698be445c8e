"""A stand-in for ssh, which runs all on this machine; and jobs on hosts that are reached by it."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from keras_strom.job.network import NetworkConfig
from keras_strom.runner.console import Console
from keras_strom.runner.hosts import parse_hosts
from keras_strom.runner.launcher import Job, launch
from keras_strom.runner.work import Script
from tests.support.silent_master import SilentMaster

LOOPBACK = NetworkConfig(network_mask="127.0.0.1/32")


def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for ssh, which runs the command here, in a home of its own.

    What is written to the file `says` is all that it does instead.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    (tmp_path / "home").mkdir()
    program = folder / "ssh"
    program.write_text(
        f"#!/bin/sh\n[ -e {folder}/says ] && . {folder}/says\n"
        f'for last; do :; done\ncd {tmp_path}/home\necho "$@" >>{folder}/calls\n'
        'echo "Welcome to {this} [machine]"\nexec sh -c "$last"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return folder


def run(tmp_path: Path, text: str, hosts: str, workers: int, **options: Any) -> list[str]:
    """The lines that a job shows, whose workers run this script; `options` are `Job`'s."""
    (tmp_path / "work.py").write_text(text)
    stream = io.StringIO()
    job = Job(
        work=Script("work.py", ("--its", "own")),
        workers=workers,
        hosts=parse_hosts(hosts),
        **{"network": LOOPBACK, **options},
    )
    try:
        launch(job, Console(workers, stream), SilentMaster)
    finally:
        sys.stdout.write(stream.getvalue())
    return stream.getvalue().splitlines()
