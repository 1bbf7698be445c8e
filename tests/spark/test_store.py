"""Stores: where a run's data, checkpoints and model lie."""

from __future__ import annotations

import errno
import os
import pickle
import re
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from keras_strom import errors
from keras_strom.spark.data.checked import RowPlan
from keras_strom.spark.data.columns import Columns, ColumnSpec
from keras_strom.spark.data.direct import to_stream
from keras_strom.spark.data.export import WritePlan, write_partition
from keras_strom.spark.data.exported import TRAIN, DataFile, ExportedData
from keras_strom.spark.data.reader import _Files
from keras_strom.spark.data.spool import spooled
from keras_strom.spark.data.store import Store
from tests.support.stale import Stale


def test_a_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    path = store.run("r1").model
    assert not store.exists(path)
    store.write_bytes(path, b"first")
    store.write_bytes(path, b"second")
    assert store.exists(path)
    assert store.read_bytes(path) == b"second"
    assert [file.name for file in Path(path).parent.iterdir()] == ["model.keras"]
    store.delete(path)
    assert not store.exists(path)
    store.delete(path)  # Nothing there is no error.


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    path = store.run("r1").history
    store.write_bytes(path, b"old")

    def fail() -> None:
        with store.open_output(path) as stream:
            stream.write(b"half")
            raise ValueError("full")

    with pytest.raises(ValueError, match="full"):
        fail()
    assert store.read_bytes(path) == b"old"
    assert len(list(Path(path).parent.iterdir())) == 1


def test_folders_are_copied_both_ways_and_deleted(tmp_path: Path) -> None:
    source = tmp_path / "here"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "weights").write_bytes(b"w")
    store = Store.create(tmp_path / "store")
    run = store.run("r1")
    store.upload(source, run.checkpoints)
    store.download(run.checkpoints, tmp_path / "back")
    assert (tmp_path / "back" / "sub" / "weights").read_bytes() == b"w"
    store.delete(run.path)
    assert not store.exists(run.checkpoints)


def test_every_path_of_a_run_lies_in_its_folder(tmp_path: Path) -> None:
    run = Store.create(str(tmp_path)).run("r-1.a")
    paths = (run.train_data, run.validation_data, run.data_index, run.checkpoints, run.logs)
    for path in (*paths, run.model, run.history):
        assert path.startswith(f"{tmp_path}/r-1.a/")


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("s3a://bucket/deep/", "s3://bucket/deep"),
        ("hdfs://namenode:8020/strom", "hdfs://namenode:8020/strom"),
        ("gs://bucket", "gs://bucket"),
        ("file:///mnt/shared", "/mnt/shared"),
        ("file:/mnt/shared", "/mnt/shared"),
        ("/mnt/shared/", "/mnt/shared"),
        ("dbfs:/strom", "dbfs:/strom"),
    ],
)
def test_a_url_names_its_file_system(path: str, url: str) -> None:
    store = Store.create(path)
    assert store.url == url
    assert store.is_local == url.startswith("/")
    assert pickle.loads(pickle.dumps(store)) == store


def test_options_of_a_url_are_kept_but_not_shown() -> None:
    store = Store.create("s3://bucket/a?region=eu-west-1&secret_key=abc")
    assert store.run("r").model == "s3://bucket/a/r/model.keras"
    assert "abc" not in repr(store)
    filesystem, inside = Store.create("s3://bucket/a?region=eu-west-1").resolve("s3://bucket/a/x")
    assert (filesystem.type_name, inside) == ("s3", "bucket/a/x")
    assert filesystem.region == "eu-west-1"


@pytest.mark.parametrize("name", ["a b", "ts=00%3A00", "a#b", "ü", "a?b", "x=1:2"])
def test_a_name_in_an_object_store_is_taken_as_it_is(name: str) -> None:
    for url in (f"s3://bucket/{name.replace('?', '')}", "s3://bucket"):
        store = Store.create(f"{url}?region=eu-west-1")
        _, inside = store.resolve(f"{url}/{name}/rows.parquet")
        assert inside == f"{url.removeprefix('s3://')}/{name}/rows.parquet"
    assert Store.create("s3://bucket?region=eu-west-1").resolve("s3://bucket")[1] == "bucket"


@pytest.mark.parametrize("path", ["", "  ", None, 3, "hdfs:///", "s3://"])
def test_a_store_needs_a_path(path: object) -> None:
    with pytest.raises(errors.InvalidOption, match="path or URL"):
        Store.create(path)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["s3:bucket/a", "S3A:bucket", "hdfs:strom", "file:strom"])
