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

from braidlog.runtime.errors import InvalidSetting
from braidlog.runtime.metrics import CONTENT_TYPE, Metrics
from braidlog.runtime.quantities import Address

Probe: TypeAlias = Callable[[], str | None]
"""None when all is well, otherwise what is not."""

STOP_TIMEOUT_S = 2
CONNECTIONS_MAX = 64
"""Monitoring needs a few. More are answered 503."""


def _well() -> str | None:
    return None


class _Server(uvicorn.Server):
    """Runs as a guest: signals stay with the process, and the start is an event."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


def _routes(metrics: Metrics, healthy: Probe, ready: Probe) -> list[Route]:
    def probe(check: Probe) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(_request: Request) -> Response:
            trouble = check()
            return PlainTextResponse("ok\n") if trouble is None else PlainTextResponse(f"{trouble}\n", 503)

        return endpoint

    async def figures(_request: Request) -> Response:
        return Response(metrics.render(), media_type=CONTENT_TYPE)

    return [Route("/metrics", figures), Route("/healthz", probe(healthy)), Route("/readyz", probe(ready))]


def _bind(address: Address) -> socket.socket:
    try:
        return socket.create_server(
            (address.host, address.port), family=socket.AF_INET6 if ":" in address.host else socket.AF_INET
        )
    except OSError as error:
        raise InvalidSetting(
            f"cannot serve metrics on {address}: {error.strerror or error}",
            help="Choose another address with metrics_listen=HOST:PORT, or metrics_listen=off.",
        ) from error


@contextlib.asynccontextmanager
async def serve_http(
    address: Address, metrics: Metrics, *, healthy: Probe = _well, ready: Probe = _well
) -> AsyncIterator[Address]:
    """Serve while the context lasts; gives the address that was bound."""
    listener = _bind(address)
    app = Starlette(routes=_routes(metrics, healthy, ready))
    server = _Server(
        uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            ws="none",
            limit_concurrency=CONNECTIONS_MAX,
            timeout_graceful_shutdown=STOP_TIMEOUT_S,
        )
    )
    bound = Address(address.host, listener.getsockname()[1])
    task = asyncio.create_task(server.serve(sockets=[listener]), name="http")
    try:
        await server.up.wait()
        yield bound
    finally:
        server.should_exit = True
        await task
        listener.close()
