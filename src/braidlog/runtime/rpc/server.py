"""The side that answers remote calls."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

import structlog

from braidlog.runtime.errors import BraidError, ControlUnavailable, InvalidSetting
from braidlog.runtime.limits import (
    RPC_CALLS_IN_FLIGHT_MAX,
    RPC_CONNECTIONS_MAX,
    RPC_MESSAGE_BYTES_MAX,
    RPC_UNFINISHED_BYTES_MAX,
    RPC_UNSENT_BYTES_MAX,
)
from braidlog.runtime.rpc.addresses import parse_address
from braidlog.runtime.rpc.failures import RemoteFailure, encode_error
from braidlog.runtime.rpc.frames import (
    ANSWER_KIND,
    CALL_KIND,
    CALL_REST,
    CANCEL_KIND,
    CHALLENGE_KIND,
    ERROR_KIND,
    HEAD,
    HELLO_KIND,
    PROOF_KIND,
    FrameProtocol,
    encode_frame,
)
from braidlog.runtime.rpc.proof import (
    NONCE_BYTES,
    PROOF_S_MAX,
    UNPROVEN_BYTES_MAX,
    client_proof,
    cluster_secret,
    is_proof,
    new_nonce,
    server_proof,
)
from braidlog.runtime.rpc.proof import VARIABLE as SECRET_VARIABLE
from braidlog.runtime.sockets import is_beyond_loopback

_log = structlog.get_logger(__name__)

Handler: TypeAlias = Callable[[bytes, float | None], Awaitable[bytes]]
"""Takes a call's body and the seconds that its caller will wait. Returns the answer's body."""


class _ServerConnection(FrameProtocol):
    def __init__(self, server: "RpcServer") -> None:
        super().__init__(server.call_bytes_max)
        self._server = server
        self._calls: dict[int, asyncio.Task[None]] = {}
        self.is_proven = server.secret is None
        self._expected_proof = b""
        self._proof_deadline: asyncio.TimerHandle | None = None
        if not self.is_proven:
            self._message_bytes_max = UNPROVEN_BYTES_MAX

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._server.has_place():
            _log.warning("too many connections", address=self._server.address)
            self.abort()
            return
        self._server.connections[self] = None
        if not self.is_proven:
            self._proof_deadline = self._loop.call_later(PROOF_S_MAX, self.abort)

    def data_received(self, data: bytes) -> None:
        before_bytes = len(self._received)
        super().data_received(data)
        self._server.count_unfinished(len(self._received) - before_bytes)

    @property
    def unfinished_bytes(self) -> int:
        """Bytes received of a call that is not complete yet."""
        return len(self._received)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._proof_deadline is not None:
            self._proof_deadline.cancel()
        self._server.connections.pop(self, None)
        self._server.slow.pop(self, None)
        self._server.count_unfinished(-len(self._received))
        self._received = bytearray()
        for task in self._calls.values():
            task.cancel()

    def pause_writing(self) -> None:
        # A client that does not take its answers may not make further calls.
        super().pause_writing()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._server.slow[self] = None

    def flush(self) -> None:
        super().flush()
        if not self.writable:
            self._server.limit_unsent()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._server.slow.pop(self, None)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def frame_received(self, kind: int, number: int, rest: bytes) -> None:
        if not self.is_proven:
            self._take_proof(kind, rest)
        elif kind == CALL_KIND and len(rest) >= CALL_REST.size:
            deadline_ms, name_length = CALL_REST.unpack_from(rest)
            body_start = CALL_REST.size + name_length
            name = rest[CALL_REST.size : body_start].decode("ascii", "replace")
            self._start_call(number, name, rest[body_start:], deadline_ms / 1000 if deadline_ms else None)
        elif kind == CANCEL_KIND:
            task = self._calls.get(number)
            if task is not None:
                task.cancel()
        else:
            self.close()

    def _take_proof(self, kind: int, rest: bytes) -> None:
        """Let the caller prove that it knows the cluster's secret, before anything else."""
        secret = self._server.secret
        assert secret is not None
        if kind == HELLO_KIND and len(rest) == NONCE_BYTES and not self._expected_proof:
            nonce = new_nonce()
            self._expected_proof = client_proof(secret, rest, nonce)
            self.send(*encode_frame(CHALLENGE_KIND, 0, nonce + server_proof(secret, rest, nonce)))
        elif kind == PROOF_KIND and self._expected_proof and is_proof(rest, self._expected_proof):
            self.is_proven = True
            self._message_bytes_max = self._server.call_bytes_max
            if self._proof_deadline is not None:
                self._proof_deadline.cancel()
        else:
            self._server.unproven_count += 1
            _log.warning("a caller does not know the cluster's secret", address=self._server.address)
            self.abort()

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
            if len(body) > self._server.message_bytes_max - HEAD.size:
                raise RemoteFailure(f"the answer of {name} is too long: {len(body)} bytes")
            self.send(*encode_frame(ANSWER_KIND, number, body))
        except BraidError as error:
            self._send_error(number, error)
        except Exception as error:  # noqa: BLE001 - the caller must hear of it, whatever it is
            _log.exception("a call failed in an unforeseen way", method=name)
            self._send_error(number, RemoteFailure(f"{name} failed: {type(error).__name__}: {error}"))

    def _send_error(self, number: int, error: BraidError) -> None:
        self.send(*encode_frame(ERROR_KIND, number, encode_error(error)))


