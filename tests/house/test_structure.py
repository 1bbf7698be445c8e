"""The arrows between layers, and other rules of the house that a tool can check."""

import ast
import graphlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "custom_ops"

# What each room of custom_ops/core may include beside itself.
ROOM_ARROWS = {
    "core/base": set[str](),
    "core/codec": {"core/base"},
    "core/step": {"core/base", "core/codec"},
    "core/transport": {"core/base"},
    "core/joint": {"core/base"},
    "core/replication": {"core/base", "core/codec", "core/joint"},
    "core/worker": {"core/base", "core/codec", "core/joint", "core/replication"},
    "core/master": {"core/base", "core/codec", "core/joint", "core/replication"},
}
CORE = set(ROOM_ARROWS)
# Which parts of custom_ops/ each part may include beside itself.
NATIVE_ARROWS = ROOM_ARROWS | {
    "net": CORE,
    "cuda": CORE,
    "capi": CORE | {"net", "cuda"},
    "tf": CORE | {"net", "cuda", "capi"},
    "sim": CORE,
    "bench": CORE | {"net"},
    "fuzz": CORE | {"net"},
}
# Sockets, clocks, threads and other input or output: core gets time and randomness as arguments.
NOT_IN_CORE = re.compile(
    r"chrono|thread|mutex|condition_variable|future|semaphore|latch|barrier|ctime|time\.h"
    r"|iostream|fstream|filesystem|sys/.*|netinet/.*|arpa/.*|net/.*|unistd\.h"
    r"|fcntl\.h|poll\.h|pthread\.h|signal\.h|csignal"
)
# Allowed for their memory interface alone, which is neither input nor output.
MEMORY = {"sys/mman.h"}
# Where the kernel says which instructions an Arm processor has.
PROCESSOR = {("custom_ops/core/base/processor.cc", "sys/auxv.h")}
# OpenSSL allocates on any thread.
LOCKED_HEAP = {("custom_ops/core/transport/undumped.cc", name) for name in ("mutex", "pthread.h")}
# TLS is what the relay is compared with.
MAY_USE_OPENSSL = ("custom_ops/core/transport/crypto", "custom_ops/bench/relay_tls")
SYSTEM_CALLS = re.compile(
    r"\b(?:clock_gettime|gettimeofday|socket|sendto|recvfrom|getenv|random_device)\b"
)
MAX_LINES = 700


# Which rooms of the Python package each room may import, from the bottom up; "" is the package's
# own __init__.py. A room is a folder of keras_strom/ or spark/, or a module beside those.
PYTHON_ARROWS = {
    "tracebacks": set(),
    "errors": {"tracebacks"},
    "checks": {"errors"},
    "lazy_names": set(),
    "stale_files": set(),
    "method": {"errors", "checks"},
    "job": {"errors", "checks"},
    "": {"errors", "lazy_names", "job"},
    "_native": {"errors", "checks", "method", "job"},
    "relay": {"errors", "checks", "job", "_native"},
    "sharing": {"errors", "checks", "method", "job", "_native", "relay"},
    "recovery": {"errors", "stale_files", "job", "sharing"},
    "strategy": {
        *("tracebacks", "errors", "checks", "method", "job", "_native", "relay", "sharing"),
        "recovery",
    },
    "dashboard": {"errors", "job"},
    "runner": {
        *("", "tracebacks", "errors", "checks", "job", "_native", "relay", "recovery", "dashboard"),
    },
    "codec": {"errors", "_native"},
    "ops": {"_native", "codec", "sharing"},
    "scalability": {"errors", "checks", "job", "relay", "codec"},
    "scalability_command": {"errors", "scalability"},
    "doctor": {"", "errors", "checks", "job", "_native", "relay", "runner"},
    "completion": {"errors"},
    "command_parser": {"dashboard"},
    "cli": {
        *("", "errors", "job", "dashboard", "runner", "doctor", "scalability_command"),
        *("completion", "command_parser"),
    },
    "__main__": {"cli"},
    "spark.data": {"errors", "checks", "lazy_names", "stale_files", "job", "strategy"},
    "spark.inference": {"", "tracebacks", "errors", "spark.data"},
    "spark.runner": {
        *(
            "",
            "tracebacks",
            "errors",
            "checks",
            "job",
            "_native",
            "relay",
            "dashboard",
            "runner",
            "doctor",
        ),
        "spark.data",
    },
    "spark.training": {
        *("", "errors", "checks", "method", "job", "sharing", "strategy"),
        *("spark.data", "spark.inference", "spark.runner"),
    },
    "spark.estimator": {
        *("errors", "checks", "lazy_names", "method", "dashboard", "job", "strategy"),
        *("spark.data", "spark.inference", "spark.runner", "spark.training"),
    },
    "spark.model": {"spark.estimator"},  # the name of before 0.1.0
    "spark": {"lazy_names", "spark.runner", "spark.training", "spark.estimator"},
    "tfx": {
        *("", "errors", "checks", "lazy_names", "job", "runner", "strategy"),
        *("spark", "spark.runner"),
    },
}


