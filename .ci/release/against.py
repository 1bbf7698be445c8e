"""What a release is built against: an older system's libraries, OpenSSL, the TensorFlows.

Each function makes a folder of build/release once and returns it; what they fetch stays in
build/release/downloads.
"""

import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RELEASE = ROOT / "build" / "release"
DOWNLOADS = RELEASE / "downloads"
# libcrypto alone, and of that what a provider for AES-GCM, X25519, SHA-2 and random numbers needs.
# It reads no openssl.cnf: the system's may name providers of the system's own OpenSSL.
OPENSSL_WITHOUT = (
    *("shared", "tests", "engine", "dso", "module", "legacy", "autoload-config", "comp"),
    *("ui-console", "ssl3", "srp", "ct", "cms", "ts", "ocsp", "cmp", "gost", "sm2", "sm3", "sm4"),
    *("aria", "camellia", "seed", "idea", "bf", "cast", "rc2", "rc4", "mdc2", "whirlpool"),
    *("rmd160", "des", "md4", "scrypt", "siphash", "dsa", "psk", "srtp"),
)
OPENSSL_OPTIONS = (
    *("linux-x86_64", "--openssldir=/etc/ssl"),
    *(f"no-{part}" for part in OPENSSL_WITHOUT),
)


def log(words: str) -> None:
    """Tells what goes on."""
    sys.stderr.write(f"==> {words}\n")


def run(*command: str | Path, cwd: Path = ROOT, log_name: str = "", **environment: str) -> str:
    """Runs a program and returns its output; ends with its words when it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if log_name else None,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    if log_name:
        (RELEASE / "logs").mkdir(parents=True, exist_ok=True)
        (RELEASE / "logs" / f"{log_name}.log").write_text(done.stdout)
    if done.returncode != 0:
        words = f"{' '.join(map(str, command))} failed:\n{done.stdout[-6000:]}"
        raise SystemExit(words)
    return done.stdout


def sources() -> list[tuple[str, str]]:
    """The SHA-256 and the place of each line of sources.txt."""
    lines = (HERE / "sources.txt").read_text().splitlines()
    words = (line.split() for line in lines if line and line[0] != "#")
    return [(digest, place) for digest, place in words]


def address(place: str) -> str:
    """Where a file of Debian's archives can be had: "debian/pool/..." by apt's own "debian"."""
    archive, _, rest = place.partition("/")
    for mirror in run("apt-get", "indextargets", "--format", "$(REPO_URI)").split():
        if mirror.rstrip("/").rpartition("/")[2] == archive:
            return f"{mirror.rstrip('/')}/{rest}"
    raise SystemExit(
        f"apt has no source whose address ends in /{archive}, where {place} would be: a release is "
        "built on Debian; add one to its sources and run `apt-get update`."
    )


def fetched(digest: str, place: str) -> Path:
    """The file of a line of sources.txt."""
    path = DOWNLOADS / place.rpartition("/")[2]
    if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        DOWNLOADS.mkdir(parents=True, exist_ok=True)
        log(f"fetching {path.name}")
        url = address(place)
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                content = answer.read()
        except urllib.error.URLError as error:
            raise SystemExit(
                f"{url} cannot be fetched ({error}). Where Debian has replaced it by a newer "
                "version, write that one's place and SHA-256 into .ci/release/sources.txt."
            ) from error
        if (found := hashlib.sha256(content).hexdigest()) != digest:
            raise SystemExit(f"{url} has the SHA-256 {found}, not {digest}: it is refused.")
        path.write_bytes(content)
    return path


def stamp_of(*parts: str) -> str:
    """A short name for what a folder is made of, so that another recipe makes another one."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def made(folder: Path) -> Iterator[Path]:
    """Gives a folder to fill where `folder` is not there yet, and names it so when that is done."""
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        run("rm", "-rf", unfinished)
        unfinished.mkdir(parents=True)
        yield unfinished
        unfinished.rename(folder)


