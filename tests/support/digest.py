"""What two workers compare to see whether they have the same bits."""

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np


def digest(arrays: Iterable[Any]) -> str:
    """SHA-256 of the bytes of arrays or tensors, one behind the other."""
    return hashlib.sha256(b"".join(np.asarray(array).tobytes() for array in arrays)).hexdigest()
