#!/usr/bin/env python3
"""Tries the wheel of dist/ with each Python and TensorFlow that can be had: `make test-release`.

Each pair gets an environment of its own, with the wheel, TensorFlow and what pip brings along. In
it, beside a copy of the tests without the sources, run: README's first example with two workers,
README's blocks of Python, and the codec's contract suite. With --newest it is one environment with
the newest TensorFlow and Keras that pip offers, the package built there from this tree, and the
quick tests of the strategy: `make test-newest`.
"""

import argparse
import dataclasses
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from against import RELEASE, ROOT, log

LIST = runpy.run_path(str(ROOT / "keras_strom" / "_native" / "tensorflows.py"))
FOLDER = RELEASE / "pairs"
COPIED = (
    "tests",
    "benchmarks",
    "docs",
    "examples",
    "pyproject.toml",
    "setup.cfg",
    "Makefile",
    "README.md",
)
COPIED += ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")
TEST_TOOLS = ("cloudpickle", "hypothesis", "pytest", "pytest-timeout", "pytest-xdist")
# What quick tests of the strategy look for besides.
NEWEST_TOOLS = ("matplotlib", "tensorboard")
SECONDS = 1800
# What TensorFlow says of its build and what the operators were built with.
SAME_FLAGS = """
import json, pathlib, keras, tensorflow as tf
import keras_strom._native.library as native
from keras_strom._native.ops import operations, operators_path
built = json.loads((native.DIRECTORY / "build.json").read_text())["flags"]
flags = [flag for flag in tf.sysconfig.get_compile_flags() if not flag.startswith("-I")]
assert flags == built, f"TensorFlow says {flags}, the wheel was built with {built}"
operations()
print(tf.__version__, keras.__version__, operators_path().name)
"""
DATA = """
import numpy as np
x_train = np.random.default_rng(0).random((512, 784), "float32")
y_train = np.arange(512) % 10
"""


@dataclasses.dataclass
class NotHereError(Exception):
    """A pair that cannot be had, and why."""

    reason: str


@dataclasses.dataclass
class StepError(Exception):
    """A step that failed, with the end of its output."""

    step: str
    output: str


