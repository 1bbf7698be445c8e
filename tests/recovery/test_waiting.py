"""What a worker says that waits for the others at the end of its training."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from keras_strom import errors
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.recovery import waiting


def finish(
    caplog: pytest.LogCaptureFixture, failure: str, *, others_hear: bool = True
) -> float | None:
    """Ends a training whose others end theirs, or do not, once this one has said something.

    Returns:
        How long it would have waited; None = as long as it takes.
    """
    waited: list[float | None] = []

    def finish_at_last(stop: bool, *, timeout: float | None) -> None:
        assert stop is bool(failure)
        waited.append(timeout)
        while not caplog.records:
            threading.Event().wait(0.001)
        if not others_hear:
            raise errors.DeadlinePassed("the other workers' end of training")

    here = ClusterEnvironment(rank=1, size=2, join_timeout=7.0)
    participant: Any = SimpleNamespace(
        worker=SimpleNamespace(finish=finish_at_last), environment=here
    )
    waiting.finish_with_all(participant, bool(failure), failure)
    return waited[0]


def test_who_has_ended_long_before_the_others_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waiting, "_SILENT_SECONDS", 0.01)
    assert finish(caplog, "") is None
    words = "worker 1 has ended its training and waits for the others to end theirs"
    assert caplog.messages == [words]


def test_a_failure_is_said_where_others_stand_still_and_waits_for_them_no_longer_than_allowed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waiting, "_SILENT_SECONDS_OF_FAILURE", 0.01)
    assert finish(caplog, "KeyError: 'age'") == 7.0
    assert "worker 1 has failed (KeyError: 'age') and waits, at most 7 s, for" in caplog.text
    caplog.clear()
    with pytest.raises(errors.DeadlinePassed):
        finish(caplog, "KeyError: 'age'", others_hear=False)
