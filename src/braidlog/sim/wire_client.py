"""The client's side of a Kafka connection, as small as it can be: real frames out, real frames in.

It encodes and decodes through kio, so that the agent's own hand-written codec is judged by somebody else's.
"""

import asyncio
import io
from functools import cache
from typing import Any, cast

from kio.index import load_payload_module, load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

FRAME_BYTES_MAX = 1 << 28


class Disconnected(Exception):
    """The connection is gone. What was asked and not answered may have happened."""


@cache
def _request_writers(api_key: int, version: int) -> tuple[type, Any, Any]:
    schema = load_request_schema(api_key, version)
    header = schema.__header_schema__
    return header, entity_writer(header), entity_writer(schema)


@cache
def _response_readers(api_key: int, version: int) -> tuple[Any, Any]:
    schema = load_response_schema(api_key, version)
    return entity_reader(schema.__header_schema__), entity_reader(schema)


@cache
def request_types(api_key: int, version: int) -> Any:
    """The module with the request's classes."""
    return load_payload_module(api_key, version, EntityType.request)


class WireClient(asyncio.Protocol):
    """One connection. Requests may be sent without waiting for the answers of earlier ones."""

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
        read_header, read_body = _response_readers(api_key, version)
        _, position = read_header(frame, 0)
        body, _ = read_body(frame, position)
        if not future.done():
            future.set_result(body)

    def send(self, api_key: int, version: int, request: Any) -> asyncio.Future[Any]:
        """Send now; the future has the answer. What is sent on one connection arrives in that order."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if not self.is_open or self._transport is None:
            future.set_exception(Disconnected("the connection is closed"))
            future.exception()
            return future
        self._next_id += 1
        header_type, write_header, write_body = _request_writers(api_key, version)
        out = io.BytesIO()
        write_header(
            out,
            header_type(
                request_api_key=api_key,
                request_api_version=version,
                correlation_id=self._next_id,
                client_id=self._client_id,
            ),
        )
        write_body(out, request)
        frame = out.getvalue()
        self._waiting[self._next_id] = (api_key, version, future)
        self._transport.write(len(frame).to_bytes(4, "big") + frame)
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
