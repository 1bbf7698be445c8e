"""Builds keras-strom's native libraries with CMake; everything else is in setup.cfg.

``pip install --no-build-isolation .`` and ``-e .`` run this, and ``python setup.py build_native
--inplace`` rebuilds the libraries alone. It makes, in ``keras_strom/_native/``:

* ``libstrom.so``: the whole native side behind a C interface, without TensorFlow;
* ``_strom_ops_2.21.so``: the TensorFlow operators, which fit the one TensorFlow they were built
  with;
* ``libstrom_cuda.so``: the codec on NVIDIA devices, where nvcc is;
* ``build.json``: what they were built with, so that a mismatch can be explained.

The environment may set ``CXX`` (the compiler), ``CMAKE_ARGS`` (more options for CMake) and
``CMAKE_BUILD_PARALLEL_LEVEL`` (compilers at once). ``STROM_TENSORFLOWS`` names folders, with colons
between them, each of which holds an unpacked TensorFlow: the operators are built for each of them
in place of the installed one, as `make release` does.
"""

import importlib.util
import json
import os
import platform
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

from setuptools import Command, Distribution, find_packages, setup
from setuptools.command.build import build
from setuptools.errors import SetupError

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    raise SystemExit(
        "keras-strom needs a newer setuptools: run `pip install --upgrade 'setuptools>=77'`."
    ) from None

ROOT = Path(__file__).resolve().parent
SOURCES = ROOT / "custom_ops"
# One build folder for every way to build, so that a second build compiles only what has changed.
BUILD = ROOT / "build" / "native"
PACKAGE = Path("keras_strom", "_native")
OUTPUTS = ("libstrom.so", "build.json")
# The list of TensorFlows, which the installed package reads too.
RELEASES = runpy.run_path(str(ROOT / PACKAGE / "tensorflows.py"))
WHERE_NVCC_IS = "libstrom_cuda.so"

PROBE = """
import json, tensorflow as tf
print(json.dumps({"version": tf.__version__,
                  "compile": tf.sysconfig.get_compile_flags(),
                  "link": tf.sysconfig.get_link_flags()}))
"""


