"""StromTrainer in a pipeline under TFX's light SDK; `make test-tfx` makes an environment for it."""

# ruff: noqa: E402  # TFX is imported where it is there.

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from keras_strom import errors
from keras_strom.tfx.installation import has_tfx, require_sdk
from keras_strom.tfx.options import split_config

ROOT = Path(__file__).resolve().parents[2]

try:
    require_sdk()
except ImportError as error:
    pytest.skip(f"make test-tfx runs it: {error}", allow_module_level=True)

from ml_metadata.proto import metadata_store_pb2
from tfx.orchestration import metadata
from tfx.orchestration.data_types import RuntimeParameter
from tfx.orchestration.local.local_dag_runner import LocalDagRunner
from tfx.types import channel_utils, standard_artifacts

from keras_strom.spark.runner import session
from keras_strom.tfx import StromTrainer, executor
from keras_strom.tfx.executor import StromExecutor

pytestmark = pytest.mark.jobs


@pytest.fixture(scope="module")
def example() -> Any:
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        import tfx_pipeline

        yield tfx_pipeline
    finally:
        sys.path.remove(str(ROOT / "examples"))


def executions(root: Path, name: str) -> list[int]:
    """The states of a component's executions, oldest first."""
    config = metadata.sqlite_metadata_connection_config(str(root / "metadata.sqlite"))
    with metadata.Metadata(config) as handle:
        found = handle.store.get_executions()
        types = {one.id: one.name for one in handle.store.get_execution_types()}
    return [one.last_known_state for one in found if types[one.type_id].endswith(name)]


def test_a_pipeline_trains_on_two_workers_and_then_finds_its_model_in_the_cache(
    example: Any, tmp_path: Path
) -> None:
    for _ in range(2):
        LocalDagRunner().run(
            example.create_pipeline(str(tmp_path), "local-cluster[2,1,1024]", 2, 400)
        )
    (written,) = (tmp_path / "artifacts" / "StromTrainer" / "model").iterdir()
    assert (written / "Format-Serving" / "saved_model.pb").exists()
    words = (written / "prediction.txt").read_text().replace(",", "").split()
    centre, corner = float(words[2]), float(words[5])
    assert centre > 0.8
    assert corner < 0.2
    (logs,) = (tmp_path / "artifacts" / "StromTrainer" / "model_run").iterdir()
    assert list(logs.glob("train/events.*"))
    # Marks and scratch folders are gone.
    assert not list((tmp_path / "artifacts").rglob(".keras-strom-*"))
    states = metadata_store_pb2.Execution
    assert executions(tmp_path, "StromTrainer") == [states.COMPLETE, states.CACHED]


# ------------------------------------------------------------------------------- the component


def channel(kind: Any = standard_artifacts.Examples) -> Any:
    return channel_utils.as_channel([kind()])


def test_it_has_the_inputs_and_outputs_of_trainer() -> None:
    inputs = {
        "transform_graph": channel(standard_artifacts.TransformGraph),
        "schema": channel(standard_artifacts.Schema),
        "base_model": channel(standard_artifacts.Model),
        "hyperparameters": channel(standard_artifacts.HyperParameters),
        "statistics": channel(standard_artifacts.ExampleStatistics),
    }
    trainer = StromTrainer(
        examples=channel(),
        module_file="model.py",
        train_args={"splits": ["a", "b"], "num_steps": 5},
        custom_config={"units": 3},
        strom={"num_proc": 2},
        **inputs,
    )
    assert set(trainer.inputs) == {"examples", *inputs}
    assert trainer.outputs["model"].type is standard_artifacts.Model
    assert trainer.outputs["model_run"].type is standard_artifacts.ModelRun
    properties = trainer.exec_properties
    assert json.loads(properties["train_args"]) == {"splits": ["a", "b"], "num_steps": 5}
    assert json.loads(properties["eval_args"]) == {}
    custom_config, options = split_config(properties["custom_config"])
    assert (custom_config, options.num_proc) == ({"units": 3}, 2)
    assert trainer.id == "StromTrainer"
    assert has_tfx() == any(base.__name__ == "Trainer" for base in StromTrainer.__mro__)


