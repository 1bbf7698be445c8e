"""What shells complete after `keras-strom`: the text that `keras-strom completion` prints.

Made by shtab from the parsers themselves, so it knows each command and flag that there is.
"""

from __future__ import annotations

import argparse

from keras_strom import errors

#: The shells that `script` knows.
SHELLS = ("bash", "zsh")

# What stands in a shell's completion for an option's value, as shtab calls it.
_FILE = {"bash": "_shtab_compgen_files", "zsh": "_files"}
_FOLDER = {"bash": "_shtab_compgen_dirs", "zsh": "_files -/"}
_VALUES = {
    "script": _FILE,
    "hostfile": _FILE,
    "job": _FILE,
    "picture": _FILE,
    "folder": _FOLDER,
    "checkpoint_dir": _FOLDER,
}


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """What the shell is to read.

    Args:
        parser: of the whole command line; files and folders are noted in it.
        shell: one of `SHELLS`.

    Raises:
        InvalidOption: shtab is not installed.
    """
    try:
        import shtab
    except ImportError as error:
        raise errors.InvalidOption(
            "shtab, which writes completions, is not installed: pip install shtab"
        ) from error
    _note_files(parser)
    text: str = shtab.complete(parser, shell)
    return text


def _note_files(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _note_files(command)
        elif action.dest in _VALUES and not action.choices:
            action.complete = _VALUES[action.dest]  # type: ignore[attr-defined]
