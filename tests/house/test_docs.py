"""The pages (README.md, ARCHITECTURE.md, docs/): what they say to type works, and links lead there.

Blocks of Python run, those of one page one after the other, as a reader would type them. An HTML
comment before a block, which no reader sees, says what else it needs:

    <!-- block: with SETTING; TEXT is OTHER; TEXT is OTHER -->   names of SETTINGS, smaller numbers
    <!-- block: excerpt, REASON -->                              not run, but it is valid Python

`# prints: TEXT` in a block is a line that running it prints.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import inspect
import io
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_strom import errors

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "docs").is_dir())
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
TOP = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")]
EVERY = [*TOP, *PAGES]

README_WORDS = 900
ARCHITECTURE_BYTES = 10_000

# ------------------------------------------------------------------------------- blocks of code


@dataclasses.dataclass(frozen=True)
class Block:
    """One fenced block of a page.

    Attributes:
        page, line: where it begins.
        language: the first word after the fence; "" = none.
        mark: what the comment before it says; "" = nothing.
        code: what is in it.
    """

    page: Path
    line: int
    language: str
    mark: str
    code: str

    @property
    def excerpt(self) -> str | None:
        """Why it cannot run here; None = it can."""
        kind, _, reason = self.mark.partition(",")
        return reason.strip() if kind == "excerpt" else None

    @property
    def setting(self) -> str:
        """Whose names it finds; "" = those of the blocks before it alone."""
        found = re.match(r"with (\w+)", self.mark)
        return found.group(1) if found else ""

    def code_here(self, folder: Path) -> str:
        """The code with what is run instead of some of its words."""
        code = self.code
        for words in filter(None, map(str.strip, self.mark.split(";"))):
            text, is_, other = words.partition(" is ")
            if is_:
                assert code.count(text) == 1, f"{self}: {text!r} is not once in the block"
                code = code.replace(text, other.replace("FOLDER", str(folder)))
        return code

    def __str__(self) -> str:
        return f"{shown(self.page)}:{self.line}"


def shown(page: Path) -> str:
    return str(page.relative_to(ROOT))


@functools.cache
def blocks_of(page: Path) -> tuple[Block, ...]:
    found = []
    lines = page.read_text().split("\n")
    number, mark = 0, ""
    while number < len(lines):
        line = lines[number]
        if line.startswith("<!-- block:"):
            first = number
            while "-->" not in lines[number]:
                number += 1
            comment = " ".join(map(str.strip, lines[first : number + 1]))
            mark = comment.removeprefix("<!-- block:").removesuffix("-->").strip()
        elif fence := re.match(r"( *)(`{3,})(\S*)", line):
            first, closing = number, fence.group(1) + fence.group(2)
            number += 1
            while lines[number] != closing:
                number += 1
            code = "\n".join(
                text.removeprefix(fence.group(1)) for text in lines[first + 1 : number]
            )
            found.append(Block(page, first + 2, fence.group(3), mark, code))
            mark = ""
        elif line:
            mark = ""
        number += 1
    return tuple(found)


def python_blocks(page: Path) -> list[Block]:
    return [block for block in blocks_of(page) if block.language == "python"]


# What a block finds beside what the blocks before it on its page have made.


def pictures(_: pytest.FixtureRequest) -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {"x_train": random.random((128, 784), "float32"), "y_train": np.arange(128) % 10}


def model(_: pytest.FixtureRequest) -> dict[str, Any]:
    from keras_strom import StromStrategy

    with StromStrategy().scope():
        made = keras.Sequential([keras.Input((784,)), keras.layers.Dense(10)])
        made.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return {**pictures(_), "keras": keras, "model": made, "StromStrategy": StromStrategy}


def flights(request: pytest.FixtureRequest) -> dict[str, Any]:
    pytest.importorskip("pyspark")
    from pyspark.ml import Pipeline
    from pyspark.ml.feature import StringIndexer, VectorAssembler

    inputs = [keras.Input((2,), name="numbers"), keras.Input((1,), name="carrier_index")]
    outputs = keras.layers.Dense(1)(keras.layers.Concatenate()(inputs))
    rows = [(float(i), float(i % 7), "AA" if i % 2 else "UA", float(i % 3)) for i in range(64)]
    table = request.getfixturevalue("spark").createDataFrame(
        rows, "distance double, delay double, carrier string, gained double"
    )
    return {
        "Pipeline": Pipeline,
        "keras": keras,
        "model": keras.Model(inputs, outputs),
        "indexer": StringIndexer(inputCol="carrier", outputCol="carrier_index"),
        "assembler": VectorAssembler(inputCols=["distance", "delay"], outputCol="numbers"),
        "flights": table,
        "others": table,
    }


def cluster(request: pytest.FixtureRequest) -> dict[str, Any]:
    pytest.importorskip("pyspark")
    import keras_strom.spark

    request.getfixturevalue("spark")
    return {"keras_strom": keras_strom, "train": lambda *_: None}


SETTINGS: dict[str, Callable[[pytest.FixtureRequest], dict[str, Any]]] = {
    function.__name__: function for function in (pictures, model, flights, cluster)
}


@pytest.mark.parametrize("page", EVERY, ids=shown)
def test_every_block_of_python_is_python_and_says_why_it_does_not_run(page: Path) -> None:
    for block in python_blocks(page):
        try:
            ast.parse(block.code)
        except SyntaxError as error:
            pytest.fail(f"{block}: {error}")
        assert block.excerpt is None or len(block.excerpt) > 10, f"{block}: why is it not run?"
        assert block.setting in {"", *SETTINGS}, f"{block}: there is no setting {block.setting}"


RUN = [page for page in EVERY if any(block.excerpt is None for block in python_blocks(page))]


@pytest.mark.spark
@pytest.mark.timeout(900)  # A page may train several times, on Spark too.
@pytest.mark.parametrize("page", RUN, ids=shown)
def test_the_blocks_of_a_page_run(
    page: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for block in python_blocks(page):
        if block.excerpt is not None:
            continue
        if block.setting:
            names.update(SETTINGS[block.setting](request))
        # Lines are numbered as in the page, for the traceback of one that fails.
        code = "\n" * (block.line - 1) + block.code_here(tmp_path)
        capsys.readouterr()
        exec(compile(code, str(page), "exec"), names)
        printed = capsys.readouterr().out.splitlines()
        for line in re.findall(r"# prints: (.*)", block.code):
            assert line in printed, f"{block} prints {printed}"


def commands() -> Iterator[tuple[Block, list[str]]]:
    """Every command of the blocks that are for a shell."""
    for page in EVERY:
        for block in blocks_of(page):
            if block.language in {"sh", "bash"}:
                for line in block.code.replace("\\\n", " ").split("\n"):
                    if line.startswith(("keras-strom ", "make ")):
                        yield block, shlex.split(line, comments=True)


def test_the_commands_of_the_pages_are_understood() -> None:
    from keras_strom.cli import _parser

    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    targets |= set(re.findall(r"bench-[a-z-]+", (ROOT / "Makefile").read_text()))
    for block, words in commands():
        if words[0] == "keras-strom":
            _parser().parse_args(words[1:])
        elif words[0] == "make":
            unknown = {word for word in words[1:] if "=" not in word} - targets
            assert not unknown, f"{block}: make has no target {unknown}"


# ------------------------------------------------------------------------------- links


@functools.cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub and MyST make them."""
    inside, found = False, set()
    for line in page.read_text().split("\n"):
        inside ^= line.lstrip().startswith("```")
        if not inside and (heading := re.match(r"#+ (.*)", line)):
            text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading.group(1)).lower()
            found.add(re.sub(r"[^\w\- ]", "", text.replace("`", "")).strip().replace(" ", "-"))
    return frozenset(found)