def main() -> None:
    """Tries the pairs and prints their table; fails when one of them has failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="PYTHON-TENSORFLOW", help='e.g. "3.11-2.21"')
    parser.add_argument("--keep", action="store_true", help="leave the environments there")
    parser.add_argument("--newest", action="store_true", help="the newest of all, from this tree")
    options = parser.parse_args()
    if options.newest:
        newest(options.keep)
        return
    wheels = [*(ROOT / "dist").glob("keras_strom-*-manylinux*.whl")]
    if len(wheels) != 1:
        raise SystemExit("there is no wheel in dist/, or several: run `make release` first.")
    minors = [LIST["minor"](version) for version in LIST["TENSORFLOWS"]]
    known = [(python, minor) for python in LIST["PYTHONS"] for minor in minors]
    wanted = [tuple(name.split("-")) for name in options.only or ()] or known
    if unknown := sorted(set(wanted) - set(known)):
        raise SystemExit(
            f"{', '.join(map('-'.join, unknown))}: no pairs of keras_strom/_native/tensorflows.py, "
            f"which has Python {', '.join(LIST['PYTHONS'])} with TensorFlow {', '.join(minors)}; "
            "write 3.11-2.21."
        )
    results = {}
    for python, minor in wanted:
        log(f"Python {python} with TensorFlow {minor}")
        results[python, minor] = outcome(python, minor, wheels[0], options.keep)
        log(f"Python {python} with TensorFlow {minor}: {results[python, minor]}")
    table = "".join(table_of(results))
    (RELEASE / "pairs.md").write_text(table)
    sys.stdout.write(f"\n{table}")
    if any(text.startswith("failed") for text in results.values()):
        raise SystemExit(1)


def outcome(python: str, minor: str, wheel: Path, keep: bool) -> str:
    """What has become of a pair, in a cell's words."""
    folder = FOLDER / f"{python}-{minor}"
    try:
        return f"ok ({try_pair(folder, python, minor, wheel)})"
    except NotHereError as reason:
        return f"not to be had: {reason.reason}"
    except StepError as failure:
        sys.stderr.write(f"{failure.output}\n")
        return f"failed: {failure.step}"
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def try_pair(folder: Path, python: str, minor: str, wheel: Path) -> str:
    """Installs the wheel beside a TensorFlow, tries it, and returns the versions."""
    inside = environment(folder, python)
    install(inside, wheel, f"tensorflow-cpu=={minor}.*", *TEST_TOOLS)
    copy = folder / "copy"
    copy_tests(copy)
    tensorflow, keras, _ = run("operators", copy, inside, "-c", SAME_FLAGS).split()
    script = copy / "train.py"
    script.write_text(DATA + first_example())
    run("two workers", copy, inside.with_name("keras-strom"), "run", "-np", "2", script)
    pytest = (inside, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider")
    run("README", copy, *pytest, "tests/house/test_docs.py", "-k", "blocks_of_a_page and README")
    run("codec's contract", copy, *pytest, "tests/codec/test_codec_contract.py")
    return f"TensorFlow {tensorflow}, Keras {keras}"


def newest(keep: bool) -> None:
    """Builds this tree for the newest TensorFlow and runs quick tests beside the newest Keras."""
    folder = FOLDER / "newest"
    for python in reversed(LIST["PYTHONS"]):
        try:
            inside = environment(folder, python)
            install(inside, "--upgrade", "tensorflow-cpu", "keras", *TEST_TOOLS, *NEWEST_TOOLS)
        except NotHereError as reason:
            log(f"Python {python}: {reason.reason}")
            continue
        break
    else:
        raise SystemExit("none of the supported Pythons is here with a TensorFlow")
    install(inside, "setuptools>=77", "wheel", "cmake", "ninja")
    tree = folder / "tree"
    listed = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    files = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout
    for name in filter(None, files.decode().split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    copy = folder / "copy"
    copy_tests(copy)
    try:
        log("building the native libraries for it")
        run("build", tree, inside, "-m", "pip", "install", "--no-build-isolation", tree)
        print_versions = "import keras, tensorflow as tf; print(tf.__version__, keras.__version__)"
        tensorflow, keras = run("versions", copy, inside, "-c", print_versions).split()
        log(f"the strategy's quick tests with TensorFlow {tensorflow} and Keras {keras}")
        pytest = (inside, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "quick")
        output = run("quick tests", copy, *pytest, "tests/strategy", "tests/sharing")
        sys.stdout.write(output.strip().splitlines()[-1] + "\n")
    except StepError as failure:
        raise SystemExit(f"{failure.output}\n==> failed: {failure.step}") from None
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def environment(folder: Path, version: str) -> Path:
    """Makes an environment and returns its Python."""
    shutil.rmtree(folder, ignore_errors=True)
    for python in pythons(version):
        made = subprocess.run([python, "-m", "venv", folder], capture_output=True)
        if made.returncode == 0:
            return folder / "bin" / "python"
    raise NotHereError(f"there is no Python {version} here")


def pythons(version: str) -> Iterator[str]:
    """Where a Python may be; one of pyenv's on the PATH may be there and not run."""
    if found := shutil.which(f"python{version}"):
        yield found
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}")))


def install(python: Path, *what: object) -> None:
    """Has pip install into an environment.

    Raises:
        NotHereError: pip knows no such package for this Python.
    """
    pip = (python, "-m", "pip", "install", "--quiet", "--no-compile")
    try:
        run("pip install", python.parent, *pip, *what)
    except StepError as failure:
        if missing := re.search(r"No matching distribution found for (\S+)", failure.output):
            raise NotHereError(f"pip finds no {missing[1]}") from failure
        raise


def copy_tests(folder: Path) -> None:
    """The tests and pages, without the package: it is found where it was installed."""
    folder.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy2(ROOT / name, folder / name)


def first_example() -> str:
    """README's first block of Python."""
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    if not block:
        raise SystemExit("README.md has no block of Python.")
    return block[1]


def run(step: str, folder: Path, *command: object) -> str:
    """Runs a step of a pair and returns its output."""
    words = [str(part) for part in command]
    hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    environ = {name: value for name, value in os.environ.items() if name not in hidden}
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            env={**environ, "TF_CPP_MIN_LOG_LEVEL": "2", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise StepError(step, f"{' '.join(words)} takes longer than {SECONDS} s") from error
    if done.returncode != 0:
        raise StepError(step, f"{' '.join(words)}\n{(done.stdout + done.stderr)[-8000:]}")
    return done.stdout


def table_of(results: dict[tuple[str, str], str]) -> Iterator[str]:
    """The outcomes, a line a pair."""
    yield "| Python | TensorFlow | outcome |\n|---|---|---|\n"
    for (python, minor), text in results.items():
        yield f"| {python} | {minor} | {text} |\n"


if __name__ == "__main__":
    main()
