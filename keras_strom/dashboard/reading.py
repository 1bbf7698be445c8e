"""Reads the page of a job that runs, for the terminal."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from keras_strom import errors
from keras_strom.dashboard.running_jobs import RunningJob, running_jobs

_SECONDS = 10.0


def find_page(job: str | None) -> str:
    """The URL of a running job's page.

    Args:
        job: a URL, or the id of the process that serves it; None = the only job of this user.

    Raises:
        InvalidOption: there is none, or there are several.
    """
    if job is not None and "://" in job:
        return job.rstrip("/") + "/"
    found = running_jobs()
    if job is not None:
        found = [one for one in found if str(one.pid) == job]
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
    try:
        with urllib.request.urlopen(urllib.parse.urljoin(url, "state.json"), None, _SECONDS) as got:
            state: dict[str, Any] = json.load(got)
    except urllib.error.HTTPError as error:
        raise errors.Unreachable(
            f"no page of a job at {_public(url)} ({error.code}): has the job ended, and is the "
            "token in the URL whole?"
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise errors.Unreachable(
            f"no page of a job at {_public(url)}: {reason}; has the job ended? A page that is on "
            "another machine's loopback interface is reached through ssh -L"
        ) from None
    return state


def _where(job: RunningJob) -> str:
    return "" if job.host == socket.gethostname() else f"on {job.host}"


def _public(url: str) -> str:
    """Without the token."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
