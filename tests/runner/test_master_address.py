"""Where `keras-strom master` listens, on a machine with one network, several or none."""

from __future__ import annotations

import dataclasses
import errno
import ipaddress
import os

import pytest

from keras_strom import errors
from keras_strom.doctor import hosts as doctors_hosts
from keras_strom.job import network
from keras_strom.job.interfaces import InterfaceAddress
from keras_strom.job.network import NetworkConfig
from keras_strom.runner import master_command
from keras_strom.runner.job_file import JobFile

TWO_NETWORKS = tuple(
    InterfaceAddress(interface, ipaddress.ip_address(address))
    for interface, address in (
        *(("lo", "127.0.0.1"), ("lo", "::1"), ("eth0", "10.99.0.1")),
        *(("eth1", "10.98.0.1"), ("eth1", "fd00::4")),
    )
)
NAMES = {"vm": ["127.0.1.1"], "both": ["10.7.7.7", "10.98.0.1"], "localhost": ["127.0.0.1"]}


@pytest.fixture
def two_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose default route leads by eth0."""

    def addresses(host: str) -> list[str]:
        if host == "nowhere":
            raise errors.AddressError("it has none")
        return NAMES.get(host, [host])

    monkeypatch.setattr(network, "interface_addresses", lambda: TWO_NETWORKS)
    monkeypatch.setattr(network, "_routed_from", lambda _: "10.99.0.1")
    for module in (network, master_command):
        monkeypatch.setattr(module, "literal_addresses", addresses)


@pytest.mark.usefixtures("two_networks")
@pytest.mark.parametrize(
    ("told", "listens"),
    [
        ("10.98.0.1", "10.98.0.1"),
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.2", "127.0.0.2"),
        ("fd00::4", "fd00::4"),
        ("both", "10.98.0.1"),
        ("localhost", "127.0.0.1"),
        ("10.7.7.7", "10.99.0.1"),
        ("vm", "10.99.0.1"),
        ("nowhere", "10.99.0.1"),
    ],
)
def test_a_master_listens_where_workers_are_told_to_come_if_it_can(told: str, listens: str) -> None:
    told_of: list[str] = []
    job = JobFile.new((told, 40100))
    prepared = master_command.network_of(NetworkConfig(), job)
    assert master_command._listening_host(prepared, job, told_of.append) == listens
    assert master_command._is_at(job.master, (listens, 40100)) == (listens != "10.99.0.1")
    assert not master_command._is_at(job.master, (listens, 7))
    named = NetworkConfig(master_address=told)
    assert master_command._listening_host(named, None, told_of.append) == listens
    assert doctors_hosts._master_host(NetworkConfig(), []) == (
        "10.99.0.1",
        "where the default route leads",
    )
    masked = dataclasses.replace(prepared, network_mask="10.99.0.0/16")
    assert master_command._listening_host(masked, job, told_of.append) == "10.99.0.1"
    assert not told_of


@pytest.mark.parametrize(
    ("others", "listens"),
    [
        (["10.99.0.1"], "10.99.0.1"),
        (["10.99.0.1", "fd00::4"], "10.99.0.1"),
        (["fd00::4"], "fd00::4"),
        (["10.99.0.1", "10.98.0.1"], "127.0.0.1"),
        ([], "127.0.0.1"),
    ],
)
def test_without_a_default_route_a_master_listens_at_the_only_address(
    others: list[str], listens: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_route(_: str) -> str:
        raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))

    here = [InterfaceAddress("eth0", ipaddress.ip_address(one)) for one in ("127.0.0.1", *others)]
    monkeypatch.setattr(network, "interface_addresses", lambda: here)
    monkeypatch.setattr(network, "_routed_from", no_route)
    told_of: list[str] = []
    assert master_command._listening_host(NetworkConfig(), None, told_of.append) == listens
    host, why = doctors_hosts._master_host(NetworkConfig(), [])
    assert (host, "the only one" in why) == (listens, listens != "127.0.0.1")
    assert ("no default route" in why) == (listens == "127.0.0.1")
    if listens != "127.0.0.1":
        assert not told_of
    else:
        (words,) = told_of
        assert "listens at 127.0.0.1" in words
        assert "(--network-mask, --master-address)" in words
    chosen = NetworkConfig(network_mask="127.0.0.1/32")
    assert master_command._listening_host(chosen, None, told_of.append) == "127.0.0.1"
    assert len(told_of) == (listens == "127.0.0.1")
