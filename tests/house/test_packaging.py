"""What pip builds, installs and refuses to build."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from keras_strom._native.built_for import installed_versions
from keras_strom._native.tensorflows import library_name

pytestmark = pytest.mark.jobs

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "custom_ops"


def run(
    *command: str, cwd: Path = ROOT, expect: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a command and compares its exit status; output is text."""
    result = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert result.returncode == expect, result.stdout + result.stderr
    return result


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    arguments = ("--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", str(folder))
    run(sys.executable, "-m", "pip", "wheel", *arguments, str(ROOT))
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    arguments = ("--no-deps", "--no-index", "--target", str(folder))
    run(sys.executable, "-m", "pip", "install", *arguments, str(wheel))
    return folder


def python_files(folder: Path, prefix: str) -> set[str]:
    return {prefix + path.relative_to(folder).as_posix() for path in folder.rglob("*.py")}


def test_the_wheel_holds_every_module_and_the_native_libraries(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = python_files(ROOT / "keras_strom", "keras_strom/")
    modules |= python_files(ROOT / "spark", "keras_strom/spark/")
    assert {name for name in names if name.endswith(".py")} == modules
    (version,) = set(installed_versions(sys.path).values())
    native = {"libstrom.so", library_name(version), "build.json"}
    if shutil.which("nvcc"):
        native.add("libstrom_cuda.so")
    assert {f"keras_strom/_native/{name}" for name in native} <= names
    assert "keras_strom/py.typed" in names
    page = {path.name for path in (ROOT / "keras_strom" / "dashboard" / "page").iterdir()}
    assert {f"keras_strom/dashboard/page/{name}" for name in page} <= names
    assert not [name for name in names if name.startswith(("spark/", "tests/", "examples/"))]


def test_the_wheel_is_for_this_platform_and_any_python_3(wheel: Path) -> None:
    assert wheel.stem.split("-")[2:4] == ["py3", "none"]
    assert wheel.stem.endswith(f"linux_{os.uname().machine}")


def test_the_version_is_the_same_everywhere(wheel: Path) -> None:
    source = (ROOT / "keras_strom" / "__init__.py").read_text()
    assert f'__version__ = "{wheel.stem.split("-")[1]}"' in source


def test_the_build_record_names_the_installed_tensorflow(installed: Path) -> None:
    versions = {"tensorflow", "keras_strom", "compiler", "strom_abi"}
    record = json.loads((installed / "keras_strom" / "_native" / "build.json").read_text())
    assert versions <= set(record)
    script = "import importlib.util as u; print(u.find_spec('tensorflow').origin)"
    tensorflow = Path(run(sys.executable, "-c", script).stdout.strip()).parent
    (metadata,) = (
        path
        for path in tensorflow.parent.glob("tensorflow*.dist-info/METADATA")
        if path.parent.name.partition("-")[0] in {"tensorflow", "tensorflow_cpu"}
    )
    (version,) = record["tensorflow"]
    assert f"\nVersion: {version}\n" in metadata.read_text()


def test_an_installed_wheel_imports_from_where_it_lies(installed: Path, tmp_path: Path) -> None:
    script = "import keras_strom, keras_strom.spark as s; print(keras_strom.__file__, s.__file__)"
    result = run(sys.executable, "-c", script, cwd=tmp_path, PYTHONPATH=str(installed))
    package = installed / "keras_strom"
    expected = [str(package / "__init__.py"), str(package / "spark" / "__init__.py")]
    assert result.stdout.split() == expected


def test_a_bare_import_of_spark_is_refused(tmp_path: Path) -> None:
    result = run(sys.executable, "-c", "import spark", cwd=tmp_path, expect=1, PYTHONPATH=str(ROOT))
    assert "keras_strom.spark" in result.stderr.splitlines()[-1]


def test_the_installed_command_runs(installed: Path, tmp_path: Path) -> None:
    command = installed / "bin" / "keras-strom"
    result = run(sys.executable, str(command), "--help", cwd=tmp_path, PYTHONPATH=str(installed))
    assert "usage: keras-strom" in result.stdout


def test_libstrom_needs_only_the_c_and_cxx_runtimes(installed: Path) -> None:
    library = installed / "keras_strom" / "_native" / "libstrom.so"
    needed = [
        line.split("[")[1].rstrip("]")
        for line in run("readelf", "--dynamic", "--wide", str(library)).stdout.splitlines()
        if "(NEEDED)" in line
    ]
    allowed = ("libc.", "libm.", "libdl.", "libpthread.", "libgcc_s.", "libstdc++.", "ld-linux")
    assert [name for name in needed if not name.startswith(allowed)] == []


def test_the_source_distribution_can_be_built_from(tmp_path: Path) -> None:
    run(sys.executable, "setup.py", "-q", "sdist", "--dist-dir", str(tmp_path))
    (archive,) = tmp_path.iterdir()
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in SOURCES.rglob("*")
        if path.suffix in {".cc", ".h", ".cu", ".cmake", ".map"}
    }
    sources |= {"custom_ops/CMakeLists.txt", "setup.py", "LICENSE", "spark/__init__.py"}
    assert sources <= names


