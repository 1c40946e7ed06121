"""The console's web application.

Every page and its table have the same address: a browser gets the page, a program that accepts JSON gets the table.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from importlib.resources import files
from typing import Any, TypeAlias

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from braidlog import __version__
from braidlog.clients.errors import WrongUsage, explain
from braidlog.console import bills, braid, groups, messages, operations, topics
from braidlog.console.cluster import Busy
from braidlog.console.desk import Arguments, Desk
from braidlog.console.guard import COOKIE, Guard, Refusal
from braidlog.console.load import load_now
from braidlog.runtime.errors import BraidError

View: TypeAlias = Callable[[Desk, Arguments], Awaitable[dict[str, Any]]]

BODY_BYTES_MAX = 2 << 20
VIEW_TIMEOUT_S = 30.0
STREAMS_MAX = 16
TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".svg": "image/svg+xml",
    ".md": "text/plain",
}
SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

PAGES: dict[str, tuple[View | None, dict[str, View]]] = {
    "/": (operations.overview, {}),
    "/cost": (bills.cost, {}),
    "/uploads": (braid.uploads, {}),
    "/topics": (topics.topics, {"POST": topics.create_topic}),
    "/topics/{topic}": (topics.topic, {"PATCH": topics.alter_topic, "DELETE": topics.delete_topic}),
    "/topics/{topic}/messages": (messages.messages, {"POST": messages.produce}),
    "/groups": (groups.groups, {}),
    "/groups/{group:path}": (groups.group, {"POST": groups.reset}),
    "/transactions": (operations.transactions, {}),
    "/agents": (operations.agents, {}),
    "/jobs": (operations.jobs, {"POST": operations.start_job}),
}
"""Every page's table, and what can be done there, by method."""


