"""Hosts as users write them, and jobs on them; a stand-in for ssh runs all on this machine."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import signal
import site
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_strom import cli, errors
from keras_strom.job import environment
from keras_strom.job.interfaces import InterfaceAddress
from keras_strom.job.network import NetworkConfig
from keras_strom.runner import agent, fleet, functions, remote_machine, wire
from keras_strom.runner import ssh as remote_ssh
from keras_strom.runner.hosts import Host, parse_hostfile, parse_hosts, read_hostfile
from keras_strom.runner.process import WorkerListener
from tests.support.processes import is_alive
from tests.support.stand_in_ssh import LOOPBACK, run, stand_in

DEADLINE = 60.0


# ------------------------------------------------------------------ what users write


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", [("a", 1)]),
        ("a:4,b:2", [("a", 4), ("b", 2)]),
        ("a:4, me@node-1.site:2", [("a", 4), ("me@node-1.site", 2)]),
        ("[fd00::7]:2,[fd00::8],10.0.0.4:3", [("fd00::7", 2), ("fd00::8", 1), ("10.0.0.4", 3)]),
        ("me@[fd00::7]:2", [("me@fd00::7", 2)]),
        ("a,b,a:2", [("a", 3), ("b", 1)]),
    ],
)
def test_hosts_are_read(text: str, hosts: list[tuple[str, int]]) -> None:
    assert [(host.name, host.slots) for host in parse_hosts(text)] == hosts


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'' is no host such as node1"),
        ("a,,b", "'' is no host"),
        ("a:0", "'0' after a is no number of slots"),
        ("a:four", "'four' after a is no number"),
        ("a:", "'' after a is no number"),
        ("fd00::7", r"put an IPv6 address into brackets, as in \[fd00::7\]"),
        ("[::1:2", r"put an IPv6 address into brackets, as in \[fd00::7\] or "),
        ("[10.0.0.4]", "'10.0.0.4' is no IPv6 address"),
        ("[fd00::7]4", "'4' after fd00::7 is no number"),
        ("-oProxyCommand=x", "is no host"),
        ("a b", "is no host"),
    ],
)
def test_hosts_that_make_no_sense_are_refused(text: str, words: str) -> None:
    with pytest.raises(errors.InvalidOption, match=words):
        parse_hosts(text)


def test_a_hostfile_of_open_mpi_or_horovod_is_read() -> None:
    text = """
    # the rack
    a slots=4            # the first
    b slots=2 max_slots=8
    c:3
    [fd00::7] slots=2
    d
    """
    assert parse_hostfile(text) == parse_hosts("a:4,b:2,c:3,[fd00::7]:2,d")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# nothing\n", "names no host"),
        ("a\nb slot=4", "line 2: 'slot=4' is not understood"),
        ("a slots=none", "line 1: 'slots=none'"),
        ("a:2 slots=2", "line 1: both 'a:2' and slots="),
        ("a 4", "line 1: '4' is not understood"),
    ],
)
def test_a_line_of_a_hostfile_that_makes_no_sense_is_refused(text: str, words: str) -> None:
    with pytest.raises(errors.InvalidOption, match=words):
        parse_hostfile(text)


def test_a_hostfile_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidOption, match="nothing cannot be read"):
        read_hostfile(str(tmp_path / "nothing"))


names = st.from_regex(r"[a-z][a-z0-9-]{0,8}(\.[a-z]{1,5})?", fullmatch=True)
hosts_of_several = st.lists(
    st.tuples(names | st.ip_addresses().map(str), st.integers(1, 999)),
    min_size=1,
    unique_by=lambda one: one[0],
)


@pytest.mark.fuzz
@settings(max_examples=30)
@given(hosts_of_several)
def test_both_ways_to_write_hosts_mean_the_same(hosts: list[tuple[str, int]]) -> None:
    shown = [(f"[{name}]" if ":" in name else name, slots) for name, slots in hosts]
    expected = tuple(Host(name, slots) for name, slots in hosts)
    assert parse_hosts(",".join(f"{name}:{slots}" for name, slots in shown)) == expected
    lines = "\n".join(f"{name} slots={slots}" for name, slots in shown)
    assert parse_hostfile(lines) == expected


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("localhost", True),
        ("127.0.0.2", True),
        ("::1", True),
        (socket.gethostname(), True),
        ("203.0.113.9", False),
        ("me@localhost", False),
    ],
)
def test_this_machine_needs_no_ssh(name: str, here: bool) -> None:
    assert Host(name).is_here == here


@pytest.mark.parametrize(
    ("clients", "address"),
    [
        (["10.0.0.4", "10.1.0.4"], "10.0.0.4"),
        (["127.0.0.1", "10.1.0.4"], "10.1.0.4"),  # This machine under another of its names.
        (["127.0.0.1", "203.0.113.9"], None),  # ... and one that sees a translated address.
        (["127.0.0.1", None], "127.0.0.1"),
        ([None], None),
    ],
)
def test_the_master_has_an_address_by_which_every_host_may_reach_it(
    clients: list[str | None], address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = ("127.0.0.1", "10.0.0.4", "10.1.0.4")
    here = tuple(InterfaceAddress("eth0", ipaddress.ip_address(one)) for one in own)
    monkeypatch.setattr(fleet, "interface_addresses", lambda: here)
    assert fleet.seen_address(clients) == address


# ------------------------------------------------------------------ jobs


@pytest.fixture(autouse=True)
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return stand_in(tmp_path, monkeypatch)


def test_workers_run_where_slots_are_and_know_their_places(tmp_path: Path) -> None:
    text = (
        "import os, sys, keras_strom as k\n"
        "print(k.rank(), k.size(), k.local_rank(), sys.argv[1:], os.getcwd(), os.environ['MINE'])\n"
    )
    lines = run(tmp_path, text, "a:1,localhost:2,b:4", 5, env={"MINE": "x y"})
    told, *said = lines
    assert told == (
        f"keras-strom: worker 0 on a, workers 1 to 2 on {socket.gethostname()}, workers 3 to 4 on b"
        "; they reach the master at 127.0.0.1:9 (UDP)"
    )
    assert sorted(said) == [
        f"[{rank}] {rank} 5 {local} ['--its', 'own'] {tmp_path} x y"
        for rank, local in enumerate([0, 0, 1, 0, 1])
    ]


def test_the_secret_is_in_no_argument_and_no_variable(tmp_path: Path, ssh: Path) -> None:
    text = (
        "import json, os, pathlib\n"
        "place = pathlib.Path(os.environ['KERAS_STROM_CREDENTIALS'])\n"
        "secret = json.loads(place.read_text())['secret']\n"
        "assert len(secret) == 64\n"
        "seen = []\n"
        "for name in ('cmdline', 'environ'):\n"
        "    for path in pathlib.Path('/proc').glob(f'[0-9]*/{name}'):\n"
        "        try:\n"
        "            seen += [path] * (secret.encode() in path.read_bytes())\n"
        "        except OSError:\n"
        "            pass\n"
        "print('seen', seen)\n"
    )
    assert sorted(run(tmp_path, text, "a,b", 2)[1:]) == ["[0] seen []", "[1] seen []"]
    calls = (ssh / "calls").read_text().splitlines()
    assert len(calls) == 2
    assert all("-o BatchMode=yes" in call for call in calls)


@pytest.mark.parametrize(("failure_timeout", "least"), [(5.0, 40), (40.0, 121), (0.5, 40)])
def test_ssh_bears_a_longer_silence_than_the_job(
    failure_timeout: float, least: int, tmp_path: Path, ssh: Path
) -> None:
    run(tmp_path, "", "a", 1, network=NetworkConfig(failure_timeout=failure_timeout))
    words = (ssh / "calls").read_text().split()
    said = dict(word.split("=") for word in words if word.startswith("ServerAlive"))
    interval, count = (int(said[f"ServerAlive{name}"]) for name in ("Interval", "CountMax"))
    assert least <= interval * (count + 1) < least + 40


def test_nobody_waits_for_the_ssh_of_a_machine_that_is_lost(ssh: Path) -> None:
    (ssh / "says").write_text('echo \'{"type": "hello"}\'\nexec sleep 1000\n')
    lost = remote_ssh.SshWire("a", (), print, "module")
    assert lost.receive(DEADLINE) == {"type": "hello"}
    with pytest.raises(ConnectionError, match="no sign of life"):
        lost.receive(0.1)
    before = time.monotonic()
    lost.close()
    assert time.monotonic() - before < remote_ssh._END_SECONDS / 2
    assert not is_alive(lost._ssh.pid)


def test_a_script_that_fails_elsewhere_is_named_with_its_host(tmp_path: Path) -> None:
    text = (
        "import keras_strom as k, signal\nk.rank() == 0 and signal.pause()\nraise KeyError('k')\n"
    )
    with pytest.raises(errors.WorkerFailed) as raised:
        run(tmp_path, text, "a,b", 2)
    assert (raised.value.rank, raised.value.host) == (1, "b")
    assert raised.value.traceback.endswith("KeyError: 'k'")


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ("me@a: Permission denied (publickey).", "does not let this user in .*ssh-copy-id b"),
        ("Host key verification failed.", "host key is not known here: connect once by hand"),
        ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @", "ssh-keygen -R b"),
        ("ssh: Could not resolve hostname b: Name", "there is no host of this name"),
        ("ssh: connect to host b port 22: Connection refused", "no ssh server listens there"),
        ("ssh: connect to host b port 22: No route to host", "cannot be reached"),
        ("/etc/ssh: line 3: Bad configuration option: x", "correct --ssh-args"),
        ("something new", "ssh has failed: something new"),
    ],
)
def test_what_ssh_says_is_told_with_a_remedy(
    says: str, words: str, tmp_path: Path, ssh: Path
) -> None:
    (ssh / "says").write_text(f"echo '{says}' >&2\nexit 255\n")
    mark = tmp_path / "started"
    with pytest.raises(errors.HostUnusable, match=f"^b: .*{words}"):
        run(tmp_path, f"open({str(mark)!r}, 'w')\n", "localhost,b", 2)
    assert not mark.exists()


def test_a_jump_host_that_turns_many_away_is_tried_again(
    tmp_path: Path, ssh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says = "kex_exchange_identification: Connection closed by remote host"
    turns_away = f"mkdir {ssh}/$$.was && echo '{says}' >&2 && exit 255\n"
    (ssh / "says").write_text(f"[ $(ls -d {ssh}/*.was | wc -l) -lt 3 ] && {turns_away}")
    monkeypatch.setattr(remote_ssh, "_PAUSES", (0.01,) * 5)
    assert sorted(run(tmp_path, "print('here')\n", "a,b", 2)[1:]) == ["[0] here", "[1] here"]

    (ssh / "says").write_text(turns_away)
    monkeypatch.setattr(remote_ssh, "_PAUSES", (0.01,))
    with pytest.raises(errors.HostUnusable, match=f"a: ssh has failed: {says}"):
        run(tmp_path, "", "a", 1, network=NetworkConfig())


@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.ENOENT, "apt-get install openssh-client"), (errno.EMFILE, "ulimit -n.* --hosts")],
)
def test_why_ssh_cannot_be_started_is_told_with_its_remedy(
    code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of hosts take three files each."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(errors.HostUnusable, match=f"{os.strerror(code)}.*{words}"):
        run(tmp_path, "", "a", 1, network=NetworkConfig())


def test_all_hosts_that_cannot_be_used_are_told_at_once(tmp_path: Path, ssh: Path) -> None:
    (ssh / "says").write_text("echo 'Permission denied (publickey).' >&2\nexit 255\n")
    with pytest.raises(errors.HostUnusable) as raised:
        run(tmp_path, "", "a,b,c", 3)
    assert [line[:3] for line in str(raised.value).splitlines()] == ["a: ", "b: ", "c: "]


def test_a_host_without_this_python_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/no such/python")
    with pytest.raises(errors.HostUnusable, match="a: it has no Python at /opt/no such/python, wh"):
        run(tmp_path, "", "a", 1, network=NetworkConfig())


def test_a_host_without_the_package_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {os.path.realpath(sys.executable)} -I -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(errors.HostUnusable, match=r"python has no keras-strom .*No module named"):
        run(tmp_path, "", "a", 1, network=NetworkConfig())


def test_a_host_of_another_release_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_machine, "__version__", "99")
    with pytest.raises(
        errors.HostUnusable, match=r"^a: it has keras-strom [^:]*, and this machine 99;[^:]*$"
    ):
        run(tmp_path, "", "a", 1, network=NetworkConfig())


def test_what_a_host_lacks_is_told_before_anything_starts(tmp_path: Path) -> None:
    there = [*os.pipe(), *os.pipe()]
    wires = wire.PipeWire(there[0], there[3]), wire.PipeWire(there[2], there[1])
    for change, words in (
        ({"folders": (str(tmp_path / "gone"),)}, "it has no folder .*gone"),
        ({"script": "gone.py"}, f"it has no script {tmp_path}/gone.py"),
        ({"script": __file__, "parts_folder": "/gone/incoming-1"}, "the checkpoint folder /gone"),
        ({"script": __file__, "network": '{"network_mask": "203.0.113.0/24"}'}, "matches no"),
    ):
        wires[0].send(wire.Preparation(**change).to_message())
        with pytest.raises(errors.StromError, match=words):
            agent.Agent(wires[1]).serve()
        assert wires[0].receive(1.0)["type"] == "unfit"


def test_a_folder_is_found_by_the_name_that_the_users_shell_has_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As /home/me, which is a symbolic link on one machine, and mounted by that name on others."""
    own, link = tmp_path / "own", tmp_path / "link"
    own.mkdir()
    link.symlink_to(own)
    (own / "work.py").touch()
    monkeypatch.chdir(link)
    monkeypatch.setenv("PWD", str(tmp_path))  # Of a shell that is somewhere else.
    assert environment.working_folders() == (str(own),)
    monkeypatch.setenv("PWD", str(link))
    folders = environment.working_folders()
    assert folders == (str(own), str(link))

    monkeypatch.chdir(tmp_path)
    link.unlink()
    own.rename(link)  # On the other machine.
    there = [*os.pipe(), *os.pipe()]
    near, far = wire.PipeWire(there[0], there[3]), wire.PipeWire(there[2], there[1])
    near.send(wire.Preparation(script="work.py", folders=folders).to_message())
    near.send({"type": "stop", "reason": ""})
    agent.Agent(far).serve()
    assert near.receive(1.0)["type"] == "ready"


