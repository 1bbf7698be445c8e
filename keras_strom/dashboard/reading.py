"""Reads the page of a job that runs, for the terminal."""

from __future__ import annotations

import http.client
import json
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

from keras_strom import errors
from keras_strom.dashboard.running_jobs import RunningJob, running_jobs

_SECONDS = 10.0
# A page that was there a moment ago is asked so often more.
_TRIES = 3
_LONGEST_PAUSE = 2.0

_LISTS = ("columns", "workers", "slow", "events", "metrics", "checkpoints")


def find_page(job: str | None) -> str:
    """The URL of a running job's page.

    Args:
        job: a URL, or the id of the process that serves it; None = the only job of this user, on
            this machine if any runs here.

    Raises:
        InvalidOption: there is none, or there are several.
    """
    if job is not None and "://" in job:
        return job.rstrip("/") + "/"
    found = running_jobs()
    if job is not None:
        found = [one for one in found if str(one.pid) == job]
    # Of another machine, with which the home is shared, nobody knows whether one was killed there.
    found = [one for one in found if one.host == socket.gethostname()] or found
    if not found:
        which = "with a page" if job is None else f"whose process is {job}"
        raise errors.InvalidOption(
            f"you have no job {which} that runs on this machine: start one with keras-strom run "
            "--dashboard, or give the URL of its page"
        )
    if len(found) > 1:
        several = "\n".join(f"  {one.pid}  {one.name}  {_where(one)}" for one in found)
        raise errors.InvalidOption(f"several jobs run; give the process's id of one:\n{several}")
    return found[0].url


def read_state(url: str) -> dict[str, Any]:
    """The job's state; `WatchedJob.snapshot`.

    Raises:
        Unreachable: nothing answers there, or not with a job's state.
    """
    # The URL has the token: no proxy is to see it, whatever $http_proxy says.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(urllib.parse.urljoin(url, "state.json"), None, _SECONDS) as got:
            state = json.load(got)
    except urllib.error.HTTPError as error:
        raise errors.Unreachable(
            f"no page of a job at {_public(url)} ({error.code}): has the job ended, and is the "
            "token in the URL whole?"
        ) from None
    except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or str(error) or type(error).__name__
        raise errors.Unreachable(
            f"no page of a job at {_public(url)}: {reason}; has the job ended? A page that is on "
            "another machine's loopback interface is reached through ssh -L"
        ) from None
    if not _is_state(state):
        raise errors.Unreachable(
            f"what answers at {_public(url)} is no page of a job: is it another program's port?"
        )
    found: dict[str, Any] = state
    return found


def states(url: str, interval: float) -> Iterator[dict[str, Any]]:
    """The job's state again and again; the last one says how the job has ended.

    Args:
        url: of its page.
        interval: seconds from one look to the next.

    Raises:
        Unreachable: nothing answers there, or not with a job's state, several times.
    """
    state = read_state(url)
    yield state
    while not state["ended"]:
        time.sleep(interval)
        state = _read_patiently(url, min(interval, _LONGEST_PAUSE))
        yield state


def _read_patiently(url: str, pause: float) -> dict[str, Any]:
    for _ in range(_TRIES):
        try:
            return read_state(url)
        except errors.Unreachable:
            time.sleep(pause)
    return read_state(url)


def _is_state(state: object) -> bool:
    """Whether it may be shown: any program may listen at a port that a job had."""
    return (
        isinstance(state, dict)
        and all(isinstance(state.get(name), list) for name in _LISTS)
        and all(isinstance(state.get(name), str) for name in ("name", "ended"))
        and isinstance(state.get("activities"), dict)
        and isinstance(state.get("seconds"), int | float)
    )


def _where(job: RunningJob) -> str:
    return "" if job.host == socket.gethostname() else f"on {job.host}"


def _public(url: str) -> str:
    """Without the token."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
