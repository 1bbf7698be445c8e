"""Checkpoints on disk: whole or not there, damage is seen, old ones go, a later run wins."""

from __future__ import annotations

import dataclasses
import errno
import logging
import os
import time
import types
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_strom import errors
from keras_strom.job.checkpoint_plan import CheckpointPlan
from keras_strom.job.environment import ClusterEnvironment
from keras_strom.job.network import NetworkConfig
from keras_strom.recovery.checkpoint_files import (
    CheckpointFolder,
    Part,
    leave_part,
    parts_of,
    read_part,
)
from keras_strom.recovery.packed_arrays import pack
from keras_strom.recovery.resume import DataPosition, Fit, Start
from keras_strom.runner.job_checkpoints import JobCheckpoints
from tests.support.stale import Stale

ARRAYS: dict[str, npt.NDArray[Any]] = {
    "parameters": np.arange(5, dtype=np.float32),
    "optimizer 0/0": np.array(7, np.int64),
}


def part(rank: int = 0, workers: int = 2, fit: int = 1) -> Part:
    return Part(rank, workers, fit, DataPosition(3, 17), 20, 77, (1e-3,), ARRAYS)


def leave(plan: CheckpointPlan, number: int, *ranks: int, workers: int = 2) -> None:
    for rank in ranks:
        leave_part(plan, number, part(rank, workers))


def left_by(kept: CheckpointFolder, plan: CheckpointPlan, numbers: int) -> list[str]:
    """Collects so many checkpoints one after the other; the names of those that are there then."""
    for number in range(1, numbers + 1):
        leave(plan, number, 0, 1)
        kept.collect()
    return sorted(path.name for path in Path(plan.incoming).parent.glob("checkpoint-*"))


def folder(path: Path, *, kept: int = 2, workers: int = 2) -> CheckpointFolder:
    return CheckpointFolder(str(path), kept=kept, workers=workers)


# ------------------------------------------------------------------ a part


@settings(deadline=None)
@given(
    st.builds(
        Part,
        rank=st.integers(0, 99),
        workers=st.integers(1, 100),
        fit=st.integers(1, 9),
        place=st.builds(DataPosition, st.integers(0, 99), st.integers(0, 9999)),
        per_epoch=st.none() | st.integers(1, 9999),
        steps=st.integers(0, 1 << 40),
        threshold=st.tuples(st.floats(1e-9, 1)),
        arrays=st.just({}),
        cycles=st.integers(0, 1 << 40),
    )
)
def test_a_part_survives_its_way(sent: Part) -> None:
    assert Part.from_bytes(sent.to_bytes()) == sent


def test_a_part_of_before_cycles_were_saved_has_none() -> None:
    values = {"rank": 0, "workers": 2, "fit": 1, "place": {"epoch": 3, "batch": 1}}
    values |= {"per_epoch": None, "steps": 3, "threshold": []}
    assert Part.from_bytes(pack("keras-strom checkpoint part", 3, values, {})).cycles == 0


def test_a_part_keeps_its_arrays() -> None:
    taken = Part.from_bytes(part().to_bytes())
    assert set(taken.arrays) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert taken.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(taken.arrays[name], array)


@settings(deadline=None)
@given(st.data())
def test_a_changed_byte_or_a_missing_end_is_seen(data: st.DataObject) -> None:
    whole = part().to_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    for damaged in (changed, whole[:at], whole + b"x"):
        with pytest.raises(errors.CorruptMessage, match="it is damaged"):
            Part.from_bytes(damaged)


def test_the_version_of_another_keras_strom_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keras_strom.recovery.checkpoint_files._VERSION", 99)
    newer = part().to_bytes()
    monkeypatch.undo()
    with pytest.raises(errors.Refused, match="version 99"):
        Part.from_bytes(newer)


@pytest.mark.parametrize(
    "values",
    [{}, {"place": 3}, {"place": {"epoch": 1, "batch": 2}, "threshold": [1e999]}, {"place": [1]}],
)
def test_made_up_values_with_a_checksum_that_fits_are_damage(values: dict[str, Any]) -> None:
    made_up = pack("keras-strom checkpoint part", 3, values, {})
    with pytest.raises(errors.CorruptMessage, match="it is damaged"):
        Part.from_bytes(made_up)


def test_a_header_that_is_nested_too_deeply_is_damage() -> None:
    header = b'{"__metadata__":{"crc32":"00000000"},"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    made_up = bytearray(len(header).to_bytes(8, "little") + header)
    at = made_up.index(b"00000000")
    made_up[at : at + 8] = b"%08x" % zlib.crc32(made_up)
    with pytest.raises(errors.CorruptMessage, match="it is damaged"):
        Part.from_bytes(bytes(made_up))