class RpcServer:
    """Serves a table of handlers. When a client disconnects, its calls are cancelled."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        message_bytes_max: int = RPC_MESSAGE_BYTES_MAX,
        call_bytes_max: int | None = None,
        calls_in_flight_max: int = RPC_CALLS_IN_FLIGHT_MAX,
        connections_max: int = RPC_CONNECTIONS_MAX,
        unfinished_bytes_max: int = RPC_UNFINISHED_BYTES_MAX,
        unsent_bytes_max: int = RPC_UNSENT_BYTES_MAX,
        secret: bytes | None = None,
    ) -> None:
        """`call_bytes_max` is for services whose calls are smaller than their answers.

        `secret` is the cluster's, if it is not to be read from its file.
        """
        self._given_secret = secret
        self.secret: bytes | None = None
        """What callers must know; None: nothing."""
        self.unproven_count = 0
        """How many callers did not know it."""
        self.handlers = dict(handlers)
        self.message_bytes_max = message_bytes_max
        self.call_bytes_max = call_bytes_max or message_bytes_max
        self.connections_max = connections_max
        self.unfinished_bytes = 0
        self._unfinished_bytes_max = unfinished_bytes_max
        self._unsent_bytes_max = unsent_bytes_max
        self.calls_in_flight_max = calls_in_flight_max
        self.calls_in_flight = 0
        self.connections: dict[_ServerConnection, None] = {}
        self.slow: dict[_ServerConnection, None] = {}
        """Connections whose clients do not take their answers as fast as they are made."""
        self.address = ""
        self._server: asyncio.Server | None = None

    def count_unfinished(self, more_bytes: int) -> None:
        """Keep partly received calls within the limit.

        The connection that holds most of them is closed.
        """
        self.unfinished_bytes += more_bytes
        if more_bytes > 0 and self.unfinished_bytes > self._unfinished_bytes_max:
            largest = max(self.connections, key=lambda each: each.unfinished_bytes)
            _log.warning("closing a connection with an unfinished call", received_bytes=largest.unfinished_bytes)
            largest.abort()

    def has_place(self) -> bool:
        """Whether one more may connect.

        If all places are taken, whoever has waited longest with its proof goes: strangers must not keep nodes out.
        """
        if len(self.connections) < self.connections_max:
            return True
        unproven = next((each for each in self.connections if not each.is_proven), None)
        if unproven is None:
            return False
        del self.connections[unproven]
        unproven.abort()
        return True

    def limit_unsent(self) -> None:
        """Keep untaken answers within the limit.

        The connection that holds most of them is closed.
        """
        if sum(each.unsent_bytes for each in self.slow) > self._unsent_bytes_max:
            largest = max(self.slow, key=lambda each: each.unsent_bytes)
            _log.warning("closing a connection that does not take its answers", unsent_bytes=largest.unsent_bytes)
            largest.abort()

    async def start(self, address: str) -> str:
        """Listen, and return the address for clients. Port 0 takes any free port."""
        loop = asyncio.get_running_loop()
        where = parse_address(address)
        if isinstance(where, str):
            self._server = await loop.create_unix_server(lambda: _ServerConnection(self), where)
            os.chmod(where, 0o600)
            self.address = where
        else:
            # A socket in the file system needs none: its permissions keep strangers out.
            self.secret = self._given_secret or cluster_secret()
            self._server = await loop.create_server(lambda: _ServerConnection(self), *where)
            bound_host, port = self._server.sockets[0].getsockname()[:2]
            self._warn_if_open(bound_host, port)
            self.address = f"[{where[0]}]:{port}" if ":" in where[0] else f"{where[0]}:{port}"
        return self.address

    def _warn_if_open(self, bound_host: str, port: int) -> None:
        if self.secret is None and is_beyond_loopback(bound_host):
            _log.warning(
                "anyone who reaches this port may call",
                address=f"{bound_host}:{port}",
                help=f"Keep it inside a network that you trust, or set {SECRET_VARIABLE}: see docs/security.md.",
            )

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
