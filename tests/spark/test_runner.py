"""keras_strom.spark.run on Spark's embedded cluster, with functions that train nothing."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import keras_strom
from keras_strom import errors
from keras_strom.job.network import NetworkConfig

pyspark = pytest.importorskip("pyspark")

from keras_strom.spark import run  # noqa: E402
from keras_strom.spark.runner import resources, runner, slots  # noqa: E402
from tests.support.processes import wait_for, wait_until_gone  # noqa: E402
from tests.support.silent_master import SilentMaster  # noqa: E402

# Executors cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

DEADLINE = 60.0


@pytest.fixture(autouse=True)
def _share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "start_master", SilentMaster)


def where(factor: int = 1, *, offset: int = 0) -> dict[str, Any]:
    sys.stdout.write(f"working as {keras_strom.rank()}\n")
    return {
        "rank": keras_strom.rank(),
        "size": keras_strom.size(),
        "local_rank": keras_strom.local_rank(),
        "value": keras_strom.rank() * factor + offset,
        "mine": os.environ.get("MINE"),
        "command": Path("/proc/self/cmdline").read_bytes(),
        "variables": dict(os.environ),
    }


def fail_on_rank_1(directory: str) -> None:
    rank = keras_strom.rank()
    Path(directory, str(rank)).write_text(str(os.getpid()))
    sys.stdout.write(f"line of {rank}\n")
    if rank == 1:
        raise ValueError("bad data")
    signal.pause()


def imported() -> tuple[int, bool]:
    """Who started this worker, and whether TensorFlow was there at once."""
    return os.getppid(), "tensorflow" in sys.modules


def test_a_worker_is_forked_from_what_its_executor_has_imported(spark: Any) -> None:
    first, second = (run(imported, num_proc=2, spark=spark, verbose=0) for _ in range(2))
    assert sorted(first) == sorted(second)
    assert all(there for _, there in first)
    fresh = run(imported, num_proc=2, spark=spark, verbose=0, warm_start=False)
    assert not any(there for _, there in fresh)


def test_results_come_in_rank_order_and_output_is_streamed(
    spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"num_proc": 2, "env": {"MINE": "yes"}, "drain_seconds": 90.0, "spark": spark}
    results = run(where, (10,), {"offset": 1}, **options)
    assert [one["rank"] for one in results] == [0, 1]
    assert [one["value"] for one in results] == [1, 11]
    assert [one["local_rank"] for one in results] == [0, 1]
    assert {one["size"] for one in results} == {2}
    assert {one["mine"] for one in results} == {"yes"}
    assert {one["variables"]["TF_CPP_MIN_LOG_LEVEL"] for one in results} == {"2"}
    assert {one["variables"]["KERAS_STROM_DRAIN_SECONDS"] for one in results} == {"90.0"}
    assert results.metrics["seconds"] >= results.metrics["start_seconds"] > 0
    assert results.metrics["counters"] == {"bytes_sent": 0}
    kinds = [event.kind for event in results.events]
    assert kinds.count("registered") == kinds.count("started") == kinds.count("ended") == 2
    assert {event.rank for event in results.events} == {0, 1}
    totals = results.timeline.totals()
    assert sorted(totals) == [-1, 0, 1]
    assert sum(totals[-1].values()) == pytest.approx(results.metrics["seconds"])
    assert set(totals[0]) <= {"wait", "run"}
    lines = capsys.readouterr().out
    assert "[0] working as 0\n" in lines
    assert "[1] working as 1\n" in lines
    # The master was local and has been ended; the secret is in nothing that others can see.
    assert SilentMaster.last.options.host == "127.0.0.1"
    assert SilentMaster.last.closed
    secret = SilentMaster.last.credentials.secret.hex()
    seen = repr([results, spark.sparkContext.getConf().getAll()]).lower()
    assert secret not in seen


def test_one_worker_is_on_its_own(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    results = run(where, num_proc=1, verbose=0, stream_logs=False, spark=spark)
    assert results[0]["size"] == 1
    assert "KERAS_STROM_MASTER" not in results[0]["variables"]
    assert "working" not in capsys.readouterr().out


def test_without_a_number_every_slot_gets_a_worker(spark: Any) -> None:
    assert len(run(where, spark=spark)) == 2


def test_the_caller_may_bring_the_secret_and_hide_gpus(spark: Any) -> None:
    secret = bytes(range(32))
    results = run(where, num_proc=2, use_gpu=False, secret=secret, spark=spark)
    assert SilentMaster.last.credentials.secret == secret
    assert {one["variables"]["CUDA_VISIBLE_DEVICES"] for one in results} == {"-1"}


def test_workers_of_a_machine_see_one_gpu_each_where_spark_gives_none(spark: Any) -> None:
    results = run(where, num_proc=2, env={"CUDA_VISIBLE_DEVICES": "4,5"}, spark=spark)
    seen = [one["variables"] for one in results]
    assert sorted(one["CUDA_VISIBLE_DEVICES"] for one in seen) == ["4", "5"]
    assert {one["KERAS_STROM_GPUS"] for one in seen} == {"own"}


def test_a_worker_to_which_others_may_come_leaves_them_gpus(spark: Any) -> None:
    results = run(where, min_proc=1, max_proc=2, env={"CUDA_VISIBLE_DEVICES": "4,5"}, spark=spark)
    for seen in (one["variables"] for one in results):
        assert seen["CUDA_VISIBLE_DEVICES"] in ("4", "5")
        assert (seen["KERAS_STROM_GPUS"], seen["TF_FORCE_GPU_ALLOW_GROWTH"]) == ("shared", "true")


def test_gpus_that_spark_does_not_give_are_an_error(spark: Any) -> None:
    with pytest.raises(errors.InvalidOption, match=r"spark\.task\.resource\.gpu\.amount"):
        run(where, num_proc=2, use_gpu=True, spark=spark)


def test_a_worker_sees_its_tasks_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    class Context:
        def resources(self) -> dict[str, Any]:
            return {"gpu": pyspark.resource.ResourceInformation("gpu", ["1", "3"])}

    assert resources.gpu_variables("auto") == {}  # No task here.
    monkeypatch.setattr(pyspark.TaskContext, "get", Context)
    assert resources.gpu_variables("auto") == {"CUDA_VISIBLE_DEVICES": "1,3"}
    assert resources.gpu_variables(False) == {
        "CUDA_VISIBLE_DEVICES": "-1",
        "KERAS_STROM_NEEDS_GPU": "0",
    }


def test_two_executors_on_one_machine_are_two_workers_at_least(spark: Any) -> None:
    assert len(run(where, workers_per_node=2, spark=spark)) == 2
    with pytest.raises(errors.InvalidOption, match=r"workers_per_node=1, but 2 executors"):
        run(where, workers_per_node=1, spark=spark)


_ONE_A_MACHINE = """
import sys
sys.path.insert(0, sys.argv[1])
import test_runner as test
from pyspark.sql import SparkSession
test.runner.start_master = test.SilentMaster

