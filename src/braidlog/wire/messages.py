"""The cold messages: any request read, and any response written, through kio's generated schemas.

kio has one class per message version, with only the fields that version has. Handlers are written once for all
versions: they read what may be missing with `getattr(request, name, default)`, and answer through `Answer`, which
leaves out what the version does not know.
"""

import io
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from types import ModuleType
from typing import Any, cast

from kio.index import load_payload_module, load_request_schema
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from braidlog.wire.errors import MalformedRequest
from braidlog.wire.shape import check_shape

__all__ = ["Answer", "MalformedRequest", "answer_for", "read_request", "write_response"]


@cache
def _request(api_key: int, version: int) -> tuple[Any, Callable[[Any, int], tuple[Any, int]]]:
    """Its schema, and what reads it. Looked up once: kio imports by name each time."""
    schema: Any = load_request_schema(api_key, version)
    return schema, cast(Any, entity_reader(schema))


def read_request(api_key: int, version: int, body: memoryview | bytes) -> Any:
    """The request entity in `body`, which starts right behind the request header. What follows it is ignored, as Kafka
    does: some clients send more than their version has."""
    view = memoryview(body).toreadonly()
    # Not only to be told what is wrong: the native reader does not survive an array of false length.
    schema, reader = _request(api_key, version)
    check_shape(schema, view)
    try:
        entity, _ = reader(view, 0)
    except Exception as error:  # kio raises many kinds on bad bytes, none with a common base
        raise MalformedRequest(f"api key {api_key} version {version}: {error}") from error
    return entity


@cache
def _writer(entity_type: type[Any]) -> Callable[[io.BytesIO, Any], None]:
    writer: Any = entity_writer(entity_type)
    return writer  # type: ignore[no-any-return]


def write_response(entity: Any) -> bytes:
    """The response's body, without its header."""
    buffer = io.BytesIO()
    entity_type: Any = type(entity)
    _writer(entity_type)(buffer, entity)
    return buffer.getvalue()


@cache
def _field_names(entity_type: type) -> frozenset[str]:
    return frozenset(field.name for field in fields(entity_type))


class Answer:
    """Builds the response entities of one version: `answer("CreatableTopicResult", name=…, topic_id=…)`.

    Fields that the version does not have are dropped; a field that it has and was not given keeps its default, or is
    an error where it has none.
    """

    def __init__(self, api_key: int, version: int) -> None:
        self._module: ModuleType = load_payload_module(api_key, version, EntityType.response)

    def __call__(self, class_name: str, **values: Any) -> Any:
        entity_type = getattr(self._module, class_name)
        known = _field_names(entity_type)
        return entity_type(**{name: value for name, value in values.items() if name in known})


@cache
def answer_for(api_key: int, version: int) -> Answer:
    return Answer(api_key, version)
