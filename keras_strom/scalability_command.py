"""What `keras-strom scalability` does: how much faster a cluster would train, as a table."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from keras_strom import errors


def add_flags(parser: Any) -> None:
    """The flags of `keras-strom scalability`, which `show` reads."""
    add = parser.add_argument
    add("--iteration", type=float, required=True, metavar="SECONDS", help="of a plain Keras step")
    add(
        "--parameters",
        type=int,
        metavar="N",
        help="of the model; needed where something is measured",
    )
    add("--density", type=float, default=1e-3, help="share of the elements that a step sends")
    add("--nodes", type=int, default=32, help="machines, at most")
    add("--workers-per-node", type=int, default=1, metavar="N", help="worker processes on each")
    add(
        "--link", type=float, default=1.0, metavar="GBIT", help="of a machine, each way, per second"
    )
    add("--topology", choices=("auto", "plain", "mesh"), default="auto", help="star or tree")
    add("--encode", type=float, metavar="SECONDS", help="to encode an update")
    add("--apply", type=float, metavar="SECONDS", help="to add a received one")
    add("--message-bytes", type=float, metavar="BYTES", help="of an encoded update")
    add("--service", type=float, metavar="SECONDS", help="to receive or to send one in the relay")
    add("--picture", metavar="FILE", help="draw it, too (.png, .svg, .pdf)")


def show(options: argparse.Namespace) -> int:
    """Measures what is not given, and shows the table; the return value is the exit code."""
    import rich.console

    from keras_strom import scalability

    given = {
        name: getattr(options, name)
        for name in ("encode", "apply", "message_bytes", "service")
        if getattr(options, name) is not None
    }
    if len(given) == 4:
        cost = scalability.StepCost(iteration=options.iteration, **given)
    elif options.parameters is None:
        raise errors.InvalidOption(
            "--parameters is needed to measure what is not given: --encode, --apply, "
            "--message-bytes and --service"
        )
    else:
        measured = scalability.measure(
            iteration=options.iteration, parameters=options.parameters, density=options.density
        )
        cost = dataclasses.replace(measured, **given)
    counts = [1 << i for i in range(options.nodes.bit_length()) if 1 << i < options.nodes]
    rows = [
        scalability.predict(
            cost,
            nodes=nodes,
            workers_per_node=options.workers_per_node,
            link=options.link * 1e9,
            topology=options.topology,
        )
        for nodes in [*counts, options.nodes]
    ]
    console = rich.console.Console()
    console.print(
        f"a step {1e3 * cost.iteration:.1f} ms, encoding {1e3 * cost.encode:.2f} ms, adding a "
        f"message {1e3 * cost.apply:.3f} ms, a message {cost.message_bytes / 1e3:.1f} kB, relaying "
        f"it {1e6 * cost.service:.1f} us; {options.link:g} Gbit/s",
        highlight=False,
    )
    console.print(scalability.table(rows))
    if options.picture is not None:
        scalability.draw(rows, options.picture)
    return 0
