"""The command line: `keras-strom run -np 4 train.py --its --own --arguments`."""

from __future__ import annotations

import argparse
import dataclasses
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import keras_strom
from keras_strom import errors
from keras_strom.launcher import Job, launch
from keras_strom.network import NetworkConfig
from keras_strom.process import Script

_EXIT_BAD_INPUT = 2

_NETWORK_HELP = {
    "port": "UDP port of the master; 0 = any free one",
    "network_mask": "CIDR mask that picks the interface; default: loopback",
    "master_address": "host[:port] where workers reach the master, if not its own address",
    "topology": "auto or plain",
    "max_children": "most children of a node (no effect yet)",
    "max_depth": "most levels of the tree (no effect yet)",
    "failure_timeout": "seconds of silence after which a peer is dead",
    "on_master_loss": "stop",
    "checkpoint_dir": "where the master writes checkpoints (no effect yet)",
    "same_host": "permit shared memory between local workers",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; the return value is the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _end_on_signal)
    try:
        launch(_job(options))
    except errors.WorkerFailed as error:
        _complain(str(error))
        return 1
    except errors.StromError as error:
        _complain(str(error))
        return _EXIT_BAD_INPUT
    except KeyboardInterrupt:
        _complain("interrupted")
        return 128 + signal.SIGINT
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="keras-strom", description="Trains one Keras model with several workers."
    )
    parser.add_argument("--version", action="version", version=keras_strom.__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser(
        "run",
        help="run a script on several workers of this machine",
        description="Runs a script on several workers of this machine.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    run.add_argument(
        "-np", "--num-proc", type=int, required=True, metavar="N", help="number of workers"
    )
    run.add_argument(
        "--start-timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="how long workers wait for each other",
    )
    network = run.add_argument_group("network")
    for field in dataclasses.fields(NetworkConfig):
        network.add_argument(f"--{field.name.replace('_', '-')}", **_flag(field))
    run.add_argument("script", help="the Python file that every worker runs")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own arguments")
    return parser


def _flag(field: dataclasses.Field[Any]) -> dict[str, Any]:
    flag: dict[str, Any] = {"default": field.default, "help": _NETWORK_HELP[field.name]}
    if isinstance(field.default, bool):
        return {**flag, "action": argparse.BooleanOptionalAction}
    return {**flag, "type": str if field.default is None else type(field.default)}


def _job(options: argparse.Namespace) -> Job:
    if options.num_proc < 1:
        raise errors.InvalidOption(f"-np {options.num_proc}: there must be at least one worker")
    names = [field.name for field in dataclasses.fields(NetworkConfig)]
    return Job(
        work=Script(options.script, tuple(options.arguments)),
        workers=options.num_proc,
        network=NetworkConfig(**{name: getattr(options, name) for name in names}),
        start_timeout=options.start_timeout,
    )


def _complain(text: str) -> None:
    sys.stderr.write(f"keras-strom: {text}\n")


def _end_on_signal(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
