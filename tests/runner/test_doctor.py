"""`keras-strom doctor`: each finding, provoked."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keras_strom import cli, errors
from keras_strom.doctor import Finding, Grade, examine, machine, network_path, software
from keras_strom.job import environment, machine_limits, network
from keras_strom.job.credentials import Credentials
from keras_strom.job.network import NetworkConfig
from keras_strom.runner.job_file import JobFile

LOOPBACK = NetworkConfig()


def named(check: str, found: Iterator[Finding] | list[Finding]) -> Finding:
    """The one finding of that name."""
    (finding,) = (one for one in found if one.check == check)
    return finding


def grades(found: Iterator[Finding]) -> dict[str, Grade]:
    return {one.check: one.grade for one in found}


@pytest.mark.jobs
def test_this_machine_is_fit_for_a_run() -> None:
    found = grades(examine(2, LOOPBACK))
    assert {"versions", "Keras", "native code", "processors", "memory", "relay"} <= set(found)
    assert Grade.BAD not in found.values()


def test_a_lone_worker_needs_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "_in_another_process", list)
    assert "relay" not in grades(examine(1, LOOPBACK))


@pytest.mark.parametrize("workers", [0, True, 1.5])
def test_no_number_of_workers_is_refused(workers: Any) -> None:
    with pytest.raises(errors.InvalidOption, match="workers"):
        list(examine(workers, LOOPBACK))


# ------------------------------------------------------------------ software


def test_operations_for_another_tensorflow_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from keras_strom._native import ops

    (tmp_path / "build.json").write_text('{"tensorflow": ["2.0.0"]}')
    monkeypatch.setattr(ops, "DIRECTORY", tmp_path)
    ops.operations.cache_clear()
    found = software.of_errors("native code", software._native)
    ops.operations.cache_clear()
    assert found.grade is Grade.BAD
    assert "built for TensorFlow 2.0" in found.words


def test_another_backend_of_keras_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    import keras

    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    found = software._keras()
    assert (found.grade, found.words) == (Grade.BAD, "runs on jax")
    assert "KERAS_BACKEND=tensorflow" in found.remedy


def test_gpus_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import tensorflow as tf

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind, kind])
    found = software._devices()
    assert found.grade is Grade.GOOD
    assert "2 GPUs" in found.words


def test_cards_that_tensorflow_does_not_see_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    found = software._devices()
    assert found.grade is Grade.WARNING
    assert "2 NVIDIA cards" in found.words
    assert "tensorflow[and-cuda]" in found.remedy


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (f"import os; os.kill(os.getpid(), {int(signal.SIGILL)})", "by SIGILL"),
        ("raise SystemExit('libfoo.so is missing')", "with code 1: libfoo.so is missing"),
    ],
)
def test_a_tensorflow_that_ends_its_process_is_found(
    monkeypatch: pytest.MonkeyPatch, program: str, words: str
) -> None:
    monkeypatch.setattr(software, "_PROGRAM", ("-c", program))
    (found,) = software._in_another_process()
    assert found.grade is Grade.BAD
    assert words in found.words


def test_what_libraries_print_while_they_are_imported_is_no_finding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finding = json.dumps([Finding("Keras", Grade.GOOD, "it runs").to_json()])
    prints = f"print('a greeting'); import sys; sys.stdout.write({finding!r})"
    monkeypatch.setattr(software, "_PROGRAM", ("-c", prints))
    assert named("Keras", software._in_another_process()).words == "it runs"


@pytest.mark.parametrize(("machine", "needed"), [("x86_64", "with AVX"), ("aarch64", "newer")])
def test_an_instruction_that_this_processor_lacks_is_told_in_its_words(
    monkeypatch: pytest.MonkeyPatch, machine: str, needed: str
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert f"needs a processor {needed}" in software._crash(-signal.SIGILL, "").remedy


def test_a_variable_that_nobody_knows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_STROM_RNAK", "1")
    monkeypatch.setattr(software, "_in_another_process", list)
    found = named("environment", examine(2, LOOPBACK))
    assert found.grade is Grade.BAD
    assert "KERAS_STROM_RNAK" in found.words


@pytest.mark.parametrize(("mode", "grade"), [(0o600, Grade.GOOD), (0o644, Grade.BAD)])
def test_credentials_that_others_can_read_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: int, grade: Grade
) -> None:
    path = tmp_path / "credentials"
    path.write_text(Credentials.new().with_master(bytes(32)).to_json())
    path.chmod(mode)
    place = environment.ClusterEnvironment(
        rank=1, size=2, master=("10.0.0.1", 4000), credentials_path=str(path)
    )
    for name, value in place.to_environ().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(software, "_in_another_process", list)
    found = named("environment", software.findings())
    assert found.grade is grade
    assert ("chmod 600" in found.words) == (grade is Grade.BAD)


# ------------------------------------------------------------------ machine


def test_more_workers_than_cores_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: 2.5)
    assert named("processors", machine.findings(2, None)).grade is Grade.GOOD
    found = named("processors", machine.findings(3, None))
    assert found.grade is Grade.WARNING
    assert found.remedy.startswith("-np 2")


@pytest.mark.parametrize(
    ("bounded", "free", "files"),
    [
        (
            {"cpu.max": "50000 100000", "memory.max": "4096", "memory.current": "1024"},
            {"cpu.max": "max 100000", "memory.max": "max"},
            {"memory.stat": "anon 4\nfile 9\ninactive_anon 24\ninactive_file 700\nactive_file 100"},
        ),
        (
            {
                "cpu/cpu.cfs_quota_us": "50000",
                "cpu/cpu.cfs_period_us": "100000",
                "memory/memory.limit_in_bytes": "4096",
                "memory/memory.usage_in_bytes": "1024",
            },
            {"cpu/cpu.cfs_quota_us": "-1", "memory/memory.limit_in_bytes": str(1 << 63)},
            {
                "memory/memory.stat": "cache 70\ninactive_file 5\nactive_file 7\n"
                "total_inactive_file 100\ntotal_active_file 700"
            },
        ),
    ],
    ids=["version 2", "version 1"],
)
def test_a_control_group_bounds_cores_and_memory(
    bounded: dict[str, str],
    free: dict[str, str],
    files: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(machine_limits, "_CGROUP", tmp_path)
    cores = machine_limits.usable_cores()
    write(tmp_path, bounded)
    assert (machine_limits.usable_cores(), machine_limits.available_memory()) == (0.5, 3072)
    write(tmp_path, files)  # The kernel drops what it keeps of files where memory is wanted.
    assert machine_limits.available_memory() == 3872
    write(tmp_path, free)
    assert machine_limits.usable_cores() == cores
    available = machine_limits.available_memory()
    assert available is not None
    assert available > 4096


@pytest.mark.parametrize("version", ["2", "1", "1, and 2 without controllers"])
def test_the_least_limit_of_all_groups_above_a_process_counts(
    version: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As of Slurm, which limits the job, and has each step in a group below."""
    monkeypatch.setattr(machine_limits, "_CGROUP", tmp_path)
    monkeypatch.setattr(machine_limits, "_OWN_GROUPS", tmp_path / "own")
    if version == "2":
        own, cpu, memory, pids = "0::/job/step/task\n", "", "", ""
        names = ("memory.max", "memory.current")
        quota = {"job/cpu.max": "150000 100000", "job/step/cpu.max": "max 100000"}
    else:
        own = "4:memory,pids:/job/step/task\n3:name=systemd:/a:b\n1:cpuacct,cpu:/job/step/task\n"
        own += "0::/elsewhere\n" * (version != "1")
        cpu, memory, pids = "cpu/", "memory/", "pids/"
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        quota = {"job/cpu.cfs_quota_us": "150000", "job/cpu.cfs_period_us": "100000"}
        quota["job/step/cpu.cfs_quota_us"] = "-1"
    (tmp_path / "own").write_text(own)
    for controller in (cpu, memory, pids):
        (tmp_path / controller / "job/step/task").mkdir(parents=True, exist_ok=True)
    limits = {"": (9 << 30, 0), "job": (8192, 6144), "job/step": (8192, 4096)}
    for group, of_group in limits.items():
        write(
            tmp_path / memory / group,
            {name: str(n) for name, n in zip(names, of_group, strict=True)},
        )
    write(tmp_path / memory / "job", {"memory.stat": "inactive_file 100"})
    write(tmp_path / cpu, quota)
    write(tmp_path / pids / "job", {"pids.max": "1000", "pids.current": "400"})
    write(tmp_path / pids / "job/step", {"pids.max": "max", "pids.current": "300"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert machine_limits.usable_cores() == 1.5
    assert machine_limits.available_memory() == 2148
    assert machine_limits.threads_left() == 600


@pytest.mark.parametrize("path", ["/docker/5e1f", "/../job", "/"])
def test_a_group_that_a_container_does_not_see_is_the_root(
    path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    (tmp_path / "job").mkdir()
    monkeypatch.setattr(machine_limits, "_CGROUP", root)
    monkeypatch.setattr(machine_limits, "_OWN_GROUPS", tmp_path / "own")
    write(root, {"memory.max": "4096", "memory.current": "1024"})
    assert machine_limits.available_memory() == 3072  # Without any word of the own group.
    (tmp_path / "own").write_text(f"0::{path}\n")
    assert machine_limits.available_memory() == 3072
    assert machine_limits.threads_left() is None


def test_too_few_threads_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "threads_left", lambda: 500)
    assert named("threads", machine.findings(2, None)).grade is Grade.GOOD
    found = named("threads", machine.findings(4, None))
    assert found.grade is Grade.WARNING
    assert found.words.startswith("500 more threads and processes may run here, 125 for each")


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")


def test_too_little_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_memory", lambda: 3 << 29)
    assert named("memory", machine.findings(1, None)).grade is Grade.GOOD
    assert named("memory", machine.findings(2, None)).grade is Grade.WARNING


def test_a_limit_of_open_files_that_is_too_low_for_a_run_is_found() -> None:
    assert named("open files", machine.findings(1, None)).grade is Grade.GOOD
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = sorted(os.listdir("/proc/self/fd"))
    for limit in (3, 64, 101):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        try:
            found = machine._open_files()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert found.grade is Grade.BAD
        assert found.words.startswith(f"the limit of open files, {limit}, is too low: a worker")
        assert found.words.endswith("raise it (ulimit -n)")
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_memory_of_which_the_system_says_nothing_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine_limits, "_MEMORY", tmp_path / "meminfo")
    assert machine_limits.available_memory() is None
    found = named("memory", machine.findings(1, None))
    assert found.words == "the system does not say how much is free"
    (tmp_path / "meminfo").write_text("MemTotal:        4096 kB\nMemAvailable:    2048 kB\n")
    assert machine_limits.available_memory() in range((2048 << 10) + 1)


def test_a_folder_for_checkpoints_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    found = named("checkpoints", machine.findings(1, str(tmp_path / "later" / "on")))
    assert found.grade is Grade.GOOD
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_found(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = named("checkpoints", machine.findings(1, str(tmp_path / "file")))
    assert found.grade is Grade.BAD
    assert "cannot be written" in found.words


def test_a_folder_that_cannot_be_looked_at_is_found(tmp_path: Path) -> None:
    below = tmp_path / ("x" * 300) / "below"  # As below one that this user may not enter.
    found = named("checkpoints", machine.findings(1, str(below)))
    assert found.grade is Grade.BAD
    assert "cannot be written: File name too long" in found.words


def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1 << 20)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: usage)
    assert named("checkpoints", machine.findings(1, str(tmp_path))).grade is Grade.WARNING


