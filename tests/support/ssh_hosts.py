"""Four machines with ssh: network namespaces, in each of which a real sshd listens.

Keys, configuration and logs lie in a folder of the test's own; neither this machine's sshd nor
anybody's ~/.ssh is touched. All "machines" share this one's files, users and host name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.namespaces import Network, unavailable
from tests.support.processes import wait_until_gone

MACHINES = 4
_SSHD = "/usr/sbin/sshd"
_PORT = 2222
# sshd wants this folder; here it is on a disk of its own, which nobody else sees.
_SERVE = "mount -t tmpfs none /run && mkdir /run/sshd && exec $0 -D -e -f $1"


def _missing() -> str | None:
    """Why there can be no such machines here; None = there can."""
    for program in (_SSHD, "ssh", "ssh-keygen"):
        if shutil.which(program) is None:
            return f"not installed: {program} (apt-get install openssh-server openssh-client)"
    return unavailable()


class SshHosts:
    """Machines 0 to 3, of which the first runs launchers; named `host0` to `host3` for ssh.

    `stranger` is host1 for a user whose key it does not know, and `unknown` is host1 with a key of
    its own that is not known here.

    Attributes:
        ssh_args: with which ssh finds and enters them, for `--ssh-args`.
    """

    def __init__(self, folder: Path, network: Network) -> None:
        self._folder = folder
        self._network = network
        self._servers: list[subprocess.Popen[bytes]] = []
        for name in ("host_key", "user_key", "strangers_key"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
            subprocess.run(command, check=True)
        (folder / "authorized").write_text((folder / "user_key.pub").read_text())
        public = (folder / "host_key.pub").read_text()
        known = [f"[{self.address(n)}]:{_PORT} {public}" for n in range(MACHINES)]
        (folder / "known").write_text("".join(known))
        first = self.address(1)
        config = "".join(f"Host host{n}\n  HostName {self.address(n)}\n" for n in range(MACHINES))
        config += f"Host stranger\n  HostName {first}\n  IdentityFile {folder}/strangers_key\n"
        config += f"Host unknown\n  HostName {first}\n  UserKnownHostsFile /dev/null\n"
        config += (
            f"Host *\n  Port {_PORT}\n  User root\n  IdentitiesOnly yes\n"
            "  GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n"
            f"  UserKnownHostsFile {folder}/known\n"
            f"Match host * originalhost !stranger,*\n  IdentityFile {folder}/user_key\n"
        )
        (folder / "config").write_text(config)
        self.ssh_args = f"-F {folder}/config"

    def address(self, machine: int) -> str:
        """Its IPv4 address."""
        return self._network.address(machine)

    def inside(self, machine: int) -> list[str]:
        """What a command line starts with to run on a machine."""
        return self._network.inside(machine)

    def start(self) -> None:
        """Starts the servers."""
        for machine in range(1, MACHINES):
            config = self._folder / f"sshd-{machine}"
            path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH")]))
            config.write_text(
                f"Port {_PORT}\nListenAddress {self.address(machine)}\n"
                f"HostKey {self._folder}/host_key\nAuthorizedKeysFile {self._folder}/authorized\n"
                "PidFile none\nUsePAM no\nStrictModes no\nPermitRootLogin yes\n"
                "PasswordAuthentication no\nKbdInteractiveAuthentication no\n"
                f'SetEnv TF_CPP_MIN_LOG_LEVEL=3 "PYTHONPATH={path}"\n'
            )
            with open(self._folder / f"log-{machine}", "wb") as log:
                self._servers.append(
                    subprocess.Popen(
                        [*self._network.inside(machine), "sh", "-c", _SERVE, _SSHD, str(config)],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                    )
                )
        for machine in range(1, MACHINES):
            command = [
                "ssh",
                *self.ssh_args.split(),
                "-o",
                "ConnectionAttempts=30",
                f"host{machine}",
            ]
            subprocess.run(
                [*self._network.inside(0), *command, "true"], check=True, timeout=60,
                capture_output=True,
            )  # fmt: skip

    def close(self) -> None:
        """Ends the servers and whatever is left."""
        for machine in range(MACHINES):
            for pid in self._all_of(machine):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for server in self._servers:
            server.wait()

    def launch(self, hosts: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Starts `keras-strom run --hosts HOSTS ARGUMENTS` on machine 0."""
        flags = ["run", "--hosts", hosts, "--ssh-args", self.ssh_args]
        command = [sys.executable, "-m", "keras_strom", *flags, *arguments]
        return subprocess.Popen(
            [*self._network.inside(0), *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **options,
        )

    def set_line(self, machine: int, state: str) -> None:
        """Has a machine's line go "down" or "up"."""
        inside = self._network.inside(machine)
        subprocess.run([*inside, "ip", "link", "set", "dev", "line", state], check=True)

    def processes(self, machine: int) -> list[int]:
        """What runs there beside ssh servers, of which one stays with each line that is cut."""
        return [pid for pid in self._all_of(machine) if _name_of(pid) != "sshd"]

    def wait_until_empty(self, machine: int) -> None:
        """Returns when nothing that a launcher has started is left there."""
        for pid in self.processes(machine):
            wait_until_gone(pid)

    def _all_of(self, machine: int) -> list[int]:
        name = self._network.inside(machine)[3]
        done = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
        return list(map(int, done.stdout.split()))


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


@contextlib.contextmanager
def ssh_hosts(folder: Path) -> Iterator[SshHosts]:
    """Machines that are there until the context ends; skips where there can be none."""
    if (why := _missing()) is not None:
        pytest.skip(why)
    with Network(MACHINES) as network:
        hosts = SshHosts(folder, network)
        try:
            hosts.start()
            yield hosts
        finally:
            hosts.close()
