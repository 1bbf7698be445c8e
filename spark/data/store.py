"""Where a job keeps what outlives it: data, checkpoints, logs and the model, a folder a run.

A store is a folder on a file system that the driver and every worker reach: a local or mounted one,
HDFS, S3, Google Cloud Storage or Azure through pyarrow, DBFS by its mount, and whatever else fsspec
knows. Writing is atomic: a reader sees the old content or the new, never a part.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import re
import urllib.parse
import uuid
from typing import TYPE_CHECKING, Any

from keras_strom import errors
from keras_strom.job.network import STORE_SCHEMES
from keras_strom.stale_files import anew_if_stale

if TYPE_CHECKING:
    from collections.abc import Iterator

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):(?=/)", re.IGNORECASE)
# pyarrow's own; every other scheme goes to fsspec.
_ARROW_SCHEMES = frozenset(("hdfs", "viewfs", "s3", "gs", "gcs", "abfs", "abfss"))
# The names that Hadoop gives to the same buckets.
_HADOOP_NAMES = {"s3a": "s3", "s3n": "s3"}
_DBFS_MOUNT = "/dbfs"
_ROOM = "; make room there, or name a folder of another disk"
_REMEDIES = {
    errno.ESTALE: "; its server was restarted, or exports something else now: see that it is "
    "mounted anew, then run this again",
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EIO: "; the disk, or the way to its server, fails: see that machine's kernel log",
}
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclasses.dataclass(frozen=True)
class Store:
    """A folder for the runs of a job; small, and picklable, since it opens its file system anew.

    Make one with `create`. Its methods take paths below it, as `run` gives them.

    Attributes:
        url: the folder, without a trailing slash; an absolute path where it is local.
        options: the query of the URL, such as "region=eu-west-1"; never shown.

    Example:
        >>> run = Store.create("/mnt/shared/strom").run("flights-1")  # doctest: +SKIP
        >>> run.model  # doctest: +SKIP
        '/mnt/shared/strom/flights-1/model.keras'
    """

    url: str
    options: str = dataclasses.field(default="", repr=False)

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> Store:
        """The store at a path or URL. Nothing is opened or made yet.

        Args:
            path: a local path, or a URL: file, hdfs, s3 (s3a), gs, abfs, dbfs or any that fsspec
                knows. Options of pyarrow's file systems follow a "?".

        Raises:
            InvalidOption: no path at all, or a URL that names no folder and no host, or lacks its
                slashes.
        """
        text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
        scheme = _scheme(text) if isinstance(text, str) else None
        is_root = scheme not in (None, "file") and not text[len(scheme or "") :].strip(":/")
        if not isinstance(text, str) or not text.strip() or is_root:
            raise errors.InvalidOption(
                "a store needs the path or URL of a folder that driver and workers reach, not "
                f"{path!r}"
            )
        begin, colon, _ = text.partition(":")
        if scheme is None and colon and begin.lower() in STORE_SCHEMES:
            raise errors.InvalidOption(
                f"{path!r} lacks the slashes of a URL: write {begin}://..., or ./{text} where a "
                "folder here has this name"
            )
        if scheme is None:
            return cls(os.path.abspath(os.path.expanduser(text)))
        if scheme == "file":
            return cls(os.path.abspath(re.sub(r"^file:(//[^/]*)?(?=/)", "", text, flags=re.I)))
        if scheme == "dbfs" and os.path.isdir(_DBFS_MOUNT):
            return cls(_DBFS_MOUNT + re.sub(r"^dbfs:/+", "/", text, flags=re.I).rstrip("/"))
        location, _, options = text.partition("?")
        rest = location[len(scheme) :]
        return cls(_HADOOP_NAMES.get(scheme, scheme) + rest.rstrip("/"), options)

    @property
    def is_local(self) -> bool:
        """Whether it is a path of this machine, which other hosts may or may not share."""
        return _scheme(self.url) is None

    def run(self, run_id: str) -> StoreRun:
        """The paths of one run.

        Raises:
            InvalidOption: an id that is no plain file name.
        """
        if not isinstance(run_id, str) or not _RUN_ID.fullmatch(run_id):
            raise errors.InvalidOption(
                f"run_id={run_id!r} must be letters, digits, '.', '_' and '-', as a file name is"
            )
        return StoreRun(self, run_id)

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder at `path`."""
        from pyarrow import fs

        def look() -> bool:
            filesystem, inside = self.resolve(path)
            return bool(filesystem.get_file_info(inside).type != fs.FileType.NotFound)

        with explained(path):
            return anew_if_stale(look)

    def read_bytes(self, path: str) -> bytes:
        """A file's content.

        Raises:
            StoreUnavailable: there is none, or the file system cannot be reached.
        """
        with explained(path):
            filesystem, inside = self.resolve(path)

            def read() -> bytes:
                with filesystem.open_input_stream(inside) as stream:
                    return bytes(stream.read())

            return anew_if_stale(read)

    def write_bytes(self, path: str, content: bytes) -> None:
        """Writes a file, and the folders above it, in one piece; replaces what was there.

        Raises:
            StoreUnavailable: the file system cannot be reached or written to.
        """

        def write() -> None:
            output = _Output(*self.resolve(path))
            try:
                output.stream.write(content)
                output.finish()
            except BaseException:
                output.discard()
                raise

        with explained(path):
            anew_if_stale(write)

    @contextlib.contextmanager
    def open_output(self, path: str) -> Iterator[Any]:
        """A binary file to write to, which appears at `path` when the block ends well.

        Where it does not, nothing is left. What the block writes cannot be written anew here if
        the file becomes stale; whoever still has it all begins again with another file.

        Raises:
            StoreUnavailable: it cannot be opened or ended. What writing to it raises, the block has
                `explained`.
        """
        with explained(path):
            output = _Output(*self.resolve(path))
        try:
            yield output.stream
            with explained(path):
                output.finish()
        except BaseException:
            output.discard()
            raise

    def delete(self, path: str) -> None:
        """Deletes a file, or a folder with all that is in it; nothing there is no error."""
        from pyarrow import fs

        def delete() -> None:
            filesystem, inside = self.resolve(path)
            kind = filesystem.get_file_info(inside).type
            if kind == fs.FileType.Directory:
                filesystem.delete_dir(inside)
            elif kind != fs.FileType.NotFound:
                filesystem.delete_file(inside)

        with explained(path):
            anew_if_stale(delete)

    def upload(self, local: str | os.PathLike[str], path: str) -> None:
        """Copies a local file or folder to `path`; files one by one, not in one piece.

        Raises:
            StoreUnavailable: either side cannot be read or written.
        """
        from pyarrow import fs

        def copy() -> None:
            filesystem, inside = self.resolve(path)
            filesystem.create_dir(os.path.dirname(inside), recursive=True)
            fs.copy_files(
                os.fspath(local),
                inside,
                source_filesystem=fs.LocalFileSystem(),
                destination_filesystem=filesystem,
            )

        with explained(path):
            anew_if_stale(copy)

    def download(self, path: str, local: str | os.PathLike[str]) -> None:
        """Copies a file or folder at `path` to a local path.

        Raises:
            StoreUnavailable: either side cannot be read or written.
        """
        from pyarrow import fs

        def copy() -> None:
            filesystem, inside = self.resolve(path)
            os.makedirs(os.path.dirname(os.path.abspath(local)), exist_ok=True)
            fs.copy_files(
                inside,
                os.fspath(local),
                source_filesystem=filesystem,
                destination_filesystem=fs.LocalFileSystem(),
            )

        with explained(path):
            anew_if_stale(copy)

    def resolve(self, path: str) -> tuple[Any, str]:
        """(pyarrow file system, path in it) of a path below this store.

        Raises:
            InvalidOption: a path outside, or a scheme that nothing installed here knows.
        """
        if path != self.url and not path.startswith(self.url.rstrip("/") + "/"):
            raise errors.InvalidOption(f"{_shown(path)} is not in the store {_shown(self.url)}")
        if ".." in path[len(self.url) :].split("/"):
            raise errors.InvalidOption(
                f"{_shown(path)} leads out of the store {_shown(self.url)}: leave out '..'"
            )
        from pyarrow import fs

        scheme = _scheme(path)
        if scheme is None:
            return fs.LocalFileSystem(), path
        if scheme in _ARROW_SCHEMES:
            query = f"?{self.options}" if self.options else ""
            return fs.FileSystem.from_uri(_quoted(path) + query)  # type: ignore[no-any-return]
        return _fsspec(scheme, path)


