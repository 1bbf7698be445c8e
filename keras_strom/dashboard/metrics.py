"""A job's present state as OpenMetrics, for Prometheus: `/metrics`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, StateSetMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from keras_strom.dashboard.watched_job import AWAY, ENDED, FAILED, STARTING
from keras_strom.job.worker_record import ACTIVITIES

CONTENT_TYPE = CONTENT_TYPE_LATEST

_PREFIX = "keras_strom"
_ALL_ACTIVITIES = (STARTING, *ACTIVITIES, AWAY, ENDED, FAILED)

# Of each worker: the snapshot's column, the metric's name, its unit and what it is.
_GAUGES = (
    ("epoch", "epoch", "", "The epoch that a worker trains, from 1"),
    ("steps", "steps", "", "Steps of the present fit"),
    ("step_seconds", "step", "seconds", "From one step to the next"),
    ("input_seconds", "input", "seconds", "Of a step, waiting for its batch"),
    ("waited_seconds", "waited", "seconds", "Of a step, waiting for the network or other workers"),
    ("staleness", "staleness", "steps", "How late the updates of others were"),
    ("density", "density", "ratio", "Sent entries per element and message"),
    ("threshold", "threshold", "", "Tau of the last message"),
    ("residual_norm", "residual_norm", "", "What had not been sent at the last epoch's end"),
    ("divergence", "divergence", "ratio", "Distance from the joint model before the last pull"),
    ("sent", "link_sent", "bytes_per_second", "To the parent in the tree"),
    ("received", "link_received", "bytes_per_second", "From the parent in the tree"),
    ("round_trip", "link_round_trip", "seconds", "To the parent in the tree"),
    ("loss", "link_loss", "ratio", "Of the packets to the parent, sent again"),
    ("queued", "link_queued", "bytes", "That wait for the parent or its acknowledgement"),
    ("attempt", "attempt", "", "How often the worker was started before"),
)


def open_metrics(snapshot: Mapping[str, Any]) -> bytes:
    """The text that Prometheus reads.

    Args:
        snapshot: of `WatchedJob`.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Job(snapshot))
    text: bytes = generate_latest(registry)  # type: ignore[no-untyped-call]
    return text


class _Job(Collector):
    def __init__(self, snapshot: Mapping[str, Any]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        found = self._snapshot
        rows = [dict(zip(found["columns"], row, strict=True)) for row in found["workers"]]
        job = InfoMetricFamily(f"{_PREFIX}_job", "The job")
        job.add_metric([], {"name": found["name"], "workers": str(found["workers_wanted"])})
        yield job
        yield GaugeMetricFamily(
            f"{_PREFIX}_job_seconds", "Since the job began", found["seconds"], unit="seconds"
        )
        yield GaugeMetricFamily(
            f"{_PREFIX}_slow_workers",
            "Workers that hold the job back",
            sum(one["rank"] >= 0 for one in found["slow"]),
        )
        yield GaugeMetricFamily(
            f"{_PREFIX}_checkpoints", "Checkpoints of this run", found["checkpoint_count"]
        )
        states = StateSetMetricFamily(
            f"{_PREFIX}_worker_activity", "What a worker does", labels=["worker"]
        )
        for row in rows:
            values = {name: row["activity"] == name for name in _ALL_ACTIVITIES}
            states.add_metric([str(row["rank"])], values)
        yield states
        for column, name, unit, words in _GAUGES:
            gauge = GaugeMetricFamily(
                f"{_PREFIX}_worker_{name}", words, labels=["worker"], unit=unit
            )
            for row in rows:
                if row[column] is not None:
                    gauge.add_metric([str(row["rank"])], float(row[column]))
            yield gauge
        logs = GaugeMetricFamily(
            f"{_PREFIX}_worker_metric", "Loss and metrics, as logged", labels=["worker", "metric"]
        )
        for row in rows:
            for name, value in (row["logs"] or {}).items():
                logs.add_metric([str(row["rank"]), name], float(value))
        yield logs
