"""What all tests on a GPU need: one, which is emulated where there is no card."""

from __future__ import annotations

import pytest

from tests.support import gpu


@pytest.fixture(autouse=True, scope="session")
def _gpu() -> None:
    try:
        gpu.require()
    except gpu.NotHereError as error:
        pytest.skip(str(error))


@pytest.fixture
def emulated() -> None:
    """Of tests that want what a card does not tell, or must not be asked for."""
    if gpu.is_card():
        pytest.skip("the emulated GPU alone can do that")


@pytest.fixture
def card() -> None:
    """Of tests that the emulated GPU cannot do: XLA has no compiler for it."""
    if not gpu.is_card():
        pytest.skip("a card is needed")
