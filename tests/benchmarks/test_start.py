"""`make bench-start`: its report from figures that are given, for a real run takes minutes."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import start


@pytest.fixture
def drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    def drive(what: str, python: Path | None = None) -> dict[str, Any]:
        return {
            "tasks": {"seconds": 2.0},
            "runs": {"cold": 7.2, "warm": [1.0, 1.5, 4.0]},
            "strom": {"seconds": 30.0, "accuracy": 0.9},
            "elephas": {"seconds": 60.0, "accuracy": 0.9},
        }[what]

    monkeypatch.setattr(start, "drive", drive)
    monkeypatch.setattr(start, "import_seconds", lambda: 4.0)


def test_figures_are_medians_and_their_ratios(
    drivers: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made-of.txt").touch()
    monkeypatch.setattr(start, "ELEPHAS", tmp_path)
    start.main(["--rounds", "2", "--output", str(tmp_path)])
    written = json.loads((tmp_path / "start.json").read_text())
    values = {target["name"]: target["value"] for target in written["targets"]}
    assert values == {
        "first_step_cold": pytest.approx(7.2 / 6.0),
        "first_step_warm": 1.5,
        "crossvalidator_vs_elephas": 0.5,
    }
    assert (tmp_path / "start.png").stat().st_size > 0


def test_without_elephas_its_figure_is_left_out_with_the_reason(
    drivers: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(start, "ELEPHAS", tmp_path)
    start.main(["--rounds", "1", "--output", str(tmp_path)])
    written = json.loads((tmp_path / "start.json").read_text())
    assert {target["name"] for target in written["targets"]} == start.TARGETS
    assert "build/elephas" in capsys.readouterr().out
