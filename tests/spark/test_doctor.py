"""`keras_strom.spark.doctor`: what it finds on an embedded cluster, and each finding provoked."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from keras_strom import errors
from keras_strom.doctor import Finding, Grade, Report
from keras_strom.job.network import NetworkConfig
from keras_strom.spark import doctor
from keras_strom.spark.runner import examination, executors


@pytest.fixture(autouse=True)
def _quick_look_at_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its TensorFlow is looked at in tests/runner/test_doctor.py; executors look at theirs."""
    monkeypatch.setattr(examination.software, "_in_another_process", list)


def bad(report: Report) -> list[Finding]:
    return [one for one in report if one.grade is Grade.BAD]


def test_every_executor_is_looked_at_and_every_way_to_the_driver(spark: Any) -> None:
    report = doctor(spark, num_proc=2)
    assert not bad(report), str(report)
    assert not report.would_fail
    nodes = {one.node for one in report if one.check == "relay"}
    assert nodes == {f"worker {rank} on {socket.gethostname()}" for rank in (0, 1)}
    on_executors = {one.check for one in report if one.node.startswith("executors on")}
    assert {"versions", "Keras", "native code", "processors", "memory", "clock"} <= on_executors
    lines = str(report).splitlines()
    assert lines[0].split() == ["node", "check", "finding"]
    assert any("UDP passes both ways" in line for line in lines)


def test_too_few_slots_are_found_with_the_setting_to_raise(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "_SLOTS_SECONDS", 0.0)
    (found,) = bad(doctor(num_proc=5, spark=spark))
    assert (found.check, found.node) == ("slots", "driver")
    assert "5 workers need as many slots" in found.words


def test_another_version_on_an_executor_is_found(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {**executors.installed(), "keras": "2.0.0"}
    monkeypatch.setattr(executors, "installed", lambda: others)
    (found,) = bad(doctor(num_proc=2, spark=spark))
    assert found.check == "versions"
    assert "driver: 2.0.0" in found.words


def test_a_mask_that_picks_nothing_is_found(spark: Any) -> None:
    network = NetworkConfig(network_mask="203.0.113.0/24")
    (found,) = bad(doctor(num_proc=2, network=network, spark=spark))
    assert (found.check, found.node) == ("address", "driver")


def test_a_port_in_use_is_found(spark: Any) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        (found,) = bad(doctor(num_proc=2, network=NetworkConfig(port=port), spark=spark))
    assert str(port) in found.words


def test_a_master_that_cannot_be_reached_is_found_by_every_worker(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        task = examination._Task
        monkeypatch.setattr(examination, "_Task", lambda *fields: task(*fields, join_seconds=4.0))
        network = NetworkConfig(master_address=f"127.0.0.1:{port}")
        found = bad(doctor(num_proc=2, network=network, spark=spark))
    assert [one.check for one in found] == ["relay", "relay"]
    assert all("hears nothing from the master" in one.words for one in found)
    assert all(f"is UDP {port} open inbound" in one.remedy for one in found)


def test_with_dynamic_allocation_executors_are_out_of_reach(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "is_on", lambda *_: True)
    report = doctor(num_proc=2, spark=spark)
    assert not report.would_fail
    (found,) = [one for one in report if one.check == "executors"]
    assert found.grade is Grade.WARNING
    assert "spark.dynamicAllocation.enabled" in found.words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"network": NetworkConfig(on_master_loss="wait")}, "on_master_loss"),
        ({"network": {"port": 9}}, "must be a NetworkConfig"),
        ({"num_proc": "2"}, "num_proc='2' must be a whole number"),
        ({"num_proc": 0}, "num_proc=0 must be a whole number"),
    ],
)
def test_what_run_refuses_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.InvalidOption, match=words):
        doctor(**options)


def test_an_open_rpc_is_told(monkeypatch: pytest.MonkeyPatch, spark: Any) -> None:
    monkeypatch.setattr(examination, "is_guarded", lambda _: False)
    found = examination._rpc(spark.sparkContext)
    assert found.grade is Grade.WARNING
    assert "spark.network.crypto.enabled=true" in found.remedy
