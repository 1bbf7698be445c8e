"""Images, cluster scripts, manifests and the recipe of deploy/: what they name is there.

`make test-images` runs them.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from keras_strom import cli
from keras_strom._native.tensorflows import requirement
from keras_strom.job.drain import DRAINED_EXIT_CODE
from keras_strom.job.environment import ClusterEnvironment

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
IMAGES = [DEPLOY / "Dockerfile", DEPLOY / "Dockerfile.spark"]
SCRIPTS = [
    path
    for path in sorted(DEPLOY.rglob("*"))
    if path.is_file() and path.read_text().startswith("#!/bin/bash")
]
MANIFESTS = [ROOT / "examples" / "kubernetes" / "job.yaml", DEPLOY / "kubernetes" / "spark.yaml"]


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def setup() -> configparser.ConfigParser:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return config


def extras() -> dict[str, str]:
    """Those of setup.cfg, and the two that setup.py adds."""
    packages = {"tensorflow": "tensorflow", "cpu": "tensorflow-cpu"}
    added = {extra: requirement(package) for extra, package in packages.items()}
    return {**setup()["options.extras_require"], **added}


def instructions(image: Path) -> list[tuple[str, str]]:
    """Of a Dockerfile, with lines that go on joined."""
    text = re.sub(r"(?m)^#.*\n", "", image.read_text()).replace("\\\n", " ")
    lines = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    return [(name, " ".join(rest.split())) for name, rest in lines]


# ------------------------------------------------------------------------------- scripts


def test_there_are_scripts() -> None:
    names = {shown(path) for path in SCRIPTS}
    assert {"deploy/archive", "deploy/databricks/init.sh", "deploy/emr/bootstrap.sh"} <= names


@pytest.mark.parametrize("script", SCRIPTS, ids=shown)
def test_a_script_is_bash_and_can_be_run(script: Path) -> None:
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    assert script.stat().st_mode & 0o111
    assert "set -euo pipefail" in script.read_text()


@pytest.mark.parametrize(
    "script", [path for path in SCRIPTS if "usage:" in path.read_text()], ids=shown
)
def test_a_script_without_arguments_says_how_to_call_it(script: Path) -> None:
    done = subprocess.run([str(script)], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert done.stderr.startswith(f"usage: {script.name} ")


def test_a_folder_without_a_wheel_is_named(tmp_path: Path) -> None:
    for script, arguments, variables in (
        ("databricks/init.sh", [], {"STROM_WHEELS": str(tmp_path)}),
        ("emr/bootstrap.sh", [str(tmp_path)], {}),
    ):
        (tmp_path / "constraints.txt").touch()
        done = subprocess.run(
            [str(DEPLOY / script), *arguments],
            env={"PATH": "/usr/bin:/bin", **variables},
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert done.returncode == 1
        assert f"{tmp_path} has 0 wheels of keras-strom for " in done.stderr


def test_the_extras_that_files_name_are_there() -> None:
    for path in [*SCRIPTS, *IMAGES]:
        for words in re.findall(r"(?:EXTRAS[:=-]+|\}?\[)([a-z]+(?:,[a-z]+)+)", path.read_text()):
            assert set(words.split(",")) <= set(extras()), f"{shown(path)}: [{words}]"


def spark_settings() -> dict[str, list[str]]:
    """Every setting of Spark that a file or a page names, and where."""
    pages = [ROOT / "docs" / name for name in ("deploy.md", "spark_cluster.md")]
    found: dict[str, list[str]] = {}
    for path in [*SCRIPTS, *sorted(DEPLOY.rglob("*.json")), *pages]:
        for name in re.findall(r"\bspark\.[a-z]\w*(?:\.\w+)+", path.read_text()):
            found.setdefault(name, []).append(shown(path))
    return found


# What follows is a name of the user's own, or one that Spark puts together.
OWN = (
    "spark.kubernetes.authenticate.driver",
    "spark.executorEnv.",
    "spark.kubernetes.driver.label.",
    "spark.kubernetes.executor.label.",
)
# Spark makes these of the name of a resource.
OF_A_RESOURCE = re.compile(r"spark\.(task|executor)\.resource\.gpu\.(amount|discoveryScript)")


def test_the_settings_of_spark_that_files_name_are_there() -> None:
    pyspark = pytest.importorskip("pyspark")
    jars = Path(pyspark.__file__).parent / "jars"
    wanted = {name: where for name, where in spark_settings().items()
              if not OF_A_RESOURCE.fullmatch(name)}  # fmt: skip
    wanted = {next((own for own in OWN if name.startswith(own)), name): where
              for name, where in wanted.items()}  # fmt: skip
    assert "spark.pyspark.python" in wanted
    pattern = re.compile(rb"spark\.[a-z][A-Za-z0-9.]*")
    known: set[bytes] = set()
    for kind in ("core", "kubernetes", "network-common", "launcher", "connect", "sql-api"):
        for jar in jars.glob(f"spark-{kind}_*.jar"):
            with zipfile.ZipFile(jar) as files:
                for name in files.namelist():
                    if name.endswith(".class") and re.search(
                        r"config|Conf|deploy|Config|launcher", name
                    ):
                        known.update(pattern.findall(files.read(name)))
    names = {one.decode() for one in known}
    missing = {name: where for name, where in wanted.items() if name not in names}
    assert not missing


# ------------------------------------------------------------------------------- images


@pytest.mark.parametrize("image", IMAGES, ids=shown)
def test_an_image_copies_what_its_context_has_and_runs_as_nobody_in_particular(image: Path) -> None:
    steps = instructions(image)
    allowed = [line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().split("\n")]
    copied = [shlex.split(rest) for name, rest in steps if name == "COPY"]
    for words in copied:
        if any(word.startswith("--from=") for word in words):
            continue
        for source in words[:-1]:
            assert (ROOT / source).exists() or source.startswith("dist/"), source
            assert source in allowed or source.replace("keras_strom-", "") in allowed, source
    users = [rest for name, rest in steps if name == "USER"]
    assert users[-1].isdigit()  # Kubernetes' runAsNonRoot knows numbers alone.
    assert int(users[-1]) > 0


@pytest.mark.parametrize(
    ("arguments", "last"),
    [({}, ".whl[cpu,dashboard]"), ({"TENSORFLOW": "tensorflow[and-cuda]"}, "tensorflow[and-cuda]")],
)
def test_an_image_for_gpus_has_a_tensorflow_that_brings_cuda(
    tmp_path: Path, arguments: dict[str, str], last: str
) -> None:
    done = install_step(tmp_path, arguments, "keras_strom-1-linux_{machine}.whl")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith(last)


@pytest.mark.parametrize("image", IMAGES, ids=shown)
@pytest.mark.parametrize(
    "wheels", [("1-linux_{machine}", "1-manylinux_{machine}"), ("1-linux_pdp",)]
)
def test_an_image_with_no_wheel_or_several_for_its_machine_says_so(
    tmp_path: Path, image: Path, wheels: tuple[str, ...]
) -> None:
    done = install_step(tmp_path, {}, *(f"keras_strom-{name}.whl" for name in wheels), image=image)
    assert done.returncode == 1
    assert "dist/ must hold one wheel of keras-strom for" in done.stderr


def install_step(
    folder: Path, arguments: dict[str, str], *wheels: str, image: Path = IMAGES[0]
) -> subprocess.CompletedProcess[str]:
    """An image's build step, with stubs in the place of Python and pip."""
    steps = instructions(image)
    defaults = dict(rest.split("=", 1) for name, rest in steps if name == "ARG")
    (step,) = (rest for name, rest in steps if name == "RUN" and "pip install" in rest)
    for stub in ("python3.11", "bin/pip"):
        (folder / stub).parent.mkdir(exist_ok=True)
        (folder / stub).write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        (folder / stub).chmod(0o755)
    for wheel in wheels:
        (folder / "install").mkdir(exist_ok=True)
        (folder / "install" / wheel.format(machine=os.uname().machine)).touch()
    step = step.replace("/opt/keras-strom", str(folder))
    return subprocess.run(
        ["sh", "-c", step.replace("/tmp/install", str(folder / "install"))],
        env={"PATH": f"{folder}:/usr/bin:/bin", **defaults, **arguments},
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_what_the_image_runs_is_a_command_that_there_is() -> None:
    steps = dict(instructions(IMAGES[0]))
    program, *arguments = json.loads(steps["CMD"])
    assert program == "keras-strom"
    cli._parser().parse_args(arguments)
    assert json.loads(steps["ENTRYPOINT"])[0] == "tini"


# ------------------------------------------------------------------------------- Kubernetes


def documents(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    loaded = list(yaml.safe_load_all(path.read_text()))
    return {(one["kind"], one["metadata"]["name"]): one for one in loaded}


def test_the_job_of_kubernetes_fits_the_image_and_the_drain() -> None:
    kinds = documents(MANIFESTS[0])
    uid = int(dict(instructions(IMAGES[0]))["USER"])
    parser = cli._parser()
    labels = kinds["NetworkPolicy", "strom"]["spec"]["podSelector"]["matchLabels"]
    parsed = {}
    for name in ("strom-master", "strom-workers"):
        template = kinds["Job", name]["spec"]["template"]
        pod = template["spec"]
        (container,) = pod["containers"]
        program, *arguments = container["args"]  # The image's entry point stays process 1.
        assert program == "keras-strom"
        assert "command" not in container
        parsed[name] = parser.parse_args(arguments)
        assert pod["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": uid,
            "fsGroup": uid,
        }
        assert labels.items() <= template["metadata"]["labels"].items()
        (before,) = pod["initContainers"]
        assert before["command"][:2] == ["install", "--mode=0600"]
        assert before["command"][-1] == parsed[name].job
    workers = kinds["Job", "strom-workers"]["spec"]
    assert workers["completionMode"] == "Indexed"
    assert workers["completions"] == workers["parallelism"] == parsed["strom-master"].num_proc
    pod = workers["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > ClusterEnvironment().drain_seconds
    left, _ = workers["podFailurePolicy"]["rules"]
    assert left["onExitCodes"]["values"] == [DRAINED_EXIT_CODE]
    assert left["onExitCodes"]["containerName"] == pod["containers"][0]["name"]
    service = kinds["Service", "strom-master"]["spec"]
    assert {port["port"] for port in service["ports"]} == {40100}
    policy = kinds["NetworkPolicy", "strom"]["spec"]["ingress"][0]["ports"]
    assert {(port["port"], port["protocol"]) for port in policy} == {
        *((port["port"], port["protocol"]) for port in service["ports"]),
        (40101, "UDP"),
    }


def test_the_submitted_application_is_the_one_that_the_manifest_lets_through() -> None:
    kinds = documents(MANIFESTS[1])
    script = (DEPLOY / "kubernetes" / "submit").read_text()
    for kind in ("ServiceAccount", "Role", "RoleBinding", "NetworkPolicy"):
        assert (kind, "strom-spark") in kinds
    assert "serviceAccountName=strom-spark" in script
    (label,) = kinds["NetworkPolicy", "strom-spark"]["spec"]["podSelector"]["matchLabels"].items()
    for role in ("driver", "executor"):
        assert f"spark.kubernetes.{role}.label.{label[0]}={label[1]}" in script


def test_the_script_for_kubernetes_hands_all_to_spark_submit(tmp_path: Path) -> None:
    stub = tmp_path / "spark-submit"
    stub.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stub.chmod(0o755)
    done = subprocess.run(
        [str(DEPLOY / "kubernetes" / "submit"), "k8s://api", "image:1", "local:///t.py", "a b"],
        env={"PATH": "/usr/bin:/bin", "SPARK_SUBMIT": str(stub), "WORKERS": "2", "CORES": "3"},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    words = done.stdout.splitlines()
    assert words[-2:] == ["local:///t.py", "a b"]
    assert "spark.kubernetes.container.image=image:1" in words
    assert "spark.executor.instances=2" in words
    assert "spark.task.cpus=3" in words
    for role in ("driver", "executor"):  # What Python takes lies outside the JVM.
        assert any(word.startswith(f"spark.{role}.memoryOverhead=") for word in words)


# ------------------------------------------------------------------------------- conda


def requirements(text: str) -> dict[str, str]:
    """By name, without spaces."""
    found = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        parts = re.fullmatch(r"([\w.-]+(?:\[\w+\])?)\s*(.*)", line)
        assert parts is not None, line
        found[parts[1].lower().replace("_", "-")] = parts[2].replace(" ", "")
    return found


def test_the_recipe_needs_what_the_package_needs() -> None:
    yaml = pytest.importorskip("yaml")
    text = (DEPLOY / "conda" / "meta.yaml").read_text()
    version = re.search(r'set version = "(.*)"', text)
    config = setup()
    assert version is not None
    assert version[1] == config["metadata"]["version"]
    rendered = re.sub(r"\{\{.*?\}\}", "rendered", re.sub(r"\{%.*?%\}", "", text))
    recipe = yaml.safe_load(rendered)
    needs = recipe["requirements"]
    run = requirements("\n".join(needs["run"]))
    assert run.pop("python") == config["options"]["python_requires"].replace(" ", "")
    del run["rendered"]  # TensorFlow, as it was built for.
    assert run == requirements(config["options"]["install_requires"])
    optional = {
        name: bounds
        for extra in ("spark", "executor", "dashboard")
        for name, bounds in requirements(extras()[extra]).items()
        if not name.startswith("keras-strom")
    }
    assert requirements("\n".join(needs["run_constrained"])) == optional
    host = requirements("\n".join(needs["host"]))
    assert host["tensorflow"] == requirements(extras()["tensorflow"])["tensorflow"]
