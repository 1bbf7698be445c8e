"""Writes Fashion-MNIST as the Parquet files that both scripts train on.

python prepare.py clothes                  # clothes/train.parquet and clothes/test.parquet
python prepare.py clothes --rows 2000      # so many pictures of each alone
"""

from __future__ import annotations

import argparse
import pathlib
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def write(folder: pathlib.Path, rows: int | None = None) -> None:
    """Writes both files: `pixels`, 784 float32 from 0 to 1, and `label`, 0 to 9.

    Args:
        folder: is made if it is missing.
        rows: the number of pictures in each file; None = all.
    """
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
    from fashion_mnist_data import load_fashion_mnist

    folder.mkdir(parents=True, exist_ok=True)
    for name, (images, labels) in zip(("train", "test"), load_fashion_mnist(), strict=True):
        pixels = images[:rows].reshape(-1).astype(np.float32) / np.float32(255)
        table = pa.table(
            {
                "pixels": pa.FixedSizeListArray.from_arrays(pixels, 784).cast(
                    pa.list_(pa.float32())
                ),
                "label": labels[:rows].astype(np.int64),
            }
        )
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=5000)


def main() -> None:
    """Reads the flags."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--rows", type=int)
    arguments = parser.parse_args()
    write(arguments.folder, arguments.rows)


if __name__ == "__main__":
    main()