master = "local-cluster[1,2,1024]"
spark = SparkSession.builder.master(master).config("spark.ui.enabled", "false").getOrCreate()
print("ran", len(test.run(test.where, workers_per_node=1, spark=spark)))
try:
    test.run(test.where, num_proc=2, workers_per_node=1, start_timeout=1.0, spark=spark)
except test.errors.NotEnoughSlots as error:
    print("refused", error)
spark.stop()
"""


def test_an_executor_of_two_cores_runs_one_worker_where_one_is_allowed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _ONE_A_MACHINE, str(Path(__file__).parent)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, check=True)
    assert "ran 1\n" in done.stdout
    assert "refused 2 workers need as many slots" in done.stdout


@pytest.mark.parametrize("warm_start", [True, False])
def test_a_worker_finds_the_files_that_spark_has_brought(
    spark: Any, tmp_path: Path, warm_start: bool
) -> None:
    def read(name: str) -> tuple[str, bool]:
        from pyspark import SparkFiles

        return Path(SparkFiles.get(name)).read_text(), SparkFiles.get(name) == str(brought)

    brought = tmp_path / f"brought {warm_start}.txt"
    brought.write_text("by Spark")
    spark.sparkContext.addFile(str(brought))
    found = run(read, (brought.name,), num_proc=2, warm_start=warm_start, spark=spark)
    assert found == [("by Spark", False)] * 2
    # What pickle names alone imports PySpark by itself, before it is called or never.
    assert run(pyspark.SparkFiles.getRootDirectory, num_proc=1, spark=spark) != [None]


def test_a_worker_without_need_of_spark_imports_none_of_it(spark: Any) -> None:
    assert run(lambda: "pyspark" in sys.modules, num_proc=1, spark=spark) == [False]


def test_a_run_within_a_worker_or_a_task_starts_no_spark_of_its_own(spark: Any) -> None:
    def within(_: Any) -> str:
        with pytest.raises(errors.InvalidOption) as raised:
            run(int, num_proc=1)
        return str(raised.value)

    words = "has no Spark session, and each would start a Spark of its own: call run"
    assert words in run(within, (0,), num_proc=1, spark=spark)[0]
    assert words in spark.sparkContext.parallelize([0], 1).map(within).first()


def test_large_arguments_pass(spark: Any) -> None:
    assert run(len, (b"x" * 1_000_000,), num_proc=2, spark=spark) == [1_000_000] * 2


def test_the_first_failure_is_shown_whole_and_ends_the_others(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(errors.WorkerFailed) as raised:
        run(fail_on_rank_1, (str(tmp_path),), num_proc=2, spark=spark)
    error = raised.value
    assert (error.rank, error.host) == (1, socket.gethostname())
    assert error.traceback.rstrip().endswith("ValueError: bad data")
    assert "fail_on_rank_1" in error.traceback
    assert error.log_tail == ("line of 1",)
    assert "py4j" not in str(error).lower()
    for path in tmp_path.iterdir():
        wait_until_gone(int(path.read_text()))
    # The same driver can run the next job.
    assert len(run(where, num_proc=2, spark=spark)) == 2


def test_a_crash_names_its_signal(spark: Any) -> None:
    with pytest.raises(errors.WorkerFailed, match="SIGKILL"):
        run(lambda: os.kill(os.getpid(), signal.SIGKILL), num_proc=2, max_failures=0, spark=spark)


def wait_for_slots(spark: Any, count: int) -> None:
    deadline = time.monotonic() + DEADLINE
    while slots.count_slots(spark.sparkContext) < count:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def die_once(directory: str, what: str) -> str:
    """Kills its process, its task or its executor in its first attempt."""
    mark = Path(directory, f"died-{keras_strom.rank()}")
    if keras_strom.rank() == 1 and not mark.exists():
        mark.touch()
        victim = os.getpid()
        if what == "task":  # Of a fresh interpreter it is the parent.
            victim = os.getppid()
        elif what == "executor":  # A fork server knows its owner.
            server = Path(f"/proc/{os.getppid()}/cmdline").read_text().split("\0")
            victim = int(server[server.index("keras_strom.runner.fork_server_main") + 2])
        os.kill(victim, signal.SIGKILL)
        signal.pause()
    return os.environ["KERAS_STROM_ATTEMPT"]


@pytest.mark.parametrize("what", ["process", "task", "executor"])
def test_a_worker_that_is_killed_is_started_again(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    warm = what != "task"
    results = run(
        die_once, (str(tmp_path), what), num_proc=2, max_failures=1, spark=spark, warm_start=warm
    )
    assert results == ["0", "1"]
    kinds = [event.kind for event in results.events]
    assert kinds.count("lost") == kinds.count("restarted") == 1
    assert "away" in results.timeline.totals()[1] or what == "process"
    assert "(failure 1 of 1)" in capsys.readouterr().out
    wait_for_slots(spark, 2)  # Another executor is on its way.


def wait_for_file(directory: str, name: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not Path(directory, name).exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def meet(directory: str, others: list[str]) -> int:
    """Returns when the others have come."""
    Path(directory, f"{keras_strom.rank()}-{os.environ['KERAS_STROM_ATTEMPT']}").touch()
    for name in others:
        wait_for_file(directory, name)
    return keras_strom.rank()


def test_an_elastic_run_starts_with_its_least_number_and_takes_in_others(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Three tasks for two slots.
    results = run(meet, (str(tmp_path), ["0-0", "1-0"]), min_proc=1, max_proc=3, spark=spark)
    assert results[:2] == [0, 1]
    assert results.metrics["ranks"] == list(results)
    output = capsys.readouterr().out
    assert "starting 1 to 3 workers" in output
    assert "[1] worker 1 on" in output


def die_with_the_executor(directory: str) -> int:
    """Rank 1 does at first; the others wait for its next attempt."""
    die_once(directory, "executor")
    return meet(directory, ["1-1"])


def test_a_lost_executor_of_an_elastic_run_is_no_failure(spark: Any, tmp_path: Path) -> None:
    results = run(die_with_the_executor, (str(tmp_path),), min_proc=2, max_failures=0, spark=spark)
    assert results == [0, 1]
    assert (results.metrics["failures"], results.metrics["lost_tasks"]) == (0, 1)
    wait_for_slots(spark, 2)
    executors = slots._executors(spark.sparkContext, None)  # By which a later run may wait.
    assert sum(one.slots for one in executors if one.lost == math.inf) == 2
    lost = [one for one in executors if one.lost < math.inf]
    assert lost
    assert all(one.slots == 1 and one.come < one.lost < time.time() for one in lost)


def test_two_runs_go_on_at_once_and_each_hears_its_own(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def meet_the_other(name: str) -> str:
        sys.stdout.write(f"this is {name}\n")
        Path(tmp_path, name).touch()
        wait_for_file(str(tmp_path), {"one": "other", "other": "one"}[name])
        return name

    found: dict[str, Any] = {}

    def one_run(name: str) -> None:
        found[name] = run(meet_the_other, (name,), num_proc=1, spark=spark)

    threads = [threading.Thread(target=one_run, args=(name,)) for name in ("one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"one": ["one"], "other": ["other"]}
    lines = capsys.readouterr().out
    assert "this is one\n" in lines
    assert "this is other\n" in lines


def test_a_failed_run_leaves_the_other_alone(spark: Any, tmp_path: Path) -> None:
    def outlive(directory: str) -> str:
        Path(directory, "here").touch()
        wait_for_file(directory, "failed")
        return "well"

    def fail_beside(directory: str) -> None:
        wait_for_file(directory, "here")
        raise ValueError("bad data")

    found: list[Any] = []
    thread = threading.Thread(
        target=lambda: found.extend(run(outlive, (str(tmp_path),), num_proc=1, spark=spark))
    )
    thread.start()
    try:
        with pytest.raises(errors.WorkerFailed, match="bad data"):
            run(fail_beside, (str(tmp_path),), num_proc=1, spark=spark)
    finally:
        (tmp_path / "failed").touch()
        thread.join()
    assert found == ["well"]


def test_executors_with_another_version_are_refused(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "__version__", "0.0.1")
    with pytest.raises(errors.ExecutorMismatch, match=r"keras_strom .* \(driver: 0\.0\.1\)"):
        run(where, num_proc=2, spark=spark)


def test_a_task_that_is_killed_is_reported_as_lost(spark: Any, tmp_path: Path) -> None:
    def kill_the_task(directory: str) -> None:
        Path(directory, str(keras_strom.rank())).write_text(str(os.getpid()))
        if keras_strom.rank() == 0:
            os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()

    with pytest.raises(errors.WorkerFailed, match="lost") as raised:
        run(
            kill_the_task,
            (str(tmp_path),),
            num_proc=2,
            max_failures=0,
            spark=spark,
            warm_start=False,
        )
    assert raised.value.rank == 0
    for path in tmp_path.iterdir():
        wait_until_gone(int(path.read_text()))


@pytest.mark.parametrize("group", ["of the caller", None])
def test_a_run_is_cancelled_as_any_job_of_its_caller(
    spark: Any, tmp_path: Path, group: str | None
) -> None:
    context = spark.sparkContext

    def cancel() -> None:
        wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
        if group is None:
            context.cancelAllJobs()
        else:
            context.cancelJobGroup(group)

    def start_and_wait() -> None:
        (tmp_path / str(keras_strom.rank())).touch()
        signal.pause()

    cancelling = threading.Thread(target=cancel)
    cancelling.start()
    context.setLocalProperty("spark.jobGroup.id", group)
    try:
        with pytest.raises(errors.StromError, match="Spark's job was cancelled meanwhile"):
            run(start_and_wait, num_proc=2, spark=spark, verbose=0)
        assert context.getLocalProperty("spark.jobGroup.id") == group
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
        cancelling.join(DEADLINE)


def test_a_run_that_has_shared_nothing_says_so(
    spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(SilentMaster, "status", lambda _: {"events_total": 0})
    run(keras_strom.rank, num_proc=2, spark=spark)
    assert capsys.readouterr().out.count("no worker has made a StromStrategy") == 1


def test_too_few_slots_are_named_with_the_setting(spark: Any) -> None:
    with pytest.raises(errors.NotEnoughSlots, match=r"has 2: .*local-cluster\[7.*num_proc=2"):
        run(where, num_proc=7, start_timeout=1.0, spark=spark)


def test_tasks_that_do_not_start_in_time_are_an_error(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two slots and three tasks that wait for each other: the third never starts.
    monkeypatch.setattr(slots, "count_slots", lambda *_: 3)
    with pytest.raises(errors.JoinTimeout, match=r"[012] of 3 workers"):
        run(where, num_proc=3, start_timeout=5.0, spark=spark)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_proc": 0}, "num_proc=0"),
        ({"num_proc": True}, "num_proc=True"),
        ({"min_proc": 0}, "min_proc=0"),
        ({"min_proc": 3, "max_proc": 2}, "min_proc=3 is more than max_proc=2"),
        ({"num_proc": 4, "min_proc": 2}, "leave it out"),
        ({"start_timeout": 0}, "start_timeout=0"),
        ({"start_timeout": "60"}, "start_timeout='60'"),
        ({"drain_seconds": True}, "drain_seconds=True"),
        ({"max_failures": -1}, "max_failures=-1"),
        ({"verbose": 3}, "verbose=3"),
        ({"use_gpu": "yes"}, "use_gpu='yes'"),
        ({"workers_per_node": 0}, "workers_per_node=0"),
        ({"warm_start": 1}, "warm_start=1"),
        ({"secret": b"short"}, "secret must be 32 random bytes"),
        ({"network": {"port": 1}}, "must be a NetworkConfig"),
        ({"args": "ab"}, "args='ab' must be a tuple or a list"),
        ({"args": None}, "args=None must be"),
        ({"kwargs": [1]}, r"kwargs=\[1\] must be a dict"),
        ({"env": {1: "a"}}, r"env\[1\]='a': names and values are strings"),
        ({"env": {"KERAS_STROM_RANK": "1"}}, "KERAS_STROM_RANK"),
        ({"env": {"A": 1}}, "strings"),
    ],
)
def test_bad_options_are_refused_before_spark_is_asked(options: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.InvalidOption, match=words):
        run(where, spark=object(), **options)  # type: ignore[arg-type]


def test_an_unknown_option_and_a_missing_function_are_refused() -> None:
    with pytest.raises(TypeError, match="num_procs"):
        run(where, num_procs=2)  # type: ignore[call-arg]
    with pytest.raises(errors.InvalidOption, match="cannot be called"):
        run("where")  # type: ignore[arg-type]


def test_a_session_that_has_been_stopped_is_named() -> None:
    stopped = types.SimpleNamespace(sparkContext=types.SimpleNamespace(_jsc=None))
    with pytest.raises(errors.InvalidOption, match="has been stopped: make a new one"):
        run(where, spark=stopped)  # type: ignore[arg-type]


def test_what_cannot_be_pickled_says_where_to_make_it() -> None:
    with pytest.raises(errors.InvalidOption, match=r"cannot be pickled.*make inside fn"):
        run(where, (threading.Lock(),))


def test_a_mask_that_matches_nothing_lists_the_candidates(spark: Any) -> None:
    network = NetworkConfig(network_mask="203.0.113.0/24")
    with pytest.raises(errors.AddressError, match=r"127\.0\.0\.1 \(lo\)"):
        run(where, num_proc=2, network=network, spark=spark)


def test_a_port_in_use_is_a_clear_error(spark: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(errors.AddressError, match=f"TCP port {port}"):
            run(where, num_proc=2, network=NetworkConfig(port=port), spark=spark)


_DRIVER = """
import signal, sys, cloudpickle
sys.path.insert(0, sys.argv[1])
import test_runner as test
from pyspark.sql import SparkSession
test.runner.start_master = test.SilentMaster

def stay():
    import os
    print("pid", os.getpid())
    signal.pause()

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
try:
    test.run(stay, num_proc=2, spark=spark)
except KeyboardInterrupt:
    print("interrupted", flush=True)
spark.stop()
"""


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", _DRIVER, str(Path(__file__).parent)]
    # Not in the source tree, where keras_strom would be found without its spark package.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=tmp_path
    )
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_a_driver_that_is_ended(
    driver: subprocess.Popen[str], number: signal.Signals
) -> None:
    assert driver.stdout is not None
    pids: list[int] = []
    for line in driver.stdout:
        if "pid" in line:
            pids.append(int(line.split()[-1]))
        if len(pids) == 2:
            break
    assert len(pids) == 2
    driver.send_signal(number)
    if number == signal.SIGINT:
        rest, _ = driver.communicate(timeout=DEADLINE)
        assert "interrupted" in rest
        assert driver.returncode == 0
    for pid in pids:
        wait_until_gone(pid)


def test_a_bare_spark_package_is_refused(repository: Path) -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import spark"
    done = subprocess.run(
        [sys.executable, "-c", code, str(repository)], capture_output=True, text=True, cwd="/"
    )
    assert done.returncode == 1
    assert "this package is keras_strom.spark" in done.stderr
