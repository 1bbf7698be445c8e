"""What `keras-strom status` and `keras-strom top` do: a job's present state in the terminal."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from keras_strom import errors
from keras_strom.dashboard import reading, terminal


def add_status_flags(parser: Any) -> None:
    """The flags of `keras-strom status`, which `status` reads."""
    _add_which_job(parser)
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")


def status(options: argparse.Namespace) -> int:
    """Tells once what a job does; the return value is the exit code."""
    import rich.console

    state = reading.read_state(reading.find_page(options.job))
    if options.json:
        sys.stdout.write(json.dumps(state, indent=2) + "\n")
    else:
        console = rich.console.Console()
        console.print(terminal.state_view(state, width=console.width))
    return 0


def add_top_flags(parser: Any) -> None:
    """The flags of `keras-strom top`, which `top` reads."""
    _add_which_job(parser)
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="SECONDS", help="from one look to the next"
    )


def top(options: argparse.Namespace) -> int:
    """Shows what a job does, until it ends; the return value is the exit code."""
    import rich.console
    import rich.live

    if not 0.1 <= options.interval <= 3600:
        raise errors.InvalidOption(f"--interval {options.interval:g} must be 0.1 to 3600 seconds")
    url = reading.find_page(options.job)
    state = reading.read_state(url)  # What is wrong is said before the screen is taken.
    console = rich.console.Console()
    whole = console.is_terminal
    try:
        with rich.live.Live(console=console, auto_refresh=False, screen=whole) as live:
            for state in reading.states(url, options.interval):
                room = console.height - len(state["slow"]) - 9
                view = terminal.state_view(state, width=console.width, rows=max(4, room))
                live.update(view, refresh=True)
    except KeyboardInterrupt:
        return 0
    sys.stdout.write("\n" * (not whole) + f"{state['ended']}\n")
    return 0


def _add_which_job(parser: Any) -> None:
    parser.add_argument(
        "job",
        nargs="?",
        help="the URL of its page, or the id of the process that serves it; needed where several "
        "jobs of yours run",
    )
