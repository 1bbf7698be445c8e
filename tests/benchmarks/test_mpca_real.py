"""`make bench-mpca-real`: what its order counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import mpca_real
from benchmarks.mpca_real import EASGD, MPCA, SPARKNET
from benchmarks.report import Report


@pytest.mark.parametrize(
    ("mpca", "easgd", "share"), [(0.9, 0.85, 1), (0.9, 0.7, 2 / 3), (0.75, 0.7, 0)]
)
def test_a_pair_of_which_neither_gets_there_does_not_hold(
    tmp_path: Path, mpca: float, easgd: float, share: float
) -> None:
    """SparkNet ends with 0.8, at 30 s; the others rise to their end at 10 and 20 s."""
    curves = {
        way: [(1.0, 0.1), *((seconds + i, end) for i in range(3))]
        for way, seconds, end in ((MPCA, 10.0, mpca), (EASGD, 20.0, easgd), (SPARKNET, 30.0, 0.8))
    }
    result = Report("mpca_real", "Methods as real jobs", tmp_path)
    result.row(mpca_real.TITLES[MPCA], utilisation=0.98)
    mpca_real.judge(curves, result)
    (order,) = [target for target in result.targets if target.name == "mpca_real_order"]
    assert order.value == pytest.approx(share)
