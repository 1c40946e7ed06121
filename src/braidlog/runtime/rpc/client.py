"""The side that makes remote calls."""

import asyncio

import structlog

from braidlog.runtime.backoff import Backoff
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import ControlUnavailable, DeadlineExceeded, InvalidSetting
from braidlog.runtime.limits import RPC_CALLS_IN_FLIGHT_MAX, RPC_MESSAGE_BYTES_MAX
from braidlog.runtime.rpc.addresses import parse_address
from braidlog.runtime.rpc.failures import decode_error
from braidlog.runtime.rpc.frames import (
    ANSWER_KIND,
    CALL,
    CALL_KIND,
    CANCEL_KIND,
    CHALLENGE_KIND,
    DEADLINE_MS_MAX,
    HELLO_KIND,
    LENGTH,
    PROOF_KIND,
    FrameProtocol,
    encode_frame,
)
from braidlog.runtime.rpc.proof import NONCE_BYTES, client_proof, cluster_secret, is_proof, new_nonce, server_proof

_log = structlog.get_logger(__name__)

_CONNECT_TIMEOUT_S = 5.0
_RECONNECT = Backoff(first_s=0.02, max_s=0.5, share_min=0.5)


class _ClientConnection(FrameProtocol):
    def __init__(self, message_bytes_max: int, secret: bytes | None) -> None:
        super().__init__(message_bytes_max)
        self._secret = secret
        self._nonce = b""
        self.proven: asyncio.Future[None] = self._loop.create_future()
        """Done when both ends have proven that they know the cluster's secret, or at once without one."""
        self.calls: dict[int, asyncio.Future[bytes]] = {}
        self._numbers_unsent: list[int] = []
        self.lost = False
        self.answered_number = 0
        """The newest call that had been sent when the last answer came. It shows that the other side was alive then."""
        self._sent_number = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._secret is None:
            self.proven.set_result(None)
        else:
            self._nonce = new_nonce()
            self.send(*encode_frame(HELLO_KIND, 0, self._nonce))

    def _take_challenge(self, kind: int, rest: bytes) -> None:
        assert self._secret is not None
        nonce, proof = rest[:NONCE_BYTES], rest[NONCE_BYTES:]
        if kind != CHALLENGE_KIND or not is_proof(proof, server_proof(self._secret, self._nonce, nonce)):
            _log.warning("the other side does not know the cluster's secret")
            self.abort()
            return
        self.send(*encode_frame(PROOF_KIND, 0, client_proof(self._secret, self._nonce, nonce)))
        self.proven.set_result(None)

    async def wait_writable(self) -> None:
        await self._writable.wait()

    def start_call(self, number: int, name: bytes, body: bytes, deadline_ms: int) -> asyncio.Future[bytes]:
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self.calls[number] = answer
        self._sent_number = number
        self._numbers_unsent.append(number)
        length = CALL.size - LENGTH.size + len(name) + len(body)
        self.send(CALL.pack(length, CALL_KIND, number, deadline_ms, len(name)) + name, body)
        return answer

    def give_up(self, number: int) -> None:
        if self.calls.pop(number, None) is not None and not self.lost:
            self.send(*encode_frame(CANCEL_KIND, number, b""))

    def flush(self) -> None:
        self._numbers_unsent.clear()
        super().flush()

    def frame_received(self, kind: int, number: int, rest: bytes) -> None:
        if not self.proven.done():
            self._take_challenge(kind, rest)
            return
        self.answered_number = self._sent_number
        answer = self.calls.pop(number, None)
        if answer is None or answer.done():
            return
        if kind == ANSWER_KIND:
            answer.set_result(rest)
        else:
            answer.set_exception(decode_error(rest))

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if not self.proven.done():
            self.proven.set_exception(ConnectionError("the connection broke before the cluster's secret was proven"))
            self.proven.exception()  # nobody may be waiting
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


