"""What a real shell completes after `keras-strom`."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from keras_strom import cli

# Asks bash as it asks itself when Tab is pressed after each line of its input.
_ASK = """
source "$1"
function=$(complete -p keras-strom | sed 's/.*-F \\([^ ]*\\).*/\\1/')
while IFS= read -r line; do
  read -ra COMP_WORDS <<< "$line"
  [[ $line == *" " ]] && COMP_WORDS+=("")
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMP_LINE=$line COMP_POINT=${#line} COMPREPLY=()
  "$function" keras-strom "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}" 2> /dev/null
  echo "${COMPREPLY[*]}"
done
"""


@pytest.fixture(autouse=True)
def _handler_of_sigterm() -> Iterator[None]:
    """The command has one of its own."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


def printed(capsys: pytest.CaptureFixture[str], shell: str) -> str:
    """What the command prints for a shell."""
    pytest.importorskip("shtab", reason="shtab is not installed")
    assert cli.main(["completion", shell]) == 0
    return capsys.readouterr().out


def test_bash_completes_commands_flags_values_and_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bash = shutil.which("bash") or pytest.skip("there is no bash")
    (tmp_path / "completion").write_text(printed(capsys, "bash"))
    (tmp_path / "train.py").touch()
    (tmp_path / "folder").mkdir()
    expected = {
        "keras-strom ru": "run",
        "keras-strom run --ho": "--hosts --hostfile",
        "keras-strom scalability --topology ": "auto plain mesh",
        "keras-strom completion ": "bash zsh",
        "keras-strom run -np 2 tr": "train.py",
        "keras-strom run --checkpoint-dir ": "folder",
    }
    done = subprocess.run(
        [bash, "--norc", "-c", _ASK, "bash", "completion"],
        input="".join(f"{line}\n" for line in expected),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert dict(zip(expected, done.stdout.splitlines(), strict=True)) == expected


def test_zsh_reads_what_is_printed_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, "zsh")
    assert text.startswith("#compdef keras-strom")
    if zsh := shutil.which("zsh"):
        (tmp_path / "completion").write_text(text)
        subprocess.run([zsh, "-n", tmp_path / "completion"], timeout=60, check=True)


def test_a_missing_shtab_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert cli.main(["completion", "bash"]) == 2
    assert "pip install shtab" in capsys.readouterr().err
