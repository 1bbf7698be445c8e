"""Images, archives and cluster scripts of deploy/, tried: `make test-images`.

An image is built by replaying its Dockerfile in a slim Debian, and a job runs in it as the image's
user. The archive trains on a standalone cluster whose machines have a Python without packages.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import slim_root
from tests.support.slim_root import SlimRoot, replay

pytestmark = [pytest.mark.images, pytest.mark.timeout(3600)]

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
KEPT = ROOT / "build" / "images"
TOOLS = Path(sys.executable).parent
DEADLINE = 1500.0  # An archive is unpacked in minutes where others work, too.

# Every worker ends with the same bits, which is told by their sum.
TRAIN = """
import keras, numpy as np, keras_strom
from keras_strom import StromStrategy

keras.utils.set_random_seed(keras_strom.rank())
with StromStrategy().scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile("adam", "mse")
x = np.random.default_rng(1).random((512, 8), "float32")
model.fit(x, x.sum(1), batch_size=16, epochs=2, verbose=0)
bits = np.concatenate([w.ravel() for w in model.get_weights()]).tobytes().hex()
print("RESULT", keras_strom.rank(), keras_strom.size(), bits)
"""


def tool(name: str) -> str:
    path = TOOLS / name
    if not path.exists():
        pytest.skip(f"{name} is not installed beside this Python: run `make test-images`")
    return str(path)


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


@pytest.fixture(scope="module")
def wheel() -> Path:
    """The newest of dist/ for this machine."""
    found = sorted(
        (ROOT / "dist").glob(f"keras_strom-*_{os.uname().machine}.whl"),
        key=lambda path: path.stat().st_mtime,
    )
    return found[-1] if found else pytest.skip("there is no wheel in dist/: run `make wheel`")


@pytest.fixture(scope="module")
def wheels(wheel: Path) -> Path:
    """A folder with the wheel's own needs, so that roots need no way to an index."""
    folder = KEPT / "wheels"
    options = ("-q", "--only-binary=:all:", "-c", str(ROOT / "constraints.txt"), "-d", str(folder))
    wanted = (f"{wheel}[cpu,executor,dashboard]", "venv-pack==0.2.0", "setuptools")
    done = run(sys.executable, "-m", "pip", "download", *options, *wanted)
    assert done.returncode == 0, done.stderr
    for own in folder.glob("keras_strom-*"):
        own.unlink()  # An image has it from its context.
    return folder


def slim(folder: Path, wheels: Path) -> Iterator[SlimRoot]:
    """A slim Debian of one's own, which goes at the end: it takes gigabytes."""
    if reason := slim_root.why_not():
        pytest.skip(reason)
    root = SlimRoot.copy_of(slim_root.bare_root(KEPT), folder / "root", wheels)
    yield root
    shutil.rmtree(root.path)


@pytest.fixture
def root(wheels: Path, tmp_path: Path) -> Iterator[SlimRoot]:
    yield from slim(tmp_path, wheels)


