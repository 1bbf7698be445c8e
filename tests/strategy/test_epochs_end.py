"""Where workers wait for each other in rounds, an epoch ends for all at once, alike in all runs.

Each job runs tests/support/scripts/epochs_end.py over a real relay on the loopback.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripts import epochs_end
from tests.support.two_workers import launch

pytestmark = pytest.mark.jobs

METHODS = (
    "threshold=None",
    "method=keras_strom.AllReduce(average='updates')",
    "method=keras_strom.SparkNet(steps=7)",
    "method=keras_strom.EASGD(steps=7, synchronous=True)",
)


def ends_of(folder: Path, options: str, batches: tuple[int, ...], slow: int) -> list[Any]:
    """What every epoch has ended with, by worker; worker `slow` is late there."""
    folder.mkdir()
    lengths = ",".join(map(str, batches))
    script = Path(epochs_end.__file__)
    ended = launch(script, str(folder), options, lengths, str(slow), workers=len(batches))
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-4000:]
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(len(batches))]
    return [result["ends"] for result in found]


@pytest.mark.parametrize("options", METHODS)
def test_with_epochs_of_equal_length_all_have_the_same_history_in_two_runs(
    tmp_path: Path, options: str
) -> None:
    runs = [ends_of(tmp_path / str(slow), options, (15, 15, 15), slow) for slow in (0, 2)]
    for ends in (*runs[0], *runs[1]):
        assert len(ends) == epochs_end.STOPPED_AFTER  # As the chief has said.
        assert ends == runs[0][0]
    assert len({end["statistics"] for end in runs[0][0]}) == epochs_end.STOPPED_AFTER


@pytest.mark.parametrize(
    ("options", "batches"),
    [
        ("threshold=None", (15, 17, 15)),
        ("threshold=None", (17, 15, 15)),
        ("method=keras_strom.SparkNet(steps=7)", (15, 17, 15)),
    ],
)
def test_with_epochs_of_unequal_length_each_worker_has_the_same_history_in_two_runs(
    tmp_path: Path, options: str, batches: tuple[int, ...]
) -> None:
    runs = [ends_of(tmp_path / str(slow), options, batches, slow) for slow in (0, 1)]
    for first, second in zip(*runs, strict=True):
        # Of who is in the middle of an epoch when the chief stops, that one has another end.
        assert first[:-1] == second[:-1]
        assert len(first) == len(second)
        assert len(first) - epochs_end.STOPPED_AFTER in (0, 1)
    assert runs[0][0] == runs[1][0]
    assert len(runs[0][0]) == epochs_end.STOPPED_AFTER