def test_a_function_is_named_as_workers_import_it() -> None:
    trainer = StromTrainer(examples=channel(), run_fn=json.dumps)
    assert trainer.exec_properties["run_fn"] == "json.dumps"
    runtime = RuntimeParameter(name="module", ptype=str)
    trainer = StromTrainer(examples=channel(), module_file=runtime)
    assert trainer.exec_properties["module_file"] is runtime


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"module_file": None}, "exactly one of module_file= and run_fn=, and got neither"),
        ({"module_file": ""}, "exactly one of module_file= and run_fn=, and got neither"),
        ({"run_fn": "a.b"}, "exactly one of module_file= and run_fn=, and got both"),
        ({"examples": None}, "needs examples="),
        ({"module_file": None, "run_fn": lambda fn_args: None}, "at the top level of a module"),
        ({"module_file": None, "run_fn": 3}, "at the top level of a module"),
        ({"train_args": {"steps": 3}}, "train_args=.*must be a mapping such as"),
        ({"train_args": {"num_steps": -3}}, "num_steps=-3"),
        ({"eval_args": {"splits": "eval"}}, "splits='eval' must be a list"),
        ({"custom_config": {"x": object()}}, "custom_config must hold plain JSON"),
        ({"custom_config": RuntimeParameter(name="x", ptype=str)}, "must be a mapping"),
        ({"strom": {"workers": 3}}, "strom has no option workers"),
    ],
)
def test_bad_arguments_are_refused_when_the_pipeline_is_made(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(errors.InvalidOption, match=words):
        StromTrainer(**({"examples": channel(), "module_file": "model.py"} | changes))


# ------------------------------------------------------------------------------- the executor


@pytest.fixture
def call(tmp_path: Path) -> dict[str, Any]:
    """The arguments of a StromExecutor's `Do` that would train."""
    examples, model, logs = (
        kind()
        for kind in (
            standard_artifacts.Examples,
            standard_artifacts.Model,
            standard_artifacts.ModelRun,
        )
    )
    examples.uri = str(tmp_path / "examples")
    examples.split_names = json.dumps(["train", "eval"])
    for split in ("train", "eval"):
        (tmp_path / "examples" / f"Split-{split}").mkdir(parents=True)
        (tmp_path / "examples" / f"Split-{split}" / "part.gz").touch()
    model.uri, logs.uri = str(tmp_path / "model"), str(tmp_path / "logs")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "model.py").write_text("def run_fn(fn_args): pass")
    return {
        "input_dict": {"examples": [examples]},
        "output_dict": {"model": [model], "model_run": [logs]},
        "exec_properties": {
            "train_args": '{"num_steps": 7}',
            "eval_args": "{}",
            "module_file": str(tmp_path / "code" / "model.py"),
            "custom_config": "{}",
        },
    }


def test_artifacts_become_plain_values(call: dict[str, Any], tmp_path: Path) -> None:
    schema, hyperparameters = standard_artifacts.Schema(), standard_artifacts.HyperParameters()
    for artifact, name, text in (
        (schema, "schema.pbtxt", "feature {}"),
        (hyperparameters, "best.txt", '{"units": 8}'),
    ):
        artifact.uri = str(tmp_path / name / "1")
        Path(artifact.uri).mkdir(parents=True)
        Path(artifact.uri, name).write_text(text)
    inputs = {**call["input_dict"], "schema": [schema], "hyperparameters": [hyperparameters]}
    made = executor.arguments_of(inputs, call["output_dict"], call["exec_properties"], {"a": 1})
    assert made.train_files == [str(tmp_path / "examples" / "Split-train" / "*")]
    assert made.eval_files == [str(tmp_path / "examples" / "Split-eval" / "*")]
    assert (made.train_steps, made.eval_steps) == (7, None)
    assert made.schema_path == str(tmp_path / "schema.pbtxt" / "1" / "schema.pbtxt")
    assert (made.hyperparameters, made.custom_config) == ({"units": 8}, {"a": 1})
    assert made.serving_model_dir == str(tmp_path / "model" / "Format-Serving")
    assert made.model_run_dir == str(tmp_path / "logs")