@dataclasses.dataclass(frozen=True)
class StoreRun:
    """One run's paths in its store: strings for `Store`'s methods.

    Attributes:
        store: the store.
        run_id: the run.
    """

    store: Store
    run_id: str

    @property
    def path(self) -> str:
        """The run's folder, above all others."""
        return f"{self.store.url.rstrip('/')}/{self.run_id}"

    @property
    def data(self) -> str:
        """The folder of all rows."""
        return f"{self.path}/data"

    @property
    def train_data(self) -> str:
        """The folder of the training rows."""
        return f"{self.data}/train"

    @property
    def validation_data(self) -> str:
        """The folder of the validation rows."""
        return f"{self.data}/validation"

    @property
    def data_index(self) -> str:
        """The file that says what the two folders hold (`ExportedData`)."""
        return f"{self.data}/index.json"

    @property
    def checkpoints(self) -> str:
        """The folder of BackupAndRestore."""
        return f"{self.path}/checkpoints"

    @property
    def logs(self) -> str:
        """The folder of TensorBoard."""
        return f"{self.path}/logs"

    @property
    def model(self) -> str:
        """The trained model, a `.keras` file."""
        return f"{self.path}/model.keras"

    @property
    def history(self) -> str:
        """What `fit` has logged, a JSON file."""
        return f"{self.path}/history.json"


