"""Which of a machine's GPUs each of its workers sees."""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path

import pytest

from keras_strom.job.environment import ClusterEnvironment
from keras_strom.job.gpus import one_each, visible
from keras_strom.runner.outcome import Outcome
from keras_strom.runner.places import Slots, ThisMachine


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
    own = dataclasses.replace(two, gpus="own")
    assert one_each(own, alone) == (own, {})


def test_a_task_of_slurm_that_starts_several_workers_gives_each_a_card() -> None:
    task = {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_GPUS_PER_TASK": "2"}
    place, changed = one_each(at(1, of=2), task)
    assert (place.gpus, changed) == ("own", {"CUDA_VISIBLE_DEVICES": "1"})


def test_a_worker_that_shares_its_card_takes_memory_bit_by_bit(tmp_path: Path) -> None:
    place = dataclasses.replace(at(1, of=2), gpus="shared")  # A fraction of a card, on Spark.
    grown = {"CUDA_VISIBLE_DEVICES": "3", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    assert one_each(place, {"CUDA_VISIBLE_DEVICES": "3"}) == (place, grown)
    assert one_each(place, {"CUDA_VISIBLE_DEVICES": "-1"}) == (place, {})
    assert one_each(place, {}, str(tmp_path)) == (place, {})


def test_who_is_alone_where_others_may_come_leaves_them_cards() -> None:
    first = dataclasses.replace(at(0, of=1), gpus="shared")
    grown = {"CUDA_VISIBLE_DEVICES": "4", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    assert one_each(first, {"CUDA_VISIBLE_DEVICES": "4,5"}) == (first, grown)


def test_others_may_come_to_a_machine_with_a_free_slot_if_there_is_another_machine() -> None:
    here, there = ThisMachine(), ThisMachine()
    places = Slots([(here, 2), (there, 2)], workers=3)
    assert [place and place.has_room for place in map(places.of, range(3))] == [False, False, True]
    here.lost = True
    moved = places.of(0)
    assert moved is not None
    assert (moved.machine, moved.local_rank, moved.has_room) == (there, 1, False)
    alone = Slots([(there, 2)], workers=1).of(0)
    assert alone is not None
    assert not alone.has_room


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (
            "F0000 gpu_event_mgr.cc:220] Unexpected Event status: 1",
            "was killed by SIGABRT, for its GPU has failed (Unexpected Event status: 1)",
        ),
        (
            "F tensorflow/core/common_runtime/gpu/gpu_util.cc:293] GPU->CPU Memcpy failed",
            "was killed by SIGABRT, for its GPU has failed (GPU->CPU Memcpy failed)",
        ),
        ("free(): invalid pointer", "was killed by SIGABRT"),
    ],
)
def test_a_gpu_for_which_tensorflow_ends_its_process_is_named(line: str, cause: str) -> None:
    outcome = Outcome(-signal.SIGABRT, None, "it was ended by SIGABRT", ("step 3", line, "stack"))
    assert outcome.cause == cause
    assert outcome.may_be_started_again
