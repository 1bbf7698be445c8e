"""StromTrainer's parts that need no TFX: options, shares of the examples, what workers run."""

import dataclasses
import inspect
import json
import math
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_strom import MPCA, PullStart, StromStrategy, errors
from keras_strom.spark.runner.session import spark_session
from keras_strom.spark.runner.slots import WantedSize
from keras_strom.spark.runner.visibility import check_visible, look
from keras_strom.tfx import FnArgs, data_access, read_examples
from keras_strom.tfx.driver import check_chief
from keras_strom.tfx.examples import divide
from keras_strom.tfx.fn_args import Arguments
from keras_strom.tfx.options import (
    STRATEGY_OPTIONS,
    StromOptions,
    join_config,
    split_config,
)
from keras_strom.tfx.training import Training, strategy_arguments, train
from keras_strom.tfx.user_function import UserFunction

FEATURES = {
    "x": tf.io.FixedLenFeature([], tf.int64),
    "y": tf.io.FixedLenFeature([], tf.int64),
}


def write_examples(folder: Path, counts: list[int]) -> str:
    """One gzip file a count; x numbers all examples. Returns the pattern of the files."""
    number = 0
    for index, count in enumerate(counts):
        with tf.io.TFRecordWriter(str(folder / f"part-{index}.gz"), "GZIP") as writer:
            for _ in range(count):
                values = {"x": number, "y": number % 2}
                feature = {
                    name: tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
                    for name, value in values.items()
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())
                number += 1
    return str(folder / "*")


def arguments(folder: Path, **changes: Any) -> Arguments:
    values = {
        field.name: None for field in dataclasses.fields(Arguments) if "None" in str(field.type)
    }
    values |= {
        "train_files": [str(folder / "train-*")],
        "eval_files": [str(folder / "eval-*")],
        "serving_model_dir": str(folder / "Format-Serving"),
        "eval_model_dir": str(folder / "Format-TFMA"),
        "model_run_dir": str(folder / "logs"),
        "examples": "[]",
        "shuffle_seed": 1,
    }
    return Arguments(**(values | changes))


# ------------------------------------------------------------------------------- options


def test_options_go_through_custom_config_and_back() -> None:
    options = StromOptions.of(
        {
            "num_proc": 3,
            "master": "local-cluster[3,1,1024]",
            "network": {"failure_timeout": 9.0},
            "strategy": {"threshold": {"type": "FixedThreshold", "threshold": 1e-3}},
        }
    )
    assert split_config(join_config({"units": [1, 2]}, options)) == ({"units": [1, 2]}, options)
    assert split_config(join_config(None, StromOptions())) == (None, StromOptions())
    assert options.network_config().failure_timeout == 9.0
    assert split_config(None) == (None, StromOptions())
    elastic = {"min_proc": 2, "max_proc": 8, "max_failures": 5, "workers_per_node": 1}
    options = StromOptions.of(elastic)
    assert split_config(join_config(None, options))[1] == options
    assert options.wanted_size() == WantedSize(min_proc=2, max_proc=8, workers_per_node=1)


def test_own_strategies_are_not_mistaken_for_the_default() -> None:
    options = StromOptions.of({"strategy": None})
    assert split_config(join_config(None, options))[1].strategy is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": 2}, "no option workers; there are num_proc, min_proc"),
        ({"num_proc": 0}, "strom: num_proc=0 must be a whole number, 1 or more"),
        ({"num_proc": True}, "strom: num_proc=True must be a whole number"),
        ({"num_proc": 2, "min_proc": 1}, "strom: num_proc=2 is.*leave it out"),
        ({"min_proc": 3, "max_proc": 2}, "strom: min_proc=3 is more than max_proc=2"),
        ({"max_proc": "8"}, "strom: max_proc='8' must be a whole number"),
        ({"workers_per_node": 0}, "strom: workers_per_node=0 must be a whole number"),
        ({"drain_seconds": -1}, "strom: drain_seconds=-1 must be a positive, finite number"),
        ({"max_failures": -1}, "strom: max_failures=-1 must be a whole number, 0 or more"),
        ({"use_gpu": "yes"}, "strom: use_gpu='yes' must be True, False or"),
        ({"training": {"type": "GradientSharing"}}, "no option training; there are num_proc"),
        ({"master": ""}, "URL of a Spark master"),
        ({"spark_config": {"spark.cores.max": 3}}, "spark.cores.max.*must be a string"),
        ({"network": {"prot": 1}}, "unknown network option prot"),
        ({"network": [1]}, "network.*must be a mapping"),
        ({"strategy": {"learning_rate": 1}}, "no option learning_rate; StromStrategy has"),
        ({"strategy": {"threshold": 0.1}}, "threshold.*must be a mapping.*FixedThreshold"),
        ({"strategy": {"shake_up": {"type": "FixedThreshold"}}}, "types are ShakeUp"),
        ({"strategy": {"devices": {1, 2}}}, "plain JSON"),
        ({"env": {"KERAS_STROM_RANK": "1"}}, "must not set KERAS_STROM_RANK"),
        ({"start_timeout": -1}, "positive"),
        ([("num_proc", 2)], "must be a mapping"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: Any, words: str) -> None:
    with pytest.raises(errors.InvalidOption, match=words):
        StromOptions.of(options)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"x": {1, 2}}, "custom_config must hold plain JSON"),
        ({"x": math.nan}, "custom_config must hold plain JSON"),
        ([1], "must be a mapping"),
        ({"keras_strom": {}}, "strom= is kept"),
    ],
)
def test_a_custom_config_that_is_no_json_is_refused(config: Any, words: str) -> None:
    with pytest.raises(errors.InvalidOption, match=words):
        join_config(config, StromOptions())