# --------------------------------------------------------------------- clear refusals


def test_without_tensorflow_the_build_says_how_to_install_it(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as util\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda n, *rest: None if n == 'tensorflow' else find(n, *rest)\n"
    )
    command = (sys.executable, "setup.py", "-q", "build_native", "--inplace")
    result = run(*command, expect=1, PYTHONPATH=str(tmp_path))
    assert "TensorFlow is not installed" in result.stderr
    assert "--no-build-isolation" in result.stderr


def test_on_another_system_the_build_says_what_it_needs(tmp_path: Path) -> None:
    """In place of what a compiler says there of Linux's headers."""
    (tmp_path / "sitecustomize.py").write_text(
        "import platform\nplatform.system = lambda: 'Darwin'\n"
    )
    command = (sys.executable, "setup.py", "-q", "build_native", "--inplace")
    result = run(*command, expect=1, PYTHONPATH=str(tmp_path))
    assert "keras-strom runs on Linux alone" in result.stderr
    assert "this system is Darwin" in result.stderr


def test_without_a_compiler_the_build_says_what_to_install(tmp_path: Path) -> None:
    command = (sys.executable, "setup.py", "-q", "build_native", "--inplace")
    result = run(*command, expect=1, PATH=str(tmp_path), CXX="")
    assert "apt-get install g++" in result.stderr


def test_a_compiler_that_is_asked_for_and_not_there_is_named() -> None:
    """Another one would be taken without a word."""
    command = (sys.executable, "setup.py", "-q", "build_native", "--inplace")
    result = run(*command, expect=1, CXX="ccache no-such-compiler")
    assert "CXX=ccache no-such-compiler names no program that is here" in result.stderr


def test_a_compiler_that_is_too_old_is_named(tmp_path: Path) -> None:
    """Ubuntu 20.04 has g++ 9, Debian 11 g++ 10; the wheel runs on both."""
    compiler = tmp_path / "g++"
    compiler.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} -w -D__GNUC__=10 "$@"\n')
    compiler.chmod(0o755)
    tools = Path(sys.executable).parent
    result = run(
        str(tools / "cmake"),
        *("-S", str(SOURCES), "-B", str(tmp_path / "build"), "-G", "Ninja"),
        f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}",
        f"-DCMAKE_CXX_COMPILER={compiler}",
        expect=1,
    )
    assert "keras-strom needs g++ 11 or newer, and this is 10" in result.stderr
    assert "CXX=g++-11" in result.stderr


