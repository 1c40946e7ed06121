"""Requests with one very long array, for every array that any API's requests have. Built by walking kio's schemas."""

from collections.abc import Iterator
from dataclasses import fields
from types import NoneType
from typing import Any, TypeAlias, get_args, get_origin

from kio.index import load_request_schema
from tests.kafka.raw import frame, header

from braidlog.wire.header import is_flexible
from braidlog.wire.primitives import count_of, string
from braidlog.wire.shape import FIXED_BYTES

ArrayPath: TypeAlias = tuple[str, ...]
"""The names of the fields that lead to an array."""

TEXTS = {"group_id": "group", "protocol_type": "consumer", "member_id": ""}
NUMBERS = {"resource_type": 2, "member_epoch": -1, "generation_id_or_member_epoch": -1, "producer_id": 1, "acks": -1}
WAIT_MS = 10


def _kind_of(field: Any) -> Any:
    """The field's type, whether or not it may be null."""
    options = get_args(field.type)
    return next(option for option in options if option is not NoneType) if NoneType in options else field.type


def _fields_of(entity_type: Any) -> list[Any]:
    return [field for field in fields(entity_type) if "tag" not in field.metadata]


def array_paths(entity_type: Any) -> Iterator[ArrayPath]:
    """All arrays of a request, also those in arrays."""
    for field in _fields_of(entity_type):
        kind = _kind_of(field)
        is_array = get_origin(kind) is tuple
        if is_array:
            yield (field.name,)
            kind = get_args(kind)[0]
        if hasattr(kind, "__flexible__"):
            yield from ((field.name, *path) for path in array_paths(kind))


class LongRequest:
    """One request whose array at `path` has `length` elements, all different; other arrays have one."""

    def __init__(self, key: int, version: int, path: ArrayPath, length: int, *, topic: str, topic_id: bytes) -> None:
        """Elements in the array are parts of `topic`, where they are not topics themselves."""
        self._key, self._version = key, version
        self._path, self._length = path, length
        self._topic, self._topic_id = topic, topic_id
        self._number = 0

    def frame(self) -> bytes:
        tags = b"\x00" if is_flexible(self._key, self._version) else b""
        schema: Any = load_request_schema(self._key, self._version)
        return frame(header(self._key, self._version) + tags + self._entity(schema, ()))

    def _entity(self, entity_type: Any, path: ArrayPath) -> bytes:
        flexible: bool = entity_type.__flexible__
        parts = [self._field(field, flexible, (*path, field.name)) for field in _fields_of(entity_type)]
        return b"".join(parts) + (b"\x00" if flexible else b"")

    def _field(self, field: Any, flexible: bool, path: ArrayPath) -> bytes:
        kind = _kind_of(field)
        if get_origin(kind) is not tuple:
            marker = b"\x01" if NoneType in get_args(field.type) and hasattr(kind, "__flexible__") else b""
            return marker + self._single(field, kind, flexible, path)
        count = self._length if path == self._path else 1
        element = get_args(kind)[0]
        return count_of(count, flexible) + b"".join(self._single(field, element, flexible, path) for _ in range(count))

    def _single(self, field: Any, kind: Any, flexible: bool, path: ArrayPath) -> bytes:
        if hasattr(kind, "__flexible__"):
            return self._entity(kind, path)
        kafka_type = field.metadata["kafka_type"]
        self._number += 1
        is_repeated = self._path in (path, path[:-1])
        if kafka_type == "string":
            is_topic = "topic" in field.name or field.name in ("name", "resource_name")
            return string(self._topic if is_topic and not is_repeated else self._text(field.name), flexible)
        if kafka_type in ("bytes", "records"):
            return count_of(0, flexible)
        if kafka_type == "uuid":
            return self._number.to_bytes(16, "big") if is_repeated else self._topic_id
        return self._integer(field.name, kafka_type).to_bytes(FIXED_BYTES[kafka_type], "big", signed=True)

    def _text(self, name: str) -> str:
        return TEXTS.get(name, f"x{self._number}")

    def _integer(self, name: str, kafka_type: str) -> int:
        if kafka_type.startswith("timedelta"):
            return WAIT_MS
        return self._number % 10_000 if "partition" in name else NUMBERS.get(name, 0)