def test_a_url_without_its_slashes_is_no_folder_here(path: str) -> None:
    with pytest.raises(errors.InvalidOption, match="lacks the slashes"):
        Store.create(path)


@pytest.mark.parametrize("path", ["run:1", "./s3:a", "file", "a/s3:b"])
def test_a_folder_may_have_a_colon_in_its_name(path: str) -> None:
    assert Store.create(path).url == os.path.abspath(path)


@pytest.mark.parametrize("run_id", ["", "a/b", "..", ".hidden", None])
def test_a_run_id_is_a_file_name(tmp_path: Path, run_id: object) -> None:
    with pytest.raises(errors.InvalidOption, match="run_id="):
        Store.create(tmp_path).run(run_id)  # type: ignore[arg-type]


def test_a_path_outside_the_store_is_refused(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    for path in (str(tmp_path), f"{tmp_path}/store2/x"):
        with pytest.raises(errors.InvalidOption, match="not in the store"):
            store.exists(path)


def test_a_path_that_climbs_out_of_the_store_is_neither_read_nor_deleted(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    other = tmp_path / "other"
    other.mkdir()
    for act in (store.exists, store.delete, store.read_bytes):
        with pytest.raises(errors.InvalidOption, match=r"leave out '\.\.'"):
            act(f"{store.url}/../other")
    assert other.is_dir()
    store.write_bytes(f"{store.url}/a..b/..c", b"names may have two dots")
    assert store.exists(f"{store.url}/a..b/..c")


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    with pytest.raises(errors.StoreUnavailable, match=r"r1/model\.keras"):
        store.read_bytes(store.run("r1").model)


def test_a_scheme_that_nothing_knows_says_what_to_install() -> None:
    store = Store.create("nosuch://place/x")
    with pytest.raises(errors.InvalidOption, match="nosuch"):
        store.exists(store.run("r").model)


def test_a_file_that_has_become_stale_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.create(tmp_path)
    path = str(tmp_path / "file")
    local = fs.LocalFileSystem()
    names = ("create_dir", "open_input_stream", "open_output_stream", "move", "delete_file")
    opened = types.SimpleNamespace(
        type_name="local", **{name: getattr(local, name) for name in names}
    )
    monkeypatch.setattr(Store, "resolve", lambda _, path: (opened, path))
    for name in ("open_output_stream", "move"):
        Stale(monkeypatch, opened, name, {0})
        store.write_bytes(path, name.encode())
        Stale(monkeypatch, opened, "open_input_stream", {0})
        assert store.read_bytes(path) == name.encode()
    Stale(monkeypatch, opened, "open_input_stream", range(9))
    with pytest.raises(errors.StoreUnavailable, match="Stale file handle"):
        store.read_bytes(path)


def test_rows_that_have_become_stale_are_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "rows.parquet")
    pq.write_table(pa.table({"x": [1, 2]}), path)
    exported = types.SimpleNamespace(store=Store.create(tmp_path))
    files = _Files(exported)  # type: ignore[arg-type]
    Stale(monkeypatch, pq.ParquetFile, "read_row_group", {0})
    assert files.read(path, 0, ["x"]).column("x").to_pylist() == [1, 2]
    Stale(monkeypatch, pq.ParquetFile, "read_row_group", range(9))
    with pytest.raises(errors.StoreUnavailable, match="Stale file handle"), files.explained(path):
        files.read(path, 0, ["x"])
    files.close()


def test_a_whole_file_is_copied_and_removed_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.create(tmp_path / "store")
    path = store.run("r").model
    (tmp_path / "here").write_bytes(b"model")
    for work in (
        lambda: store.upload(tmp_path / "here", path),
        lambda: store.download(path, tmp_path / "back"),
    ):
        stale = Stale(monkeypatch, fs, "copy_files", {0})
        work()
        assert stale.count == 2
    assert (tmp_path / "back").read_bytes() == b"model"


class Fragile:
    """A file system of this machine of which one step fails.

    Args:
        step: "open", "write" (from the second on), "close" or "move".
        error: how; of ESTALE `times` times, else always.
    """

    type_name = "local"

    def __init__(self, step: str, error: int, times: int = 99) -> None:
        self._local = fs.LocalFileSystem()
        self._step, self._error, self._left = step, error, times
        self._writes = 0

    def _may_fail(self, step: str) -> None:
        if step == self._step and self._left > 0:
            self._left -= 1
            raise OSError(self._error, os.strerror(self._error))

    def create_dir(self, path: str, recursive: bool) -> None:
        self._local.create_dir(path, recursive=recursive)

    def open_output_stream(self, path: str) -> Any:
        self._may_fail("open")
        return pa.PythonFile(_FragileStream(self, open(path, "wb")), "w")

    def move(self, path: str, to: str) -> None:
        self._may_fail("move")
        self._local.move(path, to)

    def delete_file(self, path: str) -> None:
        self._local.delete_file(path)


class _FragileStream:
    def __init__(self, owner: Fragile, file: Any) -> None:
        self._owner, self._file = owner, file
        self._writes = 0

    @property
    def closed(self) -> bool:
        return bool(self._file.closed)

    def write(self, content: Any) -> int:
        self._writes += 1
        if self._writes > 1:
            self._owner._may_fail("write")
        return int(self._file.write(content))

    def flush(self) -> None:
        self._file.flush()

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        self._file.close()
        self._owner._may_fail("close")


STEPS = ("open", "write", "close", "move")
SPECS = {"x": ColumnSpec("scalar", "int64")}


def batches() -> Iterator[pa.RecordBatch]:
    """Rows that come once."""
    for _ in range(3):
        yield pa.RecordBatch.from_pydict({"c0": list(range(1000))})


def export_rows(folder: Path) -> None:
    run = Store.create(folder).run("r")
    plan = WritePlan(run=run, rows=RowPlan(specs=SPECS), row_group_bytes=4000)
    list(write_partition(plan, batches()))


def direct_rows(count: int) -> ExportedData:
    rows = (DataFile("", (count,), 8 * count),)
    return ExportedData(Store(""), Columns(("x",), ()), SPECS, {TRAIN: rows}, format="direct")


def spool_rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    data = direct_rows(3000)
    chunks = ((TRAIN, to_stream(batch.rename_columns(["x"]))) for batch in batches())
    with spooled(data, chunks) as place:
        assert Path(place).parent == folder


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.ESTALE])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("way", ["export", "spool"])
def test_rows_that_cannot_be_written_are_an_error_in_words_and_leave_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, step: str, error: int
) -> None:
    fragile = Fragile(step, error)
    monkeypatch.setattr(Store, "resolve", lambda _, path: (fragile, path))
    words = re.escape(os.strerror(error)) + ".*(mounted anew|make room|kernel log)"
    folder = tmp_path / "rows"
    with pytest.raises(errors.StoreUnavailable, match=rf"\.parquet: .*{words}"):
        export_rows(folder) if way == "export" else spool_rows(folder, monkeypatch)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("came", [0, 1, 2])
