"""The cold messages: reads any request and writes any response.

It uses kio's generated schemas.

kio has one class per message version, with only the fields that version has. Handlers are written once for all
versions: they read what may be missing with `getattr(request, name, default)`, and answer through `Answer`, which
leaves out what the version does not know.
"""

import io
from collections.abc import Callable, Iterator
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
    """Return a request's schema and its reader.

    Cached, because kio imports by name each time.
    """
    schema: Any = load_request_schema(api_key, version)
    return schema, cast(Any, entity_reader(schema))


def read_request(api_key: int, version: int, body: memoryview | bytes) -> Any:
    """Read the request entity in `body`, which starts right behind the request header.

    Bytes behind it are ignored, as in Kafka: some clients send more than their version has."""
    view = memoryview(body).toreadonly()
    # Not only for a better error: the native reader does not survive an array with a false length.
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


LONG_ELEMENTS = 500
"""An answer with this many elements takes several milliseconds to write."""


def is_long(entity: Any) -> bool:
    """Whether an answer takes long to write.

    This is estimated by the lengths of its arrays and of those in them.
    """
    count = 0
    for outer in _arrays(entity):
        count += len(outer)
        for element in outer:
            if count > LONG_ELEMENTS:
                return True
            if not hasattr(element, "__flexible__"):
                break
            count += sum(map(len, _arrays(element)))
    return count > LONG_ELEMENTS


def error_codes(entity: Any) -> Iterator[int]:
    """Yield the error codes in an answer and in its parts at every level.

    It stops after `LONG_ELEMENTS` parts.
    """
    unseen = [entity]
    for _ in range(LONG_ELEMENTS):
        if not unseen:
            return
        part = unseen.pop()
        part_type: type = type(part)
        for name in _error_names(part_type):
            if code := getattr(part, name):
                yield int(code)
        for array in _arrays(part):
            if array and hasattr(array[0], "__flexible__"):
                unseen += array[:LONG_ELEMENTS]


@cache
def _error_names(entity_type: type) -> tuple[str, ...]:
    return tuple(sorted(name for name in _field_names(entity_type) if name.endswith("error_code")))


def _arrays(entity: Any) -> list[tuple[Any, ...]]:
    entity_type: type = type(entity)
    values = [getattr(entity, name) for name in _field_names(entity_type)]
    return [value for value in values if isinstance(value, tuple)]


def write_response(entity: Any) -> bytes:
    """Write the response's body, without its header."""
    buffer = io.BytesIO()
    entity_type: Any = type(entity)
    _writer(entity_type)(buffer, entity)
    return buffer.getvalue()


@cache
def _field_names(entity_type: type) -> frozenset[str]:
    return frozenset(field.name for field in fields(entity_type))


class Answer:
    """Builds the response entities of one version.

    For example `answer("CreatableTopicResult", name=…, topic_id=…)`.

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
