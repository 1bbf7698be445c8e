"""The benchmarks' frame: its file's form, its verdicts, and what it says on the screen."""

import io
import json
import subprocess
from pathlib import Path

import pytest

from benchmarks import report as bench


@pytest.fixture
def report(tmp_path: Path) -> bench.Report:
    return bench.Report("example", "An example", tmp_path / "bench")


def test_the_file_holds_machine_rows_and_targets(report: bench.Report) -> None:
    report.row("scalar", group="Encode", ns_per_element=0.5)
    report.target("fast_enough", 0.9, goal=0.9)
    report.target("small_enough", 1.04, goal=1.03, better="lower")
    report.finish(io.StringIO())
    written = json.loads(report.path.read_text())
    assert list(written) == ["machine", "rows", "targets"]
    assert written["rows"] == [{"group": "Encode", "name": "scalar", "ns_per_element": 0.5}]
    assert written["targets"] == [
        {"name": "fast_enough", "value": 0.9, "goal": 0.9, "better": "higher", "met": True},
        {"name": "small_enough", "value": 1.04, "goal": 1.03, "better": "lower", "met": False},
    ]


def test_a_quick_look_takes_no_real_results_place_and_says_what_it_is(tmp_path: Path) -> None:
    real, quick = bench.Report("x", "X", tmp_path), bench.Report("x", "X", tmp_path, quick=True)
    real.write()
    before = real.path.read_bytes()
    screen = io.StringIO()
    quick.finish(screen)
    assert real.path.read_bytes() == before
    assert quick.path == tmp_path / "x-quick.json"
    assert json.loads(quick.path.read_text())["quick"] is True
    assert "X (a quick look)" in screen.getvalue()


def test_the_machine_is_described(report: bench.Report) -> None:
    machine = report.machine
    assert machine["processor"]
    assert machine["cores"] >= 1
    assert machine["memory"].endswith(" GiB")
    assert machine["kernel"].startswith("Linux")
    assert {"date", "compiler", "gpu", "revision"} <= machine.keys()


def test_the_revision_tells_one_changed_tree_from_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    source = tmp_path / "benchmarks" / "a.py"
    source.parent.mkdir()

    def revision(text: str) -> str:
        source.write_text(text)
        found: str = bench.describe_machine()["revision"]
        return found

    assert revision("1") == revision("1") != revision("2")  # Without git.
    who = ("-c", "user.name=a test", "-c", "user.email=a@test")
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "A commit"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    clean, first, second = revision("2"), revision("3"), revision("4")
    assert first.startswith(f"{clean}-dirty-")
    assert len({clean, first, second}) == 3
    assert (revision("3"), revision("2")) == (first, clean)


def test_a_missed_target_is_shown_and_is_no_error(report: bench.Report) -> None:
    report.target("good", 2, goal=1)
    report.target("bad", 1, goal=2)
    report.skip("gpu", "no GPU")
    screen = io.StringIO()
    report.finish(screen)
    text = screen.getvalue()
    assert "targets met: 1 of 2" in text
    assert "targets missed: bad" in text
    assert "no GPU" in text
    assert str(report.path) in text


def test_text_in_brackets_is_shown_as_it_is(report: bench.Report) -> None:
    report.row("[bold]", group="g", note="[1, 2]")
    screen = io.StringIO()
    report.finish(screen)
    assert "[bold]" in screen.getvalue()
    assert "[1, 2]" in screen.getvalue()


def test_a_name_is_used_once(report: bench.Report) -> None:
    report.row("a", group="g")
    report.row("a", group="h")
    report.target("a", 1, goal=1)
    with pytest.raises(ValueError, match="'a' is there twice"):
        report.row("a", group="g")
    with pytest.raises(ValueError, match="'a' is there twice in targets"):
        report.target("a", 1, goal=1)


def test_a_value_that_is_no_number_is_an_error(report: bench.Report) -> None:
    report.target("broken", float("nan"), goal=1)
    with pytest.raises(ValueError, match="not JSON compliant"):
        report.finish(io.StringIO())


def test_interleave_runs_every_variant_once_a_round_in_changing_order() -> None:
    calls: list[str] = []

    def variant(name: str, seconds: float) -> float:
        calls.append(name)
        return seconds

    variants = {
        "a": lambda: variant("a", 2.0),
        "b": lambda: variant("b", 1.0),
        "c": lambda: variant("c", 4.0),
    }
    timings = bench.interleave(variants, rounds=8, warm_ups=2)
    rounds = [tuple(calls[i : i + 3]) for i in range(0, len(calls), 3)]
    assert len(rounds) == 10
    assert all(set(round_) == {"a", "b", "c"} for round_ in rounds)
    assert len(set(rounds)) > 1
    assert timings.rounds["a"] == [2.0] * 8
    assert timings.speedup("b", over="c") == 4
    assert timings.spread("b", over="c") == (4, 4)


def test_interleave_times_what_does_not_time_itself() -> None:
    timings = bench.interleave({"nothing": lambda: None}, rounds=3)
    assert len(timings.rounds["nothing"]) == 3
    assert all(seconds >= 0 for seconds in timings.rounds["nothing"])


def test_speedup_pairs_the_rounds() -> None:
    # The machine slows down threefold in the middle; the ratio does not see it.
    timings = bench.Timings({"fast": [1, 3, 1], "slow": [2, 6, 2]})
    assert timings.speedup("fast", over="slow") == 2
    assert timings.speedup("slow", over="fast") == 0.5


@pytest.mark.parametrize(
    ("allowed", "expected"), [({5, 3, 8}, ({3}, {5})), ({1}, ({1}, {1})), ({0, 1}, ({0}, {1}))]
)
def test_two_processors_are_of_those_that_the_process_may_use(
    allowed: set[int], expected: tuple[set[int], set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: allowed)
    assert bench.two_processors() == expected


def test_a_picture_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks import pictures

    figure, (left, right) = pictures.picture(2)
    pictures.caption(left, "Time", "x", "y")
    left.plot([1, 2], [3, 4], color=pictures.BLUE)
    pictures.label(left, 2, 4, "line", pictures.BLUE)
    right.bar(["a"], [1], color=pictures.ORANGE)
    path = pictures.save(figure, "example", tmp_path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_lines_that_end_together_are_named_one_above_the_other() -> None:
    pytest.importorskip("matplotlib")
    from benchmarks import pictures

    _, (axes,) = pictures.picture()
    axes.set_ylim(0, 100)
    ends = {"high": 92.1, "low": 1.0, "middle": 91.7, "lower": 88.0}
    pictures.labels(axes, 1, {name: (y, pictures.BLUE) for name, y in ends.items()})
    found = {one.get_text(): one for one in axes.texts}
    assert {name: one.xy[1] for name, one in found.items()} == ends
    assert found["low"].xyann[1] == found["lower"].xyann[1] == 0
    assert 0 < found["middle"].xyann[1] < found["high"].xyann[1]