def test_a_task_to_which_not_all_rows_have_come_starts_no_worker(came: int) -> None:
    chunks = [(TRAIN, to_stream(batch.rename_columns(["x"]))) for batch in batches()]
    with (
        pytest.raises(errors.StoreUnavailable, match=r"of the 3000 rows .*partition 1"),
        spooled(direct_rows(6000), chunks[:came], partition=1, workers=2),
    ):
        pass
    with spooled(direct_rows(6000), chunks, partition=1, workers=2):
        pass


@pytest.mark.parametrize("step", ["open", "move"])
def test_rows_are_written_where_a_folder_becomes_stale_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(Store, "resolve", lambda _, path: (fragile, path))
    fragile = Fragile(step, errno.ESTALE, times=1)
    export_rows(tmp_path / "rows")
    (written,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert pq.read_table(written).num_rows == 3000
    fragile = Fragile(step, errno.ESTALE, times=1)
    spool_rows(tmp_path / "spool", monkeypatch)
    assert list((tmp_path / "spool").iterdir()) == []


def test_what_killed_tasks_have_left_is_removed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    data = ExportedData(Store(""), Columns(("x",), ()), SPECS, {TRAIN: ()}, format="direct")
    script = (
        "import os, pickle, sys, tempfile; from keras_strom.spark.data.spool import spooled; "
        "tempfile.tempdir = sys.argv[1]; held = spooled(pickle.load(sys.stdin.buffer), ()); "
        "held.__enter__(); os._exit(9)"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    killed = subprocess.run(command, input=pickle.dumps(data), timeout=60, check=False)
    assert killed.returncode == 9
    (abandoned,) = tmp_path.iterdir()
    (unmarked := tmp_path / "keras-strom-data-new").mkdir()
    with spooled(data, ()) as first, spooled(data, ()) as second:
        assert not abandoned.exists()
        assert {*tmp_path.iterdir()} == {unmarked, Path(first), Path(second)}
    assert list(tmp_path.iterdir()) == [unmarked]


def test_no_temporary_folder_is_an_error_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "mkdir", full)
    with (
        pytest.raises(errors.StoreUnavailable, match=r"TMPDIR.*No space left.*another disk"),
        spooled(ExportedData(Store(""), Columns(("x",), ()), SPECS, {}, format="direct"), ()),
    ):
        pass