def native_part(path: Path) -> str:
    """The room of a file in core, else its folder of custom_ops."""
    parts = path.relative_to(NATIVE).parts
    return "/".join(parts[:2]) if parts[0] == "core" else parts[0]


def native_sources() -> Iterator[tuple[str, Path]]:
    for path in sorted(NATIVE.glob("**/*")):
        if path.suffix in {".cc", ".h", ".cu", ".cuh"}:
            yield native_part(path), path


def includes(path: Path) -> Iterator[tuple[str, str]]:
    """Yields ("<" or '"', name) for every #include."""
    yield from re.findall(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', path.read_text(), re.MULTILINE)


def own_includes(path: Path) -> list[Path]:
    """The files of custom_ops/ that a file of it includes."""
    return [NATIVE / name for _, name in includes(path) if (NATIVE / name).exists()]


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_native_parts_include_only_what_the_arrows_allow() -> None:
    wrong = [
        f"{shown(path)} includes {shown(included)}"
        for part, path in native_sources()
        for included in own_includes(path)
        if native_part(included) not in NATIVE_ARROWS[part] | {part}
    ]
    assert not wrong


def test_the_arrows_between_native_parts_make_no_circle() -> None:
    list(TopologicalSorter(NATIVE_ARROWS).static_order())  # raises CycleError


def test_native_files_include_each_other_in_no_circle() -> None:
    sources = {path: own_includes(path) for _, path in native_sources()}
    list(TopologicalSorter(sources).static_order())  # raises CycleError


@pytest.mark.parametrize("header", ["capi/strom.h", "capi/strom_cuda.h"])
def test_one_include_brings_a_c_program_the_whole_interface(header: str, tmp_path: Path) -> None:
    program = tmp_path / "program.c"
    program.write_text(
        f'#include "{header}"\n'
        "int main(void) {\n"
        "  strom_segment segment = {0, 0, 0, 0, 0, 0};\n"
        "  strom_step_options options = {0};\n"
        "  strom_step_result result;\n"
        "  return strom_replica_step(0, &segment, 1, &options, 0, &result) + strom_abi_version();\n"
        "}\n"
    )
    compiler = os.environ.get("CXX") or "c++"
    options = ("-x", "c", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only")
    command = [compiler, *options, f"-I{NATIVE}", str(program)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def test_only_the_ops_include_tensorflow() -> None:
    wrong = [
        f"{shown(path)} includes {name}"
        for part, path in native_sources()
        for _, name in includes(path)
        if part != "tf" and re.match(r"(tensorflow|tsl|xla|absl|Eigen)/", name)
    ]
    assert not wrong


@pytest.mark.parametrize("room", ["sim", *ROOM_ARROWS])
def test_no_two_files_of_a_room_have_constants_of_one_name(room: str) -> None:
    """`make test` compiles several files of a room at once."""
    files: dict[str, list[str]] = {}
    for path in sorted((NATIVE / room).glob("*.cc")):
        for name in re.findall(r"^constexpr [^=({]*?\b(k[A-Z]\w*)", path.read_text(), re.MULTILINE):
            files.setdefault(name, []).append(path.name)
    assert not {name: paths for name, paths in files.items() if len(paths) > 1}


def test_every_mutation_finds_the_words_that_it_takes_out() -> None:
    """What builds the mutants says so too, but only once nearly everything else is built."""
    lost = []
    for path in sorted((NATIVE / "sim" / "mutations").glob("*.mutation")):
        head, words = path.read_text().split("--- was\n")
        source = NATIVE / head.splitlines()[1]
        if source.read_text().count(words.split("\n--- becomes\n")[0]) != 1:
            lost.append(f"{shown(source)} no longer has the words of {shown(path)} once")
    assert not lost


def test_core_knows_no_socket_clock_or_thread() -> None:
    wrong = []
    for part, path in native_sources():
        if part not in CORE:
            continue
        for bracket, name in includes(path):
            allowed = name in MEMORY or (shown(path), name) in LOCKED_HEAP | PROCESSOR
            if bracket == "<" and not allowed and NOT_IN_CORE.fullmatch(name):
                wrong.append(f"{shown(path)} includes {name}")
        code = re.sub(r"//.*|/\*(?s:.*?)\*/", "", path.read_text())
        wrong += [f"{shown(path)} uses {call}" for call in SYSTEM_CALLS.findall(code)]
    assert not wrong


def test_what_comments_of_the_core_name_is_there() -> None:
    wrong = []
    for _, path in native_sources():
        for comment in re.findall(r"//.*", path.read_text()):
            for name in re.findall(r"\bcore/\w+(?:/\w+(?:\.\w+)?)?", comment):
                if not (NATIVE / name).exists() and not any(NATIVE.glob(f"{name}.*")):
                    wrong.append(f"{shown(path)} names {name}")
    assert not wrong


def test_only_core_crypto_includes_openssl() -> None:
    wrong = [
        f"{shown(path)} includes {name}"
        for _, path in native_sources()
        for _, name in includes(path)
        if name.startswith("openssl/") and not shown(path).startswith(MAY_USE_OPENSSL)
    ]
    assert not wrong


# ------------------------------------------------------------------------------- Python


def python_sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Yields (module, "") or (module, name of it) for all that is imported anywhere in the file.

    In functions and for type checkers, too; relative modules are made absolute.
    """
    folder = path.parent.relative_to(ROOT).parts
    package = [*(("keras_strom", "spark") if folder[0] == "spark" else folder[:1]), *folder[1:]]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            yield from ((module, alias.name) for alias in node.names)


def importers(module: str, *folders: str) -> set[str]:
    return {
        shown(path)
        for path in python_sources(*folders)
        if any(f"{base}.{name}.".startswith(module + ".") for base, name in imports(path))
    }


def test_the_package_never_imports_pyspark() -> None:
    assert not importers("pyspark", "keras_strom")


def test_only_the_tfx_component_imports_tfx() -> None:
    users = importers("tfx", "keras_strom", "spark")
    assert {path for path in users if not path.startswith("keras_strom/tfx/")} == set()


def python_modules() -> dict[str, Path]:
    """Every module of the package, by its name within it; "" is the package itself."""
    found = {}
    for path in python_sources("keras_strom", "spark"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts[parts[0] == "keras_strom" :]
        found[".".join(part for part in parts if part != "__init__")] = path
    return found


def imports_between_modules() -> dict[str, set[str]]:
    """What each module of the package imports of the others.

    `from package import name` stands for the module of that name, if there is one.
    """
    known = {f"keras_strom.{module}".rstrip("."): module for module in python_modules()}
    found = {}
    for module, path in python_modules().items():
        targets = {known.get(f"{base}.{name}", known.get(base)) for base, name in imports(path)}
        found[module] = {target for target in targets if target is not None} - {module}
    return found


def room_of(module: str) -> str:
    """The room that a module belongs to."""
    return ".".join(module.split(".")[: 2 if module.startswith("spark.") else 1])


def test_python_rooms_import_only_what_the_arrows_allow() -> None:
    wrong = [
        f"{module} imports {target}"
        for module, targets in imports_between_modules().items()
        for target in sorted(targets)
        if room_of(module) != room_of(target)
        and room_of(target) not in PYTHON_ARROWS[room_of(module)]
    ]
    assert not wrong


def test_the_arrows_between_python_rooms_run_down() -> None:
    rooms = list(PYTHON_ARROWS)
    for place, (room, below) in enumerate(PYTHON_ARROWS.items()):
        assert below <= set(rooms[:place]), room


def test_no_python_modules_import_each_other_in_a_circle() -> None:
    try:
        graphlib.TopologicalSorter(imports_between_modules()).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" is imported by ".join(error.args[1]))


def test_what_tests_share_lies_in_support() -> None:
    wrong = [
        f"{shown(path)} imports {base}"
        for path in python_sources("tests", "benchmarks")
        for base, name in imports(path)
        if re.match(r"tests\.(\w+\.)*test_", f"{base}.{name}")
    ]
    assert not wrong


def test_only_one_module_reads_the_environment() -> None:
    readers = set()
    for path in python_sources("keras_strom", "spark"):
        for node in ast.walk(ast.parse(path.read_text(), str(path))):
            attribute = isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"}
            imported = isinstance(node, ast.ImportFrom) and node.module == "os"
            if attribute or (imported and {a.name for a in node.names} & {"environ", "getenv"}):
                readers.add(shown(path))
    assert readers == {"keras_strom/job/environment.py"}


def test_nothing_prints_but_the_command_line() -> None:
    printers = {
        shown(path)
        for path in python_sources("keras_strom", "spark")
        for node in ast.walk(ast.parse(path.read_text(), str(path)))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    }
    assert printers <= {"keras_strom/cli.py"}


@pytest.mark.parametrize(
    "module", ["keras_strom", "keras_strom.spark", "keras_strom.cli", "keras_strom.codec"]
)
def test_an_import_does_no_work(module: str, tmp_path: Path) -> None:
    heavy = ("tensorflow", "keras", "pyspark", "pandas", "pyarrow")
    script = (
        f"import sys, {module}; "
        f"print(*[name for name in {heavy!r} if name in sys.modules]); "
        "print([line for line in open('/proc/self/maps') if 'libstrom' in line])"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "\n[]\n"


# ------------------------------------------------------------------------------- both


def test_no_file_is_too_long_to_read() -> None:
    paths = [path for _, path in native_sources()]
    paths += python_sources("keras_strom", "spark", "tests", "benchmarks", "examples")
    paths += sorted((ROOT / "tests" / "native").rglob("*.cc"))
    lengths = {shown(path): len(path.read_text().splitlines()) for path in paths}
    assert not {path: lines for path, lines in lengths.items() if lines > MAX_LINES}


def test_every_native_header_is_guarded_by_its_own_name() -> None:
    wrong = []
    for _, path in native_sources():
        if path.suffix == ".h":
            name = re.sub(r"\W", "_", str(path.relative_to(NATIVE))).upper()
            text = path.read_text()
            if f"#ifndef KERAS_STROM_{name}_" not in text and "#pragma once" not in text:
                wrong.append(shown(path))
    assert not wrong