def _scheme(path: str) -> str | None:
    found = _SCHEME.match(path)
    return found.group(1).lower() if found else None


def _quoted(url: str) -> str:
    """A URL for pyarrow, to which %20 is a blank, and a blank is no URL."""
    scheme, mark, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{host}{slash}{urllib.parse.quote(path)}"


def _fsspec(scheme: str, path: str) -> tuple[Any, str]:
    from pyarrow import fs

    try:
        import fsspec

        opened, inside = fsspec.core.url_to_fs(path)
    except ImportError as error:
        raise errors.InvalidOption(
            f"the store {_shown(path)} needs the package fsspec and what it names for "
            f"{scheme!r} ({error}): install both on the driver and the workers"
        ) from error
    except ValueError as error:
        raise errors.InvalidOption(f"the store {_shown(path)}: {error}") from error
    return fs.PyFileSystem(fs.FSSpecHandler(opened)), str(inside)


class _Output:
    """A file on its way: written beside its place, and moved there once it is whole.

    Args:
        filesystem, path: as `Store.resolve` gives them.
    """

    def __init__(self, filesystem: Any, path: str) -> None:
        self._filesystem = filesystem
        self._path = path
        # An object appears when its stream is closed, in one piece; renaming would copy it.
        self._is_object = filesystem.type_name in ("s3", "gcs", "abfs")
        self._temporary = path if self._is_object else f"{path}.{uuid.uuid4().hex}.tmp"
        self.stream = anew_if_stale(self._open)

    def _open(self) -> Any:
        self._filesystem.create_dir(os.path.dirname(self._path), recursive=True)
        return self._filesystem.open_output_stream(self._temporary)

    def finish(self) -> None:
        self.stream.close()
        if not self._is_object:
            anew_if_stale(lambda: self._filesystem.move(self._temporary, self._path))

    def discard(self) -> None:
        """Leaves nothing, as far as the file system lets us: the first error is what counts."""
        if self._is_object:
            return
        with contextlib.suppress(OSError):  # On a disk that is full this fails, too.
            self.stream.close()
        with contextlib.suppress(OSError):
            anew_if_stale(lambda: self._filesystem.delete_file(self._temporary))


@contextlib.contextmanager
def explained(path: str) -> Iterator[None]:
    """Errors of the file system in the block as ours, which name `path` and what to do.

    Raises:
        StoreUnavailable: in their place.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, errors.StromError):
            raise
        remedy = _REMEDIES.get(error.errno or 0, "")
        raise errors.StoreUnavailable(f"{_shown(path)}: {error}{remedy}") from error


def _shown(url: str) -> str:
    """A URL without the user and the key that it may hold."""
    return re.sub(r"(?<=://)[^/@]+:[^/@]*@", "...@", url)