def test_a_host_that_lives_and_never_answers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one whose shared disk hangs: its agent's heartbeats come, and no answer."""
    monkeypatch.setattr(remote_machine, "_ANSWER_SECONDS", 0.3)
    there = [*os.pipe(), *os.pipe()]
    near, far = wire.PipeWire(there[0], there[3]), wire.PipeWire(there[2], there[1])
    with agent.heartbeats(far, silence=0.1):
        machine = remote_machine.RemoteMachine("a", near)
        with pytest.raises(errors.HostUnusable, match=r"^a: it has not said within 0.3 s .* disk"):
            machine.prepare(wire.Preparation())
        machine.close()
    far.close()


@pytest.mark.parametrize("fault", [RuntimeError("a page's"), KeyError("a page's")])
def test_a_listener_that_fails_costs_no_host(
    fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    class Fails(WorkerListener):
        def line(self, text: str) -> None:
            raise fault

    there = [*os.pipe(), *os.pipe()]
    near, far = wire.PipeWire(there[0], there[3]), wire.PipeWire(there[2], there[1])
    machine = remote_machine.RemoteMachine("a", near)
    far.send({"type": "ready"})
    machine.prepare(wire.Preparation())
    worker = machine.start(None, agent.ClusterEnvironment(), Fails(), None, {})
    far.send({"type": "line", "worker": 0, "text": "a line"})
    end = {"exit_code": 0, "terminated": False, "raised": False, "left": ""}
    end |= {"traceback": "", "log_tail": []}
    far.send({"type": "ended", "worker": 0, **end})
    assert worker.wait(DEADLINE).exit_code == 0
    assert not machine.lost
    assert "a listener of a worker on another machine failed" in caplog.text
    far.close()
    machine.close()


def test_no_more_workers_than_slots(tmp_path: Path, ssh: Path) -> None:
    with pytest.raises(errors.NotEnoughSlots, match=r"4 workers .* the hosts have 3 \(a:1, b:2\)"):
        run(tmp_path, "", "a,b:2", 4)
    assert not (ssh / "calls").exists()


@pytest.mark.parametrize("hosts", ["localhost:9,a:9", "a:1,localhost:9"])
def test_workers_of_this_machine_that_its_memory_cannot_hold_are_refused(
    hosts: str, tmp_path: Path, ssh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "available_memory", lambda: 3 << 26)
    with pytest.raises(errors.NotEnoughSlots, match="hold 3 at most"):
        run(tmp_path, "", hosts, 5)
    assert not (ssh / "calls").exists()


def test_memory_of_this_machine_is_asked_for_its_own_workers_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet, "available_memory", lambda: 3 << 26)
    monkeypatch.setattr(fleet.ssh, "connect", lambda *_: (Mock(), {}))
    for hosts in ("a:6,localhost:9", "localhost:3,a:9", "a:9,localhost:9"):
        with fleet.Fleet(parse_hosts(hosts), 9) as machines:
            machines._remote.clear()


