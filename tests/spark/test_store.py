"""Stores: where a run's data, checkpoints and model lie."""

from __future__ import annotations

import pickle
import types
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from keras_strom import errors
from keras_strom.spark.data.reader import _Files
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


@pytest.mark.parametrize("path", ["", "  ", None, 3])
def test_a_store_needs_a_path(path: object) -> None:
    with pytest.raises(errors.InvalidOption, match="path or URL"):
        Store.create(path)  # type: ignore[arg-type]


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
