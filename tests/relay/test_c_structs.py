"""The C interface's structs as Python fills them: every field, at its place, of its size."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from keras_strom._native import codec, local_model, master_node, node
from tests.support import cuda_library

MIRRORS: dict[str, type[ctypes.Structure]] = {
    "strom_master_options": master_node._MasterOptions,
    "strom_worker_options": node._WorkerOptions,
    "strom_start_info": node._StartInfo,
    "strom_range": local_model.RangeStruct,
    "strom_method": local_model.MethodStruct,
    "strom_codec_options": codec._Options,
    "strom_message_description": codec._Description,
    "strom_cuda_segment": cuda_library.Segment,
    "strom_step_options": cuda_library.Options,
    "strom_step_result": cuda_library.Result,
}
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler is here")


@pytest.fixture(scope="module")
def header(repository: Path) -> str:
    """strom_cuda.h, which includes strom.h, as a compiler reads it, without comments."""
    return _run(
        COMPILER, "-E", "-P", "-I", "custom_ops", "custom_ops/capi/strom_cuda.h", at=repository
    )


@pytest.mark.parametrize("name", MIRRORS)
def test_a_mirror_has_the_fields_of_its_struct_in_their_order(name: str, header: str) -> None:
    found = re.search(r"typedef struct (?:\w+ )?\{([^{}]*)\} " + name + ";", header)
    assert found is not None
    fields = [field.split()[-1].lstrip("*") for field in found[1].split(";") if field.strip()]
    assert [field[0] for field in MIRRORS[name]._fields_] == fields


def test_a_mirrors_fields_lie_where_a_c_compiler_puts_them(
    repository: Path, tmp_path: Path
) -> None:
    expected, lines = [], []
    for name, mirror in MIRRORS.items():
        lines.append(f'  printf("{name} %zu\\n", sizeof({name}));')
        expected.append(f"{name} {ctypes.sizeof(mirror)}")
        for field, *_ in mirror._fields_:
            place = getattr(mirror, field)
            size = f"sizeof((({name}*)0)->{field})"
            lines.append(f'  printf("{field} %zu %zu\\n", offsetof({name}, {field}), {size});')
            expected.append(f"{field} {place.offset} {place.size}")
    headers = ("<stddef.h>", "<stdio.h>", '"capi/strom_cuda.h"')
    includes = "\n".join(f"#include {header}" for header in headers)
    source, program = tmp_path / "places.c", tmp_path / "places"
    source.write_text(includes + "\nint main(void) {\n" + "\n".join(lines) + "\n}\n")
    _run(COMPILER, "-I", "custom_ops", "-o", str(program), str(source), at=repository)
    assert _run(str(program), at=repository).splitlines() == expected


def _run(*command: str | None, at: Path) -> str:
    words = [word for word in command if word is not None]
    return subprocess.run(words, cwd=at, check=True, stdout=subprocess.PIPE, text=True).stdout
