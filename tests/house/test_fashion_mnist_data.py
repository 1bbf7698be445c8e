"""The example data: read from files that are checked, or refused with what to do."""

import gzip
import importlib.util
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

FILES = {
    "train-images-idx3-ubyte.gz": (5, 28, 28),
    "train-labels-idx1-ubyte.gz": (5,),
    "t10k-images-idx3-ubyte.gz": (2, 28, 28),
    "t10k-labels-idx1-ubyte.gz": (2,),
}


@pytest.fixture(scope="module")
def data(repository: Path) -> ModuleType:
    path = repository / "examples" / "fashion_mnist_data.py"
    spec = importlib.util.spec_from_file_location("fashion_mnist_data", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_idx(path: Path, array: np.ndarray, kind: int = 8, missing: int = 0) -> None:
    header = bytes((0, 0, kind, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    content = header + array.tobytes()
    path.write_bytes(gzip.compress(content[: len(content) - missing]))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    random = np.random.default_rng(1)
    for name, shape in FILES.items():
        write_idx(tmp_path / name, random.integers(0, 256, shape, dtype=np.uint8))
    return tmp_path


def test_returns_what_the_files_hold(data: ModuleType, directory: Path) -> None:
    (x_train, y_train), (x_test, y_test) = data.load_fashion_mnist(directory)
    random = np.random.default_rng(1)
    for array, shape in zip((x_train, y_train, x_test, y_test), FILES.values(), strict=True):
        np.testing.assert_array_equal(array, random.integers(0, 256, shape, dtype=np.uint8))


@pytest.mark.parametrize("missing", [1, 5, 25, 5 + 4 + 4])
def test_refuses_a_file_that_ends_early(data: ModuleType, tmp_path: Path, missing: int) -> None:
    path = tmp_path / "labels.gz"
    write_idx(path, np.arange(5, dtype=np.uint8), missing=missing)
    with pytest.raises(ValueError, match=r"labels\.gz"):
        data.read_idx(path)


def test_refuses_another_element_type(data: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "floats.gz"
    write_idx(path, np.zeros(3, np.float32), kind=0x0D)
    with pytest.raises(ValueError, match="unsigned bytes"):
        data.read_idx(path)


def test_refuses_images_without_their_labels(data: ModuleType, directory: Path) -> None:
    write_idx(directory / "train-labels-idx1-ubyte.gz", np.zeros(4, np.uint8))
    with pytest.raises(ValueError, match="5 train images, 4 labels"):
        data.load_fashion_mnist(directory)


def test_says_what_to_install_where_there_is_neither_package_nor_internet(
    data: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OSError("no route to host")

    keras = SimpleNamespace(datasets=SimpleNamespace(fashion_mnist=SimpleNamespace()))
    keras.datasets.fashion_mnist.load_data = refuse
    monkeypatch.setitem(sys.modules, "keras", keras)
    with pytest.raises(FileNotFoundError, match="apt-get install dataset-fashion-mnist"):
        data.load_fashion_mnist(tmp_path / "nowhere")


def test_workers_of_a_machine_download_one_after_the_other(
    data: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keras takes what another one is still writing for the whole file."""
    file = tmp_path / "downloaded"

    def load() -> tuple[str, str]:
        if not file.exists():
            file.touch()
            time.sleep(0.2)
            file.write_text("whole")
        return file.read_text(), ""

    datasets = SimpleNamespace(fashion_mnist=SimpleNamespace(load_data=load))
    monkeypatch.setitem(sys.modules, "keras", SimpleNamespace(datasets=datasets))
    with ThreadPoolExecutor(4) as workers:
        found = list(workers.map(lambda _: data.load_fashion_mnist(tmp_path / "none"), range(4)))
    assert found == [("whole", "")] * 4


def test_reads_debians_package(data: ModuleType) -> None:
    if not data.PACKAGE_DIRECTORY.is_dir():
        pytest.skip("the package dataset-fashion-mnist is not installed")
    (x_train, y_train), (x_test, y_test) = data.load_fashion_mnist()
    assert x_train.shape == (60000, 28, 28)
    assert x_test.shape == (10000, 28, 28)
    for labels in (y_train, y_test):
        assert np.unique(labels, return_counts=True)[1].tolist() == [len(labels) // 10] * 10