def test_the_files_beside_the_module_travel_with_it(call: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "code" / "layers.py").write_text("WIDTH = 3")
    (tmp_path / "code" / "notes.txt").write_text("no module")
    (tmp_path / "code" / ".#model.py").symlink_to("user@host.4711")  # Emacs's, of an open file.
    (tmp_path / "code" / "._model.py").write_bytes(b"\0\5\x16\7\xff")  # A Mac's, of its copy.
    function = executor.function_of(call["exec_properties"])
    assert (function.module, function.name) == ("model", "run_fn")
    assert set(function.sources) == {"model.py", "layers.py"}


def test_a_wheel_that_tfx_has_made_of_the_module_is_unpacked(tmp_path: Path) -> None:
    wheel = tmp_path / "code.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("model.py", "def run_fn(fn_args): pass")
        archive.writestr("code-0.0.dist-info/METADATA", "")
    function = executor.function_of({"module_path": f"model@{wheel}", "module_file": None})
    assert (function.module, set(function.sources)) == ("model", {"model.py"})
    assert executor.function_of({"module_path": "installed.model"}).sources == {}


def test_workers_may_be_fewer_than_wanted(call: dict[str, Any], tmp_path: Path) -> None:
    Path(call["exec_properties"]["module_file"]).write_text(
        "import pathlib\n"
        "import keras_strom\n"
        "def run_fn(fn_args):\n"
        "    folder = pathlib.Path(fn_args.serving_model_dir)\n"
        "    folder.mkdir(parents=True)\n"
        "    (folder / 'size').write_text(f'{keras_strom.size()} {fn_args.train_steps}')\n"
    )
    options = {"min_proc": 2, "max_proc": 3, "strategy": None, "master": "local-cluster[2,1,1024]"}
    call["exec_properties"]["custom_config"] = json.dumps({"keras_strom": options})
    StromExecutor().Do(**call)
    # Steps are divided among as many as there may be.
    assert (tmp_path / "model" / "Format-Serving" / "size").read_text() == "3 3"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train_args": '{"splits": ["test"]}'}, "no split 'test', they have train, eval"),
        ({"train_args": '{"num_steps": "7"}'}, "train_args: num_steps='7' must be 0"),
        ({"eval_args": "7"}, "eval_args=7 must be a mapping such as"),
        ({"module_file": "/no/such.py"}, "is no Python file that exists here"),
        ({"module_file": "", "run_fn": "run"}, "run_fn='run' must be a name such as"),
        ({"module_file": ""}, "run_fn='' must be a name such as"),
        ({"custom_config": "{"}, "is no JSON"),
        ({"custom_config": '{"keras_strom": {"x": 1}}'}, "strom has no option x"),
        (
            {
                "custom_config": '{"keras_strom": {"strategy": '
                '{"shake_up": {"type": "ShakeUp", "tau": 1}}}}'
            },
            "ShakeUp has no tau",
        ),
    ],
)
def test_what_cannot_train_is_refused_before_spark_is_asked(
    call: dict[str, Any], changes: dict[str, str], words: str
) -> None:
    call["exec_properties"] |= changes
    with pytest.raises(errors.InvalidOption, match=words):
        StromExecutor().Do(**call)


def test_an_empty_split_is_named(call: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "examples" / "Split-eval" / "part.gz").unlink()
    with pytest.raises(errors.InvalidOption, match=r"split 'eval' of the examples is empty: /"):
        StromExecutor().Do(**call)


def test_a_spark_that_does_not_answer_keeps_its_class_and_words(
    call: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other tests may have a session in this process.
    monkeypatch.setattr(session, "active_session", lambda: None)
    options = {"keras_strom": {"master": "spark://127.0.0.1:9"}}
    call["exec_properties"]["custom_config"] = json.dumps(options)
    with pytest.raises(errors.Unreachable, match=r"no Spark master answers at spark://127.0.0.1:9"):
        StromExecutor().Do(**call)
