"""`make bench-dashboard`: its report from figures that are given, for a real run takes minutes."""

import json
from pathlib import Path

import pytest

from benchmarks import dashboard


def test_the_overhead_is_the_ratio_of_steps_measured_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(page: bool, seconds: float) -> dict[str, float]:
        assert seconds == 3.0
        return {
            "step_seconds": 0.01002 if page else 0.01,
            "reports_cpu_share": 0.002 if page else 0.0,
        }

    monkeypatch.setattr(dashboard, "train", train)
    dashboard.main(["--quick", "--output", str(tmp_path)])
    written = json.loads((tmp_path / "dashboard-quick.json").read_text())
    (target,) = written["targets"]
    assert target["name"] == "dashboard_overhead"
    assert target["value"] == pytest.approx(1.002)
    assert target["met"]
    shares = [row.get("reports_cpu_percent_of_a_core") for row in written["rows"]]
    assert shares[:2] == [0.0, pytest.approx(0.2)]