class Console:
    """The application: guarded pages, tables, actions, and a stream of figures."""

    def __init__(self, desk: Desk, guard: Guard) -> None:
        self._desk = desk
        self._guard = guard
        self._static = _load_static()
        self._streams = 0
        routes = [
            Route("/session", self._guarded(self._session), methods=["GET"]),
            Route("/login", self._login, methods=["POST"]),
            Route("/live", self._guarded(self._live), methods=["GET"]),
            Route("/static/{path:path}", self._file, methods=["GET"]),
            Route("/topics/{topic}/messages/{partition}/{offset}", self._guarded(self._download), methods=["GET"]),
            *(
                Route(path, self._guarded(self._page(view, actions)), methods=["GET", *actions])
                for path, (view, actions) in PAGES.items()
            ),
        ]
        self.app = Starlette(routes=routes)

    def _guarded(self, endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def checked(request: Request) -> Response:
            peer = request.client.host if request.client is not None else ""
            refusal = self._guard.check(request.method, request.headers, request.cookies, peer)
            if refusal is None:
                return _safe(await endpoint(request))
            if refusal.status == 401 and request.method == "GET" and not _wants_json(request):
                return _safe(self._shell())  # the page asks for the token
            return _refused(refusal)

        return checked

    def _page(self, view: View | None, actions: Mapping[str, View]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            if request.method in {"GET", "HEAD"}:
                if not _wants_json(request):
                    return self._shell()
                assert view is not None
                return await self._answer(view, Arguments(request.path_params, request.query_params))
            body = await _body(request)
            if isinstance(body, Refusal):
                return _refused(body)
            return await self._answer(actions[request.method], Arguments(request.path_params, {}, body))

        return endpoint

    async def _answer(self, view: View, arguments: Arguments) -> Response:
        try:
            async with asyncio.timeout(VIEW_TIMEOUT_S):
                return _json(await view(self._desk, arguments))
        except Exception as error:  # noqa: BLE001 - every error is explained to whoever asked
            return _failed(error)

    def _shell(self) -> Response:
        return Response(self._static["index.html"], media_type="text/html", headers={"vary": "Accept, Cookie"})

    async def _file(self, request: Request) -> Response:
        path = request.path_params["path"]
        data = self._static.get(path)
        if data is None:
            return _refused(Refusal(404, "there is no such file", "Open /."))
        kind = next((kind for ending, kind in TYPES.items() if path.endswith(ending)), "application/octet-stream")
        answer = _safe(Response(data, media_type=kind))
        answer.headers["cache-control"] = "no-cache"
        return answer

    async def _session(self, _request: Request) -> Response:
        return _json({"key": self._guard.key, "version": __version__, "bootstrap": self._desk.cluster.bootstrap})

    async def _login(self, request: Request) -> Response:
        body = await _body(request)
        if isinstance(body, Refusal):
            return _refused(body)
        given = body.get("token")
        if not isinstance(given, str) or not self._guard.is_token(given):
            return _refused(Refusal(401, "this is not the console's token", "Read it from console_token_file."))
        answer = _json({"done": "logged in"})
        answer.set_cookie(
            COOKIE, given, httponly=True, samesite="strict", path="/", secure=request.url.scheme == "https"
        )
        return _safe(answer)

    async def _download(self, request: Request) -> Response:
        arguments = Arguments(request.path_params, request.query_params)
        try:
            async with asyncio.timeout(VIEW_TIMEOUT_S):
                data = await messages.download(self._desk, arguments)
        except Exception as error:  # noqa: BLE001 - every error is explained to whoever asked
            return _failed(error)
        name = f"message-{arguments.name('partition')}-{arguments.name('offset')}.bin"
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(data, media_type="application/octet-stream", headers=headers)

    async def _live(self, _request: Request) -> Response:
        if self._streams >= STREAMS_MAX:
            return _refused(Refusal(503, "too many pages are open", "Close some of them."))
        return StreamingResponse(self._events(), media_type="text/event-stream")

    async def _events(self) -> AsyncIterator[bytes]:
        self._streams += 1
        try:
            before = None
            yield b"retry: 2000\n\n"
            async for sample in self._desk.sampler.watch():
                told: dict[str, Any] = {"load": load_now(self._desk)}
                if before is not None:
                    told["knot"] = braid.knot(before, sample, self._desk.sampler.facts)
                before = sample
                yield b"data: " + json.dumps(told).encode() + b"\n\n"
        finally:
            self._streams -= 1


def _wants_json(request: Request) -> bool:
    if request.query_params.get("format") == "json":
        return True
    accepted = request.headers.get("accept", "*/*")
    return "text/html" not in accepted


async def _body(request: Request) -> dict[str, Any] | Refusal:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return Refusal(415, "the body is not JSON", "Send content-type: application/json.")
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > BODY_BYTES_MAX:
            return Refusal(413, f"the body has more than {BODY_BYTES_MAX} bytes", "Use `braid produce` for more.")
    try:
        body = json.loads(bytes(data) or b"{}")
    except (ValueError, RecursionError):
        return Refusal(400, "the body is not JSON", "Send an object.")
    return body if isinstance(body, dict) else Refusal(400, "the body is not an object", "Send an object.")


def _json(value: Any, status: int = 200) -> Response:
    return JSONResponse(value, status, headers={"vary": "Accept, Cookie"})


def _refused(refusal: Refusal) -> Response:
    return _safe(_json({"error": refusal.error, "help": refusal.help}, refusal.status))


def _failed(error: Exception) -> Response:
    if isinstance(error, TimeoutError):
        return _json({"error": "no answer in time", "help": "Is the cluster busy, or away? Try again."}, 504)
    message, advice = explain(error)
    status = 400 if isinstance(error, WrongUsage) else 503 if isinstance(error, Busy) else 502
    if message.startswith("there is no "):
        status = 404
    if isinstance(error, BraidError):
        status = 502
    return _json({"error": message, "help": advice}, status)


def _safe(response: Response) -> Response:
    for name, value in SECURITY_HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def _load_static() -> dict[str, bytes]:
    """Read all files at the start.

    Nothing else can be asked for then, whatever a path says.
    """
    found: dict[str, bytes] = {}
    root = files("braidlog.console") / "static"
    for entry in root.iterdir():
        if entry.is_dir():
            found |= {f"{entry.name}/{each.name}": each.read_bytes() for each in entry.iterdir() if each.is_file()}
        else:
            found[entry.name] = entry.read_bytes()
    return found
