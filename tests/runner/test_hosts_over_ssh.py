"""Jobs on four machines: namespaces with a real sshd in each, and lines that can be cut."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support import ssh_hosts
from tests.support.processes import wait_for
from tests.support.scripts import elastic
from tests.support.ssh_hosts import SshHosts

pytestmark = pytest.mark.jobs

DEADLINE = 300.0
# So an agent that hears nothing for 6 s ends its workers.
FAILURE_TIMEOUT = ("--failure-timeout", "2")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with ssh_hosts.ssh_hosts(tmp_path_factory.mktemp("ssh")) as machines:
        yield machines


@pytest.fixture
def job(hosts: SshHosts) -> Iterator[SshHosts]:
    """The same machines; no process is left on them afterwards."""
    yield hosts
    for machine in range(1, ssh_hosts.MACHINES):
        hosts.wait_until_empty(machine)


def ended(process: subprocess.Popen[str]) -> str:
    """What a job has shown that ends well."""
    output, _ = process.communicate(timeout=DEADLINE)
    sys.stdout.write(output)  # Shown where the test fails.
    assert process.returncode == 0
    return output


def assert_equal_weights(folder: Path) -> None:
    one, other = (list(np.load(folder / f"{rank}.npz").values()) for rank in (0, 1))
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def training(folder: Path, work: elastic.Job) -> list[str]:
    return [elastic.__file__, str(folder), json.dumps(vars(work))]


def test_a_machine_is_lost_and_its_worker_comes_back_on_another(
    job: SshHosts, tmp_path: Path
) -> None:
    work = elastic.Job(hold_at=60)
    flags = ["-np", "2", "--max-failures", "1", "--warm-start", *FAILURE_TIMEOUT]
    process = job.launch("host1,host2:2", *flags, *training(tmp_path, work))
    with cut_off(job, 1, tmp_path / "trains-0-0"):
        output = ended(process)
    where = "keras-strom: worker 0 on host1, worker 1 on host2; they reach the master at "
    assert f"{where}{job.address(0)}:" in output
    assert (
        "[0] worker 0 was lost with its host host1: no sign of life for 6 s; it is started again "
        "on host2 (failure 1 of 1)"
    ) in output
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [result["attempt"] for result in results] == [1, 0]
    assert all(result["accuracy"] > 0.93 for result in results)
    assert_equal_weights(tmp_path)


def test_a_machine_that_answers_again_has_its_worker_again(job: SshHosts, tmp_path: Path) -> None:
    flags = ["-np", "2", "--max-failures", "1", "--warm-start", *FAILURE_TIMEOUT]
    work = elastic.Job(hold_at=60)
    process = job.launch("host1,host2", *flags, *training(tmp_path, work))
    with cut_off(job, 1, tmp_path / "trains-0-0"):
        pass
    output = ended(process)
    assert (
        "[0] worker 0 was lost with its host host1: no sign of life for 6 s; no other host has a "
        "slot free, so the others go on without it until host1 answers again (failure 1 of 1)"
    ) in output
    assert "keras-strom: host1 answers again" in output
    assert "[0] worker 0 is started again on host1" in output
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [result["attempt"] for result in results] == [1, 0]
    assert_equal_weights(tmp_path)


def test_a_job_goes_on_when_the_launchers_own_line_was_cut(job: SshHosts, tmp_path: Path) -> None:
    flags = ["-np", "2", "--max-failures", "2", "--warm-start", *FAILURE_TIMEOUT]
    work = elastic.Job(pause=0.05)
    process = job.launch("host1,host2", *flags, *training(tmp_path, work))
    wait_for((tmp_path / "trains-1-0").exists, DEADLINE)
    with cut_off(job, 0, tmp_path / "trains-0-0", of=(1, 2)):
        pass
    output = ended(process)
    assert "keras-strom: no worker runs: the job ends in 30 s unless host1 or host2 ans" in output
    assert output.count(" answers again\n") == 3  # That line's, and one of each.
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [result["attempt"] for result in results] == [1, 1]
    assert_equal_weights(tmp_path)


@contextlib.contextmanager
def cut_off(job: SshHosts, machine: int, begins: Path, of: tuple[int, ...] = ()) -> Iterator[None]:
    """Cuts a machine's line as soon as a file is there, until all it was running has ended.

    Args:
        of: machines on which all has to end; () = that one.
    """
    wait_for(begins.exists, DEADLINE)
    job.set_line(machine, "down")
    try:
        yield
        # Nobody can tell it: its agent sees that nobody speaks any more.
        for empty in of or (machine,):
            job.wait_until_empty(empty)
    finally:
        job.set_line(machine, "up")


FUNCTION = """
import sys
import numpy as np
import keras_strom

