"""All findings, for people and for programs."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from keras_strom.doctor.finding import Finding, Grade

if TYPE_CHECKING:
    import rich.table

# How a grade is shown: a colour and a mark.
_SHOWN = {
    Grade.GOOD: ("green", "ok"),
    Grade.WARNING: ("yellow", "!"),
    Grade.BAD: ("red", "x"),
}
_TEXT_COLUMNS = 120


class Report(list[Finding]):
    """What an examination has found, in its order; printed, it is a table.

    Example:
        >>> report = Report([Finding("memory", Grade.GOOD, "12.0 GiB are free")])
        >>> report.would_fail
        False
        >>> print(report)
             check   finding
         ok  memory  12.0 GiB are free
    """

    @property
    def would_fail(self) -> bool:
        """Whether a run would."""
        return any(finding.grade is Grade.BAD for finding in self)

    def to_json(self) -> list[dict[str, str]]:
        """One object for each finding, for `json.dumps`."""
        return [finding.to_json() for finding in self]

    def table(self) -> rich.table.Table:
        """A line for each finding and one for its remedy; a column of nodes where there are any."""
        import rich.table
        import rich.text

        nodes = any(finding.node for finding in self)
        table = rich.table.Table("", *["node"] * nodes, "check", "finding", box=None)
        for finding in self:
            words = finding.words + (f"\n-> {finding.remedy}" if finding.remedy else "")
            colour, mark = _SHOWN[finding.grade]
            cells = [mark, *[finding.node] * nodes, finding.check, words]
            table.add_row(*map(rich.text.Text, cells), style=colour)
        return table

    def __str__(self) -> str:
        """The table as plain text."""
        import rich.console

        text = io.StringIO()
        rich.console.Console(file=text, width=_TEXT_COLUMNS).print(self.table())
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())
