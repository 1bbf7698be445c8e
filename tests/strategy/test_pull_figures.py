"""What is said of a training beside a joint model whose pull is too strong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from keras_strom.method import MPCA
from keras_strom.strategy.pull_figures import PullFigures


def warned(method: MPCA, alpha: float, steps: float) -> list[str]:
    """The warnings of an epoch that ends with this pull and so many steps a cycle."""
    sharing: Any = SimpleNamespace(environment=SimpleNamespace(size=2))
    step: Any = SimpleNamespace(method=method)
    figures = {"pull": alpha * steps, "alpha": alpha, "cycle_steps": steps}
    return [words % arguments for words, arguments in PullFigures(sharing, step).warnings(figures)]


def test_a_pull_that_is_still_the_starts_is_named_as_that() -> None:
    assert warned(MPCA(), alpha=0.446, steps=13) == [
        "the pulls of a cycle add up to 5.8 (alpha 0.45, 13 steps), which holds workers back: the "
        "pull of the method's start has not fallen yet. Lower that, start=PullStart(alpha=0.077), "
        "or have it fall in fewer cycles"
    ]


def test_the_start_is_never_told_to_be_below_the_methods_own_pull() -> None:
    (words,) = warned(MPCA(), alpha=0.2, steps=30)
    assert "PullStart(alpha=0.05)" in words


@pytest.mark.parametrize("alpha", [0.05, 0.3])
def test_a_pull_of_the_methods_own_that_is_too_strong_asks_for_a_lower_alpha(alpha: float) -> None:
    (words,) = warned(MPCA(), alpha=alpha, steps=50)
    assert words.endswith("which holds workers back: lower alpha, to 0.02 or less")


def test_a_pull_that_is_no_brake_is_not_warned_of() -> None:
    assert not warned(MPCA(), alpha=0.05, steps=13)
