"""How Sphinx makes the pages of this folder: `make docs`."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import inspect
import re
from typing import Any

from sphinx.util.inspect import stringify_signature

project = "keras-strom"
author = "the keras-strom authors"
version = release = importlib.metadata.version("keras-strom")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns: list[str] = []

# Markdown: headings have the anchors that GitHub gives them, so links work in both places.
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
myst_url_schemes = ("http", "https", "mailto")

# Docstrings: Google's sections. A name in single backticks links to its own entry, if it has one.
default_role = "py:obj"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
# Types and names of Keras, TensorFlow, Spark and of modules that are not public have no entry here.
nitpick_ignore_regex = [(r"py:.*", r".*")]

html_theme = "furo"
html_title = "keras-strom"
html_copy_source = False
html_show_sphinx = False

linkcheck_timeout = 20
linkcheck_anchors = False


def _as_restructured_text(
    _app: Any, _what: str, _name: str, described: Any, _options: Any, lines: list[str]
) -> None:
    """Docstrings are written to be read as they are; Sphinx takes some of that for its own signs.

    `|residual|` is no substitution, `[batch, *shape]` no emphasis, "`Worker`s" is a name and a
    letter, lines that stand further in after an empty one are code, and a dataclass is made with
    its attributes.
    """
    found: list[str] = []
    above = ""  # the last line that is not empty
    for line in lines:
        if line == "Attributes:" and dataclasses.is_dataclass(described):
            line = "Args:"
        line = re.sub(r"(?<!`)\|(?!`)", r"\\|", line)
        line = re.sub(r"(?<=[\[, ])\*(?=\w+\])", r"\\*", line)
        line = re.sub(r"(?<!`)(`[^`]+`)(?=[a-z])", r"\1\\ ", line)
        begins = line.startswith("    ") and found and not found[-1]
        if begins and not re.match(r"\s|.*:$|[=*-]", above):
            found += ["::", ""]
        found.append(line)
        above = line or above
    lines[:] = _several_returned(found)


def _several_returned(lines: list[str]) -> list[str]:
    """Makes a list of a "Returns:" section that has an item for each of several values."""
    if "Returns:" not in lines:
        return lines
    first = lines.index("Returns:") + 1
    last = lines.index("", first) if "" in lines[first:] else len(lines)
    section = lines[first:last]
    if sum(bool(re.match(r" {4}\w+: ", line)) for line in section) < 2:
        return lines
    items = [re.sub(r"^ {4}(?=\w+: )", "    - ", line) for line in section]
    items = [re.sub(r"^ {8}", "      ", line) for line in items]
    return [*lines[:first], "    In this order.", "", *items, *lines[last:]]


def _signature_of_init(
    _app: Any, what: str, _name: str, described: Any, _options: Any, signature: str, returns: str
) -> tuple[str, str]:
    """Takes that of `__init__` where a class has a `__new__` of its own, too."""
    if what == "class" and {"__new__", "__init__"} <= set(vars(described)):
        of_init = inspect.signature(described.__init__)
        own = list(of_init.parameters.values())[1:]
        signature = stringify_signature(
            of_init.replace(parameters=own),
            unqualified_typehints=True,
            show_return_annotation=False,
        )
    return signature, returns


def setup(app: Any) -> None:
    """Adds what autodoc lacks, to docstrings before napoleon reads their sections."""
    app.connect("autodoc-process-docstring", _as_restructured_text, priority=100)
    app.connect("autodoc-process-signature", _signature_of_init)
