"""All findings, for people and for programs."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator
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
# Of several nodes on which the same was found.
_NAMED_NODES = 3


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
        """A line for each finding and one for its remedy; a column of nodes where there are any.

        What was found alike on several nodes stands there once.
        """
        import rich.table
        import rich.text

        nodes = any(finding.node for finding in self)
        table = rich.table.Table("", *["node"] * nodes, "check", "finding", box=None)
        for finding in self._of_nodes_together():
            words = finding.words + (f"\n-> {finding.remedy}" if finding.remedy else "")
            colour, mark = _SHOWN[finding.grade]
            cells = [mark, *[finding.node] * nodes, finding.check, words]
            table.add_row(*map(rich.text.Text, cells), style=colour)
        return table

    def _of_nodes_together(self) -> Iterator[Finding]:
        """What was found alike on several nodes, once."""
        alike: dict[Finding, list[str]] = {}
        for finding in self:
            alike.setdefault(dataclasses.replace(finding, node=""), []).append(finding.node)
        for finding, nodes in alike.items():
            node = ", ".join(dict.fromkeys(nodes[:_NAMED_NODES]))
            if len(nodes) > _NAMED_NODES:
                node += f" and {len(nodes) - _NAMED_NODES} more"
            yield dataclasses.replace(finding, node=node)

    def __str__(self) -> str:
        """The table as plain text."""
        import rich.console

        text = io.StringIO()
        rich.console.Console(file=text, width=_TEXT_COLUMNS).print(self.table())
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())
