"""What an exception says in one line: of its words, or of the text of a Python traceback.

TensorFlow's first line is often hollow ("Graph execution error:", "in user code:"), and the one
that says what is wrong comes after a trace of its own. Keras's names a layer, and the next one what
is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

#: What a Python traceback begins with.
TRACEBACK_HEADER = "Traceback (most recent call last):"

_GRAPH = "Graph execution error:"
_USER_CODE = "in user code:"
_KERAS = "Exception encountered when calling "
# What stands between the first line of a graph's error and the one that tells.
_BEFORE_THE_WORDS = (" ", "\t", "Detected at node", "<stack traces unavailable>")
_ROOTS = "root error(s) found."
_END_OF_GRAPH_ERROR = "[[{{node"
_MOST_LINES = 200
_BOLD, _END_OF_BOLD = "\x1b[1m", "\x1b[0m"


def exception_line(traceback: str) -> str:
    """What a traceback's exception says, with its name; the last line of any other text."""
    lines = traceback.strip().split("\n")
    last = max((i for i, line in enumerate(lines) if begins_traceback(line)), default=-1)
    named = next((i for i in range(last + 1, len(lines)) if names_exception(lines[i])), None)
    if last == -1 or named is None:
        return lines[-1]
    return first_words(lines[named:])


def first_words(message: Sequence[str]) -> str:
    """What an exception's message says is wrong, in one line.

    Args:
        message: its lines, with or without the exception's name before the first one.
    """
    first, *others = message
    telling = [line for line in others if line.strip()]
    if first.endswith(_GRAPH):
        words = [line for line in telling if not line.startswith(_BEFORE_THE_WORDS)]
        if words and words[0].endswith(_ROOTS):  # Whose list is indented.
            words = [line.strip() for line in telling[telling.index(words[0]) + 1 :]]
        return first.removesuffix(_GRAPH) + words[0] if words else first
    if first.endswith(_USER_CODE):  # A traceback that is indented; its end names the exception.
        words = [line[4:] for line in others]
        is_name = [names_exception(line) and not line.startswith("File ") for line in words]
        return first_words(words[is_name.index(True) :]) if any(is_name) else first
    if _KERAS in first and telling:
        return f"{first} {telling[0].strip().removeprefix(_BOLD).removesuffix(_END_OF_BOLD)}"
    return first


def begins_traceback(line: str) -> bool:
    """Whether a traceback begins here, be it after a progress bar or question without an end."""
    return line.rstrip().endswith(TRACEBACK_HEADER)


def names_exception(line: str) -> bool:
    """Whether a line after a traceback's header names the exception, for it is not indented.

    Neither are carets under code that AutoGraph has rewritten: their columns are of the new code.
    """
    return not line.startswith(" ") and bool(line.strip("^~ "))


def goes_on(message: Sequence[str], line: str) -> bool:
    """Whether `line` is wanted too, of an exception whose message so far is `message`."""
    first, last = message[0], message[-1]
    if first.endswith(_GRAPH):
        return _END_OF_GRAPH_ERROR not in last and len(message) < _MOST_LINES
    if first.endswith(_USER_CODE):
        return not line.strip() or line.startswith("    ")
    return _KERAS in first and (last is first or not last.strip())
