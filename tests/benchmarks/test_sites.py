"""Two sites in namespaces, and the benchmark on them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import sites, wan_line
from benchmarks.two_sites import TwoSites
from tests.support.native_programs import folder_of

FOLDER = folder_of("wan_line")

# Answers one datagram with the address that it came from.
MASTER = """
import socket, sys
here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
here.bind((sys.argv[1], 0))
here.settimeout(60)
print(here.getsockname()[1], flush=True)
_, sender = here.recvfrom(100)
here.sendto(sender[0].encode(), sender)
"""
WORKER = """
import socket, sys
here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
here.settimeout(60)
here.sendto(b"hello", (sys.argv[1], int(sys.argv[2])))
print(here.recvfrom(100)[0].decode())
"""
STRANGER = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 22), timeout=60)
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.skipif(FOLDER is None, reason="wan_line is not built")
def test_the_master_is_reached_from_both_sites_and_nobody_reaches_the_second() -> None:
    reason = wan_line.unavailable()
    if reason is not None:
        pytest.skip(reason)
    assert FOLDER is not None
    with TwoSites(1, FOLDER / "wan_line") as network:
        network.set_line(wan_line.Line(10))
        master = network.address(0)

        def say(node: int, script: str, *words: str) -> str:
            command = [*network.inside(node), sys.executable, "-c", script, *words]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
            return done.stdout.strip()

        for worker, seen in ((1, network.address(1)), (2, "10.78.0.2")):
            command = [*network.inside(0), sys.executable, "-c", MASTER, master]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
                assert running.stdout is not None
                assert say(worker, WORKER, master, running.stdout.readline().strip()) == seen
        assert say(0, STRANGER, network.address(2)) == "Network is unreachable"
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    assert "-wan" not in left.stdout


def test_where_there_can_be_no_namespaces_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.wan_line.unavailable", lambda: "network namespaces need root")
    sites.main(["--quick", "--output", str(tmp_path)])
    written = json.loads((tmp_path / "sites-quick.json").read_text())
    assert {row["name"] for row in written["rows"]} == sites.TARGETS
    assert not written["targets"]
