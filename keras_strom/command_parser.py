"""Parsers of commands and their flags, as the command line has them."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from keras_strom.dashboard.page_address import is_address, with_port


class Defaults(argparse.ArgumentDefaultsHelpFormatter):
    """Tells the defaults that there are."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.required or action.default is None:
            return action.help
        return super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """Refuses an unknown flag of its own command, with the nearest one, before anything else.

    What follows the first argument that is no flag may be another program's.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As `ArgumentParser`'s."""
        left = list(sys.argv[1:] if args is None else args)
        args = left = [*self._with_values(left)]
        left = list(left)
        while left and left[0].startswith("-") and left[0] != "--":
            flag, equals, _ = left.pop(0).partition("=")
            action = self._option_string_actions.get(flag)
            if action is None:
                self.error(f"unknown flag {flag}" + self._remedy(flag))
            del left[: 0 if equals or action.nargs in (0, "?") else 1]
        rest = next((one for one in self._actions if one.nargs == argparse.REMAINDER), None)
        if rest is None:
            return super().parse_known_args(args, namespace)
        # argparse would take a "--" behind the script for its own.
        end = len(args) - len(left) + (2 if left[:1] == ["--"] else 1)
        found, unknown = super().parse_known_args(args[:end], namespace)
        setattr(found, rest.dest, args[end:])
        return found, unknown

    def _remedy(self, flag: str) -> str:
        if flag == "-m" and any(one.dest == "script" for one in self._actions):
            return (
                "; a script is given by its file: for a module, by one that says import runpy; "
                "runpy.run_module('PACKAGE.MODULE', run_name='__main__')"
            )
        if any(not one.option_strings and flag == f"--{one.dest}" for one in self._actions):
            return f"; it is given without a flag: {self.prog} {flag[2:].upper()}"
        near = difflib.get_close_matches(flag, self._option_string_actions, n=1)
        return f"; did you mean {near[0]}?" if near else ""

    def _with_values(self, words: Sequence[str]) -> Iterator[str]:
        """Joins `--dashboard` and the address behind it, if it is one: a script may follow."""
        left = list(words)
        while left and left[0].startswith("-") and left[0] != "--":
            flag = left.pop(0)
            action = self._option_string_actions.get(flag)
            if action is not None and action.nargs == "?":
                word = left[0] if left else ""
                if (example := with_port(word)) and not os.path.exists(word):
                    self.error(f"{flag} {word}: a port is missing, as in {flag} {example}")
                flag = f"{flag}={left.pop(0) if left and is_address(left[0]) else action.const}"
            yield flag
            if action is not None and action.nargs is None and left:
                yield left.pop(0)
        yield from left
