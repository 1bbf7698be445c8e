"""`keras-strom master` and `keras-strom worker`: jobs whose processes a scheduler starts."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from keras_strom import __version__, cli, errors
from keras_strom.job.drain import DRAINED_EXIT_CODE
from keras_strom.job.network import NetworkConfig
from keras_strom.runner import door, launcher, master_command, remote_machine, scheduled_worker
from keras_strom.runner.console import Console
from keras_strom.runner.door import Door, _Guest
from keras_strom.runner.job_file import JobFile
from keras_strom.runner.launcher import Job
from keras_strom.runner.remote_machine import RemoteMachine
from keras_strom.runner.scheduled_worker import ScheduledWorker
from keras_strom.runner.work import Script
from tests.support.processes import wait_for, wait_until_gone
from tests.support.recorded_worker import LEAVES
from tests.support.silent_master import SilentMaster

DEADLINE = 60.0
LOOPBACK = NetworkConfig(network_mask="127.0.0.1/32", failure_timeout=0.3)


class Scene:
    """A master and its workers, each on a thread of this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "job.json"
        self.told = io.StringIO()
        self.shown = io.StringIO()
        self._threads = ThreadPoolExecutor(8)

    def script(self, text: str) -> Script:
        path = self.folder / "work.py"
        path.write_text(text)
        return Script(str(path))

    def master(self, workers: int, **options: Any) -> Future[None]:
        job = Job(work=None, workers=workers, **{"network": LOOPBACK, **options})
        console = Console(workers, self.told)
        return self._threads.submit(
            master_command.serve, job, str(self.path), console, SilentMaster
        )

    def worker(self, rank: int, work: Script, **options: Any) -> Future[int]:
        options = {"job_path": str(self.path), "start_timeout": DEADLINE, **options}
        worker = ScheduledWorker(rank=rank, work=work, **options)
        return self._threads.submit(scheduled_worker.serve, worker, Console(2, self.shown))

    def close(self) -> None:
        self._threads.shutdown()
        sys.stdout.write(self.told.getvalue() + self.shown.getvalue())


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.close()


def test_workers_come_and_run_where_they_are_started(scene: Scene) -> None:
    work = scene.script(
        "import os, keras_strom as k\n"
        f"mode = os.stat({str(scene.path)!r}).st_mode & 0o777\n"
        "told = [os.environ['KERAS_STROM_' + name] for name in ('ATTEMPT', 'DRAIN_SECONDS')]\n"
        "print(k.size(), k.local_rank(), oct(mode), *told)\n"
    )
    workers = [scene.worker(rank, work) for rank in (2, 0, 1)]  # They wait for the file.
    master = scene.master(3, drain_seconds=90.0)
    assert [worker.result(DEADLINE) for worker in workers] == [0, 0, 0]
    master.result(DEADLINE)
    assert sorted(scene.shown.getvalue().splitlines()) == [
        f"[{rank}] 3 {rank} 0o600 0 90.0" for rank in range(3)
    ]
    assert f"workers 0, 1 and 2 on {socket.gethostname()}\n" in scene.told.getvalue()
    assert not scene.path.exists()


FAILS = (
    "import os, signal, sys, keras_strom as k\n"
    "attempt = int(os.environ['KERAS_STROM_ATTEMPT'])\n"
    "if k.rank() == 1 and attempt < {times}:\n"
    "    sys.exit(3)\n"
    "if {times} > 1:\n"
    "    signal.pause()\n"
)


def test_a_worker_that_fails_is_started_again_where_it_is(scene: Scene) -> None:
    work = scene.script(FAILS.format(times=1))
    master = scene.master(2, max_failures=1)
    workers = [scene.worker(rank, work) for rank in range(2)]
    assert [worker.result(DEADLINE) for worker in workers] == [0, 0]
    master.result(DEADLINE)
    told = "[1] worker 1 ended with exit code 3; it is started again (failure 1 of 1)\n"
    assert told in scene.told.getvalue()


def test_a_failure_too_many_ends_all_with_the_cause(scene: Scene) -> None:
    work = scene.script(FAILS.format(times=2))
    master = scene.master(2, max_failures=1)
    workers = [scene.worker(rank, work) for rank in range(2)]
    with pytest.raises(errors.WorkerFailed, match="it ended with exit code 3") as raised:
        master.result(DEADLINE)
    assert raised.value.rank == 1
    assert workers[1].result(DEADLINE) == 3
    with pytest.raises(
        errors.MasterLost, match=r"worker 0 ends, .* worker 1 on .* failed: it ended"
    ):
        workers[0].result(DEADLINE)
    assert not scene.path.exists()


