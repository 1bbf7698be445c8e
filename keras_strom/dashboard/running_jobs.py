"""Where the pages of this user's running jobs are: a small private file for each.

`keras-strom status` and `keras-strom top` find them so; the URL has the token, so that nobody else
may read the file. A job's file is touched while it runs: by nothing else can be told whether one
runs on another machine, with which the home is shared.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator

from keras_strom.job import environment
from keras_strom.job.process_status import start_of

_logger = logging.getLogger("keras_strom")

_TOUCH_SECONDS = 60.0
# Another machine's file that has not been touched for so long is of a job that was killed there.
# Its clock may differ from this one's.
_LEFT_SECONDS = 900.0


@dataclasses.dataclass(frozen=True)
class RunningJob:
    """A job whose page this user can read.

    Attributes:
        url: of its page, token included.
        name: of the job.
        pid: of the process that serves the page.
        host: where that is.
        started: seconds since the epoch.
        process_start: when it has started (`start_of`): another may have its id by now.
    """

    url: str
    name: str
    pid: int
    host: str
    started: float
    process_start: int | None


@contextlib.contextmanager
def announced(url: str, name: str) -> Iterator[Callable[[], None]]:
    """While the block runs, the user's other programs find the page.

    A folder that cannot be written costs that alone: the page's URL is shown in any case.

    Yields:
        What to call every second or so: it says that the job still runs.
    """
    pid = os.getpid()
    job = RunningJob(url, name, pid, socket.gethostname(), time.time(), _start_of(pid))
    path = ""
    with contextlib.ExitStack() as stack:
        failure = OSError("this user has no home; XDG_STATE_HOME may name a folder")
        for folder in _folders():  # The first may be another user's, as after `su`.
            try:
                path = stack.enter_context(_announced_in(folder, job))
                break
            except OSError as error:
                failure = error
        else:
            _logger.warning("keras-strom status will not find this job by itself: %s", failure)
        yield functools.partial(_touch, path)


@contextlib.contextmanager
def _announced_in(folder: str, job: RunningJob) -> Iterator[str]:
    """A private file in the folder while the block runs; an OSError where there can be none."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    # It makes files of mode 0600.
    fd, path = tempfile.mkstemp(prefix=f"{job.pid}-", suffix=".json", dir=folder)
    try:
        with open(fd, "w", encoding="utf-8") as file:
            json.dump(dataclasses.asdict(job), file)
        yield path
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _touch(path: str) -> None:
    """Says anew that a job runs, if it has been a while."""
    with contextlib.suppress(OSError):  # It has no file, or a full disk.
        if path and _age_of(path) > _TOUCH_SECONDS:
            os.utime(path)


def running_jobs() -> list[RunningJob]:
    """Those of this user, the latest last; files of jobs that were killed here are removed."""
    found = []
    for path in _files():
        try:
            with open(path, encoding="utf-8") as file:
                job = RunningJob(**json.load(file))
            age = _age_of(path)
        except (OSError, ValueError, TypeError):
            continue
        if job.host != socket.gethostname():
            if age < _LEFT_SECONDS:
                found.append(job)
        elif _start_of(job.pid) == job.process_start:
            found.append(job)
        else:
            with contextlib.suppress(OSError):
                os.unlink(path)
    return sorted(found, key=lambda job: job.started)


def _age_of(path: str) -> float:
    """Seconds since a file was touched."""
    return time.time() - os.stat(path).st_mtime


def _start_of(pid: int) -> int | None:
    """When a process of this machine has started; None = there is none."""
    with contextlib.suppress(OSError):
        return start_of(pid)
    return None


def _files() -> list[str]:
    found = []
    for folder in _folders():
        with contextlib.suppress(OSError):
            found += [os.path.join(folder, name) for name in os.listdir(folder)]
    return found


def _folders() -> list[str]:
    """Where to write, in this order, and to read."""
    return [os.path.join(folder, "jobs") for folder in environment.user_state_folders()]
