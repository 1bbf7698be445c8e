"""A root folder of Debian with nothing but what a Dockerfile names, and what runs in it.

There is no Docker here: `replay` does what its instructions say in a root that debootstrap has made
(variant minbase, as debian:bookworm-slim), by chroot in namespaces of its own.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import io
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

SUITE = "bookworm"
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Mounts are gone with the namespace. $1 = the root, $2 = wheels, the rest is chroot's.
_ENTER = """
set -e
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
mount --bind "$2" "$1/mnt"
root=$1
shift 2
exec chroot "$@"
"""


def why_not() -> str:
    """Why no root can be made here; "" = it can."""
    if os.geteuid() != 0:
        return "needs root, for debootstrap, chroot and mounts"
    missing = [name for name in ("debootstrap", "unshare", "chroot") if shutil.which(name) is None]
    if missing:
        return f"there is no {missing[0]}: apt-get install debootstrap"
    tried = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False
    )
    return "" if tried.returncode == 0 else f"no namespaces here: {tried.stderr.decode().strip()}"


def bare_root(kept: Path) -> Path:
    """A root of Debian's own packages; made once, and kept in that folder."""
    root = kept / SUITE
    if not root.exists():
        half = kept / f"{SUITE}.half"
        shutil.rmtree(half, ignore_errors=True)
        kept.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["debootstrap", "--variant=minbase", SUITE, str(half)],
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=900,
        )
        half.rename(root)
    return root


@dataclasses.dataclass
class SlimRoot:
    """A copy of a root, and where its commands stand.

    Attributes:
        path: of the root folder.
        wheels: packages for pip, seen as /mnt inside; pip has no other source there.
        env: the variables of every command.
        user: by whom commands run.
        directory: in which they run.
        entry_point, command: what the image runs.
    """

    path: Path
    wheels: Path
    env: dict[str, str] = dataclasses.field(default_factory=lambda: {"PATH": _SYSTEM_PATH})
    user: str = "0"
    directory: str = "/"
    entry_point: tuple[str, ...] = ()
    command: tuple[str, ...] = ()

    @classmethod
    def copy_of(cls, bare: Path, path: Path, wheels: Path) -> SlimRoot:
        """A root to change."""
        subprocess.run(["cp", "--archive", str(bare), str(path)], check=True)
        for name in ("etc/resolv.conf", "etc/hosts"):
            shutil.copyfile(f"/{name}", path / name)
        return cls(path, wheels)

    def run(
        self, command: Sequence[str], *, timeout: float = 900.0, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command as the image would; `variables` are for it alone."""
        inside = ["sh", "-c", 'cd "$0" && exec "$@"', self.directory, *command]
        user = self.user if ":" in self.user else f"{self.user}:{self.user}"
        env = {**self.env, **variables}
        enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", _ENTER, "-"]
        return subprocess.run(
            [
                *enter,
                str(self.path),
                str(self.wheels),
                f"--userspec={user}",
                str(self.path),
                *inside,
            ],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def build_step(self, command: Sequence[str], **variables: str) -> None:
        """Runs a command of an image's building, which must end well; apt may use the network."""
        pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/mnt", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        debian = {"DEBIAN_FRONTEND": "noninteractive"}
        done = self.run(command, **pip, **debian, **variables)
        assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"

    def copy(self, sources: Sequence[Path], target: str, owner: str | None) -> None:
        """Copies files, or what is in folders, to a path of the image."""
        to = self.path / target.lstrip("/")
        if target.endswith("/"):
            to.mkdir(parents=True, exist_ok=True)
        for source in sources:
            if source.is_dir():
                to.mkdir(parents=True, exist_ok=True)
                shutil.copytree(source, to, symlinks=True, dirs_exist_ok=True)
            else:
                shutil.copy(source, to)
        if owner is not None:
            subprocess.run(["chown", "--recursive", owner, str(to)], check=True)


def replay(
    dockerfile: Path, context: Path, root: SlimRoot, stages: Mapping[str, Path] | None = None
) -> None:
    """Does what the instructions of a Dockerfile's last stage say.

    Args:
        dockerfile: read by dockerfile-parse.
        context: the folder that COPY copies from.
        root: what stands for its base.
        stages: folders in place of other stages, by their name.
    """
    import dockerfile_parse

    text = dockerfile.read_text()
    parser = dockerfile_parse.DockerfileParser(fileobj=io.BytesIO(text.encode()))
    steps = [(step["instruction"], step["value"]) for step in parser.structure]
    last = max(place for place, (name, _) in enumerate(steps) if name == "FROM")
    arguments: dict[str, str] = {}
    for name, value in steps[last + 1 :]:
        if name == "ARG":
            key, _, default = value.partition("=")
            arguments[key] = default
        elif name == "RUN":
            assert root.user == "0", "a build step after USER is not replayed"
            root.build_step(["sh", "-c", value], **arguments)
        elif name == "ENV":
            root.env.update(pair.split("=", 1) for pair in shlex.split(value))
        elif name == "COPY":
            _copy(shlex.split(value), context, root, stages or {})
        elif name == "USER":
            root.user = value
        elif name == "WORKDIR":
            root.directory = value
            (root.path / value.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif name == "ENTRYPOINT":
            root.entry_point = tuple(json.loads(value))
        elif name == "CMD":
            root.command = tuple(json.loads(value))
        else:
            assert name == "COMMENT", f"{name} is not replayed"


def _copy(words: list[str], context: Path, root: SlimRoot, stages: Mapping[str, Path]) -> None:
    owner, source_root = None, context
    while words[0].startswith("--"):
        flag, _, value = words.pop(0).partition("=")
        assert flag in ("--from", "--chown"), f"{flag} is not replayed"
        if flag == "--from":
            source_root = stages[value]
        else:
            owner = value
    *patterns, target = words
    for pattern in patterns:
        folder, _, name = pattern.strip("/").rpartition("/")
        found = [
            path for path in (source_root / folder).iterdir() if fnmatch.fnmatch(path.name, name)
        ]
        assert found, f"COPY {pattern}: there is no such file"
        root.copy(found, target, owner)