def sysroot() -> Path:
    """Headers and libraries of Debian 11, less what glibc 2.28 has not."""
    packages = [one for one in sources() if one[1].endswith(".deb")]
    root = RELEASE / f"sysroot-{stamp_of(*(digest for digest, _ in packages))}"
    for folder in made(root):
        log("unpacking the older system's libraries")
        for package in packages:
            unpack_deb(fetched(*package), folder)
        for link in [path for path in folder.rglob("*") if path.is_symlink()]:
            target = os.readlink(link)
            if target.startswith("/"):
                link.unlink()
                link.symlink_to(os.path.relpath(folder / target[1:], link.parent))
        # pthread_cond_clockwait came with glibc 2.30; libstdc++ does without.
        (config,) = folder.glob("usr/include/*/c++/10/bits/c++config.h")
        text = config.read_text()
        without = text.replace("#define _GLIBCXX_USE_PTHREAD_COND_CLOCKWAIT 1", "")
        if without == text:
            raise SystemExit(f"{config} has no _GLIBCXX_USE_PTHREAD_COND_CLOCKWAIT to take away.")
        config.write_text(without)
    return root


def unpack_deb(path: Path, folder: Path) -> None:
    """Unpacks a Debian package: an ar archive with a data.tar.xz in it."""
    content = path.read_bytes()
    position = 8
    while position < len(content):
        header = content[position : position + 60]
        size = int(header[48:58])
        if header.startswith(b"data.tar"):
            data = content[position + 60 : position + 60 + size]
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                archive.extractall(folder)
            return
        position += 60 + size + size % 2
    raise SystemExit(f"{path} has no data.tar.")


def openssl(system: Path) -> Path:
    """Returns libcrypto.a and its headers, built against the older system."""
    (source,) = (one for one in sources() if "openssl" in one[1])
    root = RELEASE / f"openssl-{stamp_of(source[0], system.name, *OPENSSL_OPTIONS)}"
    for folder in made(root):
        log("building libcrypto (2 minutes)")
        tree = folder / "source"
        with tarfile.open(fetched(*source)) as archive:
            archive.extractall(tree)
        (tree,) = tree.iterdir()
        # The compiler's command stands in the library: under a name without this machine's paths.
        compiler = folder / "bin" / "cc"
        compiler.parent.mkdir()
        compiler.write_text(f'#!/bin/sh\nexec gcc --sysroot="{system}" "$@"\n')
        compiler.chmod(0o755)
        environment = {
            "CC": "cc",
            "PATH": f"{compiler.parent}{os.pathsep}{os.environ['PATH']}",
            "SOURCE_DATE_EPOCH": str(int((tree / "VERSION.dat").stat().st_mtime)),
        }
        run("./Configure", *OPENSSL_OPTIONS, cwd=tree, log_name="openssl", **environment)
        jobs = f"-j{len(os.sched_getaffinity(0))}"
        targets = ("build_generated", "libcrypto.a")
        for target in targets:
            run("make", jobs, target, cwd=tree, log_name="openssl", **environment)
        (tree / "libcrypto.a").rename(folder / "libcrypto.a")
        (folder / "include").mkdir()
        (tree / "include" / "openssl").rename(folder / "include" / "openssl")
        run("rm", "-rf", folder / "source")
    return root


def openssl_parts() -> tuple[str, str, str]:
    """OpenSSL's version, its source's place and SHA-256."""
    (source,) = (one for one in sources() if "openssl" in one[1])
    found = re.search(r"openssl_([\d.]+)\.orig", source[1])
    if not found:
        raise SystemExit(f"{source[1]} does not name OpenSSL's version.")
    return found[1], source[1], source[0]


def tensorflow(version: str) -> Path:
    """The headers of a TensorFlow and the library that operators are linked with."""
    root = RELEASE / "tensorflow" / version
    for folder in made(root):
        log(f"fetching TensorFlow {version}'s headers (0.25 GB)")
        with zipfile.ZipFile(tensorflow_wheel(version)) as wheel:
            wanted = [
                name
                for name in wheel.namelist()
                if name.startswith("tensorflow/include/")
                or name == "tensorflow/libtensorflow_framework.so.2"
                or re.fullmatch(r"[^/]*\.dist-info/METADATA", name)
            ]
            wheel.extractall(folder, wanted)
    return root


def tensorflow_wheel(version: str) -> Path:
    """Its wheel from pip; for which Python does not matter."""
    name = f"tensorflow_cpu-{version}-*.whl"
    if not [*DOWNLOADS.glob(name)]:
        DOWNLOADS.mkdir(parents=True, exist_ok=True)
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps")
        run(*pip, "--only-binary=:all:", "--dest", DOWNLOADS, f"tensorflow-cpu=={version}")
    return next(iter(sorted(DOWNLOADS.glob(name))))
