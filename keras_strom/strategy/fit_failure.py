"""A `fit` that fails on one worker fails on all, and their next `fit` starts together again.

There are three moments at which it may fail, and each has its way to the others:

* While it trains: the worker is done, asks all to stop, and says why beside its state at the end
  (`endings`), so that all have the same parameters.
* After that, in a callback: it reports an impossible replica difference, upon which all go through
  a generation without steps, and it says why at the end of that.
* Before it has started with the others there is nothing to end: it leaves with a reason that the
  master passes on, and joins anew. The others hear of it while they wait for the start, or as they
  come to it, raise, and join anew, too. Whoever comes to the next `fit` sooner waits for those that
  are on their way back. Where the chief takes longer than the master waits for it, its start is
  refused, and it tries again.

Where failures are allowed off Spark (`KERAS_STROM_MAX_FAILURES`) the others train on instead: a
worker leaves with its reason, and joins anew for its next `fit`.

A script that fails outside of `fit` says why in its goodbye (`say_goodbye`).
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from keras_strom import errors
from keras_strom._native.node import CANNOT_START, JOINS_ANEW
from keras_strom.tracebacks import first_words

if TYPE_CHECKING:
    from keras_strom.recovery.endings import Endings
    from keras_strom.relay.training_relay import TrainingWorker

_logger = logging.getLogger("keras_strom")

_LOST = " was lost: "
_DRAINED = " has drained: "
_LEFT = " has left"
_FIT_FAILED = "its fit failed: "  # Of one without which the others train on.
_ANEW = " left to join anew: " + _FIT_FAILED
_RETURNS = (" is back", " has joined anew", " answers again")
_SEEKS = "; looking for it"  # Of the master.
_SCRIPT_FAILED = "its script has failed: "
_BEFORE = re.compile(r"fit (\d+) failed on worker (\d+): (.*)", re.DOTALL)
_BEGINS = re.compile(r"worker (\d+) begins generation (\d+)")
_DIFFERS = re.compile(r"worker \d+'s (model|options) differs? from")

# How long the master may take to see that this worker has left, when it joins anew.
_REJOIN_SECONDS = 10.0
_POLL_SECONDS = 0.05

_failed_with = ""  # The words of the error with which this process's script has ended.


def words_of(error: BaseException) -> str:
    """An exception in one line: "ValueError: bad data"."""
    return first_words(f"{type(error).__name__}: {error}".strip(": ").splitlines())


def warn_of_quiet_exit(who: str, error: BaseException) -> None:
    """Where a script ends itself in the middle of `fit` with the status of one that ends well."""
    if isinstance(error, SystemExit) and not error.code:
        _logger.warning(
            "%s: its script ends in the middle of fit with status 0, as one that has ended well: "
            "nobody comes in its place, and the others train on without it. Raise an error, or "
            "exit with another status, if it has failed",
            who,
        )


def failed_before_the_start(fit: int, rank: int, words: str) -> str:
    """With what a worker leaves whose `fit` number `fit` has failed before it has started."""
    return f"{CANNOT_START}fit {fit} failed on worker {rank}: {words}"


def failed_without_the_others(words: str) -> str:
    """With what a worker leaves whose `fit` has failed, where the others train on."""
    return _FIT_FAILED + words


def raise_if_others_cannot_start(worker: TrainingWorker, fit: int, lost: list[str]) -> None:
    """Where another worker's `fit` failed before its start, or the master has refused its model.

    Args:
        worker: this one, to which the master passes on `failed_before_the_start`.
        fit: this `fit`.
        lost: what the master has said of lost workers meanwhile.

    Raises:
        FitFailed: with the cause and its rank.
    """
    for text in worker.status()["notices"]:
        found = _BEFORE.search(text)
        if found and int(found[1]) == fit:
            raise _failure(f"worker {found[2]}", found[3])
    for text in lost:
        who, _, reason = text.partition(_LOST)
        if _DIFFERS.match(reason):
            raise _failure(who, reason)


def is_ahead(refused: errors.Refused, generation: int) -> bool:
    """Whether the first training was refused as another worker has only come to an earlier `fit`.

    It had not joined yet when the other's failed, and learns it now.

    Args:
        refused: says what the two begin.
        generation: what this worker begins.

    Raises:
        FitFailed: it is the other way round.
    """
    begins = {int(number): int(rank) for rank, number in _BEGINS.findall(str(refused))}
    if len(begins) == 2 and generation in begins and generation < max(begins):
        raise _failure(f"worker {begins[max(begins)]}", "its own output says why")
    return len(begins) == 2 and generation in begins


def is_without_chief(refused: errors.Refused) -> bool:
    """Whether a training could not start for want of the chief's values.

    Between leaving and joining anew the chief is to the master as one that is gone for good.
    """
    return "the master has none of its own" in str(refused)


def raise_if_failed(endings: Endings) -> None:
    """Where another worker has said at the end that its `fit` has failed.

    Raises:
        FitFailed: with the cause and its rank.
    """
    if len(endings.failed) == 1:
        raise _failure(f"worker {endings.failed[0]}", endings.cause)
    if endings.failed:
        raise _failure(
            "workers " + ", ".join(map(str, endings.failed)), "their own output says why"
        )


def _failure(who: str, cause: str) -> errors.FitFailed:
    return errors.FitFailed(
        f"fit has failed on {who} ({cause}), and so on all workers; if the script goes on, its "
        "next fit starts with all of them again"
    )


def is_connected(worker: TrainingWorker) -> bool:
    """Whether a worker's connection to the master stands."""
    try:
        return not worker.status()["failure"]
    except errors.ConnectionClosed:
        return False