# ------------------------------------------------------------------ network


def test_a_mask_that_picks_nothing_is_found() -> None:
    (found,) = network_path.findings(2, NetworkConfig(network_mask="203.0.113.0/24"))
    assert (found.check, found.grade) == ("address", Grade.BAD)
    assert "203.0.113.0/24" in found.words


def test_an_address_that_only_this_machine_reaches_is_told() -> None:
    found = named("address", network_path.findings(2, NetworkConfig(network_mask="127.0.0.1/32")))
    assert found.grade is Grade.WARNING


@pytest.mark.parametrize("taken_by", [0, 1, 4])
def test_a_port_in_use_is_found(taken_by: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        found = list(network_path.findings(4, NetworkConfig(port=port - taken_by)))
    bad = [one for one in found if one.grade is Grade.BAD]
    assert bad
    assert all(str(port) in one.words for one in bad)


@pytest.mark.parametrize(("local_rank", "rank"), [(0, 0), (0, 1), (3, 1)])
def test_a_trial_has_the_ports_of_a_run(local_rank: int, rank: int) -> None:
    """A worker of the relay adds its rank to the port by itself."""
    run = NetworkConfig(port=40100)
    trial = network_path.at_port_of(local_rank, rank, run)
    assert trial.of_worker(rank).port == run.of_worker(local_rank).port
    assert network_path.at_port_of(local_rank, rank, LOOPBACK).port == 0


def test_a_small_receive_buffer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_path, "lacking_receive_buffer", lambda _: 8 << 20)
    found = named("receive buffer", network_path.findings(2, LOOPBACK))
    assert found.grade is Grade.WARNING
    assert found.remedy.startswith("sysctl -w net.core.rmem_max=8388608")