@pytest.mark.parametrize("text", ["{", "[1]", '{"keras_strom": {"workers": 1}}'])
def test_a_stored_config_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(errors.InvalidOption):
        split_config(text)


def test_the_strategy_has_the_options_that_are_accepted() -> None:
    known = set(inspect.signature(StromStrategy.__init__).parameters) - {"self", "network"}
    assert known == STRATEGY_OPTIONS


def test_strategy_options_become_their_classes() -> None:
    made = strategy_arguments(
        {
            "threshold": {"type": "FixedThreshold", "threshold": 0.5},
            "residual_clipping": None,
            "shake_up": {"type": "ShakeUp", "every": 7},
            "max_staleness": 0,
        }
    )
    assert made["threshold"].threshold == 0.5
    assert made["shake_up"].every == 7
    assert (made["residual_clipping"], made["max_staleness"]) == (None, 0)
    started = {"type": "MPCA", "phases": 2, "start": {"free_cycles": 4}}
    method = strategy_arguments({"method": started})["method"]
    assert method == MPCA(phases=2, start=PullStart(free_cycles=4))
    with pytest.raises(errors.InvalidOption, match="PullStart has no steps"):
        strategy_arguments({"method": {"type": "MPCA", "start": {"steps": 4}}})
    with pytest.raises(errors.InvalidOption, match="FixedThreshold has no tau"):
        strategy_arguments({"threshold": {"type": "FixedThreshold", "tau": 0.5}})


# ------------------------------------------------------------------------------- shares


@given(files=st.integers(1, 20), size=st.integers(1, 12))
@settings(max_examples=200, deadline=None)
def test_all_shares_together_are_every_record_once(files: int, size: int) -> None:
    names = [str(number) for number in range(files)]
    taken = []
    for rank in range(size):
        share = divide(names, rank, size)
        assert sum(part.last - part.first for part in share) == files // math.gcd(files, size)
        assert all(part.first < part.last for part in share)
        taken += [
            (part.file, record)
            for part in share
            for record in range(24)
            if part.first <= record % part.parts < part.last
        ]
    assert sorted(taken) == sorted((name, record) for name in names for record in range(24))


