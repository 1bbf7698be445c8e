"""What a worker says of itself, about once a second, to whoever runs it and wants to know.

A worker is asked by KERAS_STROM_STATUS (`ClusterEnvironment.status_path`): a pipe that takes one
line of JSON a record. The runner on its machine reads it (`keras_strom.runner.process`) and passes
it on with the worker's output, through an agent or a Spark task too.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from keras_strom import errors

#: Stands for the pipe in the place that a worker's starter is given; it puts the pipe there.
ASKED = "asked"

#: A pipe takes so many bytes at once or none of them (PIPE_BUF on Linux).
MAX_BYTES = 4096

#: What a worker can say that it does.
ACTIVITIES = ("joining", "training", "validating", "waiting", "ending", "between fits")

_MOST_LOGS = 32
_MOST_LINKS = 12
_MOST_CHARACTERS = 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinkRecord:
    """One of a worker's links, over the last seconds.

    Attributes:
        peer: the other end's address, host:port.
        round_trip: seconds, smoothed; 0 = not measured yet.
        sent, received: bytes a second.
        loss: the share of the packets sent that had to be sent again, 0 to 1.
        queued: bytes that wait or are not yet acknowledged.
        shared_memory: whether messages go through memory instead of UDP.
        to_parent: whether the other end is the worker's parent in the tree; at most one is.
    """

    peer: str
    round_trip: float = 0.0
    sent: float = 0.0
    received: float = 0.0
    loss: float = 0.0
    queued: float = 0.0
    shared_memory: bool = False
    to_parent: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerRecord:
    """One worker's figures at one moment; None = it has none, or none yet.

    Attributes:
        activity: one of `ACTIVITIES`.
        why: what it waits for, in words.
        fit: which `fit`, from 1; 0 = none so far.
        epoch: from 1.
        epochs: how many there are.
        batch: batches of the epoch that are trained.
        batches: how many it has.
        steps: of this `fit`, by this worker.
        step_seconds: from one step to the next, the mean over the last seconds.
        input_seconds: of these, in which training has waited for its batch.
        waited_seconds: of these, in which it has waited for the network or for other workers.
        staleness: how many steps the updates of others were late, the mean over the last seconds.
        density: sent entries per element and message, over the last seconds.
        threshold: tau of the last message; of several, their median.
        residual_norm: of the last epoch's end; the Euclidean norm of what has not been sent.
        divergence: beside a joint model, |x - x*| / |x*| before the last pull.
        logs: the latest that Keras has logged: loss and metrics.
        links: to its parent in the tree, and to others.

    Example:
        >>> record = WorkerRecord(activity="training", step_seconds=0.25)
        >>> WorkerRecord.parse(record.to_json()) == record
        True
    """

    activity: str
    why: str = ""
    fit: int = 0
    epoch: int | None = None
    epochs: int | None = None
    batch: int | None = None
    batches: int | None = None
    steps: int | None = None
    step_seconds: float | None = None
    input_seconds: float | None = None
    waited_seconds: float | None = None
    staleness: float | None = None
    density: float | None = None
    threshold: float | None = None
    residual_norm: float | None = None
    divergence: float | None = None
    logs: Mapping[str, float] = dataclasses.field(default_factory=dict)
    links: tuple[LinkRecord, ...] = ()

    def to_json(self) -> str:
        """One line, of at most `MAX_BYTES` with its end: what does not fit of logs is left out."""
        links = sorted(self.links, key=lambda link: not link.to_parent)[:_MOST_LINKS]
        logs = dict(list(self.logs.items())[:_MOST_LOGS])
        while True:
            line = json.dumps(self._fields(logs, links), separators=(",", ":"))
            if len(line) < MAX_BYTES or not (logs or links):
                return line
            if logs:
                logs.popitem()
            else:
                links = links[:-1]

    @classmethod
    def parse(cls, line: str | bytes) -> WorkerRecord:
        """The inverse of `to_json`, which a worker's own program may have made up.

        Raises:
            CorruptMessage: it is something else.
        """
        if len(line) > MAX_BYTES:
            raise errors.CorruptMessage("a worker's record is too long")
        try:
            fields = json.loads(line)
            return cls(
                **{
                    **{name: _checked(name, value) for name, value in fields.items()},
                    "logs": _logs(fields.get("logs", {})),
                    "links": tuple(map(_link, fields.get("links", ())[:_MOST_LINKS])),
                }
            )
        except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
            raise errors.CorruptMessage(f"no record of a worker: {error}") from None

    def _fields(self, logs: Mapping[str, float], links: Sequence[LinkRecord]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in ("logs", "links") or value is None or value == field.default:
                continue
            if isinstance(value, float):
                if not math.isfinite(value):
                    continue
                value = _rounded(value)
            found[field.name] = value[:_MOST_CHARACTERS] if isinstance(value, str) else value
        if logs:
            found["logs"] = {
                name[:_MOST_CHARACTERS]: _rounded(value) if math.isfinite(value) else str(value)
                for name, value in logs.items()
            }
        if links:
            found["links"] = [
                [_rounded(value) if isinstance(value, float) else value for value in one]
                for one in map(dataclasses.astuple, links)
            ]
        return found


_TEXTS = ("activity", "why")
_WHOLE = ("fit", "epoch", "epochs", "batch", "batches", "steps")
_MOST_WHOLE = 1e18
# A loss that grows without bound is what somebody looks for.
_MOST_NUMBER = 1e300


def _checked(name: str, value: Any) -> Any:
    if name in _TEXTS:
        if not isinstance(value, str) or (name == "activity" and value not in ACTIVITIES):
            raise ValueError(f"{name} is {str(value)[:40]!r}")
        return value[:_MOST_CHARACTERS]
    if name in _WHOLE:
        if type(value) is not int or not 0 <= value < _MOST_WHOLE:
            raise ValueError(f"{name} is {str(value)[:40]!r}")
        return value
    if name in ("logs", "links"):
        return value
    return _number(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{str(value)[:40]!r} is no number")
    if not -_MOST_NUMBER <= value <= _MOST_NUMBER:
        raise ValueError(f"{value} is out of range")
    return float(value)


def _logs(value: Any) -> Mapping[str, float]:
    found = {}
    for name, one in list(value.items())[:_MOST_LOGS]:
        # A loss that is no number any more is what somebody looks for.
        found[str(name)[:_MOST_CHARACTERS]] = float(one) if isinstance(one, str) else _number(one)
    return found


def _link(value: Any) -> LinkRecord:
    peer, *numbers, shared_memory, to_parent = value
    if not isinstance(peer, str) or {type(shared_memory), type(to_parent)} != {bool}:
        raise ValueError("a link is malformed")
    return LinkRecord(
        peer=peer[:_MOST_CHARACTERS],
        **dict(
            zip(
                ("round_trip", "sent", "received", "loss", "queued"),
                map(_number, numbers),
                strict=True,
            )
        ),
        shared_memory=shared_memory,
        to_parent=to_parent,
    )


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
