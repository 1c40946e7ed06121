"""A small HTTP server inside the running event loop: /metrics, /healthz, /readyz."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TypeAlias

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from braidlog.runtime.errors import InvalidSetting
from braidlog.runtime.metrics import CONTENT_TYPE, Metrics
from braidlog.runtime.quantities import Address

Probe: TypeAlias = Callable[[], str | None]
"""Returns None when all is well, otherwise what is wrong."""

Gather: TypeAlias = Callable[[bytes], Awaitable[bytes]]

STOP_TIMEOUT_S = 2
CONNECTIONS_MAX = 64
"""Monitoring needs a few. Further ones get a 503."""


def _well() -> str | None:
    return None


class _Server(uvicorn.Server):
    """A guest in the event loop: signals stay with the process.

    `up` says when it has started.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


def _routes(metrics: Metrics, healthy: Probe, ready: Probe, gather: Gather | None) -> list[Route]:
    def probe(check: Probe) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(_request: Request) -> Response:
            trouble = check()
            return PlainTextResponse("ok\n") if trouble is None else PlainTextResponse(f"{trouble}\n", 503)

        return endpoint

    async def figures(_request: Request) -> Response:
        own = metrics.render()
        return Response(await gather(own) if gather is not None else own, media_type=CONTENT_TYPE)

    return [Route("/metrics", figures), Route("/healthz", probe(healthy)), Route("/readyz", probe(ready))]


def bind_http(address: Address, what: str = "metrics", setting: str = "metrics_listen") -> socket.socket:
    """Bind an address before it is served, so that others can be told its port."""
    try:
        return socket.create_server(
            (address.host, address.port), family=socket.AF_INET6 if ":" in address.host else socket.AF_INET
        )
    except OSError as error:
        raise InvalidSetting(
            f"cannot serve {what} on {address}: {error.strerror or error}",
            help=f"Choose another address with {setting}=HOST:PORT, or {setting}=off.",
        ) from error


@contextlib.asynccontextmanager
async def serve_app(app: ASGIApp, listener: socket.socket) -> AsyncIterator[Address]:
    """Serve an application while the context lasts, and yield the bound address."""
    server = _Server(
        uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            ws="none",
            server_header=False,
            limit_concurrency=CONNECTIONS_MAX,
            timeout_graceful_shutdown=STOP_TIMEOUT_S,
        )
    )
    task = asyncio.create_task(server.serve(sockets=[listener]), name="http")
    try:
        await server.up.wait()
        yield bound_address(listener)
    finally:
        server.should_exit = True
        await task
        listener.close()


def bound_address(listener: socket.socket) -> Address:
    host, port = listener.getsockname()[:2]
    return Address(host, port)


@contextlib.asynccontextmanager
async def serve_http(
    where: Address | socket.socket,
    metrics: Metrics,
    *,
    healthy: Probe = _well,
    ready: Probe = _well,
    gather: Gather | None = None,
) -> AsyncIterator[Address]:
    """Serve metrics and probes while the context lasts, and yield the bound address.

    `where` is an address, or what `bind_http` made of it. With `gather`, /metrics shows what `gather` makes of this
    process's own figures.
    """
    listener = bind_http(where) if isinstance(where, Address) else where
    async with serve_app(Starlette(routes=_routes(metrics, healthy, ready, gather)), listener) as bound:
        yield bound


async def fetch_text(address: Address, path: str, *, timeout_s: float) -> str:
    """GET a path from a server like the one above.

    Raises OSError if it does not answer.
    """
    async with asyncio.timeout(timeout_s):  # a TimeoutError is an OSError
        reader, writer = await asyncio.open_connection(address.host, address.port)
        try:
            writer.write(f"GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise OSError(f"{address}{path} answered {head[:40]!r}")
    return body.decode()