@pytest.mark.parametrize(("counts", "size"), [([7], 2), ([5, 5, 1], 2), ([4, 4], 2), ([3, 2], 3)])
def test_workers_read_every_example_once(
    counts: list[int], size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pattern = write_examples(tmp_path, counts)
    monkeypatch.setattr("keras_strom.job.environment.size", lambda: size)
    seen = []
    for rank in range(size):
        monkeypatch.setattr("keras_strom.job.environment.rank", lambda rank=rank: rank)
        data = read_examples(pattern, FEATURES, batch_size=2, shuffle_buffer=10)
        seen += [int(x) for batch in data for x in batch["x"]]
        whole = read_examples(pattern, FEATURES, batch_size=4, shared=False)
        assert sorted(int(x) for batch in whole for x in batch["x"]) == list(range(sum(counts)))
    assert sorted(seen) == list(range(sum(counts)))


def test_what_is_read_is_not_divided_again(tmp_path: Path) -> None:
    pattern = write_examples(tmp_path, [4])
    data = read_examples([pattern], FEATURES, batch_size=4, label="y")
    policy = data.options().experimental_distribute.auto_shard_policy
    assert policy == tf.data.experimental.AutoShardPolicy.OFF
    ((features, label),) = data
    assert set(features) == {"x"}
    assert label.numpy().tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"patterns": "/no/such/*"}, "no file matches /no/such"),
        ({"label": "z"}, "label='z' is none of the features"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"shuffle_buffer": -1}, "shuffle_buffer=-1"),
    ],
)
def test_examples_that_cannot_be_read_are_refused(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    given_ = {"patterns": write_examples(tmp_path, [1]), "batch_size": 1} | changes
    with pytest.raises(errors.InvalidOption, match=words):
        read_examples(given_.pop("patterns"), FEATURES, **given_)


class Options(NamedTuple):
    """The fields of TFX's TensorFlowDatasetOptions that matter here."""

    shuffle: bool = True
    shuffle_seed: int | None = None


def test_a_data_accessor_shares_out_training_files_only(tmp_path: Path) -> None:
    calls = []

    def factory(patterns: Any, options: Any, schema: Any) -> tf.data.Dataset:
        calls.append((patterns, options, schema))
        return tf.data.Dataset.range(4)

    def policy(data: tf.data.Dataset) -> Any:
        return data.options().experimental_distribute.auto_shard_policy

    off = tf.data.experimental.AutoShardPolicy.OFF
    pattern = write_examples(tmp_path, [1, 1, 1, 1])
    whole = [str(path) for path in sorted(tmp_path.iterdir())]
    share = data_access.Share(files=(pattern,), rank=1, size=2, seed=5)
    make = data_access.shared_factory(factory, share)

    assert policy(make([pattern], Options(), "schema")) == off
    assert calls.pop() == ([whole[1], whole[3]], Options(), "schema")
    # Another split is everybody's, whole.
    assert policy(make(["/eval/*"], Options())) != off
    assert calls.pop() == (["/eval/*"], Options(), None)
    # Three workers cannot share four files: all read the same order, and `fit` divides it.
    make = data_access.shared_factory(factory, dataclasses.replace(share, size=3))
    assert policy(make([pattern], Options())) != off
    assert calls.pop() == ([pattern], Options(shuffle_seed=5), None)


# ------------------------------------------------------------------------------- workers


def test_only_the_chief_gets_the_artifacts_folders(tmp_path: Path) -> None:
    whole = arguments(tmp_path, train_steps=101, eval_steps=7, schema_path="/s", base_model="/b")
    whole = Arguments.from_json(whole.to_json())
    chief, other = (whole.for_worker(rank, 2, "/scratch") for rank in range(2))
    assert chief.serving_model_dir == str(tmp_path / "Format-Serving")
    assert chief.model_run_dir == str(tmp_path / "logs")
    assert other.serving_model_dir == "/scratch/serving_model_dir"
    assert other.model_run_dir == "/scratch/model_run_dir"
    # The steps are all workers' together.
    assert (chief.train_steps, other.train_steps, other.eval_steps) == (51, 51, 7)
    assert other.schema_file == other.schema_path == "/s"
    assert (other.base_model, other.custom_config) == ("/b", None)
    assert isinstance(other, FnArgs) or type(other).__module__.startswith("tfx.")


MODULE = """
import dataclasses, json, pathlib
import beside

def run_fn(fn_args):
    import tensorflow as tf
    folder = pathlib.Path(fn_args.serving_model_dir)
    if fn_args.custom_config["writes"]:
        folder.mkdir()
        strategy = type(tf.distribute.get_strategy()).__name__
        (folder / "seen").write_text(json.dumps([beside.NAME, strategy, fn_args.train_steps]))

def exported(fn_args):
    import tensorflow as tf
    module = tf.Module()
    module.double = tf.function(lambda x: 2 * x, [tf.TensorSpec([None])])
    tf.saved_model.save(module, fn_args.serving_model_dir, {fn_args.custom_config: module.double})

def mirrored(fn_args):
    import tensorflow as tf
    with tf.distribute.MirroredStrategy(**fn_args.custom_config).scope():
        run_fn(dataclasses.replace(fn_args, custom_config={"writes": True}))

def one_device(fn_args):
    import tensorflow as tf
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        pass
"""


# What most functions here write is no model.
NO_MODEL = pytest.mark.filterwarnings("ignore:.*holds no SavedModel")


def training(folder: Path, name: str = "run_fn", **changes: Any) -> Training:
    sources = {"model_of_test.py": MODULE, "beside.py": "NAME = 'beside'"}
    changes = {"custom_config": {"writes": True}, "train_steps": 3} | changes
    return Training(
        arguments=arguments(folder, **changes),
        function=UserFunction("model_of_test", name, sources),
        strategy={},
    )


@NO_MODEL
def test_the_function_runs_in_the_scope_of_a_strategy(tmp_path: Path) -> None:
    train(training(tmp_path).to_json())
    seen = json.loads((tmp_path / "Format-Serving" / "seen").read_text())
    assert seen == ["beside", "StromStrategy", 3]


@NO_MODEL
def test_a_function_may_make_its_strategy_itself(tmp_path: Path) -> None:
    train(dataclasses.replace(training(tmp_path), strategy=None).to_json())
    seen = json.loads((tmp_path / "Format-Serving" / "seen").read_text())
    assert seen[1] == "_DefaultDistributionStrategy"


def test_a_function_that_writes_no_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidOption, match=r"run_fn has written no model to .*Serving"):
        train(training(tmp_path, custom_config={"writes": False}).to_json())