@pytest.fixture(scope="module")
def context(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What .dockerignore leaves of the tree, with one wheel."""
    context = tmp_path_factory.mktemp("context")
    (context / "dist").mkdir(parents=True)
    shutil.copy(wheel, context / "dist")
    shutil.copy(ROOT / "constraints.txt", context)
    return context


@pytest.fixture(scope="module")
def image(
    wheels: Path, context: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SlimRoot]:
    """What deploy/Dockerfile builds."""
    for root in slim(tmp_path_factory.mktemp("image"), wheels):
        replay(DEPLOY / "Dockerfile", context, root)
        yield root


def results(text: str) -> list[str]:
    """The bits of every worker, in the order of ranks."""
    found = sorted(re.findall(r"RESULT (\d) 2 ([0-9a-f]+)", text))
    assert [rank for rank, _ in found] == ["0", "1"], text[-4000:]
    return [bits for _, bits in found]


# ------------------------------------------------------------------------------- by their words


def test_dockerfiles_scripts_and_manifests_pass_their_checkers() -> None:
    scripts = [
        str(path)
        for path in DEPLOY.rglob("*")
        if path.is_file() and path.read_text().startswith("#!/bin/bash")
    ]
    manifests = [
        ROOT / "examples" / "kubernetes" / "job.yaml",
        DEPLOY / "kubernetes" / "spark.yaml",
    ]
    for command in (
        (tool("hadolint"), *map(str, DEPLOY.glob("Dockerfile*"))),
        (tool("shellcheck"), *scripts),
        (tool("kubernetes-validate"), "--strict", "--quiet", *map(str, manifests)),
    ):
        done = run(*command)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_recipe_of_conda_is_rendered() -> None:
    jinja2 = pytest.importorskip("jinja2")
    yaml = pytest.importorskip("yaml")
    template = jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(
        (DEPLOY / "conda" / "meta.yaml").read_text()
    )
    text = template.render(
        PYTHON="$PYTHON",
        compiler=lambda language: f"{language}_linux-64",
        stdlib=lambda language: f"{language}_stdlib",
        pin_compatible=lambda name, max_pin: f"{name} ({max_pin})",
    )
    recipe = yaml.safe_load(text)
    assert recipe["package"]["name"] == "keras-strom"
    assert recipe["requirements"]["build"][0] == "cxx_linux-64"
    assert (DEPLOY / "conda" / recipe["source"]["path"] / "setup.py").exists()
    assert (ROOT / recipe["about"]["license_file"]).exists()


# ------------------------------------------------------------------------------- images


def test_two_workers_train_in_the_image_as_its_user(image: SlimRoot) -> None:
    assert image.run(["id", "-u"]).stdout == "10001\n"
    assert image.run(["sh", "-c", "command -v gcc make java"]).stdout == ""
    told = image.run([*image.entry_point, *image.command])
    assert told.returncode == 0, told.stderr
    assert re.search(r"^Keras +3\.\S+ runs on TensorFlow", told.stdout, re.MULTILINE), told.stdout
    assert re.search(r"^Java +none", told.stdout, re.MULTILINE)
    (image.path / "work" / "train.py").write_text(TRAIN)
    done = image.run([*image.entry_point, "keras-strom", "run", "-np", "2", "train.py"])
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = results(done.stdout)
    assert first == second


def test_spark_without_java_is_named_in_the_image(image: SlimRoot) -> None:
    """The image has no Java; here it has pip's pyspark."""
    import pyspark

    packages = image.path / "opt/keras-strom/lib/python3.11/site-packages"
    shutil.copytree(Path(pyspark.__file__).parent, packages / "pyspark")
    shutil.copytree(Path(__import__("py4j").__file__).parent, packages / "py4j")
    program = "import keras_strom.spark as s\ns.run(print, num_proc=1)"
    done = image.run(["python", "-c", program])
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("keras_strom.errors.Unreachable: Spark as it is configured here"), last
    assert "Install Java 17 or later" in last


def spark_image(folder: Path) -> Path:
    """What the image of Spark has under /opt, out of pip's pyspark; its scripts are stubs."""
    import pyspark

    home = Path(pyspark.__file__).parent
    spark = folder / "opt" / "spark"
    for name in ("bin", "jars", "python", "sbin"):
        shutil.copytree(home / name, spark / name)
    for name in ("entrypoint.sh", "decom.sh"):
        script = folder / "opt" / name
        script.write_text('#!/bin/bash\nexec /usr/bin/tini -s -- "$@"\n')
        script.chmod(0o755)
    return folder


def test_driver_and_executors_run_in_the_image_for_spark(
    root: SlimRoot, context: Path, tmp_path: Path
) -> None:
    replay(DEPLOY / "Dockerfile.spark", context, root, {"spark": spark_image(tmp_path / "spark")})
    assert root.run(["id", "-u"]).stdout == "185\n"
    page = (ROOT / "docs" / "spark_cluster.md").read_text().split("\n## Standalone\n")[1]
    script = re.search(r"```python\n(.*?)```", page, re.S)
    assert script is not None
    (root.path / "opt/spark/work-dir/train.py").write_text(script[1])
    submit = ["spark-submit", "--master", "local-cluster[2,1,1024]"]
    settings = ["--conf", "spark.ui.enabled=false", "--conf", "spark.executor.memory=512m"]
    done = root.run([*root.entry_point, *submit, *settings, "train.py"], SPARK_LOCAL_IP="127.0.0.1")
    accuracy = re.search(r"accuracy on \d+ others: ([\d.]+)", done.stdout)
    assert accuracy is not None, done.stdout + done.stderr
    assert float(accuracy[1]) > 0.85


# ------------------------------------------------------------------------------- clusters' scripts


def add_python(root: SlimRoot) -> None:
    root.build_step(["apt-get", "update"])
    options = ("install", "--yes", "--no-install-recommends")
    root.build_step(["apt-get", *options, "python3.11", "python3.11-venv"])


def put_wheel(root: SlimRoot, context: Path, folder: str, script: str) -> None:
    (wheel,) = (context / "dist").iterdir()
    root.copy([wheel, context / "constraints.txt", DEPLOY / script], folder, None)


def test_the_init_script_of_databricks_installs_into_its_python(
    root: SlimRoot, context: Path
) -> None:
    add_python(root)
    root.build_step(["python3.11", "-m", "venv", "/databricks/python"])
    put_wheel(root, context, "/Volumes/main/default/keras_strom/", "databricks/init.sh")
    root.build_step(["/Volumes/main/default/keras_strom/init.sh"])
    told = root.run(["/databricks/python/bin/keras-strom", "--version", "--verbose"])
    assert "native code  built" in re.sub(" {3,}", "  ", told.stdout), told.stdout + told.stderr
    assert "pyarrow" in told.stdout


def test_the_bootstrap_action_of_emr_makes_the_environment_that_spark_is_told(
    root: SlimRoot, context: Path
) -> None:
    add_python(root)
    put_wheel(root, context, "/bucket/", "emr/bootstrap.sh")
    root.build_step(["/bucket/bootstrap.sh", "/bucket"])
    (settings,) = json.loads((DEPLOY / "emr" / "configuration.json").read_text())
    python = settings["Properties"]["spark.pyspark.python"]
    told = root.run([python, "-m", "keras_strom", "--version", "--verbose"])
    assert "pyarrow" in told.stdout, told.stderr


# ------------------------------------------------------------------------------- an archive

SUBMITTED = (
    """
import sys
from pyspark.sql import SparkSession
import keras_strom.spark

def train():
"""
    + "".join(f"    {line}\n" for line in TRAIN.splitlines())
    + """
    return keras_strom.rank(), sys.executable, keras_strom.__file__, bits

session = SparkSession.builder.getOrCreate()
try:
    for result in keras_strom.spark.run(train, num_proc=2, spark=session):
        print("RETURNED", *result)
except keras_strom.StromError as error:
    print("REFUSED", type(error).__name__, error)
report = keras_strom.spark.doctor(session, num_proc=2)
print("FAILS", report.would_fail, " ".join(str(report).split()))
"""
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A standalone cluster that has Spark and nothing of this tree, and a folder."""
    pytest.importorskip("pyspark")
    from tests.support import standalone

    folder = tmp_path_factory.mktemp("cluster")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONPATH", raising=False)
        patch.delenv("PYSPARK_PYTHON", raising=False)
        with standalone.cluster(folder) as url:
            (folder / "train.py").write_text(SUBMITTED)
            yield url, folder


def submit(cluster: tuple[str, Path], python: str, *options: str) -> str:
    """What the script shows whose executors run that Python."""
    from tests.support import standalone

    url, folder = cluster
    command = [str(standalone.HOME / "bin" / "spark-submit"), "--master", url, *options]
    for setting in (
        *("spark.ui.enabled=false", "spark.executor.memory=512m"),
        f"spark.pyspark.python={python}",
        f"spark.pyspark.driver.python={sys.executable}",
    ):
        command += ["--conf", setting]
    variables = {"SPARK_HOME": str(standalone.HOME), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = run(*command, str(folder / "train.py"), **variables)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def test_an_archive_brings_all_that_bare_machines_lack(
    cluster: tuple[str, Path], wheel: Path, wheels: Path, tmp_path: Path
) -> None:
    archive = KEPT / "environment.tar.gz"
    made = run(
        *(str(DEPLOY / "archive"), str(wheel), str(archive)),
        PYTHON=str(Path(sys.base_prefix, "bin", "python3.11")),
        PIP_NO_INDEX="1",
        PIP_FIND_LINKS=str(wheels),
    )
    assert made.returncode == 0, made.stdout + made.stderr
    assert "is what every machine needs" in made.stdout
    shown = submit(cluster, "./environment/bin/python", "--archives", f"{archive}#environment")
    returned = re.findall(r"RETURNED (\d) (\S+) (\S+) ([0-9a-f]+)", shown)
    assert [rank for rank, *_ in returned] == ["0", "1"], shown[-4000:]
    assert returned[0][3] == returned[1][3]
    for _, python, package, _ in returned:
        assert "/environment/bin/python" in python
        assert "/environment/lib/python3.11/site-packages/keras_strom/" in package
    assert "FAILS False" in shown


def made_venv(folder: Path, python: str, *packages: str, **variables: str) -> str:
    done = run(python, "-m", "venv", str(folder))
    assert done.returncode == 0, done.stderr
    if packages:
        done = run(str(folder / "bin" / "pip"), "install", "-q", *packages, **variables)
        assert done.returncode == 0, done.stderr
    return str(folder / "bin" / "python")


def other_python() -> str:
    """One of another minor version than the driver's."""
    places = [
        *(Path.home() / ".pyenv" / "versions").glob("*/bin"),
        Path("/usr/bin"),
        Path("/usr/local/bin"),
    ]
    for minor in (12, 13, 10):
        for place in places:
            if (place / f"python3.{minor}").exists():
                return str(place / f"python3.{minor}")
    pytest.skip("there is no Python but the driver's")


def refused(shown: str) -> tuple[str, str]:
    """What `run` has said, and what the doctor."""
    said = re.search(r"REFUSED ExecutorMismatch (.*)", shown)
    found = re.search(r"FAILS True (.*)", shown)
    assert said is not None, shown[-4000:]
    assert found is not None, shown[-4000:]
    return said[1], found[1]


@pytest.mark.parametrize("which", ["nothing", "no TensorFlow", "another minor", "no Python"])
def test_executors_that_cannot_work_are_told_in_a_sentence_with_the_remedy(
    cluster: tuple[str, Path], which: str, wheel: Path, wheels: Path, tmp_path: Path
) -> None:
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    words: Any
    if which == "nothing":
        python = made_venv(tmp_path / "bare", sys.executable)
        words = ("has no keras-strom", "cannot import keras_strom")
    elif which == "no TensorFlow":
        python = made_venv(tmp_path / "light", sys.executable, f"{wheel}[executor]", **pip)
        words = ("has keras-strom but no tensorflow: install", "cannot import tensorflow")
    elif which == "another minor":
        python = made_venv(tmp_path / "other", other_python())
        words = ("and the driver Python 3.11: set PYSPARK_PYTHON",) * 2
    else:
        python = "./environment/bin/python"
        words = ("cannot run ./environment/bin/python",) * 2
    for said, expected in zip(refused(submit(cluster, python)), words, strict=True):
        assert expected in said
        assert "spark.pyspark.python" in said or "install" in said