def test_a_part_of_the_first_version_is_refused_in_words() -> None:
    first = b"STROMCKP" + (1).to_bytes(4, "little") + b"\x02\0\0\0{}"
    with pytest.raises(errors.Refused, match="version 1 of the format and this is version 3"):
        Part.from_bytes(first)


def test_other_programs_can_open_a_part(tmp_path: Path) -> None:
    path = tmp_path / "part.safetensors"
    path.write_bytes(part().to_bytes())
    loaded = safetensors.numpy.load_file(path)
    assert set(loaded) == set(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(loaded[name], array)


# ------------------------------------------------------------------ the folder


def test_parts_become_a_checkpoint_when_all_are_there(tmp_path: Path) -> None:
    first = folder(tmp_path)
    plan = first.plan(60)
    assert plan.restore is None
    leave(plan, 1, 0)
    assert first.collect() == []
    assert first.latest() is None
    leave(plan, 1, 1)
    assert first.collect() == [tmp_path / "checkpoint-000001-00000001"]
    again = folder(tmp_path).plan(60)
    assert again.restore == str(tmp_path / "checkpoint-000001-00000001")
    assert again.restore is not None
    assert list(parts_of(again.restore)) == [0, 1]


def test_a_worker_that_is_away_holds_up_no_checkpoint_for_long(tmp_path: Path) -> None:
    kept = folder(tmp_path)
    plan = kept.plan(60)
    leave(plan, 1, 0)
    leave(plan, 2, 0)
    assert kept.collect() == []
    leave(plan, 3, 0, 1)
    names = [path.name for path in kept.collect()]
    assert names == ["checkpoint-000001-00000001", "checkpoint-000001-00000003"]


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    kept = folder(tmp_path, kept=2)
    names = left_by(kept, kept.plan(60), 5)
    assert names == ["checkpoint-000001-00000004", "checkpoint-000001-00000005"]
    assert kept.latest() == tmp_path / names[-1]


def test_the_one_that_a_job_began_from_stays_for_workers_that_start_later(tmp_path: Path) -> None:
    earlier = folder(tmp_path)
    leave(earlier.plan(60), 1, 0, 1)
    (began_from,) = earlier.collect()
    for run in (2, 3):
        later = folder(tmp_path, kept=2)
        plan = later.plan(60)
        expected = [f"checkpoint-{run:06d}-{number:08d}" for number in (3, 4)]
        assert plan.restore == str(began_from)
        assert left_by(later, plan, 4) == [began_from.name, *expected]
        began_from = tmp_path / expected[-1]
    later.clear()
    assert not list(tmp_path.glob("checkpoint-*"))


@pytest.mark.parametrize("damage", ["cut", "changed", "emptied", "removed"])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = folder(tmp_path)
    plan = kept.plan(60)
    for number in (1, 2):
        leave(plan, number, 0, 1)
    first, second = kept.collect()
    victim = second / "000001.fit1.safetensors"
    content = victim.read_bytes()
    if damage == "removed":
        for path in list(second.iterdir()):
            path.unlink()
    else:
        victim.write_bytes(
            {"cut": content[:-9], "changed": content[:40] + b"?" + content[41:], "emptied": b""}[
                damage
            ]
        )
    with caplog.at_level(logging.WARNING):
        assert kept.latest() == first
    assert damage == "removed" or str(victim) in caplog.text
    if damage != "removed":
        with pytest.raises(errors.CorruptMessage, match=r"fit1\.safetensors: it is damaged"):
            read_part(victim)


def test_a_file_that_is_no_part_spoils_no_checkpoint(tmp_path: Path) -> None:
    kept = folder(tmp_path)
    leave(kept.plan(60), 1, 0, 1)
    (made,) = kept.collect()
    (made / ".nfs0000000000000001").write_bytes(b"another machine has it open")
    assert kept.latest() == made
    assert list(parts_of(str(made))) == [0, 1]


def test_a_rename_that_fails_is_made_up_for_and_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = folder(tmp_path, kept=9)
    plan = kept.plan(60)
    leave(plan, 1, 0, 1)
    leave(plan, 2, 0, 1)
    rename, renamed = os.rename, list[str]()

    def fail_at_first(source: Any, target: Any) -> None:
        renamed.append(str(target))
        if len(renamed) == 2:  # The second part of the first checkpoint.
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail_at_first)
    with pytest.raises(errors.StoreUnavailable, match="Input/output error"):
        kept.collect()
    assert [path.name[-1] for path in tmp_path.glob("checkpoint-*")] == ["2"]
    assert [path.name[-1] for path in kept.collect()] == ["1"]
    assert list(parts_of(str(tmp_path / "checkpoint-000001-00000001"))) == [0, 1]