class BuildNative(Command):
    """Compiles custom_ops/ into the package: the source tree's own, or the one being built."""

    description = "build libstrom.so and the TensorFlow operators with CMake"
    user_options: ClassVar = [
        ("build-lib=", None, "where the package is being built"),
        ("inplace", "i", "put the libraries into the source tree"),
    ]
    boolean_options: ClassVar = ["inplace"]

    def initialize_options(self) -> None:
        self.build_lib: str | None = None
        self.inplace = False
        self.editable_mode = False  # set by setuptools for `pip install -e`

    def finalize_options(self) -> None:
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def run(self) -> None:
        if platform.system() != "Linux":
            raise SetupError(
                "keras-strom runs on Linux alone (docs/install.md), in a container of it too, and "
                f"this system is {platform.system()}."
            )
        tensorflows = find_tensorflows()
        compiler = find_compiler()
        configure(tensorflows, compiler)
        run_tool("cmake", "--build", str(BUILD), "--target", "strom_package", *jobs())
        built = {RELEASES["library_name"](one["version"]) for one in tensorflows}
        for library in self._destination().glob("_strom_ops*.so"):
            if library.name not in built:
                library.unlink()  # Of a TensorFlow that was there before.
        run_tool("cmake", "--install", str(BUILD), "--prefix", str(self._destination()), quiet=True)
        self._write_build_record(tensorflows)

    def _destination(self) -> Path:
        if self.inplace or self.editable_mode:
            return ROOT / PACKAGE
        assert self.build_lib is not None  # finalize_options has set it
        return Path(self.build_lib).resolve() / PACKAGE

    def _write_build_record(self, tensorflows: list[dict[str, Any]]) -> None:
        abi = re.search(
            r"#define STROM_ABI_VERSION (\d+)", (SOURCES / "capi" / "strom.h").read_text()
        )
        record = {
            "keras_strom": self.distribution.get_version(),
            "strom_abi": int(abi[1]) if abi else None,
            "tensorflow": [one["version"] for one in tensorflows],
            "machine": platform.machine(),
            "compiler": (BUILD / "compiler.txt").read_text().strip(),
            "flags": [flag for flag in tensorflows[-1]["compile"] if not flag.startswith("-I")],
        }
        (self._destination() / "build.json").write_text(json.dumps(record, indent=2) + "\n")

    # What setuptools asks of a command that takes part in `build`.
    def get_source_files(self) -> list[str]:
        return [
            str(path.relative_to(ROOT))
            for path in sorted(SOURCES.rglob("*"))
            if path.suffix in {".cc", ".h", ".cu", ".txt", ".cmake", ".map"}
        ]

    def get_outputs(self) -> list[str]:
        built = [WHERE_NVCC_IS] if (BUILD / WHERE_NVCC_IS).exists() else []
        built += [path.name for path in BUILD.glob("_strom_ops*.so")]
        return [str(self._destination() / name) for name in (*OUTPUTS, *built)]

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class BuildWithNative(build):
    """``build``, with the native libraries as its last step."""

    sub_commands: ClassVar = [*build.sub_commands, ("build_native", None)]

    def run(self) -> None:
        # An earlier build's folder may hold modules that are gone now.
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class PlatformWheel(bdist_wheel):
    """A wheel for this platform and any Python 3: the libraries do not use Python's own ABI."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


class NativeDistribution(Distribution):
    """Tells setuptools that the package is not pure Python, and which TensorFlows it takes."""

    def has_ext_modules(self) -> bool:
        return True

    def parse_config_files(self, *arguments: Any, **keywords: Any) -> None:
        super().parse_config_files(*arguments, **keywords)
        packages = {"tensorflow": "tensorflow", "cpu": "tensorflow-cpu"}
        asked = {extra: [RELEASES["requirement"](name)] for extra, name in packages.items()}
        self.extras_require = self.metadata.extras_require = {**self.extras_require, **asked}


def find_tensorflows() -> list[dict[str, Any]]:
    """Returns the version and flags of each TensorFlow to build for.

    The installed one, unless STROM_TENSORFLOWS names folders.
    """
    folders = os.environ.get("STROM_TENSORFLOWS", "")
    if not folders:
        return [find_tensorflow()]
    return [unpacked_tensorflow(Path(folder)) for folder in folders.split(os.pathsep)]


def unpacked_tensorflow(folder: Path) -> dict[str, Any]:
    """Returns what ``tf.sysconfig`` would say, of a TensorFlow that need not run here.

    The flags are those of all releases in the list; `make test-release` compares them.
    """
    records = sorted(folder.glob("tensorflow*.dist-info"))
    include = folder / "tensorflow" / "include"
    if len(records) != 1 or not include.is_dir():
        raise SetupError(f"STROM_TENSORFLOWS: {folder} does not hold one unpacked TensorFlow.")
    flags = ["-D_GLIBCXX_USE_CXX11_ABI=1", "--std=c++17", "-DEIGEN_MAX_ALIGN_BYTES=64"]
    return {
        "version": records[0].name.split("-")[1].removesuffix(".dist"),
        "compile": [f"-I{include}", *flags],
        "link": [f"-L{folder / 'tensorflow'}", "-l:libtensorflow_framework.so.2"],
    }


def find_tensorflow() -> dict[str, Any]:
    """Returns the installed TensorFlow's version and flags.

    Importing TensorFlow takes seconds, so its answers are kept beside the build until another
    TensorFlow lies in its place.
    """
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or not spec.submodule_search_locations:
        raise SetupError(
            "TensorFlow is not installed for this Python, or pip's build isolation hides it. "
            "The operators are built against the TensorFlow that will run them: install it first "
            "(`pip install tensorflow` or `pip install tensorflow-cpu`), then run pip with "
            "--no-build-isolation (which needs `pip install setuptools cmake ninja`)."
        )
    location = Path(next(iter(spec.submodule_search_locations)))
    framework = location / "libtensorflow_framework.so.2"
    key = f"{location} {framework.stat().st_mtime_ns if framework.exists() else 0}"
    cache = BUILD / "tensorflow.json"
    if cache.exists():
        known: dict[str, Any] = json.loads(cache.read_text())
        if known["key"] == key:
            return known
    log(f"asking {location} for its build flags")
    answer = subprocess.run(
        [sys.executable, "-c", PROBE],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
    )
    if answer.returncode != 0:
        raise SetupError(f"the installed TensorFlow cannot be imported:\n{answer.stderr}")
    known = {"key": key, **json.loads(answer.stdout.splitlines()[-1])}
    BUILD.mkdir(parents=True, exist_ok=True)
    cache.write_text(json.dumps(known))
    return known


def find_compiler() -> str:
    """Returns the C++ compiler: $CXX, else the first of the usual names that is there."""
    asked = os.environ.get("CXX")
    if asked and not shutil.which(asked):
        raise SetupError(
            f"CXX={asked} names no program that is here: give the compiler's name or path alone "
            "(ccache is used by itself where it is installed), or leave CXX unset."
        )
    for name in [asked] if asked else ["c++", "g++", "clang++"]:
        if shutil.which(name):
            return name
    raise SetupError("no C++ compiler was found: run `apt-get install g++`, or set CXX.")


def configure(tensorflows: list[dict[str, Any]], compiler: str) -> None:
    """Runs CMake's configuration unless the last one was the same."""
    if is_of_another_tree():
        log(f"{BUILD} was made for another place: it is made anew")
        shutil.rmtree(BUILD)
    BUILD.mkdir(parents=True, exist_ok=True)
    arguments = [
        *("-S", str(SOURCES), "-B", str(BUILD), "-G", "Ninja"),
        f"-DCMAKE_MAKE_PROGRAM={find_tool('ninja')}",
        f"-DCMAKE_CXX_COMPILER={compiler}",
        f"-DSTROM_TENSORFLOWS={';'.join(minor(one) for one in tensorflows)}",
        *(f"-DSTROM_TF_CFLAGS_{minor(one)}={shlex.join(one['compile'])}" for one in tensorflows),
        *(f"-DSTROM_TF_LFLAGS_{minor(one)}={shlex.join(one['link'])}" for one in tensorflows),
        *shlex.split(os.environ.get("CMAKE_ARGS", "")),
    ]
    written = json.dumps(arguments)
    stamp = BUILD / "configured.json"
    if stamp.exists() and stamp.read_text() == written:
        return
    stamp.unlink(missing_ok=True)
    run_tool("cmake", *arguments)
    stamp.write_text(written)


