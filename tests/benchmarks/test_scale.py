"""The benchmark of many workers: its program keeps its promises, and every target has its row."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import pictures, report, scale
from benchmarks.scale import Case
from tests.support.native_programs import folder_of

FOLDER = folder_of("scale", "relay_node")
PROGRAM = None if FOLDER is None else FOLDER / "scale"

needs_program = pytest.mark.skipif(PROGRAM is None, reason="scale or relay_node is not built")


def answer(workers: int, down: float, up: float) -> dict[str, Any]:
    """What the program says, as far as it matters here."""
    link = {"down": {"bytes": down, "messages": 20}, "up": {"bytes": up, "messages": 7}}
    return {
        "workers": workers,
        "links": {"master": link, "leaf": link, "direct": link},
        "control": {"leaf_bytes_per_s": 1, "master_bytes_per_s": 1},
        "at_one": {"p50_ms": 8},
        "at_all": {"mean_ms": 12, "max_ms": 20},
        "full_rounds": 30,
        "published_contents_bytes": 1,
        "deaths": 1,
        "start_cpu_seconds": 1,
        "cpu_seconds": 30,
        "peak_memory_bytes": 2**30,
    }


@pytest.mark.jobs
@needs_program
def test_a_quick_run_has_a_verdict_or_a_reason_for_every_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scale.main(["--quick", "--program", str(PROGRAM), "--output", str(tmp_path)])
    assert "written to" in capsys.readouterr().out
    written = json.loads((tmp_path / "scale-quick.json").read_text())
    judged = {target["name"] for target in written["targets"]}
    skipped = {row["name"] for row in written["rows"] if row["group"] == "Skipped"}
    assert not judged & skipped
    assert judged | skipped == set(scale.TARGETS)
    links = {row["name"]: row for row in written["rows"] if row["group"].startswith("A link")}
    merged = links["64 workers, merged, 16 rounds"]
    alone = links["64 workers, each by itself, 16 rounds"]
    assert merged["down_messages"] < alone["down_messages"] / 2
    assert (tmp_path / "scale-quick.png").stat().st_size > 0


@needs_program
@pytest.mark.parametrize("case", [Case(20, rounds=5), Case(20, rounds=5, merging=False)])
def test_everybody_gets_everything_once(case: Case) -> None:
    assert PROGRAM is not None
    run = subprocess.run(case.command(PROGRAM), capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr
    said = json.loads(run.stdout)
    assert said["violations"] == []
    assert said["links"]["leaf"]["up"]["messages"] == pytest.approx(1, abs=0.35)


@needs_program
@pytest.mark.parametrize("word", ["workers", "workers=0", "workers=x", "speed=1", "values=2"])
def test_the_program_refuses_what_it_does_not_know(word: str) -> None:
    run = subprocess.run([str(PROGRAM), "workers=8", word], capture_output=True, text=True)
    assert run.returncode == 2
    assert "usage" in run.stderr


def test_a_target_compares_with_few_workers_of_the_same_kind(tmp_path: Path) -> None:
    found = {
        Case(64): answer(64, 90, 10),
        Case(64, seed=2): answer(64, 100, 20),
        Case(64, dies=False): answer(64, 1, 1),
        Case(1024): answer(1024, 100, 20),
        Case(1024, seed=2): answer(1024, 100, 22),
    }
    result = report.Report("scale", "", tmp_path)
    scale.add(result, list(found), found)
    assert [target.value for target in result.targets] == [pytest.approx(121 / 110)]
    assert not result.targets[0].met


def test_a_short_job_is_not_compared_with_a_longer_one(tmp_path: Path) -> None:
    many, few = Case(4096, rounds=6, dies=False), Case(64, rounds=6, dies=False)
    found = {Case(64, dies=False): answer(64, 90, 10), many: answer(4096, 100, 10)}
    result = report.Report("scale", "", tmp_path)
    scale.add(result, list(found), found)
    assert over_few(result, many) is None
    found[few] = answer(64, 80, 8)
    result = report.Report("scale", "", tmp_path)
    scale.add(result, list(found), found)
    assert over_few(result, many) == pytest.approx(110 / 88)


def over_few(result: report.Report, case: Case) -> float | None:
    (found,) = [
        row["over_few"] for row in result.rows if row["name"] == case.name and "over_few" in row
    ]
    return found


def test_every_job_is_measured_beside_few_workers_of_its_kind() -> None:
    for effort in (scale.Effort.whole(4096), scale.QUICK):
        few = {case.kind for case in effort.cases if case.workers == scale.FEW}
        assert {case.kind for case in effort.cases} == few
        assert len({case.name for case in effort.cases}) == len(effort.cases)


def test_a_line_of_the_picture_joins_jobs_of_one_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = []
    monkeypatch.setattr(pictures, "save", lambda figure, *_: figures.append(figure))
    cases = scale.Effort.whole(4096).cases
    scale.draw(
        {case: answer(case.workers, 90, case.workers / 100) for case in cases}, "x", tmp_path
    )
    for axes in figures[0].axes:
        lines = sorted(tuple(map(int, line.get_xdata())) for line in axes.lines)
        assert lines == [(64, 256), (64, 256, 1024), (64, 256, 1024), (64, 4096)]


def test_what_did_not_fit_has_a_reason_and_no_figure(tmp_path: Path) -> None:
    few, many = Case(64), Case(1024)
    result = report.Report("scale", "", tmp_path)
    scale.add(result, [few, many], {few: answer(64, 90, 10)})
    assert not result.targets
    reasons = {row["name"]: row["skipped"] for row in result.rows if row["group"] == "Skipped"}
    assert "did not end" in reasons["link_cost_1024"]
    assert "64 took 1.0 GiB" in reasons["link_cost_32768"]
    assert many.name in reasons


def test_a_broken_promise_is_an_error(tmp_path: Path) -> None:
    program = tmp_path / "scale"
    program.write_text('#!/bin/sh\necho \'{"violations": ["worker 3 got it twice"]}\'\nexit 1\n')
    program.chmod(0o755)
    with pytest.raises(RuntimeError, match="worker 3 got it twice"):
        scale.run_all([Case(64)], program, deadline_s=time.monotonic() + 60)


def test_what_takes_too_long_is_left_out(tmp_path: Path) -> None:
    assert scale.run_all([Case(64)], tmp_path / "scale", deadline_s=0) == {}


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="make bench-scale"):
        scale.main(["--program", str(tmp_path / "scale")])