def test_packets_that_are_lost_are_told() -> None:
    link = {"peer": "10.0.0.1:4000", "datagrams_sent": 2000, "retransmitted_packets": 400}
    found = network_path.traffic({"counters": {"links": [link]}}, 0.1, 1e6)
    assert found.grade is Grade.WARNING
    assert "20.0% sent again" in found.words
    assert "the way there loses them" in found.remedy


def test_what_comes_no_more_is_told_with_how_much_has_come() -> None:
    class Falling:
        def __init__(self, left: int) -> None:
            self.left = left

        def poll(self, timeout: float) -> list[bytes]:
            self.left -= 1
            return [b""] * max(self.left, 0)

    falling, silent = Falling(3), Falling(0)
    with pytest.raises(errors.DeadlinePassed, match="3 messages came, and then none for 5 s"):
        network_path.receive(falling, 64, 5.0)  # type: ignore[arg-type]
    with pytest.raises(errors.DeadlinePassed, match="no message came for 5 s"):
        network_path.receive(silent, 64, 5.0)  # type: ignore[arg-type]


def test_a_short_way_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_path, "path_mtu", lambda _: 1100)
    found = list(network_path.findings(2, LOOPBACK))
    assert named("packets", found).grade is Grade.BAD
    assert "1228" in named("packets", found).words
    assert "relay" not in {one.check for one in found}  # It would say the same, later.


