"""`keras-strom --version --verbose`: what a bug report needs, also where something is broken."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import keras_strom
from keras_strom import cli
from keras_strom._native import library
from keras_strom.doctor import Finding, Grade, bug_report, software


@pytest.fixture(autouse=True)
def _handler_of_sigterm() -> Iterator[None]:
    """The command has one of its own."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture(autouse=True)
def _without_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its import takes seconds, and is looked at in test_doctor.py."""
    found = [Finding("Keras", Grade.BAD, "has crashed:\n  a core", "use another processor")]
    monkeypatch.setattr(software, "_in_another_process", lambda: found)


def printed(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert cli.main(["--version", "--verbose", *flags]) == 0
    return capsys.readouterr().out


def test_a_line_for_each_part_pastes_into_an_issue(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys).splitlines()
    told = dict(re.split(r" {2,}", line, maxsplit=1) for line in lines if "  " in line)
    assert keras_strom.__version__ in told["keras-strom"]
    for part, words in {
        "build": r"strom_abi \d+, tensorflow \d.*compiler \w+ \d",
        "Python": re.escape(sys.executable),
        "system": r"libc (glibc|musl|unknown)",
        "processor": r"model .*cores \d.* of \d",
        "codec": "kernels scalar",
        "memory": r"[\d.]+ of [\d.]+ GiB are free",
        "packages": r"keras 3\.\d+.*numpy \d.*pyarrow \d",
    }.items():
        assert re.search(words, told[part]), (part, told[part])
    assert told["Keras"] == "BAD: has crashed: a core -> use another processor"


def test_programs_get_json(capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(printed(capsys, "--json"))
    assert report["keras-strom"]["version"] == keras_strom.__version__
    assert report["codec"]["kernels"][0] == "scalar"
    assert report["findings"][-1]["grade"] == "bad"


def test_values_of_own_variables_stay_where_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KERAS_STROM_CREDENTIALS", "/of/a/customer")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    text = printed(capsys)
    assert "KERAS_STROM_CREDENTIALS (set)" in text
    assert "KERAS_BACKEND tensorflow" in text
    assert "customer" not in text
    assert "hidden" not in text


def test_what_is_broken_is_told_beside_the_rest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(library, "DIRECTORY", tmp_path)
    library.library.cache_clear()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(bug_report, "_PROCESSOR", tmp_path / "cpuinfo")
    try:
        text = printed(capsys)
    finally:
        library.library.cache_clear()
    assert re.search(r"^build +cannot be told: FileNotFoundError: ", text, re.MULTILINE)
    assert re.search(r"^codec +cannot be told: InternalError: .*is missing", text, re.MULTILINE)
    assert re.search(r"^processor +cannot be told: ", text, re.MULTILINE)
    assert f"none in JAVA_HOME={tmp_path}" in text
    assert re.search(r"^packages +keras-strom ", text, re.MULTILINE)


def test_the_version_alone_is_quick() -> None:
    program = (
        "import sys; from keras_strom import cli; cli.main(['--version']); "
        "print({'tensorflow', 'keras', 'numpy', 'pyspark'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    version, heavy = done.stdout.splitlines()
    assert version == keras_strom.__version__
    assert heavy in ("set()", "{'numpy'}")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "the following arguments are required: command"),
        (["--verbose"], "--verbose has no effect without --version"),
        (["--version", "--json"], "--json before a command has no effect"),
        (["--json", "doctor"], "--json before a command has no effect"),
        (["--version", "doctor"], "--version and doctor do not go together"),
    ],
)
def test_flags_without_effect_are_refused(
    flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(flags)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_its_flags_are_told(repository: Path) -> None:
    page = (repository / "docs" / "api" / "command_line.md").read_text()
    section = page.partition("## keras-strom --version\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(--\w+)`", section)) == {"--version", "--verbose", "--json"}


def test_the_template_of_an_issue_asks_for_it(repository: Path) -> None:
    yaml = pytest.importorskip("yaml")
    path = repository / ".github" / "ISSUE_TEMPLATE" / "bug_report.yml"
    fields = {one["id"]: one for one in yaml.safe_load(path.read_text())["body"]}
    version = fields["version"]
    assert "keras-strom --version --verbose" in version["attributes"]["label"]
    assert version["attributes"]["render"] == "text"
    assert version["validations"]["required"]
