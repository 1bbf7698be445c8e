"""The reader's benchmark: a quick run has its rows and its target."""

import json
from pathlib import Path

import pytest

from benchmarks import reader


def test_a_quick_run_has_every_way_and_the_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reader.main(["--rows", "30000", "--rounds", "2", "--output", str(tmp_path)])
    assert "targets met" in capsys.readouterr().out
    written = json.loads((tmp_path / "reader.json").read_text())
    assert {target["name"] for target in written["targets"]} == reader.TARGETS
    assert [row["name"] for row in written["rows"]] == [
        *([reader.PYARROW, "in order", "shuffled"] * 2)
    ]
    assert all(row["rows_per_s"] > 0 for row in written["rows"])
