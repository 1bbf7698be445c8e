"""Fashion-MNIST for examples and tests, from the machine itself where it can be.

70000 pictures of clothes, 28 by 28 grey pixels, in ten classes (Xiao, Rasul and Vollgraf 2017).
Debian and Ubuntu ship them as the package dataset-fashion-mnist; elsewhere Keras downloads them.
"""

from __future__ import annotations

import fcntl
import gzip
import math
import os
import pathlib
import struct
import tempfile

import numpy as np
import numpy.typing as npt

#: Where the package dataset-fashion-mnist puts its files.
PACKAGE_DIRECTORY = pathlib.Path("/usr/share/datasets/fashion-mnist")

Images = npt.NDArray[np.uint8]
Split = tuple[Images, Images]

_UNSIGNED_BYTES = 0x08


def load_fashion_mnist(directory: pathlib.Path = PACKAGE_DIRECTORY) -> tuple[Split, Split]:
    """Returns the pictures and their classes.

    Args:
        directory: holds the four files in IDX format, compressed with gzip.

    Returns:
        ``(x_train, y_train), (x_test, y_test)``: uint8 arrays of shapes [60000, 28, 28], [60000],
        [10000, 28, 28] and [10000].

    Raises:
        FileNotFoundError: they are not on this machine and cannot be downloaded.
        ValueError: a file is not what it should be.
    """
    if not directory.is_dir():
        return _download(directory)
    return _read_split(directory, "train"), _read_split(directory, "t10k")


def read_idx(path: pathlib.Path) -> Images:
    """Reads one compressed IDX file of unsigned bytes; its header gives the array's shape.

    Raises:
        ValueError: it is of another type, or its size is not the one that its header promises.
    """
    with gzip.open(path) as file:
        content = file.read()
    if len(content) < 4 or content[:3] != bytes((0, 0, _UNSIGNED_BYTES)):
        raise ValueError(f"{path} is not an IDX file of unsigned bytes")
    rank = content[3]
    body = 4 + 4 * rank
    if len(content) < body:
        raise ValueError(f"{path} ends within its header")
    shape = struct.unpack(f">{rank}I", content[4:body])
    if len(content) - body != math.prod(shape):
        raise ValueError(f"{path} should hold {shape}, but has {len(content) - body} bytes")
    return np.frombuffer(content, np.uint8, offset=body).reshape(shape)


def _read_split(directory: pathlib.Path, name: str) -> Split:
    images = read_idx(directory / f"{name}-images-idx3-ubyte.gz")
    labels = read_idx(directory / f"{name}-labels-idx1-ubyte.gz")
    if len(images) != len(labels):
        raise ValueError(f"{directory}: {len(images)} {name} images, {len(labels)} labels")
    return images, labels


def _download(directory: pathlib.Path) -> tuple[Split, Split]:
    """Keras's copy, which it keeps under ~/.keras.

    One worker of a machine after the other: Keras takes a file that another one still downloads for
    a whole one.
    """
    import keras

    lock = pathlib.Path(tempfile.gettempdir(), f"fashion-mnist-{os.getuid()}.lock")
    try:
        with lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # Closing the file gives it up.
            train, test = keras.datasets.fashion_mnist.load_data()
    except Exception as error:  # urllib's, and Keras's own bare Exception
        raise FileNotFoundError(
            f"Fashion-MNIST is not in {directory} and could not be downloaded ({error}). "
            "On Debian and Ubuntu: apt-get install dataset-fashion-mnist"
        ) from error
    return train, test
