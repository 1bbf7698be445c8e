"""The IP addresses of this machine's network interfaces, asked of libc's getifaddrs."""

from __future__ import annotations

import ctypes
import dataclasses
import ipaddress
import os
import socket
import sys
from collections.abc import Iterator

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_IFF_UP = 0x1


@dataclasses.dataclass(frozen=True)
class InterfaceAddress:
    """One address of one interface, such as 10.0.2.4 of eth0."""

    interface: str
    address: IPAddress

    def __str__(self) -> str:
        return f"{self.address} ({self.interface})"


def interface_addresses() -> tuple[InterfaceAddress, ...]:
    """Every address that a socket of this machine can be bound to, in the system's order.

    Interfaces that are down are left out, and IPv6 link-local addresses too: they mean nothing
    without a scope.

    Raises:
        OSError: the system did not answer.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    head = ctypes.POINTER(_Ifaddrs)()
    if libc.getifaddrs(ctypes.byref(head)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    try:
        return tuple(_usable(head))
    finally:
        libc.freeifaddrs(head)


def _usable(entry: ctypes._Pointer[_Ifaddrs]) -> Iterator[InterfaceAddress]:
    while entry:
        here = entry.contents
        address = _address(here) if here.flags & _IFF_UP else None
        if address is not None and not (address.version == 6 and address.is_link_local):
            yield InterfaceAddress(here.name.decode(), address)
        entry = here.next


def _address(entry: _Ifaddrs) -> IPAddress | None:
    if not entry.address:
        return None
    family = int.from_bytes(ctypes.string_at(entry.address, 2), sys.byteorder)
    # struct sockaddr_in: family, port, 4 bytes; struct sockaddr_in6: family, port, flow, 16 bytes.
    if family == socket.AF_INET:
        return ipaddress.IPv4Address(ctypes.string_at(entry.address + 4, 4))
    if family == socket.AF_INET6:
        return ipaddress.IPv6Address(ctypes.string_at(entry.address + 8, 16))
    return None


class _Ifaddrs(ctypes.Structure):
    """struct ifaddrs of <ifaddrs.h>, as far as it is read here."""

    next: ctypes._Pointer[_Ifaddrs]
    name: bytes
    flags: int
    address: int


_Ifaddrs._fields_ = [
    ("next", ctypes.POINTER(_Ifaddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
    ("netmask", ctypes.c_void_p),
    ("destination", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
]
