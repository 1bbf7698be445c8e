"""Shared libraries that tests compile for themselves, once for each state of their sources."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]


class NotHereError(Exception):
    """Something is missing on this machine; the message says what."""


def shared_library(
    name: str,
    sources: Sequence[pathlib.Path],
    *,
    flags: Sequence[str],
    link: Sequence[str] = (),
    depends: Sequence[pathlib.Path] = (),
) -> pathlib.Path:
    """The library `lib<name>.so` under build/, compiled where that is not done yet.

    Args:
        name: of the library.
        sources: what is compiled, each by itself.
        flags: of the compiler.
        link: what comes behind the objects.
        depends: other files of which it is made.

    Raises:
        NotHereError: there is no compiler.
    """
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise NotHereError(f"lib{name}.so needs a C++ compiler")
    digest = hashlib.sha256(" ".join([compiler, *flags, *link]).encode())
    for path in sorted({*sources, *depends}):
        digest.update(path.read_bytes())
    target = ROOT / "build" / name / digest.hexdigest()[:16] / f"lib{name}.so"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _only_one(target.parent / "lock"):
        if not target.exists():
            _compile(target, compiler, sources, [*flags, "-fPIC", "-Wall", "-Wextra"], link)
    return target


def _compile(
    target: pathlib.Path,
    compiler: str,
    sources: Sequence[pathlib.Path],
    flags: Sequence[str],
    link: Sequence[str],
) -> None:
    ccache = [found] if (found := shutil.which("ccache")) else []
    objects = [str(target.with_name(source.name + ".o")) for source in sources]
    running = [
        subprocess.Popen([*ccache, compiler, *flags, "-c", str(source), "-o", made])
        for source, made in zip(sources, objects, strict=True)
    ]
    ended = [process.wait() for process in running]
    if any(ended):
        raise AssertionError(f"{target.name} does not compile; see above")
    new = target.with_suffix(".new")
    subprocess.run([compiler, "-shared", "-o", str(new), *objects, *link], check=True)
    new.rename(target)


@contextlib.contextmanager
def _only_one(path: pathlib.Path) -> Iterator[None]:
    """Other processes wait meanwhile."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
