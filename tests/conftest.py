"""What every Python test shares: this tree's own package, and no TensorFlow start-up noise."""

import functools
import importlib.util
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# A Spark worker must run the Python that runs the tests.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def pytest_configure(config: pytest.Config) -> None:
    """Puts this tree's package and its tests first for every process that the tests start.

    setup.cfg maps ``spark/`` to ``keras_strom.spark``, which an installed (editable) package knows
    and a mere folder on the path does not. Where this tree is not the installed one, a folder of
    links lays the package out as an installation would.
    """
    layout = tempfile.TemporaryDirectory(prefix="keras-strom-layout-")
    config.add_cleanup(layout.cleanup)
    for folder in ("tests", "benchmarks"):
        if (ROOT / folder).is_dir():
            Path(layout.name, folder).symlink_to(ROOT / folder)
    if not _is_installed():
        _lay_out_package(Path(layout.name, "keras_strom"))
        sys.path.insert(0, layout.name)
    from tests.support import quick_java

    os.environ.update(quick_java.variables())
    quick_start = ROOT / "tests" / "support" / "quick_start"
    paths = [layout.name, str(quick_start), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    # An example takes as long as the machine's other work lets it.
    settings.register_profile("tests", deadline=None)
    settings.load_profile("tests")
    # What is made up is the same in every test run, and other things whenever it is fuzzed.
    settings.register_profile("fuzz", derandomize=not config.getoption("fuzz_seconds"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """For `make fuzz` and `make docs-pictures`."""
    parser.addoption(
        "--fuzz-seconds",
        type=float,
        default=0.0,
        help="repeat each test that is marked `fuzz` for so long, with other examples each time",
    )
    parser.addoption(
        "--pictures", metavar="FOLDER", help="leave the pictures of the job's page there"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Runs a test that is marked `fuzz` again and again, where `--fuzz-seconds` asks for it."""
    end = time.monotonic() + item.config.getoption("fuzz_seconds")
    yield
    while "fuzz" in _marks(item) and time.monotonic() < end:
        item.runtest()


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file's tests run in one process, and so do all files that share Spark's embedded cluster.

    Starting the cluster takes long. Each test on a GPU starts a TensorFlow of its own instead, so
    that any process may take the next one. (Groups by mark, `--dist loadgroup`, are not heeded
    under pytest 9.2 with pytest-xdist 3.8.)
    """
    from xdist.scheduler import LoadScopeScheduling

    class OneCluster(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            if path.startswith("tests/gpu/"):
                return nodeid
            return "spark" if _shares_spark(path) else path

    return OneCluster(config, log) if config.getvalue("dist") == "loadscope" else None


@functools.cache
def _shares_spark(path: str) -> bool:
    """Whether tests of a file ask for the fixture `spark`; others start what they need."""
    text = (ROOT / path).read_text()
    return re.search(r'\bspark: Any|getfixturevalue\("spark"\)', text) is not None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Says what is quick, and the order: what takes long first, so that no process ends late.

    What needs Spark's cluster comes first, then what starts processes; of each the longest files.
    """
    for item in items:
        if "spark" in item.fixturenames or item.path.parent == ROOT / "tests" / "spark":
            item.add_marker("spark")
        if not _marks(item) & {"spark", "jobs", "slow", "net", "images"}:
            item.add_marker("quick")
    items.sort(key=_order)


def _marks(item: pytest.Item) -> set[str]:
    return {mark.name for mark in item.iter_markers()}


def _order(item: pytest.Item) -> tuple[bool, bool, int, str]:
    marks = _marks(item)
    path = item.path
    return "spark" not in marks, "quick" in marks, -path.stat().st_size, str(path)


def _lay_out_package(package: Path) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "keras_strom"]:
        del sys.modules[name]  # asking for keras_strom.spark has imported its parent
    package.mkdir()
    for source in (ROOT / "keras_strom").iterdir():
        (package / source.name).symlink_to(source)
    (package / "spark").symlink_to(ROOT / "spark")


def _is_installed() -> bool:
    """Whether both parts of the package are found, and found in this tree.

    Tests that were copied without the package (`make test-release`) try the installed one.
    """
    if not (ROOT / "keras_strom").is_dir():
        return True
    for name, folder in (("keras_strom", "keras_strom"), ("keras_strom.spark", "spark")):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            return False
        if Path(spec.origin).resolve().parent != ROOT / folder:
            return False
    return True


def _share_fork_servers() -> None:
    """Only processes with the same variables do, and pytest has one that differs in every test."""
    os.environ.pop("PYTEST_CURRENT_TEST", None)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup() -> None:
    """See `_share_fork_servers`."""
    _share_fork_servers()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call() -> None:
    """See `_share_fork_servers`."""
    _share_fork_servers()


@pytest.fixture(scope="session")
def repository() -> Path:
    """The top of the source tree."""
    return ROOT


@pytest.fixture(autouse=True)
def _no_cluster_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test is a single worker unless it says otherwise, whatever started the test run."""
    for name in [name for name in os.environ if name.startswith("KERAS_STROM_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Spark's embedded cluster of two executors; starting it takes long, so all tests share it."""
    sql = pytest.importorskip("pyspark.sql")
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    session = (
        sql.SparkSession.builder.master("local-cluster[2,1,1024]")
        .appName("keras-strom tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.python.daemon.module", "keras_strom.spark.runner.python_daemon")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    from keras_strom.spark.runner import slots

    # On a busy machine the second executor may come long after the first.
    deadline = time.monotonic() + 120
    while slots.count_slots(session.sparkContext) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    yield session
    session.stop()