def test_a_part_that_comes_after_its_checkpoint_is_left_out(tmp_path: Path) -> None:
    kept = folder(tmp_path)
    plan = kept.plan(60)
    leave(plan, 1, 0)
    leave(plan, 3, 0)
    assert [path.name[-1] for path in kept.collect()] == ["1"]
    leave(plan, 1, 1)
    leave(plan, 3, 1)
    assert [path.name[-1] for path in kept.collect()] == ["3"]
    assert list(parts_of(str(tmp_path / "checkpoint-000001-00000001"))) == [0]


def test_a_full_disk_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = folder(tmp_path).plan(60)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(errors.StoreUnavailable, match="No space left on device; make room there"):
        leave(plan, 1, 0)
    assert list(Path(plan.incoming).iterdir()) == []


def test_runners_that_start_together_have_different_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Both have read the file before either has written it.
    monkeypatch.setattr(CheckpointFolder, "_read_epoch", lambda _: 0)
    first, second = folder(tmp_path), folder(tmp_path)
    monkeypatch.undo()
    assert (first.epoch, second.epoch) == (1, 2)
    leave(second.plan(60), 1, 0, 1)
    assert len(second.collect()) == 1
    with pytest.raises(errors.Refused, match="a job that was started later"):
        first.clear()


def test_what_a_crash_left_half_made_is_no_checkpoint(tmp_path: Path) -> None:
    plan = folder(tmp_path).plan(60)
    leave(plan, 1, 0)
    Path(plan.incoming, "checkpoint-000001-00000001").mkdir()
    Path(plan.incoming, ".00000002-000000.123").write_bytes(b"half")
    again = folder(tmp_path)
    assert again.latest() is None
    assert not Path(plan.incoming).exists()
    with pytest.raises(errors.StoreUnavailable, match="worker 0 cannot write its part"):
        leave(plan, 2, 0)


def test_the_epoch_grows_with_each_run_and_an_earlier_run_has_to_end(tmp_path: Path) -> None:
    old = folder(tmp_path)
    leave(old.plan(60), 1, 0, 1)
    new = folder(tmp_path)
    assert (old.epoch, new.epoch) == (1, 2)
    with pytest.raises(errors.Refused, match="a job that was started later"):
        old.collect()  # Also where it has no folder for its parts any more.
    with pytest.raises(errors.Refused, match="a job that was started later"):
        old.clear()


def test_only_parts_of_the_latest_fit_count(tmp_path: Path) -> None:
    kept = folder(tmp_path)
    plan = kept.plan(60)
    leave_part(plan, 1, part(0, fit=1))
    leave_part(plan, 1, part(1, fit=2))
    (made,) = kept.collect()
    assert list(parts_of(str(made))) == [1]


def test_a_folder_without_parts_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(errors.StoreUnavailable, match=f"{tmp_path} holds no part .* share under"):
        parts_of(str(tmp_path))


def test_when_the_job_has_ended_well_nothing_is_left_to_go_on_from(tmp_path: Path) -> None:
    kept = folder(tmp_path)
    leave(kept.plan(60), 1, 0, 1)
    kept.collect()
    kept.clear()
    assert [path.name for path in tmp_path.iterdir()] == ["master.json"]
    assert folder(tmp_path).epoch == 2


def test_a_damaged_epoch_is_refused_in_words(tmp_path: Path) -> None:
    folder(tmp_path)
    (tmp_path / "master.json").write_text("{}")
    with pytest.raises(errors.StoreUnavailable, match=r"master\.json is damaged"):
        folder(tmp_path)


def test_a_folder_that_cannot_be_made_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.StoreUnavailable, match=r"checkpoint_dir=.* cannot be used"):
        folder(tmp_path / "file" / "below")


def _use(path: Path) -> None:
    """Everything that is done with a folder of checkpoints."""
    kept = folder(path, kept=1)
    plan = kept.plan(60)
    for number in (1, 2):
        leave(plan, number, 0, 1)
        (made,) = kept.collect()
        assert kept.latest() == made
        assert [read_part(one).rank for one in parts_of(str(made)).values()] == [0, 1]
    again = folder(path)
    assert again.plan(60).restore == str(made)
    again.clear()


_STEPS = [
    *((os, "rename"), (os, "fsync"), (os, "rmdir")),
    *((Path, name) for name in ("iterdir", "read_bytes", "read_text")),
]


