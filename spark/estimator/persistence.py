"""How estimators and models are saved: Spark's own metadata, and files beside it.

`save` and `load` go through Hadoop's file systems, as all of Spark ML does, so that a path means
the same to every stage of a Pipeline. Loading runs pickled code: load what you have saved yourself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReader, MLWriter

from keras_strom import errors

from ..data.connect import context_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CHUNK_BYTES = 4 << 20


class Writer(MLWriter):  # type: ignore[misc]
    """Saves a stage that has `_contents() -> (metadata, files)`."""

    def __init__(self, stage: Any) -> None:
        super().__init__()
        self._stage = stage

    def saveImpl(self, path: str) -> None:  # noqa: N802
        """Writes metadata and files under `path`."""
        metadata, files = self._stage._contents()
        plain = {one.name: value for one, value in self._stage._paramMap.items() if is_plain(value)}
        DefaultParamsWriter.saveMetadata(
            self._stage,
            path,
            context_of(self.sparkSession),
            extraMetadata={"keras_strom": metadata},
            paramMap=plain,
        )
        for name, content in files.items():
            write_file(self.sparkSession, f"{path.rstrip('/')}/{name}", content)


class Reader(MLReader):  # type: ignore[misc]
    """Loads a stage of a class that has `_restored(metadata, read)`."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self._kind = kind

    def load(self, path: str) -> Any:
        """The stage saved under `path`.

        Raises:
            InvalidOption: another kind of stage is saved there.
            StoreUnavailable: a file is missing.
        """
        metadata = DefaultParamsReader.loadMetadata(path, context_of(self.sparkSession))
        found = str(metadata["class"]).rpartition(".")[2]
        if found != self._kind.__name__:
            raise errors.InvalidOption(
                f"{path} holds a {found}, not a {self._kind.__name__}: load it with {found}.load"
            )

        def read(name: str) -> bytes:
            return read_file(self.sparkSession, f"{path.rstrip('/')}/{name}")

        stage = self._kind._restored(metadata["keras_strom"], read)
        stage._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(stage, metadata)
        return stage


def is_plain(value: Any) -> bool:
    """Whether JSON gives a value back as it was."""
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False


def not_plain(stage: Any) -> dict[str, Any]:
    """The set parameters that the metadata cannot hold."""
    values: Mapping[Any, Any] = stage._paramMap
    return {one.name: value for one, value in values.items() if not is_plain(value)}


def write_file(spark: SparkSession, path: str, content: bytes) -> None:
    """Writes a file of any file system that Spark knows."""
    system, place = _file_system(spark, path)
    stream = system.create(place, True)
    try:
        for begin in range(0, len(content), _CHUNK_BYTES):
            stream.write(bytearray(content[begin : begin + _CHUNK_BYTES]))
    finally:
        stream.close()


def read_file(spark: SparkSession, path: str) -> bytes:
    """The content of a file of any file system that Spark knows.

    Raises:
        StoreUnavailable: there is none.
    """
    system, place = _file_system(spark, path)
    if not system.exists(place):
        raise errors.StoreUnavailable(f"{path}: no such file; has it all been saved?")
    stream = system.open(place)
    chunks = []
    try:
        while chunk := bytes(stream.readNBytes(_CHUNK_BYTES)):
            chunks.append(chunk)
    finally:
        stream.close()
    return b"".join(chunks)


def _file_system(spark: SparkSession, path: str) -> tuple[Any, Any]:
    context = context_of(spark)
    jvm = context._jvm
    assert jvm is not None
    place = jvm.org.apache.hadoop.fs.Path(path)
    return place.getFileSystem(context._jsc.hadoopConfiguration()), place
