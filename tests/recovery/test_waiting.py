"""What a worker says that waits for the others at the end of its training."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from keras_strom import errors
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.recovery import waiting


def participant(caplog: pytest.LogCaptureFixture, others_hear: bool) -> tuple[Any, list[Any]]:
    """Worker 1, whose others are there, or are not, once it has said something; and its waits."""
    waits: list[Any] = []

    def wait(*given: Any, timeout: float | None) -> float:
        waits.append((*given, timeout))
        while not caplog.records:
            threading.Event().wait(0.001)
        if not others_hear:
            raise errors.DeadlinePassed("the others")
        return 0.5

    here = ClusterEnvironment(rank=1, size=2, join_timeout=7.0)
    worker = SimpleNamespace(finish=wait, verify=wait)
    return SimpleNamespace(worker=worker, environment=here), waits


def test_who_has_ended_long_before_the_others_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waiting, "_SILENT_SECONDS", 0.01)
    mine, waits = participant(caplog, others_hear=True)
    waiting.finish_with_all(mine, False, "")
    said = "worker 1 has ended its training and waits for the others to "
    assert caplog.messages == [f"{said}end theirs, too"]
    caplog.clear()
    assert waiting.verify_with_all(mine, 0.25, 99, "") == 0.5
    assert caplog.messages == [f"{said}return from their last callbacks"]
    assert waits == [(False, None), (0.25, 99, None)]


def test_a_failure_is_said_where_others_stand_still_and_waits_for_them_no_longer_than_allowed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waiting, "_SILENT_SECONDS_OF_FAILURE", 0.01)
    mine, waits = participant(caplog, others_hear=False)
    words = "worker 1 has failed (KeyError: 'age') and waits, at most 7 s, for the others to "
    with pytest.raises(errors.DeadlinePassed):
        waiting.finish_with_all(mine, True, "KeyError: 'age'")
    assert caplog.messages == [f"{words}end theirs, too"]
    caplog.clear()
    with pytest.raises(errors.DeadlinePassed):
        waiting.verify_with_all(mine, 1e300, 99, "KeyError: 'age'")
    assert caplog.messages == [f"{words}return from their last callbacks"]
    assert waits == [(True, 7.0), (1e300, 99, 7.0)]
