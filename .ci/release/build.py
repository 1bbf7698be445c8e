#!/usr/bin/env python3
"""Builds the wheel, the source distribution and their list of parts into dist/: `make release`.

The wheel carries the operators for every TensorFlow of keras_strom/_native/tensorflows.py and runs
on the systems of PLATFORM and later ones. All is built from the last commit, twice, in two folders:
the bytes must be the same.
"""

import argparse
import gzip
import hashlib
import os
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import against
from against import HERE, RELEASE, ROOT, log, run

PLATFORM = "manylinux_2_28_x86_64"
MAX_BYTES = 12_000_000
TENSORFLOWS = runpy.run_path(str(ROOT / "keras_strom" / "_native" / "tensorflows.py"))[
    "TENSORFLOWS"
]


def main() -> None:
    """Fetches, builds, checks, and fills dist/."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--once", action="store_true", help="do not build again to compare")
    options = parser.parse_args()
    if os.uname().machine != "x86_64":
        raise SystemExit(f"a release is built on x86_64, and this machine is {os.uname().machine}.")
    python = tools()
    if run("git", "status", "--porcelain", "--untracked-files=no").strip():
        log("what is changed here and not committed is not part of the release")
    commit, epoch = run("git", "log", "-1", "--format=%H %ct").split()
    built = build(RELEASE / "first", python, commit, epoch)
    if not options.once:
        for one, again in zip(built, build(RELEASE / "second", python, commit, epoch), strict=True):
            if one.read_bytes() != again.read_bytes():
                raise SystemExit(f"{one} and {again} differ: the build is not reproducible.")
        log("built twice, to the same bytes")
    publish(built, python, epoch)


def tools() -> Path:
    """The Python of an environment that has the tools of the extra `release`, and no other."""
    wanted = run(HERE.parent / "extra", "release").split()
    pins = ROOT / "constraints.txt"
    folder = RELEASE / f"tools-{against.stamp_of(sys.version, *wanted, pins.read_text())}"
    complete = folder / "complete"  # An environment cannot be made elsewhere and moved.
    if not complete.exists():
        log("making an environment with the tools")
        run(sys.executable, "-m", "venv", "--clear", folder)
        install = (folder / "bin" / "python", "-m", "pip", "install", "--quiet")
        run(*install, "-c", pins, *wanted, log_name="tools")
        complete.touch()
    return folder / "bin" / "python"


def build(folder: Path, python: Path, commit: str, epoch: str) -> list[Path]:
    """The wheel and the source distribution of a commit, whose time is `epoch`."""
    shutil.rmtree(folder, ignore_errors=True)
    tree = folder / "commit"
    tree.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True)
    subprocess.run(["tar", "-x", "-C", tree], input=archive.stdout, check=True)
    same_rights(tree)
    environment = {
        "SOURCE_DATE_EPOCH": epoch,
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "CMAKE_ARGS": "",
        **{"LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "0", "PYTHONPATH": ""},
    }
    log(f"building the source distribution in {folder.relative_to(ROOT)}")
    step = (python, "-m", "build", "--no-isolation")
    run(*step, "--sdist", "--outdir", folder, cwd=tree, log_name="sdist", **environment)
    (sdist,) = folder.glob("*.tar.gz")
    repack(sdist, int(epoch))
    with tarfile.open(sdist) as file:
        file.extractall(folder)
    source = folder / sdist.name.removesuffix(".tar.gz")

    tensorflows = [against.tensorflow(version) for version in TENSORFLOWS]
    system = against.sysroot()
    openssl = against.openssl(system)
    # What the compiler writes of paths into a library; an option of CMake's, so with semicolons.
    maps = {source: "keras-strom", system: "sysroot", openssl: "openssl", HERE: "release"}
    maps |= dict(zip(tensorflows, map("tensorflow-{}".format, TENSORFLOWS), strict=True))
    environment["STROM_TENSORFLOWS"] = os.pathsep.join(map(str, tensorflows))
    environment["CMAKE_ARGS"] = " ".join(
        [
            f"-DCMAKE_TOOLCHAIN_FILE={HERE / 'toolchain.cmake'}",
            f"-DSTROM_RELEASE_SYSROOT={system}",
            f"-DSTROM_RELEASE_OPENSSL={openssl}",
            "'-DSTROM_RELEASE_PREFIX_MAPS={}'".format(
                ";".join(f"-ffile-prefix-map={path}={name}" for path, name in maps.items())
            ),
            "-DSTROM_CUDA=OFF -DCMAKE_CXX_COMPILER_LAUNCHER=",
        ]
    )
    log(f"building the wheel in {folder.relative_to(ROOT)} (minutes)")
    unchecked = folder / "unchecked"
    run(*step, "--wheel", "--outdir", unchecked, cwd=source, log_name="wheel", **environment)
    (wheel,) = unchecked.iterdir()
    log(f"checking that it is {PLATFORM}")
    run(
        *(python.parent / "auditwheel", "repair", "--plat", PLATFORM, "--only-plat"),
        *("--exclude", "libtensorflow_framework.so.2", "--wheel-dir", folder, wheel),
        log_name="auditwheel",
        **environment,
    )
    (wheel,) = folder.glob("*.whl")
    check(wheel, system)
    return [wheel, sdist]


def same_rights(tree: Path) -> None:
    """Gives files the rights that they have everywhere, whatever the umask is here."""
    for path in tree.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)


def repack(sdist: Path, epoch: int) -> None:
    """Sorts an archive's members and takes this machine's times and names out of it."""
    with tarfile.open(sdist) as file:
        members = sorted(file.getmembers(), key=lambda member: member.name)
        content = [file.extractfile(one) if one.isfile() else None for one in members]
        with (
            sdist.with_suffix(".new").open("wb") as out,
            gzip.GzipFile("", "wb", mtime=epoch, fileobj=out) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
        ):
            for member, data in zip(members, content, strict=True):
                member.mtime, member.uid, member.gid = epoch, 0, 0
                member.uname = member.gname = ""
                member.pax_headers = {}
                new.addfile(member, data)
    sdist.with_suffix(".new").replace(sdist)


def check(wheel: Path, system: Path) -> None:
    """Refuses what is too large, not stripped, or lacks the operators for a TensorFlow.

    The older system's own linker looks whether each library finds there what it needs.
    """
    if wheel.stat().st_size > MAX_BYTES:
        raise SystemExit(f"{wheel} has {wheel.stat().st_size} bytes, more than {MAX_BYTES}.")
    tensorflow = against.tensorflow(TENSORFLOWS[-1])  # Any: names alone are looked for.
    with zipfile.ZipFile(wheel) as file:
        libraries = [name for name in file.namelist() if name.endswith(".so")]
        file.extractall(wheel.parent / "contents", libraries)
        for name in libraries:
            path = wheel.parent / "contents" / name
            if ".symtab" in (sections := run("readelf", "--sections", "--wide", path)):
                raise SystemExit(f"{name} is not stripped.")
            if ".debug" in sections:
                raise SystemExit(f"{name} has debugging information.")
            if str(ROOT).encode() in path.read_bytes():
                raise SystemExit(f"{name} names {ROOT}.")
            linker = [*system.glob("lib/*/ld-[0-9]*.so")]
            folders = [*system.glob("lib/*"), *system.glob("usr/lib/*"), tensorflow / "tensorflow"]
            places = ":".join(map(str, folders))
            found = run(*linker, "--list", "--library-path", places, path, log_name="linker")
            if "version `" in found:
                raise SystemExit(f"{name} needs what the older system has not:\n{found}")
    if len(libraries) != 1 + len(TENSORFLOWS):
        raise SystemExit(f"{wheel} has the libraries {libraries}, for {TENSORFLOWS}.")


def publish(built: list[Path], python: Path, epoch: str) -> None:
    """Fills dist/: what was built, its list of parts, and their hashes."""
    out = ROOT / "dist"
    out.mkdir(exist_ok=True)
    for old in out.glob("keras_strom-*"):
        old.unlink()
    published = [Path(shutil.copy(path, out)) for path in built]
    parts = out / f"{'-'.join(built[0].name.split('-')[:2])}.cdx.json"
    listed = (*against.openssl_parts(), *TENSORFLOWS)
    run(python, HERE / "parts.py", epoch, parts, *published, "--", *listed)
    lines = []
    for path in (*published, parts):
        content = path.read_bytes()
        lines.append(f"{hashlib.sha256(content).hexdigest()}  {path.name}\n")
        log(f"dist/{path.name}: {len(content) / 1e6:.2f} MB")
    (out / "SHA256SUMS").write_text("".join(lines))


if __name__ == "__main__":
    main()
