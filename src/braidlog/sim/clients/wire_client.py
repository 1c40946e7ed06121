"""A minimal client side of a Kafka connection, with real frames.

It encodes and decodes with kio, so that another codec checks the agent's own.
"""

import asyncio
from typing import Any, cast

from braidlog.wire.calls import decode_answer, encode_call, request_types

__all__ = ["Disconnected", "WireClient", "request_types"]

FRAME_BYTES_MAX = 1 << 28


class Disconnected(Exception):
    """The connection is gone. Requests without an answer may have taken effect."""


class WireClient(asyncio.Protocol):
    """One connection, with any number of requests in flight."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._next_id = 0
        self._waiting: dict[int, tuple[int, int, asyncio.Future[Any]]] = {}
        self.is_open = False
        self.label = ""
        """Its name in histories."""

    @classmethod
    async def connect(cls, host: str, port: int, client_id: str) -> "WireClient":
        loop = asyncio.get_running_loop()
        try:
            _, protocol = await loop.create_connection(lambda: cls(client_id), host, port)
        except OSError as error:
            raise Disconnected(str(error)) from error
        return protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        waiting, self._waiting = self._waiting, {}
        for _, _, future in waiting.values():
            if not future.done():
                future.set_exception(Disconnected(str(exc or "closed by the agent")))
                future.exception()

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        while len(received) >= 4:
            length = int.from_bytes(received[:4], "big")
            if length > FRAME_BYTES_MAX:
                self.close()
                return
            if len(received) < 4 + length:
                return
            frame = bytes(received[4 : 4 + length])
            del received[: 4 + length]
            self._answer(frame)

    def _answer(self, frame: bytes) -> None:
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        api_key, version, future = self._waiting.pop(correlation_id)
        body = decode_answer(api_key, version, frame)
        if not future.done():
            future.set_result(body)

    def send(self, api_key: int, version: int, request: Any) -> asyncio.Future[Any]:
        """Send a request now, in order. The future has the answer."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if not self.is_open or self._transport is None:
            future.set_exception(Disconnected("the connection is closed"))
            future.exception()
            return future
        self._next_id += 1
        self._waiting[self._next_id] = (api_key, version, future)
        self._transport.write(encode_call(api_key, version, self._next_id, self._client_id, request))
        return future

    async def call(self, api_key: int, version: int, request: Any, *, timeout_s: float = 15.0) -> Any:
        future = self.send(api_key, version, request)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            self.close()
            raise Disconnected(f"no answer within {timeout_s} s") from None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        self.connection_lost(None)
