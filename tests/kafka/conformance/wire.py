"""Kafka by hand, for a table of situations: requests by field names, any version, and the answer as an entity.

It knows nothing of Braidlog: requests and responses are built from Kafka's own schemas, so it speaks to any broker.
"""

import io
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from itertools import count
from types import TracebackType
from typing import Any

from kio.index import load_payload_module, load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from kio.static.primitive import i32Timedelta, i64Timedelta

ANSWER_S_MAX = 60.0

API_VERSIONS = 18


@dataclass
class Part:
    """A part of a request, by its class; it becomes an entity of the version that is sent."""

    class_name: str
    values: dict[str, Any]


def part(class_name: str, **values: Any) -> Part:
    return Part(class_name, values)


def ms(duration_ms: int) -> i32Timedelta:
    return i32Timedelta.parse(timedelta(milliseconds=duration_ms))


def long_ms(duration_ms: int) -> i64Timedelta:
    return i64Timedelta.parse(timedelta(milliseconds=duration_ms))


def _build(key: int, version: int, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_build(key, version, item) for item in value)
    if not isinstance(value, Part):
        return value
    entity_type = getattr(load_payload_module(key, version, EntityType.request), value.class_name)
    known = {field.name for field in fields(entity_type)}
    return entity_type(**{name: _build(key, version, item) for name, item in value.values.items() if name in known})


class Wire:
    """One connection to one broker."""

    def __init__(self, address: str, client_id: str = "conformance") -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=ANSWER_S_MAX)
        self._client_id = client_id
        self._correlation_ids = count(1)
        self._versions: dict[int, tuple[int, int]] | None = None

    def __enter__(self) -> "Wire":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    @property
    def versions(self) -> Mapping[int, tuple[int, int]]:
        """What the broker says that it speaks."""
        if self._versions is None:
            answer = self.call(
                API_VERSIONS,
                part("ApiVersionsRequest", client_software_name="conformance", client_software_version="1"),
                version=3,
            )
            self._versions = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
        return self._versions

    def call(self, key: int, request: Part, *, version: int | None = None) -> Any:
        """The answer, in the newest version that both sides know unless told otherwise."""
        if version is None:
            version = newest_version(key, self.versions)
        schema = load_request_schema(key, version)
        body = self._exchange(key, version, _encode(_build(key, version, request)), schema.__flexible__)
        response_type = load_response_schema(key, version)
        entity, length = entity_reader(response_type)(memoryview(body).toreadonly(), 0)
        assert length == len(body), f"{len(body) - length} bytes behind the answer"
        return entity

    def exchange_raw(self, key: int, version: int, body: bytes, *, flexible: bool) -> bytes:
        """The answer's bytes behind its header. Raises ConnectionError where the broker hangs up instead."""
        return self._exchange(key, version, body, flexible)

    def _exchange(self, key: int, version: int, body: bytes, flexible: bool) -> bytes:
        correlation_id = next(self._correlation_ids)
        name = self._client_id.encode()
        header = struct.pack(">hhih", key, version, correlation_id, len(name)) + name
        if flexible:
            header += b"\x00"
        self._socket.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
        (length,) = struct.unpack(">i", self._read(4))
        answer = self._read(length)
        assert struct.unpack(">i", answer[:4])[0] == correlation_id
        has_tags = flexible and key != API_VERSIONS
        assert not has_tags or answer[4] == 0, "tags in the response header"
        return answer[5 if has_tags else 4 :]

    def _read(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            piece = self._socket.recv(length - len(data))
            if not piece:
                raise ConnectionError("the broker closed the connection")
            data += piece
        return bytes(data)


def newest_version(key: int, versions: Mapping[int, tuple[int, int]]) -> int:
    version = versions[key][1]
    while True:
        try:
            load_request_schema(key, version)
        except Exception:  # noqa: BLE001 - newer than the schemas here
            version -= 1
            assert version >= versions[key][0], f"no version of API {key} in common"
        else:
            return version


def _encode(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()