def test_without_openssl_the_build_says_what_to_install(tmp_path: Path) -> None:
    tools = Path(sys.executable).parent
    result = run(
        str(tools / "cmake"),
        *("-S", str(SOURCES), "-B", str(tmp_path), "-G", "Ninja"),
        f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}",
        f"-DCMAKE_CXX_COMPILER={shutil.which('c++')}",
        "-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF",
        "-DCMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH=OFF",
        expect=1,
    )
    assert "apt-get install libssl-dev" in result.stderr


# --------------------------------------------------------------------- trees that were moved


def test_a_build_that_was_moved_with_its_tree_is_made_anew(tmp_path: Path) -> None:
    """CMake refuses a folder whose cache has the paths of another place."""
    tree, python, cmake = tmp_path / "tree", tmp_path / "bin/python", tmp_path / "bin/cmake"
    (tree / "keras_strom/_native").mkdir(parents=True)
    for name in ("setup.py", "setup.cfg", "README.md", "keras_strom/_native/tensorflows.py"):
        shutil.copy(ROOT / name, tree / name)
    python.parent.mkdir()
    python.symlink_to(os.path.realpath(sys.executable))
    for tool in (cmake, cmake.with_name("ninja")):
        tool.write_text('#!/bin/sh\n[ -e "$4/CMakeCache.txt" ] && echo "an old cache"\nexit 9\n')
        tool.chmod(0o755)
    (tmp_path / "unpacked/tensorflow/include").mkdir(parents=True)
    (tmp_path / "unpacked/tensorflow_cpu-2.21.0.dist-info").mkdir()
    build = tree / "build/native"
    for place, kept in ((tree, True), (tmp_path / "elsewhere", False)):
        build.mkdir(parents=True, exist_ok=True)
        (place / "custom_ops").mkdir(parents=True)
        home = f"CMAKE_HOME_DIRECTORY:INTERNAL={place}/custom_ops\n"
        (build / "CMakeCache.txt").write_text(home)
        result = run(
            *(str(python), "setup.py", "-q", "build_native", "--inplace"),
            cwd=tree,
            expect=1,
            PYTHONPATH=sysconfig.get_path("purelib"),
            STROM_TENSORFLOWS=str(tmp_path / "unpacked"),
        )
        assert ("an old cache" in result.stdout) == kept, result.stdout + result.stderr


def test_make_finds_what_was_moved_with_the_tree(tmp_path: Path) -> None:
    """And leaves alone what belongs here, and an environment that is another tree's by a link."""
    tree = tmp_path / "tree"
    made = {
        "build/here": tree / "build/here",
        "build/there": tmp_path / "x" / "tree/build/there",
        "build/linked": tmp_path / "other",
    }
    (tree / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci/moved", tree / ".ci/moved")
    for name, place in made.items():
        (tree / name / "bin").mkdir(parents=True)
        (tree / name / "bin/activate").write_text(f'VIRTUAL_ENV="{place}"\nexport VIRTUAL_ENV\n')
    (tree / "build/linked").rename(tmp_path / "other")
    (tree / "build/linked").symlink_to(tmp_path / "other")
    for name, place in (("native", tree), ("bench/native", tmp_path / "gone")):
        (tree / "build" / name).mkdir(parents=True)
        home = f"CMAKE_HOME_DIRECTORY:INTERNAL={place}/custom_ops\n"
        (tree / "build" / name / "CMakeCache.txt").write_text(home)

    assert run(str(tree / ".ci/moved")).stdout == "build/there build/bench/native\n"
    run(str(tree / ".ci/moved"), "remove")
    assert run(str(tree / ".ci/moved")).stdout == ""
    assert {one.name for one in (tree / "build").iterdir()} == {"here", "linked", "native", "bench"}


def test_every_constraint_is_one_exact_version() -> None:
    lines = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    names = [line.partition("==")[0].lower() for line in lines]
    assert all(line.count("==") == 1 and "/" not in line for line in lines)
    assert len(set(names)) == len(names)
