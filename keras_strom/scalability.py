"""How far a training scales before it is run: `keras-strom scalability`.

One step of one worker costs its computation, the encoding of its own update and the addition of
everybody else's; meanwhile the network carries what all have sent. Asynchronous workers overlap
the two, so a step takes as long as the longest of: computing, the link of a machine, the link of
the node that relays most, and the thread that relays there. What is given is the cost of single
things, measured here or elsewhere; the rest is arithmetic (`predict`).
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from keras_strom import codec, errors, relay
from keras_strom.checks import whole_number
from keras_strom.job.network import NetworkConfig

#: Bytes on the wire for each byte of a message: packet headers, tags and acknowledgements.
WIRE_OVERHEAD = 1.06

#: Children of a node in a tree (docs/internals/replication.md, "Topology").
TREE_CHILDREN = 8

#: Nodes up to which `auto` is a star.
PLAIN_NODES = 32

Topology = Literal["auto", "plain", "mesh"]

_ROUNDS = 5
# Messages that are relayed: enough to time them, and no more bytes than may wait at a worker.
_RELAYED_MESSAGES = 200
_RELAYED_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepCost:
    """What single things cost.

    Attributes:
        iteration: seconds of a plain Keras step.
        encode: seconds to add an update to the residual and encode it.
        apply: seconds to add one received message to the parameters.
        message_bytes: of one encoded update.
        service: seconds of the relaying thread to receive or to send one message.

    Raises:
        InvalidOption: a number that is not positive, or not finite.
    """

    iteration: float
    encode: float
    apply: float
    message_bytes: float
    service: float

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not 0 < value < math.inf:
                raise errors.InvalidOption(f"{field.name}={value!r} must be positive and finite")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction:
    """One line of the table.

    Attributes:
        workers: K.
        step: seconds of a step.
        ratio: how many times more samples a second than one plain worker.
        limit: what a step waits for: "computing", "machine's link", "relay's link" or
            "relay's thread".
    """

    workers: int
    step: float
    ratio: float
    limit: str

    @property
    def efficiency(self) -> float:
        """`ratio` over K; 1 is perfect."""
        return self.ratio / self.workers


def predict(
    cost: StepCost,
    *,
    nodes: int,
    workers_per_node: int = 1,
    link: float = 1e9,
    topology: Topology = "auto",
) -> Prediction:
    """What a cluster of `nodes` machines makes of steps that cost `cost`.

    It reckons with each update by itself. In a tree they are merged, into fewer and together
    shorter messages, by as much as different workers' entries meet, which nobody knows beforehand;
    so there it is the least to be expected.

    Args:
        cost: of single things.
        nodes: machines.
        workers_per_node: worker processes on each.
        link: bits a second of a machine's link, each way.
        topology: "plain" (all under the master), "mesh" (a tree of 8 children a node), or "auto".

    Raises:
        InvalidOption: a count below 1, or a link that carries nothing.
    """
    whole_number("nodes", nodes, least=1)
    whole_number("workers_per_node", workers_per_node, least=1)
    if not 0 < link < math.inf:
        raise errors.InvalidOption(f"link={link!r} must be positive and finite, in bits a second")
    workers = nodes * workers_per_node
    if workers == 1:
        return Prediction(workers=1, step=cost.iteration, ratio=1.0, limit="computing")
    star = topology == "plain" or (topology == "auto" and workers <= PLAIN_NODES)
    others = workers - 1
    wire = cost.message_bytes * WIRE_OVERHEAD * 8 / link
    # A star's master sends each message to all other workers, a tree's node to its children; in a
    # tree the workers of one machine pass it on among themselves, through shared memory.
    copies = workers * others if star else workers * min(TREE_CHILDREN, others)
    seconds = {
        "computing": cost.iteration + cost.encode + others * cost.apply,
        "machine's link": (workers_per_node if star else 1) * others * wire,
        "relay's link": copies * wire,
        "relay's thread": (workers + copies) * cost.service,
    }
    limit = max(seconds, key=lambda name: seconds[name])
    step = seconds[limit]
    return Prediction(
        workers=workers, step=step, ratio=workers * cost.iteration / step, limit=limit
    )


def measure(*, iteration: float, parameters: int, density: float) -> StepCost:
    """Measures the codec and the relay on this machine for a model of so many parameters.

    Args:
        iteration: seconds of a plain Keras step, which only the user can measure.
        parameters: elements of the model.
        density: entries per element and step that a message has.

    Raises:
        InvalidOption: a number out of range.
    """
    whole_number("parameters", parameters, least=1)
    if not 0 < density <= 1:
        raise errors.InvalidOption(f"density={density!r} must be over 0 and at most 1")
    update, threshold = _update_of_density(parameters, density)
    residual = np.zeros_like(update)
    message = codec.encode(update, residual, threshold)
    encode = _fastest(lambda: codec.encode(update, np.zeros_like(update), threshold))
    encode -= _fastest(lambda: np.zeros_like(update))
    apply = _fastest(lambda: codec.apply(message.bytes, residual))
    return StepCost(
        iteration=iteration,
        encode=max(encode, 1e-9),
        apply=apply,
        message_bytes=len(message.bytes),
        service=measure_service(len(message.bytes)),
    )


def measure_service(message_bytes: int) -> float:
    """Seconds that a master needs to receive or to send one message; over this machine's UDP.

    One that is too long for the relay takes as long as its parts.
    """
    secret = relay.new_secret()
    network = NetworkConfig(same_host=False)
    payload = bytes(min(message_bytes, relay.MAX_MESSAGE_BYTES))
    parts = message_bytes / len(payload)
    messages = min(_RELAYED_MESSAGES, _RELAYED_BYTES // len(payload))
    with relay.Master(secret, workers=2, network=network) as master:
        info = master.join_info
        with (
            relay.Worker(info, secret, network=network) as one,
            relay.Worker(info, secret, network=network) as other,
        ):
            one.submit(payload)
            other.poll(timeout=30)
            start = time.perf_counter()
            for _ in range(messages):
                one.submit(payload)
            received = 0
            while received < messages:
                received += len(other.poll(timeout=30))
            return parts * (time.perf_counter() - start) / (2 * messages)


def table(predictions: Sequence[Prediction]) -> Any:
    """The predictions as a `rich` table."""
    import rich.table

    shown = rich.table.Table(title="what training with K workers makes of one worker's speed")
    for heading in ("K", "step, ms", "times faster", "efficiency"):
        shown.add_column(heading, justify="right")
    shown.add_column("limited by")
    for row in predictions:
        shown.add_row(
            str(row.workers),
            f"{1e3 * row.step:.1f}",
            f"{row.ratio:.2f}",
            f"{100 * row.efficiency:.0f} %",
            row.limit,
        )
    return shown


def draw(predictions: Sequence[Prediction], path: str) -> None:
    """Draws ratio against K as a picture; the file's ending chooses the format.

    Raises:
        InvalidOption: matplotlib is not installed, or the picture cannot be drawn there.
    """
    try:
        import matplotlib.figure
    except ImportError:
        raise errors.InvalidOption("a picture needs matplotlib: pip install matplotlib") from None
    figure = matplotlib.figure.Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    workers = [row.workers for row in predictions]
    axes.plot(workers, workers, color="0.7", linestyle="--", label="perfect")
    axes.plot(workers, [row.ratio for row in predictions], marker="o", label="expected")
    axes.set(xscale="log", yscale="log", xlabel="workers K", ylabel="times one plain worker")
    axes.legend()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise errors.InvalidOption(f"--picture {path} cannot be drawn: {error}") from error


def _update_of_density(parameters: int, density: float) -> tuple[np.ndarray[Any, Any], float]:
    """A random update and the threshold that this share of its elements reaches."""
    random = np.random.default_rng(0)
    update = random.standard_normal(parameters, np.float32)
    if density == 1:
        return update, float(np.min(np.abs(update))) or 1e-30
    return update, float(np.quantile(np.abs(update[: 1 << 22]), 1 - density))


def _fastest(work: Any) -> float:
    def once() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return min(once() for _ in range(_ROUNDS))
