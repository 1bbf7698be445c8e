"""What an installation that does not fit this machine, Python or TensorFlow says of it."""

import configparser
import os
import platform
import re
import runpy
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import keras_strom
from keras_strom import errors
from keras_strom._native import built_for, library, ops
from keras_strom._native.built_for import Record, look_at_tensorflow, operators_for
from keras_strom._native.tensorflows import PYTHONS, TENSORFLOWS, library_name, minor, requirement

ROOT = Path(__file__).resolve().parents[2]
WHEEL = Record(TENSORFLOWS, "GNU 12")


@pytest.fixture
def native(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in the place of keras_strom/_native, from which nothing has been loaded."""
    folder = tmp_path / "native"
    folder.mkdir()
    monkeypatch.setattr(library, "DIRECTORY", folder)
    monkeypatch.setattr(ops, "DIRECTORY", folder)
    library.library.cache_clear()
    ops.operations.cache_clear()
    yield folder
    library.library.cache_clear()
    ops.operations.cache_clear()


def install(folder: Path, package: str, version: str) -> None:
    """As much of a package as pip leaves for others to see."""
    record = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
    )


# ------------------------------------------------------------------ which operators


@pytest.mark.parametrize("version", TENSORFLOWS)
def test_a_wheel_has_operators_for_every_patch_of_the_releases_in_the_list(version: str) -> None:
    assert operators_for(WHEEL, version) == library_name(version)
    assert operators_for(WHEEL, f"{minor(version)}.99") == library_name(version)


@pytest.mark.parametrize("version", ["2.15.1", "2.99.0", "3.0.0", "made at home"])
def test_a_tensorflow_without_operators_is_refused_with_the_remedy(version: str) -> None:
    with pytest.raises(errors.UnsupportedTensorFlow) as caught:
        operators_for(WHEEL, version)
    words = str(caught.value)
    assert f"built for TensorFlow {minor(TENSORFLOWS[0])}, " in words
    assert f"found {version}" in words
    assert f'pip install "tensorflow=={minor(TENSORFLOWS[-1])}.*"' in words
    assert "pip install --no-build-isolation ." in words


def test_operators_built_for_one_tensorflow_are_refused_under_another(native: Path) -> None:
    (native / "build.json").write_text('{"tensorflow": ["2.0.0"]}')
    with pytest.raises(errors.UnsupportedTensorFlow, match=r"built for TensorFlow 2\.0, found"):
        ops.operations()


@pytest.mark.parametrize("text", [None, "", "{}", '{"tensorflow": "2.21.0"}', '{"tensorflow": []}'])
def test_operators_without_a_record_of_their_build_are_refused(
    native: Path, text: str | None
) -> None:
    if text is not None:
        (native / "build.json").write_text(text)
    with pytest.raises(errors.InternalError, match="rebuild"):
        ops.operations()


def test_the_operators_of_the_imported_tensorflow_are_the_loaded_ones() -> None:
    import tensorflow as tf

    assert ops.operators_path().name == library_name(tf.__version__)
    assert ops.operators_path().exists()


def test_what_pip_is_asked_for_follows_from_the_list() -> None:
    major, last = minor(TENSORFLOWS[-1]).split(".")
    asked = requirement("tensorflow-cpu")
    assert asked == f"tensorflow-cpu >={minor(TENSORFLOWS[0])}, <{major}.{int(last) + 1}"


def test_the_classifiers_name_the_pythons_of_the_list() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    text = config["metadata"]["classifiers"]
    prefix = "Programming Language :: Python :: 3."
    named = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(prefix)]
    assert named == list(PYTHONS)
    assert config["options"]["python_requires"] == f">={PYTHONS[0]}"


@pytest.mark.parametrize("page", ["README.md", "docs/install.md", "docs/quickstart.md"])
def test_pages_name_the_wheel_of_this_version(page: str) -> None:
    named = set(re.findall(r"keras_strom-[\w.]+-py3-none-\w+\.whl", (ROOT / page).read_text()))
    platform_tag = runpy.run_path(str(ROOT / ".ci" / "release" / "build.py"))["PLATFORM"]
    assert named == {f"keras_strom-{keras_strom.__version__}-py3-none-{platform_tag}.whl"}


@pytest.mark.parametrize("page", ["README.md", "docs/install.md"])
def test_pages_name_the_range_of_tensorflows_and_pythons(page: str) -> None:
    text = (ROOT / page).read_text()
    assert f"{minor(TENSORFLOWS[0])} to {minor(TENSORFLOWS[-1])}" in text
    assert f"Python {PYTHONS[0]} to {PYTHONS[-1]}" in text


# ------------------------------------------------------------------ two TensorFlows


def test_two_tensorflows_in_one_place_are_refused_before_they_are_imported(tmp_path: Path) -> None:
    install(tmp_path, "tensorflow", "2.21.0")
    install(tmp_path, "tensorflow-cpu", "2.18.1")
    with pytest.raises(errors.UnsupportedTensorFlow, match="installed twice") as caught:
        look_at_tensorflow(tmp_path / "build.json", [str(tmp_path)])
    assert "tensorflow 2.21.0 and tensorflow-cpu 2.18.1" in str(caught.value)
    assert "pip uninstall -y tensorflow tensorflow-cpu" in str(caught.value)


def test_the_same_tensorflow_under_two_names_is_taken(tmp_path: Path) -> None:
    install(tmp_path, "tensorflow", "2.21.0")
    install(tmp_path, "tensorflow-cpu", "2.21.0")
    look_at_tensorflow(tmp_path / "build.json", [str(tmp_path)])


def test_a_tensorflow_that_another_one_hides_is_not_counted(tmp_path: Path) -> None:
    install(tmp_path / "first", "tensorflow-cpu", "2.16.2")
    install(tmp_path / "second", "tensorflow", "2.21.0")
    found = built_for.installed_versions([str(tmp_path / "first"), str(tmp_path / "second")])
    assert found == {"tensorflow-cpu": "2.16.2"}


def test_the_strategy_is_not_imported_beside_a_tensorflow_that_is_too_old(tmp_path: Path) -> None:
    install(tmp_path, "tensorflow-cpu", "2.15.1")
    code = "from keras_strom import StromStrategy"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("keras_strom.errors.UnsupportedTensorFlow: ")
    assert "found 2.15.1" in last


def test_a_tensorflow_that_pip_does_not_know_is_not_judged(tmp_path: Path) -> None:
    look_at_tensorflow(tmp_path / "build.json", [str(tmp_path)])


# ------------------------------------------------------------------ Python and the machine


def test_an_older_python_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 18, "final", 0))
    with pytest.raises(errors.UnsupportedSystem, match=r"needs Python 3\.10"):
        runpy.run_path(str(ROOT / "keras_strom" / "__init__.py"))


def elf(machine: int, bits: int = 64) -> bytes:
    """The beginning of a library for a machine, by ELF's number of it."""
    ident = b"\x7fELF" + bytes([bits // 32, 1, 1]) + bytes(9)
    return ident + struct.pack("<HH", 3, machine) + bytes(64)


@pytest.mark.parametrize(("machine", "name"), [(183, "aarch64"), (62, "x86_64"), (8, "machine 8")])
def test_a_wheel_for_another_machine_names_both(native: Path, machine: int, name: str) -> None:
    if name == platform.machine():
        pytest.skip("this machine")
    (native / "libstrom.so").write_bytes(elf(machine))
    with pytest.raises(errors.UnsupportedSystem, match=f"is for .*{name}, and this machine is"):
        library.library()


def test_a_library_that_is_none_is_a_fault_of_the_installation(native: Path) -> None:
    (native / "libstrom.so").write_bytes(b"not a library")
    with pytest.raises(errors.InternalError, match="cannot be loaded"):
        library.library()


def test_a_package_in_an_archive_says_how_spark_s_executors_get_it(
    native: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = native / "package.zip"
    archive.write_bytes(b"PK")
    monkeypatch.setattr(library, "DIRECTORY", archive / "keras_strom" / "_native")
    with pytest.raises(errors.UnsupportedSystem, match=r"package\.zip, .* --py-files .*--archives"):
        library.library()
    executors = pytest.importorskip("keras_strom.spark.runner.executors")
    # As each executor says of itself before an estimator trains.
    assert executors.installed()["keras_strom"].startswith("!UnsupportedSystem: ")


def test_a_library_of_another_word_size_names_both(native: Path) -> None:
    path = native / "libstrom.so"
    path.write_bytes(b"")
    error = built_for.why_not_loaded(path, f"{path}: wrong ELF class: ELFCLASS64")
    assert isinstance(error, errors.UnsupportedSystem)
    assert "is for 64 bits, and this Python has" in str(error)


def test_musl_is_named(native: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_glibc(name: str) -> str:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "confstr", without_glibc)
    (native / "libstrom.so").write_bytes(b"")
    with pytest.raises(errors.UnsupportedSystem, match=r"musl.*Debian"):
        library.library()


@pytest.mark.parametrize(
    ("of", "version", "words"),
    [
        ("libc.so.6", "GLIBC_9.99", "needs glibc 9.99, and this system has"),
        ("libstdc++.so.6", "GLIBCXX_9.9.9", "needs a newer libstdc++.so.6 (GLIBCXX_9.9.9)"),
    ],
)
def test_a_system_that_is_too_old_names_what_is_missing(
    native: Path, tmp_path: Path, of: str, version: str, words: str
) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    # A library of the future, against which libstrom.so is linked.
    (tmp_path / "future.map").write_text(f"{version} {{ global: of_the_future; }};")
    (tmp_path / "future.c").write_text("int of_the_future(void) { return 1; }")
    (tmp_path / "strom.c").write_text(
        "int of_the_future(void); int f(void) { return of_the_future(); }"
    )
    future = tmp_path / of
    build(
        compiler,
        "-nostdlib",
        f"-Wl,--soname={of},--version-script={tmp_path / 'future.map'}",
        "-o",
        str(future),
        str(tmp_path / "future.c"),
    )
    build(
        compiler,
        "-nostdlib",
        "-o",
        str(native / "libstrom.so"),
        str(tmp_path / "strom.c"),
        str(future),
    )
    with pytest.raises(errors.UnsupportedSystem) as caught:
        library.library()
    assert words in str(caught.value)


def build(compiler: str, *arguments: str) -> None:
    subprocess.run([compiler, "-shared", "-fPIC", *arguments], check=True, timeout=60)