def test_functions_run_on_hosts_and_large_values_travel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than a message may be, both ways; a module is found where this process finds it."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "helper_of_hosts.py").write_text("def half(x):\n    return x[::2]\n")
    monkeypatch.syspath_prepend(str(tmp_path / "own"))
    import helper_of_hosts

    def work(values: np.ndarray) -> tuple[int, str, np.ndarray]:
        import keras_strom

        return keras_strom.rank(), os.getcwd(), helper_of_hosts.half(values)

    values = np.arange(400_000, dtype=np.float64)
    results = functions.run(work, (values,), hosts="a,b:2", network=LOOPBACK, warm_start=False)
    assert [(rank, folder) for rank, folder, _ in results] == [(r, str(tmp_path)) for r in range(3)]
    for _, _, halves in results:
        np.testing.assert_array_equal(halves, values[::2])


def test_paths_of_the_user_travel_and_those_of_the_installation_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed = [sysconfig.get_path("stdlib"), f"{sys.prefix}/lib/x", site.getusersitepackages()]
    monkeypatch.setattr(sys, "path", ["", "/own/code", *installed, "/own/code", "/own/more"])
    assert fleet.own_paths("/given:/first") == "/given:/first:/own/code:/own/more"
    assert fleet.own_paths("") == "/own/code:/own/more"