x = np.random.default_rng(0).normal(size=(4096, 64)).astype(np.float32)

def train(x):
    import keras
    with keras_strom.StromStrategy().scope():
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
    model.fit(x, x[:, :2], verbose=0)
    return keras_strom.rank(), model.get_weights()

results = keras_strom.run(train, (x,), hosts="host1,host2", ssh_args=sys.argv[1])
assert [rank for rank, _ in results] == [0, 1]
assert all(map(np.array_equal, results[0][1], results[1][1]))
"""


def test_a_program_calls_a_function_on_two_machines(job: SshHosts, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(FUNCTION)
    command = [*job.inside(0), sys.executable, str(tmp_path / "program.py"), job.ssh_args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "worker 0 on host1, worker 1 on host2; they reach the master at " in done.stdout


def test_a_launcher_that_is_killed_leaves_nothing_and_its_job_goes_on(
    job: SshHosts, tmp_path: Path
) -> None:
    checkpoints = tmp_path / "checkpoints"
    flags = ["--checkpoint-dir", str(checkpoints), "--checkpoint-interval", "0.4"]
    flags += ["--on-master-loss", "wait", *FAILURE_TIMEOUT]
    work = elastic.Job(pause=0.02)
    trains = tmp_path / "trains-1-0"
    process = job.launch("host1,host2", *flags, *training(tmp_path, work))
    # A slow first batch may be in a checkpoint before the worker says that it has trained it.
    wait_for(lambda: trains.exists() and list(checkpoints.glob("checkpoint-*")), DEADLINE)
    process.kill()
    process.communicate()
    for machine in (1, 2):
        job.wait_until_empty(machine)
    trains.unlink()
    process = job.launch("host3,host2", *flags, *training(tmp_path, work))
    wait_for(trains.exists, DEADLINE)
    kill_master(job)
    output = ended(process)
    assert f"goes on from the checkpoint {checkpoints}" in output
    assert "another master (process" in output
    assert [path.name for path in checkpoints.iterdir()] == ["master.json"]
    assert_equal_weights(tmp_path)


def kill_master(job: SshHosts) -> None:
    """Kills a master that has a process of its own."""
    main = "keras_strom.runner.master_main"
    (pid,) = [pid for pid in job.processes(0) if main in command_of(pid)]
    os.kill(pid, signal.SIGKILL)


def test_a_signal_ends_workers_everywhere(job: SshHosts, tmp_path: Path) -> None:
    script = tmp_path / "work.py"
    script.write_text(
        "import keras_strom as k, signal, subprocess\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        "print('ready')\n"
        "signal.pause()\n"
    )
    # A shell that starts the tests in the background has them ignore Ctrl+C, and so their children.
    default = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    process = job.launch("host1:2,host2", str(script), preexec_fn=default)
    assert process.stdout is not None
    for _ in range(4):
        process.stdout.readline()
    assert len(job.processes(1)) > 4
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    assert output == "keras-strom: interrupted\n"


def test_all_that_is_wrong_with_hosts_is_told_before_anything_starts(
    job: SshHosts, tmp_path: Path
) -> None:
    script = tmp_path / "work.py"
    script.write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\n")
    process = job.launch("host1,stranger,unknown,no.such.host", str(script))
    output, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 2
    stranger, unknown, nobody = output.splitlines()
    assert "stranger: it does not let this user in without a password" in stranger
    assert "Permission denied (publickey)" in stranger
    assert "unknown: its host key is not known here: connect once by hand" in unknown
    assert "no.such.host: there is no host of this name" in nobody
    assert not (tmp_path / "mark").exists()


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""
