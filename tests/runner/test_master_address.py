"""Where `keras-strom master` listens, on a machine with one network, several or none."""

from __future__ import annotations

import dataclasses
import errno
import ipaddress
import os
import re

import pytest

from keras_strom import errors
from keras_strom.doctor import Grade
from keras_strom.doctor import hosts as doctors_hosts
from keras_strom.job import network
from keras_strom.job.interfaces import InterfaceAddress
from keras_strom.job.network import NetworkConfig
from keras_strom.runner import fleet, master_command
from keras_strom.runner.hosts import Host, parse_hosts
from keras_strom.runner.job_file import JobFile

TWO_NETWORKS = tuple(
    InterfaceAddress(interface, ipaddress.ip_address(address))
    for interface, address in (
        *(("lo", "127.0.0.1"), ("lo", "::1"), ("eth0", "10.99.0.1")),
        *(("eth1", "10.98.0.1"), ("eth1", "fd00::4")),
    )
)
LOOPBACK = NetworkConfig(network_mask="127.0.0.0/8")
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


def distant_fleet(client: str | None, told: list[str], workers: int = 2) -> fleet.Fleet:
    """Of one other machine, which sees this one as `client`."""
    machines = fleet.Fleet(parse_hosts("a:2"), workers, tell=told.append)
    machines._clients, machines._remote = [client], [None]  # type: ignore[list-item]
    return machines


TRANSLATED = (
    "the hosts see this machine as fe80::7, which is none of its addresses (address translation, "
    "a jump host, or a link-local one)"
)


@pytest.mark.parametrize("routed", ["10.0.0.4", "127.0.0.1"])
def test_an_address_that_hosts_may_not_reach_is_told(
    routed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "source_address", lambda _: routed)
    monkeypatch.delenv("KERAS_STROM_IP", raising=False)
    told: list[str] = []
    seen_elsewhere = distant_fleet("fe80::7", told)
    node = doctors_hosts._Node(Host("a"), 2, client="fe80::7")
    default = NetworkConfig()
    if routed == "127.0.0.1":
        remedy = "one of its own: give --master-address or --network-mask"
        with pytest.raises(errors.AddressError, match=rf"^{re.escape(TRANSLATED)}, .* {remedy}$"):
            seen_elsewhere.master_host(default)
        with pytest.raises(errors.AddressError, match=re.escape(TRANSLATED)):
            doctors_hosts._doubt(default, [node], routed)
    else:
        assert seen_elsewhere.master_host(default) == routed
        words = f"{TRANSLATED}, so the master takes {routed}"
        remedy = "if workers do not reach it, give --master-address or --network-mask"
        assert told == [f"{words}; {remedy}"]
        doubt = doctors_hosts._doubt(default, [node], routed)
        found = doctors_hosts._address(routed, doubt)
        assert (found.grade, found.remedy) == (Grade.WARNING, remedy)
        assert words in found.words
    told.clear()
    assert distant_fleet(None, told).master_host(default) == routed
    assert distant_fleet("fe80::7", told, workers=1).master_host(default) is None  # Has no master.
    for address, host in (("203.0.113.9:7", None), ("127.0.0.1", "127.0.0.1")):
        chosen = NetworkConfig(master_address=address)
        assert seen_elsewhere.master_host(chosen) == host
        assert doctors_hosts._doubt(chosen, [node], routed) is None
    assert seen_elsewhere.master_host(LOOPBACK) is None
    assert doctors_hosts._doubt(LOOPBACK, [node], routed) is None
    assert not told
