"""Outcomes that a long benchmark keeps: where those of a run before were made is told."""

import dataclasses
from pathlib import Path

import pytest

from benchmarks import kept as kept_module
from benchmarks.kept import Kept
from benchmarks.report import Report, describe_machine


@dataclasses.dataclass(frozen=True)
class Outcome:
    seconds: float


def kept(path: Path) -> Kept[Outcome]:
    return Kept(path, lambda fields: Outcome(**fields), resume=True)


def told(path: Path, folder: Path, *keys: str) -> dict[str, int]:
    """What the report of a resumed run says that it has taken over."""
    again, result = kept(path), Report("example", "An example", folder)
    for key in keys:
        again.get(key)
    again.put("new", Outcome(3.0))
    again.tell_origins(result)
    return {row["name"]: row["trained"] for row in result.rows}


def test_outcomes_of_another_revision_or_machine_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kept.jsonl"
    older = {**describe_machine(), "revision": "v0", "processor": "another one", "cores": 3}
    with monkeypatch.context() as patch:
        patch.setattr(kept_module, "describe_machine", lambda: older)
        first = kept(path)
        for key in "abc":
            first.put(key, Outcome(1.0))
    kept(path).put("d", Outcome(2.0))
    with path.open("a") as file:  # As it was written before origins were.
        file.write('{"training": "e", "outcome": {"seconds": 1.0}}\n')

    elsewhere = "revision v0, another one, 3 cores"
    assert told(path, tmp_path, "a", "b", "d", "nowhere") == {elsewhere: 2}
    assert told(path, tmp_path, "a", "e") == {elsewhere: 1, "not known": 1}
    assert told(path, tmp_path, "d", "new") == {}
