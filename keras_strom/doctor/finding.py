"""What an examination finds."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping

from keras_strom import errors


class Grade(enum.Enum):
    """What a finding means for a run."""

    GOOD = "good"
    #: It runs, but slower, or not as somebody may expect.
    WARNING = "warning"
    #: It would not run.
    BAD = "bad"


@dataclasses.dataclass(frozen=True)
class Finding:
    """The answer to one question.

    Attributes:
        check: what was looked at, in a word or two; the same on every machine.
        grade: what it means.
        words: what was found.
        remedy: what to do about it; "" where there is nothing to do, or `words` say it.
        node: where, of several; "" = on this machine.
    """

    check: str
    grade: Grade
    words: str
    remedy: str = ""
    node: str = ""

    def to_json(self) -> dict[str, str]:
        """The fields, for `json.dumps`."""
        return {**dataclasses.asdict(self), "grade": self.grade.value}

    @classmethod
    def from_json(cls, fields: Mapping[str, str]) -> Finding:
        """The inverse of `to_json`."""
        return cls(**{**fields, "grade": Grade(fields["grade"])})  # type: ignore[arg-type]


def unless(check: str, words: str, doubt: str | None, remedy: str) -> Finding:
    """A good finding, or a warning that says what the `doubt` is, and the remedy.

    Args:
        check: as in the finding.
        words: what was found, in either case.
        doubt: None = there is none.
        remedy: what to do about it.
    """
    if doubt is None:
        return Finding(check, Grade.GOOD, words)
    return Finding(check, Grade.WARNING, f"{words}: {doubt}", remedy)


def of_errors(check: str, look: Callable[[], Finding]) -> Finding:
    """What `look` finds; an error of keras-strom is a bad finding in the error's words."""
    try:
        return look()
    except errors.StromError as error:
        return Finding(check, Grade.BAD, str(error))
