"""`make demo`: its trainings at a small size, its table, its picture and its last sentence."""

from __future__ import annotations

import importlib
import io
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np
import pytest

pytestmark = pytest.mark.jobs

pytest.importorskip("pyspark")
pytest.importorskip("matplotlib")

MODULES = ("demo", "demo_picture", "demo_worker", "embedded_spark", "fashion_mnist")


@pytest.fixture
def examples(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of `examples/` as its scripts do, and forgets all of them afterwards."""
    monkeypatch.syspath_prepend(str(repository / "examples"))
    for name in (*MODULES, "fashion_mnist_data"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module
    for name in (*MODULES, "fashion_mnist_data"):
        sys.modules.pop(name, None)


@pytest.fixture
def demo(examples: Any) -> ModuleType:
    """`examples/demo.py`."""
    module: ModuleType = examples("demo")
    return module


def _figures(
    sharing: list[float], single: float = 0.9, silent: float = 0.88, compression: float = 380.4
) -> dict[str, Any]:
    epochs = len(sharing)
    return {
        "accuracy": sharing[-1],
        "single_worker_accuracy": single,
        "no_communication_accuracy": silent,
        "accuracy_by_epoch": {
            "sharing": sharing,
            "single_worker": [single] * epochs,
            "no_communication": [silent] * epochs,
        },
        "megabytes_by_epoch": {"sharing": [1.0 + epoch for epoch in range(epochs)]},
        "compression": compression,
        "dense_bytes": 1e6 * compression * epochs,
        "epochs": epochs,
    }


@pytest.mark.parametrize(
    ("figures", "sentence"),
    [
        (
            _figures([0.85, 0.9, 0.895, 0.912], silent=0.893),
            "Two workers reached one worker's final accuracy of 90.0 % after 2 of 4 epochs and "
            "ended 1.2 points ahead of it and 1.9 points ahead of two that never talk, sending "
            "380 times less than all-reduce would.",
        ),
        (
            _figures([0.85, 0.9, 0.895, 0.901], compression=3.14),
            "Two workers reached one worker's final accuracy of 90.0 % after 2 of 4 epochs and "
            "ended level with it (+0.1 points) and 2.1 points ahead of two that never talk, "
            "sending 3.1 times less than all-reduce would.",
        ),
        (
            _figures([0.85, 0.9, 0.875, 0.879]),
            "Two workers reached one worker's final accuracy of 90.0 % after 2 of 4 epochs but "
            "ended 2.1 points behind it and level with two that never talk (-0.1 points), sending "
            "380 times less than all-reduce would.",
        ),
        (
            _figures([0.8, 0.86], compression=0.5),
            "After 2 epochs two workers ended 4.0 points behind one worker's 90.0 % and 2.0 points "
            "behind two that never talk, sending 2.0 times as much as all-reduce would.",
        ),
        (
            _figures([0.91]),
            "After 1 epoch two workers ended 1.0 points ahead of one worker's 90.0 % and 3.0 "
            "points ahead of two that never talk, sending 380 times less than all-reduce would.",
        ),
    ],
)
def test_the_last_sentence_says_what_two_workers_gained_or_did_not(
    demo: ModuleType, figures: dict[str, Any], sentence: str
) -> None:
    assert demo.gain(figures) == sentence


def test_the_table_grows_by_what_workers_tell_and_keeps_what_else_they_say_for_the_end_of_a_row(
    demo: ModuleType,
) -> None:
    screen = io.StringIO()
    table = demo.Table(10, screen)
    table.begin("two workers that never talk")
    output = demo.WorkersOutput(table, models=2)
    output.write("[0] epoch 1: test accuracy 0.800000\n")
    assert "80.0" not in screen.getvalue()  # The other has not come so far.
    output.write("[0] epoch 2: test accuracy 0.900000\n")
    output.write("[1] a warning\n")
    output.write("[1] epoch 1: test accuracy 0.810000\n")
    assert screen.getvalue().endswith("  80.5")
    output.write("[1] epoch 2: test accuracy 0.910000\n")
    table.end(output.notes)
    table.begin("one worker")
    alone = demo.WorkersOutput(table, models=1)
    for epoch in range(10):
        alone.write(f"epoch {epoch + 1}: test accuracy 0.{epoch}\n")
    table.end(alone.notes)
    assert screen.getvalue().splitlines() == [
        "test accuracy, %, after epoch     1     2     3     4     5     6     7     8",
        "                                  9    10",
        "two workers that never talk    80.5  90.5",
        "  [1] a warning",
        "one worker                      0.0  10.0  20.0  30.0  40.0  50.0  60.0  70.0",
        "                               80.0  90.0",
    ]


@pytest.mark.parametrize("epochs", [1, 8])
def test_the_picture_is_drawn_for_any_number_of_epochs(
    demo: ModuleType, examples: Any, tmp_path: Path, epochs: int
) -> None:
    picture = tmp_path / "demo.png"
    titles = {way.name: way.title for way in demo.WAYS}
    examples("demo_picture").draw(_figures([0.85] * epochs), titles, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_names_of_lines_that_end_together_are_moved_apart(examples: Any) -> None:
    places = examples("demo_picture").spread({"a": 90.0, "b": 90.1, "c": 85.0}, least=0.5)
    assert places == {"b": 90.1, "a": pytest.approx(89.6), "c": 85.0}


def test_evaluating_after_every_epoch_changes_nothing_of_what_is_learnt(
    examples: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = examples("demo_worker")
    models: list[keras.Model] = []

    def build_model() -> keras.Model:
        layers = [keras.Input((28, 28, 1)), keras.layers.Flatten(), keras.layers.Dense(10)]
        models.append(keras.Sequential(layers))
        return models[-1]

    random = np.random.default_rng(4)
    x = random.random((200, 28, 28, 1), np.float32)
    y = random.integers(0, 10, 200).astype(np.uint8)
    monkeypatch.setattr(worker, "build_model", build_model)
    monkeypatch.setattr(worker, "load", lambda: ((x, y), (x[:50], y[:50])))
    for communicate in (True, False):
        outcome = worker.train(worker.Task(3, 16, 160, communicate))
        assert len(outcome["accuracy"]) == 3
        assert outcome["seconds"] > 0
        assert outcome["wire_bytes"] == [0, 0, 0]
    keras.utils.set_random_seed(1)
    plain = build_model()
    worker.compile_model(plain)
    plain.fit(x[:160], y[:160], batch_size=16, epochs=3, verbose=0)
    for model in models[:2]:
        for want, got in zip(plain.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(want, got)


def test_java_that_does_not_start_is_named_with_what_it_said(
    examples: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(RuntimeError, match="nowhere/bin/java"):
        examples("embedded_spark")._start_java(tmp_path / "logs" / "java.log")


@pytest.mark.timeout(600)  # Spark and five workers start, on a machine that may be busy.
def test_three_small_trainings_fill_the_table_and_the_figures(
    spark: Any,
    demo: ModuleType,
    examples: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = examples("fashion_mnist_data")
    if not data.PACKAGE_DIRECTORY.is_dir():
        pytest.skip(f"Fashion-MNIST is not in {data.PACKAGE_DIRECTORY}")
    demo.add_modules(spark)
    # As if it were `__main__`, which it is to those who run it.
    monkeypatch.setattr(demo.run_task, "__module__", "__main__")
    figures = demo.train_three_ways(spark, epochs=1, batch_size=32, images=640)
    by_epoch = figures["accuracy_by_epoch"]
    assert figures["accuracy"] == by_epoch["sharing"][-1]
    assert figures["single_worker_accuracy"] == by_epoch["single_worker"][-1]
    assert figures["no_communication_accuracy"] == by_epoch["no_communication"][-1]
    (megabytes,) = figures["megabytes_by_epoch"]["sharing"]
    # What a worker has received was sent by the master, but for what the loopback lost.
    assert megabytes == pytest.approx(figures["bytes_on_wire"] / 1e6, rel=0.1)
    assert figures["megabytes_by_epoch"]["single_worker"] == [0]
    assert figures["steps_per_worker"] == 10
    assert 0 < figures["training_seconds"] < figures["seconds"]
    header, *rows = [
        line for line in capsys.readouterr().out.splitlines() if not line.startswith("  ")
    ]
    assert header.split()[-2:] == ["epoch", "1"]
    for way, row in zip(demo.WAYS, rows, strict=True):
        shown = [demo.percent(accuracy) for accuracy in by_epoch[way.name]]
        assert row.removeprefix(way.title).split() == shown