WAITS = (
    "import os, time, keras_strom as k\n"
    "attempt = os.environ['KERAS_STROM_ATTEMPT']\n"
    "print('process', os.getpid(), 'attempt', attempt, flush=True)\n"
    "deadline = time.monotonic() + 60\n"
    "while not os.path.exists({path!r}) and time.monotonic() < deadline:\n"
    "    time.sleep(0.02)\n"
)


def command(scene: Scene, work: Script, rank: int) -> subprocess.Popen[str]:
    """`keras-strom worker` in a process of its own."""
    program = [sys.executable, "-m", "keras_strom", "worker", "--job", str(scene.path)]
    return subprocess.Popen(
        [*program, work.path],
        env={**os.environ, "JOB_COMPLETION_INDEX": str(rank)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_one_that_is_lost_is_replaced_by_the_next_that_comes(scene: Scene) -> None:
    work = scene.script(WAITS.format(path=str(scene.folder / "end")))
    master = scene.master(2, max_failures=1)
    stays = scene.worker(0, work)
    with command(scene, work, 1) as first:
        assert first.stdout is not None
        said = first.stdout.readline().split()
        assert said[-1] == "0"
        first.kill()
        first.wait(DEADLINE)
    wait_until_gone(int(said[2]))
    wait_for(lambda: "lost with its host" in scene.told.getvalue())
    assert "the others go on until keras-strom worker comes again for rank 1 (failure 1 of 1)" in (
        scene.told.getvalue()
    )
    with command(scene, work, 1) as second:
        assert second.stdout is not None
        assert second.stdout.readline().split()[-1] == "1"
        (scene.folder / "end").touch()
        assert second.wait(DEADLINE) == 0
    assert stays.result(DEADLINE) == 0
    master.result(DEADLINE)


def test_sigterm_has_a_worker_leave_and_the_next_that_comes_goes_on(scene: Scene) -> None:
    master = scene.master(2)
    stays = scene.worker(0, scene.script(WAITS.format(path=str(scene.folder / "end"))))
    leaves = scene.folder / "leaves.py"
    leaves.write_text(LEAVES)
    with command(scene, Script(str(leaves)), 1) as first:
        assert first.stdout is not None
        assert first.stdout.readline().split()[-1] == "ready"
        first.send_signal(signal.SIGTERM)
        assert first.wait(DEADLINE) == DRAINED_EXIT_CODE
    words = "worker 1 has drained; the others go on until keras-strom worker comes again for rank 1"
    wait_for(lambda: words in scene.told.getvalue())
    with command(scene, scene.script(WAITS.format(path=str(scene.folder / "end"))), 1) as second:
        assert second.stdout is not None
        assert second.stdout.readline().split()[-1] == "1"
        (scene.folder / "end").touch()
        assert second.wait(DEADLINE) == 0
    assert stays.result(DEADLINE) == 0
    master.result(DEADLINE)


@pytest.mark.parametrize("other", ["ends", "leaves"])
def test_the_first_worker_is_waited_for_where_no_other_runs(scene: Scene, other: str) -> None:
    """As where Kubernetes takes away the nodes of all workers, or of the one that ends last."""
    master = scene.master(2)
    (scene.folder / "leaves.py").write_text(LEAVES)
    leaves, ends = Script(str(scene.folder / "leaves.py")), scene.script("print('ended')\n")
    does = ends if other == "ends" else leaves
    with command(scene, leaves, 0) as first, command(scene, does, 1) as second:
        for process in (first, second):
            assert process.stdout is not None
            assert process.stdout.readline()
        if other == "leaves":
            second.send_signal(signal.SIGTERM)
            assert second.wait(DEADLINE) == DRAINED_EXIT_CODE
        first.send_signal(signal.SIGTERM)
        assert first.wait(DEADLINE) == DRAINED_EXIT_CODE
        wait_for(lambda: "worker 0 has drained" in scene.told.getvalue())
        wait_for(lambda: "no worker runs: the job ends in 600 s unless" in scene.told.getvalue())
        with command(scene, ends, 0) as next_one:
            assert next_one.wait(DEADLINE) == 0
        assert second.wait(DEADLINE) == (0 if other == "ends" else DRAINED_EXIT_CODE)
    master.result(DEADLINE)


def test_a_first_worker_that_never_comes_again_ends_the_job(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = scene.master(2, start_timeout=DEADLINE, max_failures=1)
    stays = scene.worker(1, scene.script("print('ended')\n"))
    fails = scene.folder / "fails.py"
    fails.write_text("import os, signal\nprint('process', flush=True)\nsignal.pause()\n")
    waits = launcher._Crew._next_event

    def wait_for_little(crew: Any, ended: int) -> Any:
        object.__setattr__(crew._job, "start_timeout", 0.1)
        return waits(crew, ended)

    monkeypatch.setattr(launcher._Crew, "_next_event", wait_for_little)
    with command(scene, Script(str(fails)), 0) as first:
        assert first.stdout is not None
        assert first.stdout.readline()
        first.kill()
    with pytest.raises(errors.WorkerFailed, match="it was lost with its host") as raised:
        master.result(DEADLINE)
    assert raised.value.rank == 0
    with pytest.raises(errors.MasterLost):
        stays.result(DEADLINE)


def new_door() -> Door:
    """That of a job of two workers."""
    return Door(
        2,
        None,
        ("127.0.0.1", 0),
        lambda port: JobFile.new(("127.0.0.1", port)),
        timeout=1.0,
        tell=lambda _: None,
        remedy="",
    )


def test_the_next_that_comes_waits_until_one_that_leaves_has_gone_with_its_ports() -> None:
    looks = iter([False, False, False, True])

    class Leaves:
        leaves = True
        lost = property(lambda _: next(looks))

    door = new_door()
    door._guests[1] = _Guest(1, "a", 0, Leaves())  # type: ignore[arg-type]
    assert door.of(1) is None
    door._let_in(1, "b", silence=0.0)  # One that does not leave is refused at once.
    assert next(looks, None) is None


def test_of_two_that_come_at_once_for_a_rank_one_is_let_in(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, comes, goes_on = RemoteMachine.prepare, threading.Event(), threading.Event()

    def prepare_slowly(*arguments: Any) -> None:
        comes.set()
        assert goes_on.wait(DEADLINE)
        prepare(*arguments)

    monkeypatch.setattr(RemoteMachine, "prepare", prepare_slowly)
    work = scene.script("")
    master = scene.master(2)
    try:
        first = scene.worker(0, work)
        assert comes.wait(DEADLINE)
        with pytest.raises(errors.Refused, match=r"worker 0 runs on .* already; give each"):
            scene.worker(0, work).result(DEADLINE)
    finally:
        goes_on.set()
    workers = [first, scene.worker(1, work)]
    assert [worker.result(DEADLINE) for worker in workers] == [0, 0]
    master.result(DEADLINE)


def test_a_worker_that_finds_the_door_crowded_tries_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "_MOST_STRANGERS", 1)
    turned_away = threading.Event()
    shake_hands = scheduled_worker._shake_hands

    def shake(*arguments: Any) -> Any:
        try:
            return shake_hands(*arguments)
        except ConnectionError:
            turned_away.set()
            raise

    monkeypatch.setattr(scheduled_worker, "_shake_hands", shake)
    work = scene.script("print('here')\n")
    master = scene.master(2)
    with socket.create_connection(JobFile.wait(str(scene.path), DEADLINE).master):
        workers = [scene.worker(rank, work) for rank in range(2)]
        assert turned_away.wait(DEADLINE)
    assert [worker.result(DEADLINE) for worker in workers] == [0, 0]
    master.result(DEADLINE)


def test_enough_begin_and_others_come_later(scene: Scene) -> None:
    work = scene.script(WAITS.format(path=str(scene.folder / "end")))
    master = scene.master(3, min_workers=2)
    early = [scene.worker(rank, work) for rank in (0, 2)]
    wait_for(lambda: scene.shown.getvalue().count("process") == 2)
    late = scene.worker(1, work)
    wait_for(lambda: "[1] process" in scene.shown.getvalue())
    (scene.folder / "end").touch()
    assert [worker.result(DEADLINE) for worker in (*early, late)] == [0, 0, 0]
    master.result(DEADLINE)


def test_those_who_do_not_come_are_named(scene: Scene) -> None:
    master = scene.master(3, start_timeout=1.0)
    comes = scene.worker(1, scene.script(""))
    with pytest.raises(errors.JoinTimeout, match="workers 0 and 2 had not come after 1 s: has"):
        master.result(DEADLINE)
    with pytest.raises((errors.Refused, errors.MasterLost)):
        comes.result(DEADLINE)


def test_where_a_worker_cannot_run_both_say_so(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_machine, "__version__", "99")
    scene.master(2, start_timeout=2.0)
    worker = scene.worker(0, scene.script(""))
    with pytest.raises(errors.Refused, match=r"it has keras-strom .*, and this machine 99"):
        worker.result(DEADLINE)


def test_a_rank_is_taken_once_and_must_be_the_jobs(scene: Scene) -> None:
    work = scene.script(WAITS.format(path=str(scene.folder / "end")))
    master = scene.master(2)
    workers = [scene.worker(rank, work) for rank in range(2)]
    wait_for(lambda: scene.shown.getvalue().count("process") == 2)
    for rank, words in ((0, "worker 0 runs on .* already"), (2, "rank 2 is none of this job's")):
        with pytest.raises(errors.Refused, match=words):
            scene.worker(rank, work).result(DEADLINE)
    (scene.folder / "end").touch()
    assert [worker.result(DEADLINE) for worker in workers] == [0, 0]
    master.result(DEADLINE)


def test_nobody_comes_in_with_the_file_of_another_job(scene: Scene, tmp_path: Path) -> None:
    master = scene.master(2, start_timeout=3.0)
    wait_for(scene.path.exists)
    job = JobFile.read(str(scene.path))
    other = tmp_path / "other.json"
    JobFile.new(job.master).for_workers().write(str(other))
    with pytest.raises(errors.SecretRejected):
        scene.worker(0, scene.script(""), job_path=str(other)).result(DEADLINE)
    with pytest.raises(errors.JoinTimeout):
        master.result(DEADLINE)


def test_a_job_is_prepared_for_those_who_share_no_disk(scene: Scene) -> None:
    folder = scene.folder / "files"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert cli.main(["prepare", "--master", f"127.0.0.1:{port}", str(folder)]) == 0
    files = {path.name: path for path in folder.iterdir()}
    assert sorted(files) == ["master.json", "worker.json"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files.values()} == {0o600}
    assert "private_key" not in json.loads(files["worker.json"].read_text())
    with pytest.raises(errors.InvalidOption, match=r"master\.json is there already"):
        master_command.prepare(str(folder), ("127.0.0.1", port))
    scene.path = files["master.json"]
    master = scene.master(2)
    scene.path = files["worker.json"]
    workers = [scene.worker(rank, scene.script("print('here')\n")) for rank in range(2)]
    assert [worker.result(DEADLINE) for worker in workers] == [0, 0]
    master.result(DEADLINE)
    assert files["master.json"].exists()  # It was not the master that made it.
    options = SilentMaster.last.options  # Workers are told what the file says, behind a NAT too.
    assert options.network.advertised_master(("10.0.0.4", port)) == ("127.0.0.1", port)


@pytest.mark.parametrize(
    ("given", "listens", "told"),
    [
        ({}, ("10.0.0.4", 40100), ("master.example", 40100)),
        ({"port": 9}, ("10.0.0.4", 9), ("master.example", 40100)),
        ({"master_address": "10.9.9.9"}, ("10.0.0.4", 40100), ("10.9.9.9", 40100)),
    ],
)
def test_workers_of_a_prepared_job_are_told_the_address_that_was_prepared(
    given: dict[str, Any], listens: tuple[str, int], told: tuple[str, int]
) -> None:
    job = JobFile.new(("master.example", 40100))
    network = master_command.network_of(NetworkConfig(**given), job)
    assert network.port == listens[1]
    assert network.advertised_master(listens) == told


def test_a_prepared_job_needs_no_mask_where_its_address_is_the_machines(scene: Scene) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    JobFile.new(("127.0.0.1", port)).write(str(scene.path))
    master = scene.master(2, network=NetworkConfig(failure_timeout=0.3))
    workers = [scene.worker(rank, scene.script("")) for rank in range(2)]
    assert [worker.result(DEADLINE) for worker in workers] == [0, 0]
    master.result(DEADLINE)
    assert "listens at" not in scene.told.getvalue()


def test_a_master_that_gets_the_workers_file_is_told_of_its_own(scene: Scene) -> None:
    master_command.prepare(str(scene.folder), ("127.0.0.1", 9))
    scene.path = scene.folder / "worker.json"
    with pytest.raises(
        errors.InvalidOption, match=r"prepared: .* beside it; --job .*/master\.json"
    ):
        scene.master(2).result(DEADLINE)
    other = scene.path.rename(scene.folder / "other.json")
    (scene.folder / "master.json").unlink()
    scene.path = other
    with pytest.raises(errors.InvalidOption, match=r"file of another job, .* remove it"):
        scene.master(2).result(DEADLINE)


def test_a_master_says_where_it_listens_if_workers_are_told_another_address(scene: Scene) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    JobFile.new(("192.0.2.77", port)).write(str(scene.path))
    master = scene.master(2, start_timeout=0.1)
    with pytest.raises(errors.JoinTimeout):
        master.result(DEADLINE)
    words = f"listens at 127.0.0.1:{port}: what comes to 192.0.2.77:{port} must be led there; --net"
    assert words in scene.told.getvalue()


@pytest.mark.parametrize(("there", "here"), [(40100, 50100), (7, 7)])
def test_a_worker_that_is_told_another_address_of_the_master_reaches_all_of_it_there(
    there: int, here: int
) -> None:
    """The relay has the door's port (40100), or another."""
    found = scheduled_worker.as_seen_here(("10.0.0.4", 40100), ("nat.example", 50100))
    assert found(("10.0.0.4", there)) == ("nat.example", here)


def test_a_worker_reaches_the_relay_where_it_reaches_the_door(scene: Scene) -> None:
    work = scene.script("import os\nprint(os.environ['KERAS_STROM_MASTER'])\n")
    master = scene.master(2)
    wait_for(scene.path.exists)
    port = JobFile.read(str(scene.path)).master[1]
    workers = [scene.worker(0, work), scene.worker(1, work, master=("localhost", port))]
    assert [worker.result(DEADLINE) for worker in workers] == [0, 0]
    master.result(DEADLINE)
    shown = sorted(scene.shown.getvalue().splitlines())
    assert shown == ["[0] 127.0.0.1:9", "[1] localhost:9"]


@pytest.mark.parametrize("nohup", [False, True])
def test_a_master_whose_terminal_is_closed_leaves_no_secret_behind(
    scene: Scene, nohup: bool
) -> None:
    """Unless it was started with nohup, and goes on."""
    ignores = signal.SIG_IGN if nohup else signal.SIG_DFL
    master = subprocess.Popen(
        [
            *(sys.executable, "-m", "keras_strom", "master", "-np", "2", "--job", str(scene.path)),
            *("--network-mask", "127.0.0.1/32"),
        ],
        preexec_fn=lambda: signal.signal(signal.SIGHUP, ignores),
    )
    try:
        wait_for(scene.path.exists)
        master.send_signal(signal.SIGHUP)
        if nohup:
            work = scene.script("")
            workers = [scene.worker(rank, work) for rank in range(2)]
            assert [worker.result(DEADLINE) for worker in workers] == [0, 0]
        assert master.wait(DEADLINE) == (0 if nohup else 128 + signal.SIGHUP)
        assert not scene.path.exists()
    finally:
        master.kill()
        master.wait()


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize(
    ("kind", "type_"), [("TCP", socket.SOCK_STREAM), ("UDP", socket.SOCK_DGRAM)]
)
def test_a_port_that_others_listen_at_is_a_clear_error(
    scene: Scene, kind: str, type_: int, prepared: bool
) -> None:
    remedy = "prepare the job anew with another" if prepared else "choose another port, or 0"
    words = rf"{kind} 127\.0\.0\.1:\d+, to which .* used: Address already in use; .*{remedy}"
    with socket.socket(socket.AF_INET, type_) as taken:
        taken.bind(("127.0.0.1", 0))
        address = taken.getsockname()
        if prepared:
            JobFile.new(address).write(str(scene.path))
        network = NetworkConfig(port=address[1], network_mask="127.0.0.0/8")
        with pytest.raises(errors.AddressError, match=words):
            scene.master(2, network=network).result(DEADLINE)


def test_who_waits_for_a_job_that_does_not_begin_is_told_of_its_end() -> None:
    with ThreadPoolExecutor(1) as pool:
        with new_door() as door:
            hello = {"rank": 1, "host": "a", "version": __version__}
            waits = pool.submit(door._admit, Mock(), hello)
        with pytest.raises(errors.ConnectionClosed, match="has ended before it began"):
            waits.result(DEADLINE)


def test_a_job_file_is_private_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    JobFile.new(("127.0.0.1", 9)).write(str(path))
    assert JobFile.read(str(path)).private_key is not None
    assert "private" not in repr(JobFile.read(str(path)))
    path.chmod(0o640)
    with pytest.raises(errors.InvalidOption, match=r"can be read by others \(mode 0640\)"):
        JobFile.read(str(path))
    path.chmod(0o600)
    for text in ("{}", "[]", "secret", '{"master": "a:1"}'):
        path.write_text(text)
        with pytest.raises(errors.InvalidOption) as raised:
            JobFile.read(str(path))
        assert "secret" not in str(raised.value).partition("with job_id, secret")[0]


def test_where_there_is_no_job_file_it_is_said_which_is_meant(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidOption, match="Is a directory; name the file in that folder"):
        JobFile.read(str(tmp_path))
    with pytest.raises(errors.InvalidOption, match=r"No such file .*; keras-strom master writes"):
        JobFile.read(str(tmp_path / "none"))
    with pytest.raises(errors.InvalidOption, match="; a file descriptor is only open in"):
        JobFile.read("/proc/self/fd/9999")


def test_a_job_file_that_cannot_be_left_leaves_no_secret(tmp_path: Path) -> None:
    (tmp_path / "job.json").mkdir()
    with pytest.raises(errors.InvalidOption, match="cannot be written: Is a directory"):
        JobFile.new(("127.0.0.1", 9)).write(str(tmp_path / "job.json"))
    assert [path.name for path in tmp_path.iterdir()] == ["job.json"]


SCRIPT = str(Path(__file__))


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        (["master", "--job", "j"], {}, "say how many workers there are: -np 4"),
        (["master", "-np", "1", "--job", "j"], {}, "one worker needs no master"),
        (["master", "-np", "2"], {}, "--job FILE"),
        (["master", "-np", "2", "--job", "gone/j"], {}, "gone/j cannot be written"),
        (["worker", "--job", "j", SCRIPT], {}, "say which worker this is: --rank 0"),
        (["worker", "--rank", "0", SCRIPT], {}, "--job FILE"),
        (["worker", "--rank", "-3", "--job", "j", SCRIPT], {}, "--rank -3: workers are numbered"),
        (["worker", "--job", "j", SCRIPT], {"SLURM_PROCID": "x"}, "SLURM_PROCID='x': must be"),
        (["worker", "--rank", "0", "--job", "j", "gone.py"], {}, "no such script: gone.py"),
        (["worker", "--rank", "0", "--job", "j", "python", "a.py"], {}, "give the script alone"),
        (
            ["worker", "--rank", "0", "--job", "j", "--start-timeout", "0.1", SCRIPT],
            {},
            "there was no job's file j after 0.1 s",
        ),
        (["prepare", "--master", "a", "folder"], {}, "'a' needs a port"),
    ],
)
def test_bad_input_is_a_clear_error(
    arguments: list[str],
    variables: Mapping[str, str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    handler = signal.getsignal(signal.SIGTERM)
    assert cli.main(arguments) == 2
    signal.signal(signal.SIGTERM, handler)
    assert words in capsys.readouterr().err


def test_a_master_leaves_the_workers_file_of_another_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.json"
    JobFile.new(("127.0.0.1", 9)).for_workers().write(str(path))
    handler = signal.getsignal(signal.SIGTERM)
    assert cli.main(["master", "-np", "2", "--job", str(path)]) == 2
    signal.signal(signal.SIGTERM, handler)
    assert "of another job, whose master runs or was killed" in capsys.readouterr().err
    assert path.exists()


def test_under_slurm_all_is_said_by_its_variables(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for sbatch and srun: the variables that they set."""
    work = scene.script(
        "import os, keras_strom as k\n"
        "gpus = os.environ['CUDA_VISIBLE_DEVICES'], os.environ['KERAS_STROM_GPUS']\n"
        "print(k.rank(), k.size(), *gpus)\n"
    )
    job = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "2", "SLURM_SUBMIT_DIR": str(scene.folder)}
    job |= {"SLURM_GPUS_PER_TASK": "2", "CUDA_VISIBLE_DEVICES": "0,1"}
    program = [sys.executable, "-m", "keras_strom"]
    master = subprocess.Popen(
        [*program, "master", "--network-mask", "127.0.0.1/32"], env={**os.environ, **job}
    )
    tasks = [
        subprocess.Popen(
            [*program, "worker", work.path],
            env={**os.environ, **job, "SLURM_PROCID": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    shown = [task.communicate(timeout=DEADLINE)[0] for task in tasks]
    assert shown == ["[0] 0 2 0,1 own\n", "[1] 1 2 0,1 own\n"]
    assert [task.returncode for task in tasks] == [0, 0]
    assert master.wait(DEADLINE) == 0
    assert not list(scene.folder.glob("keras-strom-*"))