@pytest.mark.parametrize(("owner", "name"), _STEPS, ids=lambda value: value)
def test_a_file_that_has_become_stale_is_opened_anew(
    owner: object, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        counted = Stale(patched, owner, name, ())
        _use(tmp_path / "all")
    assert counted.count
    for call in range(counted.count):
        with monkeypatch.context() as patched:
            Stale(patched, owner, name, {call})
            _use(tmp_path / str(call))
    if name == "read_bytes":
        return  # A checkpoint that cannot be read is passed over, with a warning.
    with monkeypatch.context() as patched:
        Stale(patched, owner, name, range(1000))
        with pytest.raises(errors.StoreUnavailable, match="Stale file handle"):
            _use(tmp_path / "stale")


# ------------------------------------------------------------------ the plan and the runner


def test_parts_are_due_once_an_interval() -> None:
    plan = CheckpointPlan("/nowhere", 10.0, begun=100.0)
    assert [plan.due(now) for now in (90, 100, 109.9, 110, 135)] == [0, 0, 0, 1, 3]
    assert CheckpointPlan.from_json(plan.to_json()) == plan
    with pytest.raises(errors.InvalidOption, match="no plan of checkpoints"):
        CheckpointPlan.from_json('{"unknown": 1}')


def test_all_workers_number_their_parts_alike_whatever_the_time_of_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With TensorFlow, which nothing else here needs.
    from keras_strom.recovery.checkpointing import Checkpointing

    kept = folder(tmp_path)
    plan = kept.plan(10)
    between_messages = types.SimpleNamespace(step=types.SimpleNamespace(is_between_messages=True))
    started, time_of_day = time.monotonic(), time.time()

    def number(worker: Checkpointing) -> int | None:
        worker.save_if_due(between_messages, None, None)  # type: ignore[arg-type]
        return worker._last

    assert number(Checkpointing(plan)) == 0
    monkeypatch.setattr(time, "time", lambda: time_of_day + 20)
    assert number(Checkpointing(plan)) == 0
    # Another machine has been up for a thousand seconds more.
    monkeypatch.setattr(time, "monotonic", lambda: started + 1000 + 35)
    assert number(Checkpointing(plan.as_here(now_there=started + 35))) == 3


def test_a_model_that_is_the_beginning_of_the_checkpoints_is_another_one(tmp_path: Path) -> None:
    from keras_strom.recovery.checkpointing import Checkpointing

    earlier = folder(tmp_path)
    arrays = {**ARRAYS, "sizes": np.array([32, 4, 16, 4, 7, 1])}
    for rank in (0, 1):
        leave_part(earlier.plan(60), 1, dataclasses.replace(part(rank), arrays=arrays))
    earlier.collect()
    worker: Any = types.SimpleNamespace(
        environment=ClusterEnvironment(rank=1, size=2, master=("127.0.0.1", 9)),
        step=types.SimpleNamespace(has_one_state=False, begin_after=lambda _: None),
        space=types.SimpleNamespace(entries=[]),
    )
    fit = Fit(number=1, model=None, per_epoch=None)
    restored = Checkpointing(folder(tmp_path).plan(60))
    restored.prepare(worker, fit, epochs=5)
    for size in (32, 4, 7, 1):  # The model's, and those of every start.
        worker.space.entries.append(types.SimpleNamespace(size=size))
    with pytest.raises(errors.Refused, match="is of another model"):
        restored.restore(worker, fit, Start(), epochs=5)


def test_a_runner_makes_checkpoints_while_its_job_runs(tmp_path: Path) -> None:
    network = NetworkConfig(checkpoint_dir=str(tmp_path / "new"), checkpoint_interval=0.1)
    with JobCheckpoints.of(network, workers=2) as checkpoints:
        assert checkpoints.plan is not None
        checkpoints.collect(lambda reason: None)
        leave(checkpoints.plan, 1, 0, 1)
    with JobCheckpoints.of(network, workers=3) as checkpoints:
        assert checkpoints.plan is not None
        assert checkpoints.plan.restore is not None
        assert checkpoints.epoch == 2
        checkpoints.clear()
    with JobCheckpoints.of(network, workers=2) as checkpoints:
        assert checkpoints.plan is not None
        assert checkpoints.plan.restore is None


def test_a_lone_worker_is_pointed_at_what_keras_has() -> None:
    with pytest.raises(errors.InvalidOption, match="BackupAndRestore"):
        JobCheckpoints.of(NetworkConfig(checkpoint_dir="/tmp/unused"), workers=1)
