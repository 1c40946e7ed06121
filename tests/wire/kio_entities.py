"""Any kio entity from plain values, and back to bytes: the reference that the hand-written messages are held to."""

import datetime
import io
import uuid
from dataclasses import fields
from typing import Any

from hypothesis import strategies as st
from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.static.constants import EntityType

i16s = st.integers(-(1 << 15), (1 << 15) - 1)
i32s = st.integers(-(1 << 31), (1 << 31) - 1)
i64s = st.integers(-(1 << 63), (1 << 63) - 1)
durations_ms = st.integers(0, (1 << 31) - 1)
texts = st.text(max_size=12) | st.just("x" * 200)
nullable_texts = st.none() | texts
topic_ids = st.binary(min_size=16, max_size=16)
error_codes = st.sampled_from([ErrorCode.none, ErrorCode.unknown_server_error, ErrorCode.invalid_record])


class Entities:
    """The classes of one message version. Fields that the version does not have are left out."""

    def __init__(self, api_key: int, version: int, entity_type: EntityType) -> None:
        self._module = load_payload_module(api_key, version, entity_type)

    def __call__(self, class_name: str, **values: Any) -> Any:
        cls = getattr(self._module, class_name)
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in names})


def requests(api_key: int, version: int) -> Entities:
    return Entities(api_key, version, EntityType.request)


def responses(api_key: int, version: int) -> Entities:
    return Entities(api_key, version, EntityType.response)


def encode(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def milliseconds(value: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=value)


def moment(value_ms: int) -> datetime.datetime | None:
    if value_ms == -1:
        return None
    return datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + milliseconds(value_ms)


def topic_uuid(topic_id: bytes) -> uuid.UUID | None:
    return uuid.UUID(bytes=topic_id) if any(topic_id) else None
