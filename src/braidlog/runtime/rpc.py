"""Remote calls: many at a time over one connection, TCP or a Unix socket.

A frame is its length (u32, of what follows), a kind (u8), the call's number (u64), and then, by kind:

    1  call     deadline in ms (u32, 0: none), length of the method's name (u8), name, body
    2  answer   body
    3  error    msgpack [class, message, help, remedy]
    4  cancel   nothing: the caller does not wait any more

Numbers are big-endian. Bodies are bytes; what they mean is agreed between handler and caller.
"""

import asyncio
import os
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias, cast

import msgspec
import structlog

from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError, ControlUnavailable, DeadlineExceeded, InvalidSetting, Remedy
from braidlog.runtime.limits import RPC_CALLS_IN_FLIGHT_MAX, RPC_MESSAGE_BYTES_MAX

_log = structlog.get_logger(__name__)

Handler: TypeAlias = Callable[[bytes, float | None], Awaitable[bytes]]
"""From a call's body, and the seconds its caller will wait, to the answer's body."""

_LENGTH = struct.Struct(">I")
_HEAD = struct.Struct(">IBQ")
_CALL = struct.Struct(">IBQIB")
_CALL_REST = struct.Struct(">IB")
_CALL_KIND, _ANSWER_KIND, _ERROR_KIND, _CANCEL_KIND = 1, 2, 3, 4
_DEADLINE_MS_MAX = 2**32 - 1

_CONNECT_TIMEOUT_S = 5.0
_BACKOFF_S_MIN, _BACKOFF_S_MAX = 0.02, 0.5


class RemoteFailure(BraidError):
    """The other side failed in a way that has no class on this side."""

    def __init__(self, message: str, *, help: str = "", remedy: Remedy = Remedy.GIVE_UP) -> None:  # noqa: A002
        super().__init__(message, help=help)
        self.remedy = remedy


class _Frames(asyncio.Protocol, ABC):
    """Cuts the stream into frames, and gathers what one turn of the loop writes into one write."""

    def __init__(self, message_bytes_max: int) -> None:
        self._message_bytes_max = message_bytes_max
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._needed_bytes = _HEAD.size
        self._unsent: list[bytes] = []
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        connection: socket.socket | None = transport.get_extra_info("socket")
        if connection is not None and connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        if len(received) < self._needed_bytes:
            return
        start = 0
        end = len(received)
        with memoryview(received) as view:
            while end - start >= _HEAD.size:
                length, kind, number = _HEAD.unpack_from(view, start)
                if length > self._message_bytes_max or length < _HEAD.size - _LENGTH.size:
                    _log.warning("closing a connection that sent a frame of an impossible length", length_bytes=length)
                    self.close()
                    return
                frame_end = start + _LENGTH.size + length
                if frame_end > end:
                    break
                self.frame_received(kind, number, bytes(view[start + _HEAD.size : frame_end]))
                start = frame_end
        if start:
            del received[:start]
        # Until the next frame is complete there is no use in looking at it again.
        left = len(received)
        self._needed_bytes = _LENGTH.unpack_from(received)[0] + _LENGTH.size if left >= _LENGTH.size else _HEAD.size

    @abstractmethod
    def frame_received(self, kind: int, number: int, rest: bytes) -> None: ...

    def send(self, *parts: bytes) -> None:
        if not self._unsent:
            self._loop.call_soon(self.flush)
        self._unsent.extend(parts)

    def flush(self) -> None:
        if self._unsent and self._transport is not None and not self._transport.is_closing():
            unsent, self._unsent = self._unsent, []
            self._transport.write(unsent[0] if len(unsent) == 1 else b"".join(unsent))

    @property
    def writable(self) -> bool:
        """Whether the other side takes what is sent to it."""
        return self._writable.is_set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def close(self) -> None:
        if self._transport is not None:
            self.flush()
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _frame(kind: int, number: int, body: bytes) -> tuple[bytes, bytes]:
    return _HEAD.pack(_HEAD.size - _LENGTH.size + len(body), kind, number), body