@pytest.mark.parametrize("page", EVERY, ids=shown)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://|mailto:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{shown(page)}: {link}: there is no such file"
        if anchor:
            assert anchor in anchors(target), f"{shown(page)}: {link}: no such heading"


CODE = ("custom_ops", "keras_strom", "spark", "tests", "examples", ".ci")


def test_every_page_is_in_the_table_of_contents_of_the_site() -> None:
    listed = {DOCS / "index.md"}
    for page in PAGES:
        for tree in re.findall(r"(?ms)^```\{toctree\}\n(.*?)^```", page.read_text()):
            names = (line for line in tree.splitlines() if line and not line.startswith(":"))
            listed.update(page.parent / f"{name}.md" for name in names)
    assert listed == set(PAGES)


def test_every_page_that_code_names_is_there() -> None:
    """A comment may name a section too: docs/internals/step.md, "One pass over memory"."""
    wrong = []
    for path in (path for house in CODE for path in sorted((ROOT / house).rglob("*"))):
        if path.suffix not in {".py", ".h", ".cc", ".cu", ".cmake"} or not path.is_file():
            continue
        text = re.sub(r"\n\s*(//|#|\*)?:?\s*", " ", path.read_text(errors="replace"))
        for name, section in re.findall(r'(docs/[\w/]+\.md)(?:, "([^"]+)")?', text):
            page = ROOT / name
            if not page.exists():
                wrong.append(f"{shown(path)}: there is no {name}")
            elif section and not re.search(rf"^#+ {re.escape(section)}$", page.read_text(), re.M):
                wrong.append(f"{shown(path)}: {name} has no section {section!r}")
    assert not wrong


# ------------------------------------------------------------------------------- house rules


def test_the_readme_is_short() -> None:
    words = len((ROOT / "README.md").read_text().split())
    assert words <= README_WORDS, f"README.md has {words} words; the rest belongs to docs/"


def test_the_overview_of_the_architecture_is_short() -> None:
    size = (ROOT / "ARCHITECTURE.md").stat().st_size
    assert size <= ARCHITECTURE_BYTES, f"ARCHITECTURE.md has {size} bytes"