def test_a_receive_buffer_is_lacking_below_what_was_asked_for() -> None:
    counters = {"receive_buffer_bytes": 200 << 10, "receive_buffer_wanted_bytes": 4 << 20}
    assert network.lacking_receive_buffer(counters) == 4 << 20
    assert network.lacking_receive_buffer({**counters, "receive_buffer_bytes": 4 << 20}) is None


def inside(namespace: str, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["ip", "netns", "exec", namespace, *command], capture_output=True, text=True, check=False
    )


@pytest.fixture
def namespace() -> Iterator[str]:
    """A network namespace whose loopback drops all UDP."""
    name = f"strom-{os.getpid()}-doctor"
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("iptables") is None:
        pytest.skip("network namespaces need root, iproute2 and iptables")
    if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode != 0:
        pytest.skip("network namespaces are not permitted here")
    try:
        inside(name, "ip", "link", "set", "lo", "up")
        drop = inside(name, "iptables", "-A", "INPUT", "-p", "udp", "-j", "DROP")
        if drop.returncode != 0:
            pytest.skip(f"iptables: {drop.stderr}")
        yield name
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


@pytest.mark.jobs
def test_a_firewall_is_found(namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "import json; from keras_strom.doctor import network_path as n; n._JOIN_SECONDS = 2.0; "
        "from keras_strom.job.network import NetworkConfig; "
        "print(json.dumps([one.to_json() for one in n.findings(2, NetworkConfig())]))"
    )
    done = inside(namespace, sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    found = {one["check"]: one for one in json.loads(done.stdout)}
    assert found["relay"]["grade"] == "bad"
    assert "hears nothing from the master" in found["relay"]["words"]
    assert "open inbound" in found["relay"]["words"]


# ------------------------------------------------------------------ the command


@pytest.fixture
def findings(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """What the command finds."""
    found = [
        Finding("processors", Grade.GOOD, "2 cores for 2 workers"),
        Finding("memory", Grade.WARNING, "[little] is free", "fewer workers"),
    ]
    monkeypatch.setattr("keras_strom.doctor.examine", lambda *_: iter(found))
    return found


def test_the_table_has_a_line_for_each_finding_and_remedy(
    findings: list[Finding], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["doctor"]) == 0
    words = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert words == [
        "check finding",
        "ok processors 2 cores for 2 workers",
        "! memory [little] is free",
        "-> fewer workers",
    ]


def test_json_is_for_programs(findings: list[Finding], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [one.to_json() for one in findings]


def test_what_would_fail_is_in_the_exit_code(findings: list[Finding]) -> None:
    findings.append(Finding("ports", Grade.BAD, "in use"))
    assert cli.main(["doctor", "-np", "3"]) == 1


def test_a_jobs_file_that_others_can_read_is_found(
    findings: list[Finding], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.json"
    for exists, code in ((False, 1), (True, 0)):
        if exists:
            JobFile.new(("10.0.0.1", 4000)).write(str(path))
        assert cli.main(["doctor", "--job", str(path)]) == code
    path.chmod(0o644)
    capsys.readouterr()
    assert cli.main(["doctor", "--job", str(path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)[-1]
    assert (found["check"], found["grade"]) == ("secret", "bad")
    assert "chmod 600" in found["words"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["-np", "0"],
        ["--port", "65535"],
        ["--network-mask", "a"],
        ["-np", "1", "--checkpoint-dir", "c"],
        ["--ssh-args", "-p 22"],
        ["--hosts", "no-such-host.invalid", "--ssh-args", "-i 'key"],
    ],
)
def test_bad_options_are_refused_before_anything_is_looked_at(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["doctor", *arguments]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("keras-strom: ")
    assert said.out == ""