def test_a_model_that_cannot_be_served_is_warned_of(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        train(training(tmp_path, "exported", custom_config="serving_default").to_json())
    with pytest.warns(RuntimeWarning, match=r"Serving holds no SavedModel .*model\.export"):
        train(training(tmp_path, "exported", custom_config="other").to_json())


@NO_MODEL
def test_a_mirrored_strategy_is_the_jobs(tmp_path: Path) -> None:
    original = tf.distribute.MirroredStrategy
    train(training(tmp_path, "mirrored", custom_config={}).to_json())
    seen = json.loads((tmp_path / "Format-Serving" / "seen").read_text())
    assert seen[1] == "StromStrategy"
    assert tf.distribute.MirroredStrategy is original
    with pytest.raises(errors.InvalidOption, match="its arguments have no effect"):
        train(training(tmp_path, "mirrored", custom_config={"devices": ["/cpu:0"]}).to_json())


def test_a_function_that_enters_another_strategy_is_told_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(errors.UnsupportedModel, match=r"tf\.distribute\.get_strategy"):
        train(training(tmp_path, "one_device").to_json())


def test_a_function_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidOption, match="model_of_test has no function trainer_fn"):
        train(training(tmp_path, "trainer_fn").to_json())
    with pytest.raises(errors.InvalidOption, match=r"finds no module no_such.*module_file="):
        UserFunction.of_path("no_such.module.run_fn").load(str(tmp_path))
    assert UserFunction.of_path("math.floor").load(str(tmp_path)) is math.floor
    for path in ("run_fn", "a..b", "model.py"):
        with pytest.raises(errors.InvalidOption, match="must be a name such as"):
            UserFunction.of_path(path if path != "model.py" else "my-model.run_fn")


# ------------------------------------------------------------------------------- Spark


def test_a_master_that_does_not_answer_is_an_error_at_once() -> None:
    script = (
        "import socket\n"
        "from keras_strom.spark.runner.session import spark_session\n"
        "with socket.socket() as taken:\n"
        "    taken.bind(('127.0.0.1', 0))\n"  # Bound, but nobody listens.
        "    master = f'spark://127.0.0.1:{taken.getsockname()[1]}'\n"
        "    with spark_session(master): pass\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert "Unreachable: no Spark master answers at spark://127.0.0.1" in result.stderr


def test_an_active_session_is_used_or_the_contradiction_named(spark: Any) -> None:
    with spark_session() as session:
        assert session is spark
    with spark_session(spark.sparkContext.master) as session:
        assert session is spark
    assert spark.sparkContext._jsc is not None, "it has been stopped"
    with pytest.raises(errors.InvalidOption, match="is active in this process: leave master out"):
        spark_session("spark://elsewhere:7077").__enter__()
    with pytest.raises(errors.InvalidOption, match=r"other values of spark\.executor\.cores"):
        spark_session(config={"spark.executor.cores": "77"}).__enter__()


def test_paths_that_executors_do_not_see_are_named(spark: Any, tmp_path: Path) -> None:
    check_visible(spark, [__file__], [str(tmp_path)], 2)
    with pytest.raises(errors.Unreachable, match=r"/no/such does not exist on .*\(and 1 more path"):
        check_visible(spark, ["/no/such", __file__], ["/none"], 2)


def test_a_folder_of_the_same_name_on_another_disk_is_found_out(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, mark = tmp_path / "shared", tmp_path / "shared" / "mark"
    shared.mkdir()
    mark.touch()
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n"
        f'exec unshare --mount sh -c \'mount -t tmpfs none {shared} && exec "$0" "$@"\' '
        f'{sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    if subprocess.run([python, "-c", ""], capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount (root)")
    check_visible(spark, [str(mark)], [str(shared)], 2)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    with pytest.raises(errors.Unreachable, match=r"shared/mark does not exist on .*share"):
        check_visible(spark, [str(mark)], [str(shared)], 2)


def test_a_training_that_lost_its_chief_has_no_model() -> None:
    check_chief([0, 2])
    with pytest.raises(
        errors.WorkerFailed, match=r"worker 0 on .*workers 1, 2 have trained.*again"
    ):
        check_chief([1, 2])


def test_a_look_finds_what_is_missing(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    assert list(look([__file__, url], [str(tmp_path), url])) == []
    found = list(look([f"{url}/x"], [str(tmp_path / "y")]))
    assert [what for _, _, what in found] == ["does not exist"] * 2


def test_without_tfx_the_error_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['tfx'] = None\n"
        "import keras_strom.tfx\n"
        "assert not {'tensorflow', 'pyspark'} & set(sys.modules)\n"
        "keras_strom.tfx.StromTrainer"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert "ImportError: StromTrainer needs TFX: `pip install tfx`" in result.stderr