def is_of_another_tree() -> bool:
    """Whether the build folder was moved or copied here with its tree, which CMake refuses."""
    cache = BUILD / "CMakeCache.txt"
    if not cache.exists():
        return False
    found = re.search(r"^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)$", cache.read_text(), re.MULTILINE)
    return not (found and os.path.exists(found[1]) and os.path.samefile(found[1], SOURCES))


def minor(tensorflow: dict[str, Any]) -> str:
    """Returns a TensorFlow's minor release, which its operators are named after."""
    name: str = RELEASES["minor"](tensorflow["version"])
    return name


def jobs() -> list[str]:
    """Returns CMake's option for as many jobs as there are cores, unless the user set a number."""
    if "CMAKE_BUILD_PARALLEL_LEVEL" in os.environ:
        return []
    return ["--parallel", str(len(os.sched_getaffinity(0)))]


def run_tool(name: str, *arguments: str, quiet: bool = False) -> None:
    """Runs a build tool; its own output tells what is wrong when it fails."""
    command = [find_tool(name), *arguments]
    result = subprocess.run(command, stdout=subprocess.DEVNULL if quiet else None)
    if result.returncode != 0:
        raise SetupError(f"the native build failed; its output is above: {shlex.join(command)}")


def find_tool(name: str) -> str:
    """Returns the path of cmake or ninja: pip's, beside this Python, or the system's."""
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    path = shutil.which(name, path=search)
    if path is None:
        raise SetupError(f"{name} was not found: run `pip install {name}`.")
    return path


def log(message: str) -> None:
    """Tells the one who builds what goes on."""
    sys.stderr.write(f"keras-strom: {message}\n")


def packages() -> list[str]:
    """Returns the packages; keras_strom.spark and below lie in spark/ (setup.cfg maps them)."""
    spark = "keras_strom.spark"
    return [
        *find_packages(str(ROOT), include=["keras_strom", "keras_strom.*"]),
        *([spark] if (ROOT / "spark" / "__init__.py").exists() else []),
        *(f"{spark}.{name}" for name in find_packages(str(ROOT / "spark"))),
    ]


setup(
    packages=packages(),
    distclass=NativeDistribution,
    cmdclass={
        "build": BuildWithNative,
        "build_native": BuildNative,
        "bdist_wheel": PlatformWheel,
    },
)
