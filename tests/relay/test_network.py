"""NetworkConfig and the choice of an address."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
from typing import Any

import pytest

from keras_strom import errors
from keras_strom.job import network
from keras_strom.job.interfaces import InterfaceAddress, interface_addresses
from keras_strom.job.network import NetworkConfig, format_address, parse_address, resolve_address

HERE = tuple(
    InterfaceAddress(interface, ipaddress.ip_address(address))
    for interface, address in (
        ("lo", "127.0.0.1"),
        ("eth0", "10.0.2.4"),
        ("eth1", "10.0.3.4"),
        ("eth0", "fd00::4"),
    )
)


@pytest.fixture
def several_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "interface_addresses", lambda: HERE)


@pytest.mark.parametrize(
    "options",
    [
        {"port": -1},
        {"port": 65536},
        {"port": True},
        {"network_mask": "10.0.0.0/99"},
        {"network_mask": "eth0"},
        {"master_address": "a b"},
        {"master_address": "host:port"},
        {"failure_timeout": 0},
        {"failure_timeout": float("nan")},
        {"failure_timeout": "5"},
        {"same_host": 1},
        {"topology": "ring"},
        {"max_children": 1},
        {"max_children": True},
        {"max_depth": 0},
        {"merging": "always"},
        {"merging": True},
        {"checkpoint_dir": 7},
        {"checkpoint_dir": "gs://bucket/checkpoints"},
        {"checkpoint_dir": "dbfs:/checkpoints"},
        {"checkpoint_dir": "s3:bucket/checkpoints"},
        {"checkpoint_dir": "/tmp", "checkpoint_interval": 0},
        {"checkpoint_dir": "/tmp", "checkpoints_kept": 0},
    ],
)
def test_bad_values_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(errors.InvalidOption):
        NetworkConfig(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"checkpoint_interval": 60.0},
        {"checkpoints_kept": 3},
    ],
)
def test_options_without_effect_are_refused(options: dict[str, object]) -> None:
    (name,) = options
    with pytest.raises(errors.InvalidOption, match=name):
        NetworkConfig(**options)  # type: ignore[arg-type]


def test_json_brings_back_an_equal_value_and_only_what_differs() -> None:
    assert NetworkConfig().to_json() == "{}"
    config = NetworkConfig(port=9, network_mask="10.0.0.0/8", same_host=False)
    assert NetworkConfig.from_json(config.to_json()) == config
    with pytest.raises(errors.InvalidOption, match="unknown network option prot"):
        NetworkConfig.from_json('{"prot": 9}')


def test_a_scripts_own_options_leave_the_others_as_the_job_has_them() -> None:
    job = NetworkConfig(port=40100, network_mask="10.0.0.0/16", on_master_loss="wait")
    own = NetworkConfig(failure_timeout=9.0, network_mask="10.1.0.0/16")
    assert own.of_script(job) == NetworkConfig(
        port=40100, network_mask="10.1.0.0/16", failure_timeout=9.0, on_master_loss="wait"
    )


@pytest.mark.parametrize(
    "options",
    [
        {"topology": "mesh"},
        {"max_children": 4},
        {"max_depth": 3},
        {"merging": "off"},
        {"master_address": "here:9"},
        {"on_master_loss": "wait"},
        {"checkpoint_dir": "/tmp"},
    ],
)
def test_what_the_master_does_is_not_a_scripts_to_say(options: dict[str, Any]) -> None:
    flag = f"--{next(iter(options)).replace('_', '-')} {next(iter(options.values()))}"
    with pytest.raises(errors.InvalidOption, match=f"option of the runner .*{flag}"):
        NetworkConfig(**options).of_script(NetworkConfig())
    job = NetworkConfig(**options)
    assert job.of_script(job) == job


def test_each_worker_of_a_machine_has_its_own_port() -> None:
    assert NetworkConfig().of_worker(3).port == 0
    config = NetworkConfig(port=5000, master_address="gateway")
    assert config.of_worker(3).port == 5004
    assert config.of_worker(3).advertised_master(("10.0.0.1", 5000)) == ("gateway", 5000)
    with pytest.raises(errors.InvalidOption, match="65536"):
        NetworkConfig(port=65535).of_worker(0)


def test_the_masters_address_can_be_advertised_differently() -> None:
    bound = ("10.0.2.4", 4000)
    assert NetworkConfig().advertised_master(bound) == bound
    assert NetworkConfig(master_address="gate").advertised_master(bound) == ("gate", 4000)
    assert NetworkConfig(master_address="gate:9").advertised_master(bound) == ("gate", 9)


@pytest.mark.usefixtures("several_interfaces")
@pytest.mark.parametrize(
    ("mask", "address"),
    [("10.0.2.0/24", "10.0.2.4"), ("10.0.3.99/24", "10.0.3.4"), ("fd00::/8", "fd00::4")],
)
def test_the_mask_picks_the_interface(mask: str, address: str) -> None:
    assert resolve_address(NetworkConfig(network_mask=mask)) == address
    # An explicit option wins over the variable as long as it decides.
    assert resolve_address(NetworkConfig(network_mask=mask), node_address="127.0.0.1") == address


@pytest.mark.usefixtures("several_interfaces")
def test_a_mask_that_matches_nothing_lists_the_candidates() -> None:
    with pytest.raises(errors.AddressError, match=r"no address.*10\.0\.2\.4 \(eth0\).*eth1"):
        resolve_address(NetworkConfig(network_mask="192.168.0.0/16"))


@pytest.mark.usefixtures("several_interfaces")
def test_a_mask_that_matches_several_lists_just_those() -> None:
    with pytest.raises(errors.AddressError, match="several") as raised:
        resolve_address(NetworkConfig(network_mask="10.0.0.0/8"))
    assert "10.0.3.4 (eth1)" in str(raised.value)
    assert "127.0.0.1" not in str(raised.value)


@pytest.mark.usefixtures("several_interfaces")
def test_the_variable_is_the_last_resort() -> None:
    several = NetworkConfig(network_mask="10.0.0.0/8")
    assert resolve_address(several, node_address="10.0.3.4") == "10.0.3.4"
    assert resolve_address(NetworkConfig(), node_address="fd00::4") == "fd00::4"
    with pytest.raises(errors.AddressError, match=r"10\.9\.9\.9 is not an address"):
        resolve_address(several, node_address="10.9.9.9")


def test_without_a_mask_the_route_decides() -> None:
    assert resolve_address(NetworkConfig(), toward="127.0.0.1") == "127.0.0.1"
    own = {str(one.address) for one in interface_addresses()}
    assert resolve_address(NetworkConfig()) in own
    with pytest.raises(errors.AddressError, match=r"nowhere\.invalid"):
        resolve_address(NetworkConfig(), toward="nowhere.invalid")


def test_a_machine_with_ipv6_alone_is_not_taken_for_one_without_a_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class OnlyIpv6(contextlib.AbstractContextManager["OnlyIpv6"]):
        def __init__(self, family: int, _: int) -> None:
            self._family = family

        def connect(self, _: object) -> None:
            if self._family == socket.AF_INET:
                raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))

        def getsockname(self) -> tuple[str, int]:
            return "fd00::4", 40123

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(network.socket, "socket", OnlyIpv6)
    assert resolve_address(NetworkConfig()) == "fd00::4"


def test_this_machine_has_a_loopback_interface() -> None:
    assert ipaddress.ip_address("127.0.0.1") in {one.address for one in interface_addresses()}


@pytest.mark.parametrize(
    "address", [("10.0.2.4", 40123), ("fd00::4", 1), ("node-7.cluster.local", 65535)]
)
def test_addresses_are_written_and_read(address: tuple[str, int]) -> None:
    assert parse_address(format_address(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", ":9", "host", "host:", "host:0", "host:65536", "a:b:9", "[x]:9"),
        *("a..b:9", "a" * 64 + ":9"),
    ],
)
def test_bad_addresses_are_refused(text: str) -> None:
    with pytest.raises(errors.InvalidOption):
        parse_address(text)


def test_a_default_port_permits_a_bare_host() -> None:
    assert parse_address("host", default_port=9) == ("host", 9)
    assert parse_address("fd00::4", default_port=9) == ("fd00::4", 9)
    assert parse_address("[fd00::4]", default_port=9) == ("fd00::4", 9)