def test_an_exception_of_a_function_elsewhere_ends_the_job(tmp_path: Path) -> None:
    def work() -> None:
        with open(tmp_path / "calls", "a") as file:
            file.write("x")
        raise ValueError("there")

    with pytest.raises(errors.WorkerFailed, match=r"worker 0 on a failed: ValueError: there"):
        functions.run(work, hosts="a", network=LOOPBACK, warm_start=False)
    assert (tmp_path / "calls").read_text() == "x"


def test_a_call_that_comes_in_no_parts_is_refused() -> None:
    there = [*os.pipe(), *os.pipe()]
    wires = wire.PipeWire(there[0], there[3]), wire.PipeWire(there[2], there[1])
    for part in ({"type": "part"}, {"type": "part", "data": "?"}, {"type": "drain", "worker": 0}):
        wires[0].send(wire.Preparation(function=3).to_message())
        wires[0].send(part)
        with pytest.raises(errors.CorruptMessage, match="no part of a function or a result"):
            agent.Agent(wires[1]).serve()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["work.py"], "say how many workers there are (-np 4) or where (--hosts)"),
        (["--hosts", "a:x", "work.py"], "'x' after a is no number"),
        (["--hostfile", "gone", "work.py"], "--hostfile gone cannot be read"),
        (["-np", "1", "--ssh-args=-p 22", "work.py"], "has no effect without hosts"),
        (["-np", "1", "-x", "NO_SUCH_ONE", "work.py"], "-x NO_SUCH_ONE: this machine has no such"),
        (["-np", "1", "-x", "KERAS_STROM_RANK=1", "work.py"], "the runner sets it"),
    ],
)
def test_bad_input_is_a_clear_error(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "work.py").touch()
    assert cli.main(["run", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_by_default_there_is_a_worker_for_each_slot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work.py").write_text("import os\nprint(os.environ['COLOUR'])\n")
    (tmp_path / "hosts").write_text("localhost slots=1\n")
    monkeypatch.setenv("COLOUR", "red")
    handler = signal.getsignal(signal.SIGTERM)
    assert cli.main(["run", "--hostfile", "hosts", "-x", "COLOUR", "work.py"]) == 0
    signal.signal(signal.SIGTERM, handler)
    assert capsys.readouterr().out == "red\n"


def test_an_agent_that_hears_nothing_ends_its_workers(tmp_path: Path) -> None:
    there = [*os.pipe(), *os.pipe()]
    launcher, far = wire.PipeWire(there[0], there[3]), wire.PipeWire(there[2], there[1])
    (tmp_path / "work.py").write_text("import signal\nsignal.pause()\n")
    launcher.send(wire.Preparation(script="work.py", silence=0.3).to_message())
    launcher.send(agent.to_start(0, agent.ClusterEnvironment(), None))
    serving = agent.Agent(far)
    with pytest.raises(ConnectionError, match=r"no sign of life for 0.3 s"):
        serving.serve()
    assert serving.outcome is not None
    assert serving.outcome.terminated


def test_an_agent_ends_though_nobody_reads_what_its_workers_say(tmp_path: Path) -> None:
    """As where the launcher's machine is gone without a word while workers print."""
    there = [*os.pipe(), *os.pipe()]
    launcher, far = wire.PipeWire(there[0], there[3]), wire.PipeWire(there[2], there[1])
    (tmp_path / "work.py").write_text("while True: print('x' * 1000)\n")
    launcher.send(wire.Preparation(script="work.py", silence=1.0).to_message())
    for number in range(2):
        launcher.send(agent.to_start(number, agent.ClusterEnvironment(), None))
    serving = agent.Agent(far)

    def serve() -> None:
        with contextlib.suppress(ConnectionError):
            serving.serve()
        far.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    thread.join(DEADLINE)
    assert not thread.is_alive()
    assert not any(is_alive(worker.pid) for worker in serving._workers.values())
