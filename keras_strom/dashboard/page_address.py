"""Where a job's page is asked for: `--dashboard`, `dashboard=`."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
import socket

from keras_strom import errors
from keras_strom.job.network import format_address

_LOOPBACK = "127.0.0.1"
_ADDRESS = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.%]+)\]|(?P<host>[^:\[\]]+)):(?P<port>\d+)")
_WORDS = (
    "must be True or False, a port, or HOST:PORT; without a host the page is on this machine's "
    "loopback interface alone"
)


@dataclasses.dataclass(frozen=True)
class PageAddress:
    """An address for the page's server (TCP).

    Attributes:
        host: to bind to; the loopback interface unless told otherwise.
        port: 0 = any free one.

    Example:
        >>> PageAddress.of("0.0.0.0:8265")
        PageAddress(host='0.0.0.0', port=8265)
        >>> PageAddress.of(False) is None
        True
    """

    host: str = _LOOPBACK
    port: int = 0

    @classmethod
    def of(cls, dashboard: object) -> PageAddress | None:
        """What an option says: True, False, a port or "HOST:PORT"; None = no page is asked for.

        Raises:
            InvalidOption: it says something else.
        """
        if dashboard is False or dashboard is None:
            return None
        if dashboard is True:
            return cls()
        host: str = _LOOPBACK
        port: object = dashboard
        if isinstance(dashboard, str):
            found = _ADDRESS.fullmatch(dashboard)
            if found:
                host, port = found["six"] or found["host"], int(found["port"])
            elif dashboard.isascii() and dashboard.isdigit():
                port = int(dashboard)
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < 1 << 16:
            raise errors.InvalidOption(f"dashboard={dashboard!r} {_WORDS}")
        return cls(host, port)

    def check(self) -> None:
        """Refuses what could not serve a page, before a job costs anything.

        Raises:
            InvalidOption: aiohttp or prometheus-client is not installed.
            AddressError: the address cannot be used, or its port is in use.
        """
        try:
            import aiohttp.web  # noqa: F401
            import prometheus_client  # noqa: F401
        except ImportError as error:
            raise errors.InvalidOption(
                f"dashboard: {error.name} is not installed: pip install 'keras-strom[dashboard]'"
            ) from error
        try:
            family, _, _, _, where = socket.getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            socket.create_server(where, family=family).close()
        except (OSError, UnicodeError) as error:  # The latter: a name that no resolver takes.
            raise self.refused(error) from error

    def refused(self, error: object) -> errors.AddressError:
        """The error of an address that cannot be used."""
        where = format_address((self.host, self.port))
        return errors.AddressError(
            f"the page cannot be served at TCP {where}: {error}; choose another port (--dashboard "
            "PORT), or none for any free one"
        )

    def url(self, port: int) -> str:
        """The root of the server at this address that has got `port`."""
        host = self.host
        if host in ("0.0.0.0", "::"):
            host = socket.gethostname()
        return f"http://{format_address((host, port))}"


def is_address(text: str) -> bool:
    """Whether a word can be the value of --dashboard: `8265`, `0.0.0.0:8265`."""
    return text.isdigit() or _ADDRESS.fullmatch(text) is not None


def with_port(text: str) -> str | None:
    """An address of a host that lacks its port (`::`, `0.0.0.0`); None = the word is none."""
    host = text.removeprefix("[").removesuffix("]")
    if host != "localhost":
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return None
    return format_address((host, 8265))
