"""What `make release` and `make test-release` do without the network or a compiler."""

import importlib
import io
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RELEASE = ROOT / ".ci" / "release"


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """One of the scripts, as they import each other."""
    monkeypatch.syspath_prepend(str(RELEASE))
    return importlib.import_module(name)


def archive_of(path: Path, names: list[str], mtime: int) -> None:
    with tarfile.open(path, "w:gz") as file:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uid, member.uname = (
                len(name),
                mtime,
                mtime,
                "somebody",
            )
            file.addfile(member, io.BytesIO(name.encode()))


def test_a_source_distribution_has_the_same_bytes_on_every_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = module("build", monkeypatch)
    first, second = tmp_path / "first.tar.gz", tmp_path / "second.tar.gz"
    archive_of(first, ["p/a", "p/b"], 1000)
    archive_of(second, ["p/b", "p/a"], 2000)
    for path in (first, second):
        build.repack(path, 1234)
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as file:
        assert [(one.name, one.mtime, one.uname) for one in file] == [
            ("p/a", 1234, ""),
            ("p/b", 1234, ""),
        ]


def test_the_umask_is_not_in_a_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = module("build", monkeypatch)
    for name, rights in (("program", 0o775), ("text", 0o660)):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(rights)
    build.same_rights(tmp_path)
    assert [oct((tmp_path / name).stat().st_mode & 0o777) for name in ("program", "text")] == [
        "0o755",
        "0o644",
    ]


def test_what_a_release_is_built_against_is_named_by_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    against = module("against", monkeypatch)
    assert len(against.sources()) > 1
    for digest, place in against.sources():
        assert re.fullmatch(r"[0-9a-f]{64}", digest)
        assert re.match(r"debian(-security)?/pool/", place)
    version, place, digest = against.openssl_parts()
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert (digest, place) in against.sources()


def test_files_come_from_the_archives_that_apt_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    against = module("against", monkeypatch)
    known = "https://mirror.example/debian-security/\nhttps://mirror.example/debian/\n"
    monkeypatch.setattr(against, "run", lambda *_: known)
    assert against.address("debian/pool/a.deb") == "https://mirror.example/debian/pool/a.deb"
    with pytest.raises(SystemExit, match="no source whose address ends in /ubuntu"):
        against.address("ubuntu/pool/a.deb")


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that fetches, from an archive that is a folder of the test's."""
    against = module("against", monkeypatch)
    monkeypatch.setattr(against, "DOWNLOADS", tmp_path / "downloads")
    monkeypatch.setattr(against, "address", lambda place: (tmp_path / place).as_uri())
    return against


def test_a_file_that_is_another_one_is_refused(tmp_path: Path, archive: Any) -> None:
    (tmp_path / "library.deb").write_bytes(b"something else")
    with pytest.raises(SystemExit, match="it is refused"):
        archive.fetched("0" * 64, "library.deb")


def test_a_file_that_is_not_there_any_more_says_what_to_write(archive: Any) -> None:
    with pytest.raises(SystemExit, match=r"\.ci/release/sources\.txt"):
        archive.fetched("0" * 64, "gone.deb")


def test_a_folder_that_is_half_made_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    against = module("against", monkeypatch)
    (next(against.made(tmp_path / "made")) / "half").touch()  # And no more.
    assert not (tmp_path / "made").exists()
    for folder in against.made(tmp_path / "made"):
        (folder / "all").touch()
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["all"]


def test_the_first_example_of_the_readme_is_a_whole_script(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = module("pairs", monkeypatch)
    script = pairs.DATA + pairs.first_example()
    compile(script, "train.py", "exec")
    assert "model.fit(x_train, y_train" in script


def test_the_table_of_pairs_has_a_line_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = module("pairs", monkeypatch)
    table = "".join(pairs.table_of({("3.11", "2.21"): "ok", ("3.13", "2.16"): "not to be had"}))
    assert table.splitlines()[2:] == ["| 3.11 | 2.21 | ok |", "| 3.13 | 2.16 | not to be had |"]


def test_a_pair_that_is_not_in_the_list_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "keras_strom-0-py3-none-manylinux_2_28_x86_64.whl").touch()
    for name in (".ci", "keras_strom"):
        (tmp_path / name).symlink_to(ROOT / name)
    script = (
        "import runpy, sys; sys.argv[1:] = ['--only', '3.11-1.0']; sys.path.insert(0, sys.argv[0])"
    )
    script += f"; import against, pathlib; against.ROOT = pathlib.Path({str(tmp_path)!r})"
    script += f"; runpy.run_path({str(RELEASE / 'pairs.py')!r}, run_name='__main__')"
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(RELEASE)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 1
    assert "no pairs of keras_strom/_native/tensorflows.py" in result.stderr
