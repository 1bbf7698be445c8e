"""What the chaos benchmark counts: updates that are missing or were added twice would be seen."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from benchmarks import chaos
from benchmarks.update_accounts import Account, lost, twice

MASTER = {"1": 5, "2": 7, "3": 2}  # Worker 3 has been killed.


def status(origin: int, counter: int, cut: dict[str, int], applied: dict[str, int]) -> Any:
    return {"node": {"origin": origin, "counter": counter, "cut": cut, "applied": applied}}


def accounts() -> list[Account]:
    """Worker 1 from the start, worker 2 since an update of each of the others."""
    return [
        Account.of(status(1, 5, {"1": 0, "2": 0, "3": 0}, {"1": 5, "2": 7, "3": 2}), 9),
        Account.of(status(2, 7, {"1": 1, "3": 2}, {"1": 5, "2": 7}), 4),
    ]


def test_replicas_that_hold_all_updates_once_are_found_sound() -> None:
    assert (lost(accounts(), MASTER), twice(accounts())) == (0, 0)


def test_publications_of_merged_updates_are_no_updates() -> None:
    masters = str(3 << 32)
    vector = {"1": 5, "2": 7, masters: 6}
    merged = [
        Account.of(status(1, 5, {"1": 0, "2": 0}, vector), 7),
        Account.of(status(2, 7, {"1": 1, masters: 1}, vector), 4),
    ]
    assert (lost(merged, vector), twice(merged)) == (0, 0)
    assert lost([merged[0], dataclasses.replace(merged[1], added=3)], vector) == 1


def test_an_update_that_one_replica_lacks_is_lost() -> None:
    first, second = accounts()
    behind = dataclasses.replace(second, held={**second.held, "1": 4}, added=3)
    assert lost([first, behind], MASTER) == 1
    assert lost([first, second], {**MASTER, "2": 6}) == 1  # The master lacks it.
    dead = dataclasses.replace(first, held={**first.held, "3": 1}, added=8)
    assert lost([dead, second], MASTER) == 1


def test_an_update_that_was_passed_over_is_lost_whatever_the_vector_says() -> None:
    first, second = accounts()
    assert lost([first, dataclasses.replace(second, added=3)], MASTER) == 1


def test_an_update_that_was_added_again_is_counted() -> None:
    first, second = accounts()
    assert twice([first, dataclasses.replace(second, added=6)]) == 2


def test_a_part_of_the_benchmark_leaves_the_whole_ones_result_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chaos, "add_goodput", lambda *_: None)
    monkeypatch.setattr(chaos, "_add_executors", lambda _: None)
    for part in ("--quick", "--executors"):
        chaos.main([part, "--output", str(tmp_path)])
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"chaos-quick.json", "chaos-executors.json"}
