"""The relay's benchmark: every target has its row, its file is sound, its network is cleaned up."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import namespaces, other_work, relay, relay_peers
from tests.support.native_programs import folder_of

FOLDER = folder_of("relay_peer")
PROGRAM = None if FOLDER is None else FOLDER / "relay_peer"

needs_program = pytest.mark.skipif(PROGRAM is None, reason="relay_peer is not built")


@pytest.mark.jobs
@needs_program
def test_a_quick_run_has_a_verdict_or_a_reason_for_every_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    relay.main(["--quick", "--program", str(PROGRAM), "--output", str(tmp_path)])
    assert "targets met" in capsys.readouterr().out
    written = json.loads((tmp_path / "relay-quick.json").read_text())
    judged = {target["name"] for target in written["targets"]}
    skipped = {row["name"] for row in written["rows"] if row["group"] == "Skipped"}
    assert not judged & skipped
    assert judged | skipped == relay.TARGETS | {"Aeron"}
    assert {"loopback_64k", "small_messages", "p50_small"} <= judged | skipped
    ways = {row["name"] for row in written["rows"] if row["group"] == "Loopback, one way"}
    assert {f"{size}, relay" for size in ("1 KB", "64 KB", "1 MB")} <= ways
    assert {f"{size}, TCP CUBIC" for size in ("1 KB", "64 KB", "1 MB")} <= ways
    assert {way for way in ways if "64 KB a send" in way} == {"1 KB, TCP CUBIC, 64 KB a send"}
    assert any(row["group"] == "The machine meanwhile" for row in written["rows"])
    builds = [row for row in written["rows"] if row["group"] == "Builds and use"]
    assert all(row["command"] and row["build"] for row in builds)


@needs_program
def test_a_peer_that_fails_is_an_error() -> None:
    assert PROGRAM is not None
    wrong = relay_peers.Transport("no such algorithm", "tcp", congestion="none_such")
    with pytest.raises(RuntimeError, match="TCP_CONGESTION none_such"):
        relay_peers.Peers(program=PROGRAM).goodput(wrong, 1024, seconds=0.05, warm_up=0)


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="make bench-relay"):
        relay_peers.Peers(program=tmp_path / "relay_peer")


def test_work_of_this_process_is_not_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    # One second passes in which two processors are busy, one of them with this process.
    monkeypatch.setattr("benchmarks.other_work.monotonic", iter([10.0, 11.0]).__next__)
    monkeypatch.setattr(other_work, "_busy_seconds", iter([50.0, 52.0]).__next__)
    monkeypatch.setattr(other_work, "_own_seconds", iter([5.0, 6.0]).__next__)
    assert other_work.OtherWork().cores() == pytest.approx(1)


def test_the_line_carries_full_datagrams() -> None:
    # 1472 of the 1514 bytes that the shaper counts.
    assert namespaces.payload_limit(1000) == pytest.approx(121.5, abs=0.05)


def test_fairness_is_one_when_all_get_the_same_and_a_share_when_one_gets_everything() -> None:
    assert relay_peers.fairness([3.0, 3.0, 3.0]) == pytest.approx(1)
    assert relay_peers.fairness([5.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert relay_peers.fairness([0.0, 0.0]) == 0


def test_a_network_carries_datagrams_between_its_nodes_and_leaves_nothing() -> None:
    reason = namespaces.unavailable()
    if reason is not None:
        pytest.skip(reason)
    server = (
        "import socket, sys; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM);"
        "s.bind((sys.argv[1], 0)); print(s.getsockname()[1], flush=True);"
        "s.settimeout(20); print(s.recv(9).decode())"
    )
    client = (
        "import socket, sys; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM);"
        "s.sendto(b'a message', (sys.argv[1], int(sys.argv[2])))"
    )
    with namespaces.Network(2, megabits=100, loss=0) as network:
        names = network.names
        receiver = subprocess.Popen(
            [*network.inside(0), sys.executable, "-c", server, network.address(0)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert receiver.stdout is not None
        port = receiver.stdout.readline().strip()
        sender = [*network.inside(1), sys.executable, "-c", client, network.address(0), port]
        subprocess.run(sender, check=True)
        assert receiver.communicate(timeout=30)[0].strip() == "a message"
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    assert not [name for name in names if name in left]
