"""The server of a job's page: reads only, to whoever has the token, where it was asked to.

Every address begins with the token: `/TOKEN/` is the page, `/TOKEN/state.json` what it shows,
`/TOKEN/series.json?metric=loss` a metric over time. `/metrics` takes the token as a bearer's, too,
as Prometheus sends it. Without it every request is 404, by any method, and nothing in the answer
tells that it is a job's page. Connections are bounded: the oldest give way.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hmac
import json
import logging
import socket
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_strom.dashboard.page_address import PageAddress

if TYPE_CHECKING:
    from aiohttp import web

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_PAGE = Path(__file__).parent / "page"
_START_SECONDS = 30.0
_MOST_RANKS = 64
_COMPRESSED_FROM = 2048
# A page asks every 2.5 s, through at most six connections of its browser.
_KEEPALIVE_SECONDS = 15.0
_MOST_CONNECTIONS = 64
_SWEEP_SECONDS = 1.0
# In place of aiohttp's own, which names its version.
_SERVER = "HTTP"

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' "
    "'unsafe-inline'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Server": _SERVER,
}

_FILES = {
    "": ("index.html", "text/html"),
    "page.js": ("page.js", "text/javascript"),
    "charts.js": ("charts.js", "text/javascript"),
    "tree.js": ("tree.js", "text/javascript"),
    "page.css": ("page.css", "text/css"),
    "uPlot.min.js": ("uPlot.min.js", "text/javascript"),
    "uPlot.min.css": ("uPlot.min.css", "text/css"),
    "uPlot.LICENSE": ("uPlot.LICENSE", "text/plain"),
}

_logger = logging.getLogger("keras_strom")

#: Gives the state, without events up to a number; `WatchedJob.snapshot`.
Snapshot = Callable[[int], dict[str, Any]]
#: Gives a metric over time, of some ranks or (None) its spread over all.
Series = Callable[[str, list[int] | None], dict[str, Any]]


class PageServer:
    """Serves from entry to exit, on a thread of its own.

    Args:
        address: to bind to.
        token: that every address begins with.
        look: gives what the page shows, to somebody who looks; called on that thread.
        snapshot: the same for `/metrics`, which looks in any case.
        series: a metric over time.

    Attributes:
        port: that it has got, once entered.

    Raises:
        InvalidOption: on entry, aiohttp or prometheus-client is not installed.
        AddressError: on entry, the address cannot be used.
    """

    def __init__(
        self, address: PageAddress, token: str, look: Snapshot, snapshot: Snapshot, series: Series
    ) -> None:
        self._address = address
        self._token = token
        self._look = look
        self._snapshot = snapshot
        self._series = series
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="keras-strom-page", daemon=True)
        self.port = 0

    def __enter__(self) -> PageServer:
        self._address.check()
        self._thread.start()
        self._ready.wait(_START_SECONDS)
        if self._failure is not None:
            raise self._address.refused(self._failure) from self._failure
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._over is not None:
            with contextlib.suppress(RuntimeError):  # A page that has failed costs no job.
                self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
            if self._ready.is_set():
                _logger.warning("the page of the job is gone (%r); the job goes on", error)
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        from aiohttp import web

        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        application = web.Application(middlewares=[_guard(self._token)])
        add = application.router.add_get
        add("/metrics", self._metrics)
        add("/{token}/metrics", self._metrics)
        add("/{token}/state.json", self._state)
        add("/{token}/series.json", self._over_time)
        for name in _FILES:
            add(f"/{{token}}/{name}", _file)
        runner = web.AppRunner(
            application,
            access_log=None,
            shutdown_timeout=0.5,
            keepalive_timeout=_KEEPALIVE_SECONDS,
        )
        await runner.setup()
        try:
            await self._site(runner).start()
            self.port = int(runner.addresses[0][1])
            self._ready.set()
            while not self._over.is_set():
                assert runner.server is not None
                for connection in runner.server.connections[:-_MOST_CONNECTIONS]:
                    connection.force_close()
                with contextlib.suppress(asyncio.TimeoutError):  # Another one before Python 3.11.
                    await asyncio.wait_for(self._over.wait(), _SWEEP_SECONDS)
        finally:
            await runner.cleanup()

    def _site(self, runner: web.AppRunner) -> web.BaseSite:
        from aiohttp import web

        host, port = self._address.host, self._address.port
        if host != "::" or not socket.has_dualstack_ipv6():
            return web.TCPSite(runner, host, port)
        # To asyncio this address is IPv6 alone.
        both = socket.create_server((host, port), family=socket.AF_INET6, dualstack_ipv6=True)
        return web.SockSite(runner, both)

    async def _state(self, request: web.Request) -> web.StreamResponse:
        return _json(request, self._look(_number(request, "after")))

    async def _over_time(self, request: web.Request) -> web.StreamResponse:
        ranks = request.query.get("ranks")
        wanted = None
        if ranks is not None:
            words = [word for word in ranks.split(",") if _is_number(word)]
            wanted = [int(word) for word in words[:_MOST_RANKS]]
        return _json(request, self._series(request.query.get("metric", "loss"), wanted))

    async def _metrics(self, _: web.Request) -> web.StreamResponse:
        from aiohttp import web

        from keras_strom.dashboard.metrics import CONTENT_TYPE, open_metrics

        body = open_metrics(self._snapshot(1 << 60))
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})


def _guard(token: str) -> Any:
    """Lets through who has the token, to read."""
    from aiohttp import web

    def has_it(request: web.Request) -> bool:
        said = request.path.removeprefix("/").partition("/")[0]
        kind, _, bearers = request.headers.get("Authorization", "").partition(" ")
        if kind == "Bearer":
            said = bearers
        return hmac.compare_digest(said.encode("utf-8", "replace"), token.encode())

    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        response: web.StreamResponse
        if not has_it(request):
            nothing = {"Server": _SERVER}
            return web.Response(status=404, text="404: Not Found", headers=nothing)
        if request.method not in ("GET", "HEAD"):
            response = web.Response(status=405, text="405: this page is read-only")
        else:
            try:
                response = await handler(request)
            except web.HTTPException as error:
                response = web.Response(status=error.status, text=error.text)
        response.headers.update(_HEADERS)
        return response

    return web.middleware(guard)


async def _file(request: web.Request) -> web.StreamResponse:
    from aiohttp import web

    name, kind = _FILES[request.path.rpartition("/")[2]]
    body = (_PAGE / name).read_bytes()
    return _packed(request, web.Response(body=body, content_type=kind, charset="utf-8"))


def _json(request: web.Request, value: dict[str, Any]) -> web.StreamResponse:
    from aiohttp import web

    body = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    return _packed(request, web.Response(body=body, content_type="application/json"))


def _packed(request: web.Request, response: web.Response) -> web.Response:
    body = response.body
    accepts = "gzip" in request.headers.get("Accept-Encoding", "")
    if accepts and isinstance(body, bytes) and len(body) > _COMPRESSED_FROM:
        response.body = gzip.compress(body, 3)
        response.headers["Content-Encoding"] = "gzip"
    return response


def _number(request: web.Request, name: str) -> int:
    text = request.query.get(name, "")
    return int(text) if _is_number(text) else 0


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19