def headings(page: Path, level: int) -> list[str]:
    return re.findall(rf"^{'#' * level} (.*)", page.read_text(), re.MULTILINE)


def test_every_error_has_its_entry_in_troubleshooting() -> None:
    classes = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.StromError)
    }
    entries = headings(DOCS / "troubleshooting.md", 3)
    assert classes <= set(entries), "errors without an entry"
    assert len(entries) == len(set(entries))


def test_the_glossary_has_each_term_once() -> None:
    terms = [term.lower() for term in headings(DOCS / "glossary.md", 3)]
    assert terms
    assert len(terms) == len(set(terms))
    needed = "residual threshold update message relay master worker generation snapshot density"
    assert set(needed.split()) <= set(terms)


def rows(page: Path, heading: str) -> dict[str, str]:
    """The first two columns of the first table below a heading, without backquotes."""
    table = page.read_text().partition(f"\n## {heading}\n")[2].partition("\n| ")[2]
    found = {}
    for line in table.partition("\n\n")[0].rstrip().split("\n")[2:]:
        names, default = (cell.strip().replace("`", "") for cell in line.split("|")[1:3])
        found.update(zip(names.split(", "), default.split(", "), strict=True))
    return found


def test_the_table_of_options_is_that_of_the_strategy() -> None:
    from keras_strom import StromStrategy

    documented = rows(DOCS / "choosing.md", "Every option")
    parameters = list(inspect.signature(StromStrategy.__init__).parameters.values())[1:]
    assert list(documented) == [parameter.name for parameter in parameters]
    for parameter in parameters:
        if parameter.name != "threshold":
            assert ast.literal_eval(documented[parameter.name]) == parameter.default, parameter.name


def test_the_table_of_the_network_is_that_of_its_options() -> None:
    from keras_strom import NetworkConfig

    documented = rows(DOCS / "choosing.md", "The network")
    fields = dataclasses.fields(NetworkConfig)
    assert list(documented) == [field.name for field in fields]
    assert {name: ast.literal_eval(default) for name, default in documented.items()} == {
        field.name: field.default for field in fields
    }


@pytest.mark.parametrize(
    "command", ["run", "master", "worker", "prepare", "status", "top", "doctor", "scalability"]
)
def test_every_flag_of_the_command_line_is_told(command: str) -> None:
    from keras_strom.cli import _parser

    page = (DOCS / "api" / "command_line.md").read_text()
    section = page.partition(f"## keras-strom {command}\n")[2].partition("\n## ")[0]
    with pytest.raises(SystemExit), contextlib.redirect_stdout(io.StringIO()) as help_:
        _parser().parse_args([command, "--help"])
    flag = r"(?<![\w-])--?[a-z][a-z-]+"
    of_another_program = {"--its", "--own", "--arguments"}
    documented = set(re.findall(flag, section)) - of_another_program
    assert documented == set(re.findall(flag, help_.getvalue())) - {"--help"}


def rooms() -> set[str]:
    """The folders that the code lives in, as pages name them."""
    found = set()
    for house in ("custom_ops/core", "keras_strom", "spark"):
        for folder in (ROOT / house).iterdir():
            if any(file.suffix in (".py", ".h") for file in folder.glob("*")):
                found.add(f"{house}/{folder.name}")
    return found


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_the_overviews_name_files_that_are_there(name: str) -> None:
    """`core` stands for `custom_ops/core`."""
    houses = r"custom_ops|keras_strom|spark|tests|core"
    named = re.findall(rf"`((?:{houses})/[\w/]+(?:\.\w+)?)`", (ROOT / name).read_text())
    assert named
    rooted = [re.sub(r"^core/", "custom_ops/core/", path) for path in named]
    assert not [
        path for path in rooted if not re.search("NAME|ROOM", path) and not (ROOT / path).exists()
    ]


def test_the_overview_names_functions_that_are_in_their_files() -> None:
    named = re.findall(r"`([\w:.]+)` in `([\w/]+\.\w+)`", TOP[1].read_text())
    assert named
    for name, path in named:
        text = (ROOT / re.sub(r"^core/", "custom_ops/core/", path)).read_text()
        assert re.search(rf"\b{re.split('[:.]+', name)[-1]}\b", text), f"no {name} in {path}"


def test_every_room_of_the_code_has_its_page() -> None:
    pages = "".join(page.read_text() for page in (DOCS / "internals").glob("*.md"))
    missing = {room for room in rooms() if f"`{room}" not in pages}
    assert not missing


def test_every_file_of_a_room_stands_on_a_page() -> None:
    pages = "".join(page.read_text() for page in (DOCS / "internals").glob("*.md"))
    missing = set()
    for room in rooms():
        for path in (ROOT / room).iterdir():
            name = {".py": path.name, ".h": f"{path.stem}.*"}.get(path.suffix)
            if name and path.stem != "__init__" and f"`{name}`" not in pages:
                missing.add(shown(path))
    assert not missing
