"""The benchmark of long lines: every target has its row, the line does what it says and goes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import namespaces, quic_peers, relay, wan, wan_line
from benchmarks.quic_peers import QUIC
from tests.support.native_programs import folder_of

FOLDER = folder_of("relay_peer", "wan_line")
PROGRAM = None if FOLDER is None else FOLDER / "relay_peer"

needs_program = pytest.mark.skipif(PROGRAM is None, reason="relay_peer or wan_line is not built")


@pytest.mark.jobs
@needs_program
def test_a_quick_run_has_a_verdict_or_a_reason_for_every_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = wan_line.unavailable()
    if reason is not None:
        pytest.skip(reason)
    wan.main(["--quick", "--program", str(PROGRAM), "--output", str(tmp_path)])
    assert "targets met" in capsys.readouterr().out
    written = json.loads((tmp_path / "wan-quick.json").read_text())
    judged = {target["name"] for target in written["targets"]}
    skipped = {row["name"] for row in written["rows"] if row["group"] == "Skipped"}
    assert (QUIC.label in skipped) == (quic_peers.unavailable() is not None)
    skipped.discard(QUIC.label)
    assert not judged & skipped
    assert judged | skipped == wan.TARGETS
    assert bool(skipped) != relay.has_bbr()
    assert (tmp_path / "wan-quick.png").stat().st_size > 0
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    assert "-wan" not in left


def test_without_namespaces_every_target_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.wan_line.unavailable", lambda: "network namespaces need root")
    wan.main(["--quick", "--output", str(tmp_path)])
    written = json.loads((tmp_path / "wan-quick.json").read_text())
    assert {row["name"] for row in written["rows"]} == wan.TARGETS
    assert all(row["skipped"] == "network namespaces need root" for row in written["rows"])


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="make bench-wan"):
        wan_line.LongLine(tmp_path / "wan_line")


def test_settings_of_the_kernel_are_written_by_the_shell_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`unavailable` asks for no other program than those of every line."""
    (tmp_path / "program").touch()
    line = wan_line.LongLine(tmp_path / "program")
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(namespaces, "run", lambda *command: ran.append(command))
    line._set(1, f"net.ipv4.tcp_rmem=4096 87380 {1 << 20}")
    (command,) = ran
    shell = command[len(line.inside(1)) :]
    assert shell[0] == "sh"
    assert shell[-2:] == ("/proc/sys/net/ipv4/tcp_rmem", f"4096 87380 {1 << 20}")
    written = tmp_path / "written"
    subprocess.run([*shell[:-2], str(written), shell[-1]], check=True)
    assert written.read_text() == f"4096 87380 {1 << 20}\n"


def test_a_line_says_its_rate_and_queue_in_bytes() -> None:
    command = wan_line.Line(100, 0.01).command()
    assert "delay_ms=50.0 " in command
    assert "rate_bytes=12500000 queue_bytes=2500000" in command


@needs_program
def test_a_line_delays_what_passes_and_counts_it() -> None:
    reason = wan_line.unavailable()
    if reason is not None:
        pytest.skip(reason)
    assert PROGRAM is not None
    echo = (
        "import socket, sys; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM);"
        "s.bind((sys.argv[1], 0)); print(s.getsockname()[1], flush=True);"
        "s.settimeout(20); s.sendto(*s.recvfrom(99))"
    )
    ask = (
        "import socket, sys, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM);"
        "s.settimeout(20); begin = time.monotonic();"
        "s.sendto(b'a message', (sys.argv[1], int(sys.argv[2]))); s.recv(99);"
        "print(time.monotonic() - begin)"
    )
    with wan_line.LongLine(PROGRAM.with_name("wan_line")) as line:
        names = line.names
        line.set(wan_line.Line(60))
        server = subprocess.Popen(
            [*line.inside(0), sys.executable, "-c", echo, line.address(0)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        asked = subprocess.run(
            [*line.inside(1), sys.executable, "-c", ask, line.address(0), port],
            capture_output=True,
            text=True,
            check=True,
        )
        server.communicate(timeout=30)
        assert float(asked.stdout) >= 0.06
        assert line.take().packets >= 1
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    assert not [name for name in names if name in left]