def leave_to_join_anew(worker: TrainingWorker, words: str) -> None:
    """Leaves the job so that for a while no other worker's next training starts without this one.

    Args:
        worker: this one.
        words: why, for the others.
    """
    worker.close(JOINS_ANEW + words)


def lost_workers(worker: TrainingWorker) -> list[str]:
    """What the master has said of workers that were lost, or have left, since this one joined.

    One that joins anew is none, but where the others train on without it.
    """
    return list(filter(_is_lost, worker.status()["notices"]))


def _is_lost(notice: str) -> bool:
    return any(words in notice for words in (_LOST, _DRAINED, _ANEW))


def tells_of_cut(notice: str) -> bool:
    """Whether somebody was lost or is back, or the master is out of reach or answers again."""
    return _is_lost(notice) or notice.endswith(_RETURNS) or _SEEKS in notice


class LostMeanwhile:
    """What this worker has heard of lost workers from here on.

    Args:
        worker: this one's connection; None where it is alone.
    """

    def __init__(self, worker: TrainingWorker | None) -> None:
        self._worker = worker
        self._first = self._start = self._told = len(self._notices())

    def training_starts(self) -> None:
        """Who left to join anew has come back by now, or was told of as lost besides."""
        self._start = len(self._notices())

    def words(self) -> list[str]:
        """Of each that was lost, or has left."""
        notices = enumerate(self._notices())
        return [text for i, text in notices if _is_lost(text) and self._counts(i, text)]

    def tell(self, who: str) -> None:
        """Logs what is new: who was lost, who is back, and how it is with this worker's own line.

        Args:
            who: this worker, "worker 1 (attempt 0)".
        """
        notices = self._notices()
        for i, text in enumerate(notices[self._told :], self._told):
            if _is_lost(text):
                if self._counts(i, text):
                    _logger.warning("%s trains on while %s", who, text)
            elif i >= self._start and tells_of_cut(text):
                _logger.warning("%s: %s", who, text)
        self._told = len(notices)

    def _counts(self, number: int, notice: str) -> bool:
        return number >= (self._start if _ANEW in notice else self._first)

    def _notices(self) -> list[str]:
        notices: list[str] = [] if self._worker is None else self._worker.status()["notices"]
        return notices


def tell_of_those_who_left(worker: TrainingWorker, told_of: set[str], words: str) -> None:
    """Logs of each worker whose end, or whose script's failure, the master has told of, once.

    Args:
        worker: this one.
        told_of: of what nothing more is to be logged; grows.
        words: of one whose script has ended, with a place for "worker 1".
    """
    for text in worker.status()["notices"]:
        if text in told_of:
            continue
        who, _, reason = text.partition(_LOST)
        if text.endswith(_LEFT):
            _logger.warning(words, text.removesuffix(_LEFT))
        elif reason.startswith(_SCRIPT_FAILED):
            _logger.warning(
                "%s's script has failed (%s); unless it is started again, this training is without "
                "its part of the data",
                who,
                reason.removeprefix(_SCRIPT_FAILED),
            )
        else:
            continue
        told_of.add(text)


def say_goodbye(worker: TrainingWorker) -> None:
    """At the end of the strategy or the process: leaves, with the error that ends the script."""
    words = _failed_with or _words_of_what_ended_python()
    worker.close(_SCRIPT_FAILED + words if words else "")


def script_has_failed(error: Exception) -> None:
    """Where something other than Python itself runs the script: it has ended with `error`."""
    global _failed_with
    _failed_with = words_of(error)


def _words_of_what_ended_python() -> str:
    """The error that Python ends with; "" where it ends well.

    Interpreters, notebooks and test runners set `sys.last_value`, too, and go on: they have caught
    the error in a frame that another has called. One that ends Python has left every frame.
    """
    error = getattr(sys, "last_value", None)
    if not isinstance(error, Exception) or hasattr(sys, "ps1"):
        return ""
    trace = error.__traceback__
    return words_of(error) if trace is not None and trace.tb_frame.f_back is None else ""


def join_anew(join: Callable[[], TrainingWorker]) -> TrainingWorker:
    """A new connection of a worker that has left.

    Args:
        join: joins the job.

    Raises:
        Refused: another process has its rank by now.
    """
    deadline = time.monotonic() + _REJOIN_SECONDS
    while True:
        try:
            return join()
        except errors.Refused as refused:
            # Its old link may still stand at the master.
            if "already taken" not in str(refused) or time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)
