"""What somebody makes up who sends, or leaves in a file, what he likes: JSON and bytes.

Tests that use it are marked `fuzz`: `make fuzz` runs each for a while, with other examples each
time; a test run has the same few each time (conftest.py's profile `fuzz`).
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

# Every kind of JSON value, those that only Python's reader takes (NaN), and absurd sizes.
_NUMBERS = st.sampled_from([-1, 0, 1, 2, 1 << 31, 1 << 63, 10**400, 1e308, float("inf")])
_TEXTS = st.sampled_from(["", "0", "\ud800", "\0", "\x1b[2J", "ü" * 300]) | st.text(max_size=5)
_PLAIN = st.none() | st.booleans() | _NUMBERS | st.floats() | _TEXTS
_NESTED = st.integers(1, 1200).map(
    lambda depth: json.loads("[" * min(depth, 800) + "]" * min(depth, 800))
)
VALUES: st.SearchStrategy[Any] = (
    st.recursive(
        _PLAIN,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
        max_leaves=6,
    )
    | _NESTED
)


@st.composite
def bent(draw: st.DrawFn, honest: Any) -> Any:
    """A JSON value like `honest`, of which some parts are missing, others, or one too many."""
    if draw(st.integers(0, 7)) == 0:
        return draw(VALUES)
    if isinstance(honest, dict):
        bends = draw(st.sets(st.sampled_from([*honest, "another"]), max_size=2))
        value = {name: part for name, part in honest.items() if name not in bends}
        return value | {name: draw(bent(honest.get(name))) for name in bends if draw(st.booleans())}
    if isinstance(honest, list) and honest and draw(st.booleans()):
        at = draw(st.integers(0, len(honest) - 1))
        return [*honest[:at], draw(bent(honest[at])), *honest[at + 1 :]]
    return draw(VALUES) if draw(st.booleans()) else honest


@st.composite
def damaged(draw: st.DrawFn, honest: bytes) -> bytes:
    """Bytes like `honest`, of which some are others, missing, or too many."""
    value = bytearray(honest)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(value)))
        length = draw(st.integers(0, 8))
        value[at : at + length] = draw(st.binary(max_size=8))
    return bytes(value[: draw(st.integers(0, len(value)))] if draw(st.booleans()) else value)
