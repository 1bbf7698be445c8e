"""What benchmarks/ci.py makes of the seconds that .ci/run has noted."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import ci

ROOT = Path(__file__).resolve().parents[2]


def test_minutes_are_those_of_the_phases(tmp_path: Path) -> None:
    phases = tmp_path / "phases.txt"
    lines = [f"{60 * (1 + place)}\t{name}\n" for place, name in enumerate(ci.TEST_PHASES)]
    phases.write_text("30\tSet-up\n" + "".join(lines))
    ci.main([str(phases), "--output", str(tmp_path)])
    written = json.loads((tmp_path / "ci.json").read_text())
    values = {target["name"]: target["value"] for target in written["targets"]}
    assert values == pytest.approx({"ci_minutes": 10.5, "test_minutes": 10.0, "quick_minutes": 1.0})
    assert [row["name"] for row in written["rows"]] == ["Set-up", *ci.TEST_PHASES]
    assert (tmp_path / "ci.png").stat().st_size > 0


def test_a_run_that_was_cut_off_has_no_figure_for_what_it_did_not_do(tmp_path: Path) -> None:
    result = ci.summary(ci.read_phases("30\tSet-up\n90\tQuick tests\n"), tmp_path)
    assert {target.name for target in result.targets} == {"quick_minutes"}


def test_the_phases_are_those_of_the_script() -> None:
    told = re.findall(r'^phase "([^"]+)"', (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert set(ci.TEST_PHASES) <= set(told)
    assert told[-1] == ci.LAST_PHASE
