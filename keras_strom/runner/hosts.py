"""The hosts of a job as users write them: `--hosts a:4,b:4`, or a file of Open MPI's or Horovod's.

a:4,b:4                          --hosts
user@a,[fd00::7]:2,localhost     1 slot where no number is given

# a comment                      --hostfile
a slots=4
b slots=4 max_slots=8
[fd00::7]:2
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
import socket
from collections.abc import Iterable

from keras_strom import errors
from keras_strom.job.interfaces import interface_addresses

_NAME = re.compile(r"(?:[\w.+-]+@)?[\w][\w.-]*")
_IPV6 = re.compile(r"((?:[\w.+-]+@)?)\[([^][]+)\]")
_COUNT = re.compile(r"[1-9]\d{0,5}")
_SLOTS = "slots"
#: Open MPI's, above which it does not oversubscribe a host; here no host ever is.
_MOST_SLOTS = ("max_slots", "max-slots")


@dataclasses.dataclass(frozen=True)
class Host:
    """A machine to run workers on.

    Attributes:
        name: as `ssh` takes it: a name, an address, or one of them after "user@".
        slots: so many workers, at most.

    Example:
        >>> Host("a", 4).is_here
        False
    """

    name: str
    slots: int = 1

    @property
    def is_here(self) -> bool:
        """Whether it is this machine, for which no ssh is needed."""
        if self.name in ("localhost", socket.gethostname()):
            return True
        try:
            address = ipaddress.ip_address(self.name)
        except ValueError:
            return False
        return address.is_loopback or address in {one.address for one in interface_addresses()}


def parse_hosts(text: str, option: str = "--hosts ") -> tuple[Host, ...]:
    """Reads what `--hosts` takes; `option` is for errors.

    Raises:
        InvalidOption: it is something else; the message names the part.

    Example:
        >>> parse_hosts("a:4,[fd00::7]:2")
        (Host(name='a', slots=4), Host(name='fd00::7', slots=2))
    """
    return _together(_host(part.strip(), f"{option}{text!r}") for part in text.split(","))


def read_hostfile(path: str) -> tuple[Host, ...]:
    """Reads a file of hosts.

    Raises:
        InvalidOption: there is none, it names no host, or a line is something else.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise errors.InvalidOption(f"--hostfile {path} cannot be read: {error}") from error
    return parse_hostfile(text, path)


def parse_hostfile(text: str, path: str = "hostfile") -> tuple[Host, ...]:
    """Reads a hostfile's text; `path` is for errors.

    Example:
        >>> parse_hostfile("a slots=4  # the first")
        (Host(name='a', slots=4),)
    """
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            hosts.append(_of_line(words, f"--hostfile {path}, line {number}"))
    if not hosts:
        raise errors.InvalidOption(f"--hostfile {path} names no host")
    return _together(hosts)


def _of_line(words: list[str], where: str) -> Host:
    host = _host(words[0], where)
    given = [word.partition("=") for word in words[1:]]
    for key, equals, value in given:
        if key not in (_SLOTS, *_MOST_SLOTS) or not equals or not _COUNT.fullmatch(value):
            raise errors.InvalidOption(
                f"{where}: {key + equals + value!r} is not understood; a line is a host, and after "
                "it slots=4 where it can run 4 workers"
            )
    counts = {key: int(value) for key, _, value in given}
    if _SLOTS in counts and ":" in words[0].rpartition("]")[2]:
        raise errors.InvalidOption(f"{where}: both {words[0]!r} and {_SLOTS}= say how many slots")
    return dataclasses.replace(host, slots=counts.get(_SLOTS, host.slots))


def _host(text: str, where: str) -> Host:
    """One host, with ":slots" behind it or without."""
    bracketed = _IPV6.match(text)
    if bracketed is not None:
        name, rest = bracketed[1] + _ipv6(bracketed[2], where), text[bracketed.end() :]
    else:
        if text.count(":") > 1:
            example = "[fd00::7]" if set(text) & set("[]") else f"[{text}]"
            raise errors.InvalidOption(
                f"{where}: put an IPv6 address into brackets, as in {example} or [fd00::7]:4"
            )
        name, colon, slots = text.partition(":")
        rest = colon + slots
        if not _NAME.fullmatch(name):
            raise errors.InvalidOption(
                f"{where}: {text!r} is no host such as node1, node1:4 or [fd00::7]:4"
            )
    if rest and not (rest[0] == ":" and _COUNT.fullmatch(rest[1:])):
        raise errors.InvalidOption(
            f"{where}: {rest.removeprefix(':')!r} after {name} is no number of slots, 1 or more"
        )
    return Host(name, int(rest[1:]) if rest else 1)


def _ipv6(text: str, where: str) -> str:
    try:
        ipaddress.IPv6Address(text)
    except ValueError as error:
        raise errors.InvalidOption(f"{where}: {text!r} is no IPv6 address") from error
    return text


def _together(hosts: Iterable[Host]) -> tuple[Host, ...]:
    """Each once: one that is named several times has the slots of all."""
    slots: dict[str, int] = {}
    for host in hosts:
        slots[host.name] = slots.get(host.name, 0) + host.slots
    return tuple(Host(name, count) for name, count in slots.items())
