"""Which of a machine's GPUs each of its workers sees."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from keras_strom.job.environment import ClusterEnvironment
from keras_strom.job.gpus import one_each, visible


def at(rank: int, of: int) -> ClusterEnvironment:
    return ClusterEnvironment(rank=rank, size=of, local_rank=rank, local_size=of)


@pytest.mark.parametrize(
    ("text", "cards"),
    [("", []), ("-1", []), ("0", ["0"]), ("2, 0", ["2", "0"]), ("GPU-8f,-1,3", ["GPU-8f"])],
)
def test_the_variable_says_which_there_are(text: str, cards: list[str]) -> None:
    assert visible({"CUDA_VISIBLE_DEVICES": text}) == cards


def test_without_it_the_drivers_files_do(tmp_path: Path) -> None:
    for name in ("nvidia3", "nvidia7", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert visible({}, str(tmp_path)) == ["0", "1"]
    assert visible({}, str(tmp_path / "missing")) == []


def test_each_worker_gets_a_card_of_its_own() -> None:
    place, changed = one_each(at(1, of=2), {"CUDA_VISIBLE_DEVICES": "4,5,6"})
    assert (place.gpus, changed) == ("own", {"CUDA_VISIBLE_DEVICES": "5"})


def test_workers_that_are_more_than_cards_share_them() -> None:
    place, changed = one_each(at(2, of=3), {"CUDA_VISIBLE_DEVICES": "4,5"})
    assert place.gpus == "shared"
    assert changed == {"CUDA_VISIBLE_DEVICES": "4", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    given = {"CUDA_VISIBLE_DEVICES": "4,5", "TF_FORCE_GPU_ALLOW_GROWTH": "false"}
    assert one_each(at(2, of=3), given)[1] == {"CUDA_VISIBLE_DEVICES": "4"}


def test_who_is_alone_or_has_its_own_or_sees_none_keeps_what_it_sees(tmp_path: Path) -> None:
    alone, two = {"CUDA_VISIBLE_DEVICES": "4,5"}, at(1, of=2)
    assert one_each(at(0, of=1), alone) == (at(0, of=1), {})
    assert one_each(two, {}, str(tmp_path)) == (two, {})
    task = {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_GPUS_PER_TASK": "2"}
    own = dataclasses.replace(two, gpus="own")
    assert one_each(two, task) == (own, {})
    assert one_each(own, alone) == (own, {})