async def _until_proven(connection: _ClientConnection) -> None:
    """Wait for the proofs. A connection that nobody waits for any longer is closed."""
    try:
        await connection.proven
    except BaseException:
        connection.abort()
        raise


class RpcClient:
    """Makes calls over one connection, which is opened when needed.

    It is opened again after it broke.

    Where a service may be at several addresses (`a:1,b:1`), the client tries each in turn, also after a call went
    unanswered: another process may have taken over the service.
    """

    def __init__(
        self,
        address: str,
        clock: Clock,
        entropy: Entropy,
        *,
        message_bytes_max: int = RPC_MESSAGE_BYTES_MAX,
        calls_in_flight_max: int = RPC_CALLS_IN_FLIGHT_MAX,
        connect_timeout_s: float = _CONNECT_TIMEOUT_S,
        secret: bytes | None = None,
    ) -> None:
        """`secret` is the cluster's, if it is not to be read from its file."""
        self._secret = secret or cluster_secret()
        self._addresses = [parse_address(each) for each in address.split(",")]
        self._current = 0
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
        """Make a call, and return the answer's body.

        Raises `ControlUnavailable` if the call was not sent, `DeadlineExceeded` if it was sent and its outcome is
        unknown, and otherwise what the handler raised."""
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
                deadline_ms = 0 if timeout_s is None else max(1, min(int(timeout_s * 1000), DEADLINE_MS_MAX))
                return await connection.start_call(number, method.encode("ascii"), body, deadline_ms)
        except TimeoutError:
            if number == 0:
                raise ControlUnavailable(f"no connection to {self._where()} within {timeout_s} s") from None
            if connection is not None:
                self._leave_silent(connection, number)
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
        return " or ".join(each if isinstance(each, str) else f"{each[0]}:{each[1]}" for each in self._addresses)

    def _leave_silent(self, connection: _ClientConnection, number: int) -> None:
        """Try the next address if nothing was heard since call `number` was sent.

        It does nothing if there is no other address.
        """
        if len(self._addresses) > 1 and connection is self._connection and connection.answered_number < number:
            self._connection = None
            self._current += 1
            connection.abort()

    async def _connected(self) -> _ClientConnection:
        if self._closed:
            raise ControlUnavailable("this client was closed")
        connection = self._connection
        if connection is None or connection.lost:
            connection = await self._wait_connection()
        if not connection.writable:
            await connection.wait_writable()
        if connection.lost:  # it broke while we waited: nobody would answer a call that begins now
            raise ControlUnavailable("the connection broke before the call was sent")
        return connection

    async def _wait_connection(self) -> _ClientConnection:
        """Join the attempts to connect, which continue as long as somebody waits for them."""
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
                    f"no connection to {self._where()}",
                    help="Is the control plane running, at this address, and with the same secret, if there is one?",
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
        failures = 0
        while True:
            address = self._addresses[self._current % len(self._addresses)]
            try:
                # A machine that is gone refuses nothing: all must be tried before those who wait lose their patience.
                async with asyncio.timeout(self._connect_timeout_s / len(self._addresses)):
                    if isinstance(address, str):
                        # A socket in the file system needs no secret: its permissions keep strangers out.
                        _, protocol = await loop.create_unix_connection(self._new_local_connection, address)
                    else:
                        _, protocol = await loop.create_connection(self._new_connection, *address)
                    await _until_proven(protocol)
                return protocol
            except asyncio.CancelledError:
                self._current += 1  # nobody waited for so long: the next one begins elsewhere
                raise
            except OSError:
                self._current += 1
                await self._clock.sleep(_RECONNECT.pause_s(failures // len(self._addresses), self._entropy))
                failures += 1

    def _new_connection(self) -> _ClientConnection:
        return _ClientConnection(self._message_bytes_max, self._secret)

    def _new_local_connection(self) -> _ClientConnection:
        return _ClientConnection(self._message_bytes_max, None)