# ── server ────────────────────────────────────────────────────────────────────────────────────────────────────────


class _ServerConnection(_Frames):
    def __init__(self, server: "RpcServer") -> None:
        super().__init__(server.message_bytes_max)
        self._server = server
        self._calls: dict[int, asyncio.Task[None]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.connections[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.pop(self, None)
        for task in self._calls.values():
            task.cancel()

    def pause_writing(self) -> None:
        # A client that does not take its answers gets no further calls done.
        super().pause_writing()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def frame_received(self, kind: int, number: int, rest: bytes) -> None:
        if kind == _CALL_KIND and len(rest) >= _CALL_REST.size:
            deadline_ms, name_length = _CALL_REST.unpack_from(rest)
            body_start = _CALL_REST.size + name_length
            name = rest[_CALL_REST.size : body_start].decode("ascii", "replace")
            self._start_call(number, name, rest[body_start:], deadline_ms / 1000 if deadline_ms else None)
        elif kind == _CANCEL_KIND:
            task = self._calls.get(number)
            if task is not None:
                task.cancel()
        else:
            self.close()

    def _start_call(self, number: int, name: str, body: bytes, timeout_s: float | None) -> None:
        handler = self._server.handlers.get(name)
        if handler is None:
            message = f"there is no method {name!r}"
            self._send_error(number, InvalidSetting(message, help="Do both sides run the same release?"))
        elif self._server.calls_in_flight >= self._server.calls_in_flight_max or number in self._calls:
            self._send_error(number, ControlUnavailable("too many calls are in flight"))
        else:
            self._server.calls_in_flight += 1
            task = self._loop.create_task(self._call(number, name, handler, body, timeout_s), name=name)
            self._calls[number] = task
            # Not at the end of `_call`: a task that is cancelled before its first step never gets there.
            task.add_done_callback(lambda _: self._call_ended(number))

    def _call_ended(self, number: int) -> None:
        self._server.calls_in_flight -= 1
        del self._calls[number]

    async def _call(self, number: int, name: str, handler: Handler, request: bytes, timeout_s: float | None) -> None:
        try:
            body = await handler(request, timeout_s)
            if len(body) > self._message_bytes_max - _HEAD.size:
                raise RemoteFailure(f"the answer of {name} is too long: {len(body)} bytes")
            self.send(*_frame(_ANSWER_KIND, number, body))
        except BraidError as error:
            self._send_error(number, error)
        except Exception as error:  # noqa: BLE001 - the caller must hear of it, whatever it is
            _log.exception("a call failed in an unforeseen way", method=name)
            self._send_error(number, RemoteFailure(f"{name} failed: {type(error).__name__}: {error}"))

    def _send_error(self, number: int, error: BraidError) -> None:
        kind = type(error)
        parts = (f"{kind.__module__}.{kind.__qualname__}", str(error), error.help, error.remedy.value)
        self.send(*_frame(_ERROR_KIND, number, msgspec.msgpack.encode(parts)))


class RpcServer:
    """Serves a table of handlers. Clients that go away have their calls cancelled."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        message_bytes_max: int = RPC_MESSAGE_BYTES_MAX,
        calls_in_flight_max: int = RPC_CALLS_IN_FLIGHT_MAX,
    ) -> None:
        self.handlers = dict(handlers)
        self.message_bytes_max = message_bytes_max
        self.calls_in_flight_max = calls_in_flight_max
        self.calls_in_flight = 0
        self.connections: dict[_ServerConnection, None] = {}
        self.address = ""
        self._server: asyncio.Server | None = None

    async def start(self, address: str) -> str:
        """Listen, and return the address that clients can use (with the port that port 0 turned into)."""
        loop = asyncio.get_running_loop()
        where = parse_address(address)
        if isinstance(where, str):
            self._server = await loop.create_unix_server(lambda: _ServerConnection(self), where)
            os.chmod(where, 0o600)
            self.address = where
        else:
            self._server = await loop.create_server(lambda: _ServerConnection(self), *where)
            port = self._server.sockets[0].getsockname()[1]
            self.address = f"[{where[0]}]:{port}" if ":" in where[0] else f"{where[0]}:{port}"
        return self.address

    async def close(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for connection in list(self.connections):
            connection.close()
        where = parse_address(self.address)
        if isinstance(where, str):
            try:
                os.unlink(where)
            except FileNotFoundError:
                pass
        self._server = None


# ── client ────────────────────────────────────────────────────────────────────────────────────────────────────────


class _ClientConnection(_Frames):
    def __init__(self, message_bytes_max: int) -> None:
        super().__init__(message_bytes_max)
        self.calls: dict[int, asyncio.Future[bytes]] = {}
        self._numbers_unsent: list[int] = []
        self.lost = False

    async def wait_writable(self) -> None:
        await self._writable.wait()

    def start_call(self, number: int, name: bytes, body: bytes, deadline_ms: int) -> asyncio.Future[bytes]:
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self.calls[number] = answer
        self._numbers_unsent.append(number)
        length = _CALL.size - _LENGTH.size + len(name) + len(body)
        self.send(_CALL.pack(length, _CALL_KIND, number, deadline_ms, len(name)) + name, body)
        return answer

    def give_up(self, number: int) -> None:
        if self.calls.pop(number, None) is not None and not self.lost:
            self.send(*_frame(_CANCEL_KIND, number, b""))

    def flush(self) -> None:
        self._numbers_unsent.clear()
        super().flush()

    def frame_received(self, kind: int, number: int, rest: bytes) -> None:
        answer = self.calls.pop(number, None)
        if answer is None or answer.done():
            return
        if kind == _ANSWER_KIND:
            answer.set_result(rest)
        else:
            answer.set_exception(_decode_error(rest))

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._writable.set()
        unsent = frozenset(self._numbers_unsent)
        calls, self.calls = self.calls, {}
        for number, answer in calls.items():
            if answer.done():
                continue
            if number in unsent:
                answer.set_exception(ControlUnavailable("the connection broke before the call was sent"))
            else:
                answer.set_exception(DeadlineExceeded("the connection broke before an answer came"))


class RpcClient:
    """One connection, made when it is first needed and again when it broke."""

    def __init__(
        self,
        address: str,
        clock: Clock,
        entropy: Entropy,
        *,
        message_bytes_max: int = RPC_MESSAGE_BYTES_MAX,
        calls_in_flight_max: int = RPC_CALLS_IN_FLIGHT_MAX,
        connect_timeout_s: float = _CONNECT_TIMEOUT_S,
    ) -> None:
        self._address = parse_address(address)
        self._connect_timeout_s = connect_timeout_s
        self._clock = clock
        self._entropy = entropy
        self._message_bytes_max = message_bytes_max
        self._calls_in_flight_max = calls_in_flight_max
        self._connection: _ClientConnection | None = None
        self._connecting: asyncio.Task[_ClientConnection] | None = None
        self._waiting_count = 0
        self._next_number = 1
        self._closed = False

    async def call(self, method: str, body: bytes, timeout_s: float | None = None) -> bytes:
        """The answer's body. Raises `ControlUnavailable` where the call was not sent, `DeadlineExceeded` where it was
        and nobody knows what became of it, and otherwise what the handler raised."""
        connection: _ClientConnection | None = None
        number = 0
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._connected()
                if len(connection.calls) >= self._calls_in_flight_max:
                    raise ControlUnavailable(f"{len(connection.calls)} calls are in flight already")
                if len(body) > self._message_bytes_max - 512:
                    raise InvalidSetting(f"a call of {len(body)} bytes is too long")
                number = self._next_number
                self._next_number += 1
                deadline_ms = 0 if timeout_s is None else max(1, min(int(timeout_s * 1000), _DEADLINE_MS_MAX))
                return await connection.start_call(number, method.encode("ascii"), body, deadline_ms)
        except TimeoutError:
            if number == 0:
                raise ControlUnavailable(f"no connection to {self._where()} within {timeout_s} s") from None
            raise DeadlineExceeded(f"no answer to {method} from {self._where()} within {timeout_s} s") from None
        finally:
            if connection is not None and number in connection.calls:
                connection.give_up(number)

    async def close(self) -> None:
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _where(self) -> str:
        return self._address if isinstance(self._address, str) else f"{self._address[0]}:{self._address[1]}"

    async def _connected(self) -> _ClientConnection:
        if self._closed:
            raise ControlUnavailable("this client was closed")
        connection = self._connection
        if connection is None or connection.lost:
            connection = await self._wait_connection()
        if not connection.writable:
            await connection.wait_writable()
        if connection.lost:  # while it was waited for: nobody would answer a call that begins now
            raise ControlUnavailable("the connection broke before the call was sent")
        return connection

    async def _wait_connection(self) -> _ClientConnection:
        """Join the attempts to connect. They go on as long as anybody waits for them."""
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect(), name=f"connect to {self._where()}")
            self._connecting.add_done_callback(self._connect_done)
        connecting = self._connecting
        self._waiting_count += 1
        try:
            async with asyncio.timeout(self._connect_timeout_s) as patience:
                return await asyncio.shield(connecting)
        except (TimeoutError, asyncio.CancelledError):
            if patience.expired() or connecting.cancelled():
                raise ControlUnavailable(
                    f"no connection to {self._where()}", help="Is the control plane running, at this address?"
                ) from None
            raise
        finally:
            self._waiting_count -= 1
            if self._waiting_count == 0 and not connecting.done():
                connecting.cancel()

    def _connect_done(self, task: asyncio.Task[_ClientConnection]) -> None:
        self._connecting = None
        if not task.cancelled():
            self._connection = task.result()

    async def _connect(self) -> _ClientConnection:
        loop = asyncio.get_running_loop()
        backoff_s = _BACKOFF_S_MIN
        while True:
            try:
                if isinstance(self._address, str):
                    _, protocol = await loop.create_unix_connection(self._new_connection, self._address)
                else:
                    _, protocol = await loop.create_connection(self._new_connection, *self._address)
                return protocol
            except OSError:
                await self._clock.sleep(backoff_s * self._entropy.uniform(0.5, 1.0))
                backoff_s = min(backoff_s * 2, _BACKOFF_S_MAX)

    def _new_connection(self) -> _ClientConnection:
        return _ClientConnection(self._message_bytes_max)


def _decode_error(rest: bytes) -> BraidError:
    try:
        name, message, help_line, remedy = msgspec.msgpack.decode(rest, type=tuple[str, str, str, str])
    except msgspec.MsgspecError as error:
        return RemoteFailure(f"an answer could not be decoded: {error}")
    kind = _error_classes().get(name)
    if kind is None or kind is RemoteFailure:
        known = remedy in (each.value for each in Remedy)
        return RemoteFailure(message, help=help_line, remedy=Remedy(remedy) if known else Remedy.GIVE_UP)
    # A class may want other arguments than its base does, which were not sent.
    raised = kind.__new__(kind)
    BraidError.__init__(raised, message, help=help_line)
    return raised


def _error_classes() -> dict[str, type[BraidError]]:
    found: dict[str, type[BraidError]] = {}
    unseen: list[type[BraidError]] = [BraidError]
    while unseen:
        kind = unseen.pop()
        found[f"{kind.__module__}.{kind.__qualname__}"] = kind
        unseen.extend(kind.__subclasses__())
    return found


def parse_address(address: str) -> str | tuple[str, int]:
    """The path of a Unix socket (`/run/braid.sock`, `unix:/run/braid.sock`), or host and port (`127.0.0.1:9191`)."""
    if address.startswith("unix:"):
        address = address.removeprefix("unix:").removeprefix("//")
    if address.startswith("/"):
        return address
    host, separator, port = address.removeprefix("tcp://").rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isdecimal() or int(port) > 65_535:
        raise InvalidSetting(
            f"{address!r} is not an address to connect to", help="Use host:port, or /path/to/socket for a Unix socket."
        )
    return host, int(port)
