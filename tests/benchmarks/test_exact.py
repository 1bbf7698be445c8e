"""The benchmark of exact mode: every target has a verdict or a reason, and what a figure says."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import exact, namespaces
from benchmarks.tta_place import Line, Trained
from benchmarks.tta_training import HOROVOD, WARM_UP_STEPS, Course, Training


class FakeMachines:
    """Of which exact mode makes twice as many steps a second as Horovod."""

    def __init__(self, workers: int, **places: bool) -> None:
        assert workers in (3, max(exact.WORKERS))
        assert places == {"driver_beside": True, "both_ways": True}

    def __enter__(self) -> "FakeMachines":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def train(self, training: Training, line: Line) -> Trained:
        """As if it had taken so long; the second worker is the slower one."""
        assert line.megabits in (250, exact.MEGABITS)
        steps = training.marks[-1] - WARM_UP_STEPS
        step = (0.2 if training.way.startswith(HOROVOD) else 0.1) * training.workers
        seconds: Sequence[float] = [steps * step / 2] + [steps * step] * (training.workers - 1)
        return Trained(
            [Course(training.marks, (s,), (1e6,), last_step_seconds=s) for s in seconds], []
        )


@pytest.fixture
def on_fake_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings are made up; Horovod is where a test has made its file in `tmp_path`."""
    monkeypatch.setattr(namespaces, "unavailable", lambda: None)
    monkeypatch.setattr(exact, "ENVIRONMENT", tmp_path)
    monkeypatch.setattr(exact, "Machines", FakeMachines)


def written(tmp_path: Path, name: str = "exact") -> dict[str, Any]:
    """What the file says."""
    found: dict[str, Any] = json.loads((tmp_path / f"{name}.json").read_text())
    return found


def test_without_namespaces_every_target_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespaces, "unavailable", lambda: "network namespaces need root")
    exact.main(["--quick", "--output", str(tmp_path)])
    rows = written(tmp_path, "exact-quick")["rows"]
    assert {row["name"] for row in rows} == exact.TARGETS
    assert all(row["skipped"] == "network namespaces need root" for row in rows)


@pytest.mark.usefixtures("on_fake_machines")
@pytest.mark.parametrize("built", [True, False])
def test_the_slowest_worker_counts_and_horovod_is_compared_where_it_is_built(
    tmp_path: Path, built: bool
) -> None:
    if built:
        (tmp_path / "horovod-of.txt").touch()
    exact.main(["--rounds", "2", "--output", str(tmp_path)])
    found = written(tmp_path)
    speeds = {(r["group"][0], r["name"]): r for r in found["rows"] if "steps_a_second" in r}
    assert speeds["2", exact.EXACT]["steps_a_second"] == pytest.approx(5)
    assert speeds["4", exact.EXACT]["ms_a_step"] == pytest.approx(400)
    judged = {target["name"]: target["value"] for target in found["targets"]}
    skipped = {row["name"] for row in found["rows"] if row["group"] == "Skipped"}
    assert (judged.keys() if built else skipped) == exact.TARGETS
    assert all(value == pytest.approx(2) for value in judged.values())
    assert (tmp_path / "exact.png").stat().st_size > 0


class Breaking(FakeMachines):
    """Horovod's second job of four workers fails, of either model, and then the machine does."""

    def __init__(self, workers: int, **places: bool) -> None:
        super().__init__(workers, **places)
        self._trained: list[tuple[str, int, str]] = []

    def train(self, training: Training, line: Line) -> Trained:
        job = (training.task, training.workers, training.way)
        self._trained.append(job)
        if training.workers == 4 and training.way == HOROVOD and self._trained.count(job) == 2:
            raise RuntimeError("the last words")
        if training.way == exact.EXACT and self._trained.count(job) == 4:
            raise RuntimeError("keras-strom has failed")
        return super().train(training, line)


@pytest.mark.usefixtures("on_fake_machines")
def test_a_job_of_horovods_that_fails_is_left_out_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact, "Machines", Breaking)
    (tmp_path / "horovod-of.txt").touch()
    exact.main(["--rounds", "3", "--output", str(tmp_path)])
    found = written(tmp_path)
    reasons = {row["name"]: row["skipped"] for row in found["rows"] if row["group"] == "Skipped"}
    way = f"{HOROVOD}, 4 workers, 25.7 million parameters"
    assert reasons[way] == "the last words"
    judged = {target["name"] for target in found["targets"]}
    assert judged == {name for name in exact.TARGETS if name.endswith("k2")}
    assert judged | set(reasons) >= exact.TARGETS
    rows = {(r["group"], r["name"]) for r in found["rows"] if "steps_a_second" in r}
    assert ("4 workers, 25.7 million parameters, 1 Gbit/s", HOROVOD) not in rows
    assert ("4 workers, 25.7 million parameters, 1 Gbit/s", exact.HOROVOD_FP16) in rows


@pytest.mark.usefixtures("on_fake_machines")
def test_what_was_measured_is_in_the_file_after_each_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact, "Machines", Breaking)
    with pytest.raises(RuntimeError, match="keras-strom has failed"):
        exact.main(["--rounds", "4", "--output", str(tmp_path)])
    speeds = written(tmp_path)["steps_a_second"]
    assert speeds["cnn_k2"][exact.EXACT] == pytest.approx([5, 5, 5])


@pytest.mark.usefixtures("on_fake_machines")
def test_a_quick_run_leaves_result_and_picture_of_a_real_one_alone(tmp_path: Path) -> None:
    exact.main(["--quick", "--output", str(tmp_path)])
    assert {path.name for path in tmp_path.iterdir()} == {"exact-quick.json", "exact-quick.png"}


@pytest.mark.usefixtures("on_fake_machines")
def test_one_model_another_number_of_workers_and_another_line_are_measured_and_not_judged(
    tmp_path: Path,
) -> None:
    (tmp_path / "horovod-of.txt").touch()
    chosen = ["--task", "25m", "--workers", "3", "--megabits", "250"]
    exact.main(["--rounds", "1", *chosen, "--output", str(tmp_path)])
    found = written(tmp_path)
    groups = {row["group"] for row in found["rows"] if "steps_a_second" in row}
    assert groups == {"3 workers, 25.7 million parameters, 250 Mbit/s"}
    assert not found["targets"]


@pytest.mark.parametrize(
    ("option", "value"), [("--rounds", "0"), ("--workers", "1"), ("--megabits", "0")]
)
def test_what_cannot_be_measured_is_refused(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        exact.main([option, value])
    assert f"{option}={value}" in capsys.readouterr().err
