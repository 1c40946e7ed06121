"""Checks that bytes have the shape of a message, without building anything.

kio's native reader reserves memory for as many elements as an array claims to have, and a claim that cannot be met
aborts the whole process. So every length is checked here first, against the bytes that there really are.
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, get_args, get_origin

from braidlog.wire.errors import MalformedRequest
from braidlog.wire.primitives import (
    ELEMENTS_MAX,
    read_exact,
    read_i8,
    read_i16,
    read_nullable_bytes,
    read_nullable_count,
    read_tags,
    read_uvarint,
    truncated,
)


class _Count:
    """Counts how many elements of arrays may still come."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = ELEMENTS_MAX


Walk = Callable[[memoryview, int, _Count], int]
"""Takes the position of a value, and returns the position behind it."""

FIXED_BYTES = {
    **dict.fromkeys(("bool", "int8", "uint8"), 1),
    **dict.fromkeys(("int16", "uint16", "error_code"), 2),
    **dict.fromkeys(("int32", "uint32", "timedelta_i32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "timedelta_i64", "datetime_i64"), 8),
    "uuid": 16,
}


def check_shape(entity_type: Any, body: memoryview) -> None:
    """Raise `MalformedRequest` unless `body` begins with a whole entity of this type."""
    end = _entity(entity_type)(body, 0, _Count())
    if end > len(body):
        raise MalformedRequest(f"{end - len(body)} bytes too few")


@cache
def _entity(entity_type: Any) -> Walk:
    flexible: bool = entity_type.__flexible__
    walks: list[Walk] = []
    fixed_bytes = 0  # of the fields since the last one of variable length, which are skipped together
    tagged: dict[int, Walk] = {}
    for field in fields(entity_type):
        if "tag" in field.metadata:
            tagged[field.metadata["tag"]] = _field(field.type, field.metadata, flexible, tagged=True)
        elif not _is_array(field.type) and (size := FIXED_BYTES.get(field.metadata.get("kafka_type", ""))):
            fixed_bytes += size
        else:
            if fixed_bytes:
                walks.append(_fixed(fixed_bytes))
                fixed_bytes = 0
            walks.append(_field(field.type, field.metadata, flexible, tagged=False))
    if fixed_bytes:
        walks.append(_fixed(fixed_bytes))

    def walk(view: memoryview, position: int, count: _Count) -> int:
        for step in walks:
            position = step(view, position, count)
        if not flexible:
            return position
        if position < len(view) and not view[position]:
            return position + 1

        def take(tag: int, value: memoryview) -> None:
            count.left -= 1
            if count.left < 0:
                raise _too_many()
            walk_tag = tagged.get(tag)
            if walk_tag is not None and walk_tag(value, 0, count) != len(value):
                raise MalformedRequest(f"tagged field {tag} is longer than its value")

        return read_tags(view, position, take)

    return walk


def _is_array(annotation: Any) -> bool:
    return tuple in (get_origin(annotation), *(get_origin(argument) for argument in get_args(annotation)))


def _fixed(size: int) -> Walk:
    def walk(view: memoryview, position: int, count: _Count) -> int:
        position += size
        if position > len(view):
            raise truncated()
        return position

    return walk


def _field(annotation: Any, metadata: Any, flexible: bool, *, tagged: bool) -> Walk:
    arguments = get_args(annotation)
    nullable = NoneType in arguments
    if nullable:
        annotation = next(argument for argument in arguments if argument is not NoneType)
    if get_origin(annotation) is tuple:
        return _array(_single(get_args(annotation)[0], metadata, flexible, nullable=False), flexible, nullable)
    walk = _single(annotation, metadata, flexible, nullable)
    return _nullable_entity(walk) if nullable and is_dataclass(annotation) and not tagged else walk


def _single(annotation: Any, metadata: Any, flexible: bool, nullable: bool) -> Walk:
    if hasattr(annotation, "__flexible__"):
        return _entity(annotation)
    kafka_type = metadata["kafka_type"]
    if kafka_type == "string":
        return _string(flexible, nullable)
    if kafka_type in ("bytes", "records"):
        return _bytes(flexible, nullable)
    return _fixed(FIXED_BYTES[kafka_type])


def _null(what: str) -> MalformedRequest:
    return MalformedRequest(f"null where {what} must be")


def _too_many() -> MalformedRequest:
    return MalformedRequest(f"more than {ELEMENTS_MAX} elements")


def _string(flexible: bool, nullable: bool) -> Walk:
    def walk_compact(view: memoryview, position: int, _: _Count) -> int:
        length, position = read_uvarint(view, position)
        if length:
            return read_exact(view, position, length - 1)[1]
        if not nullable:
            raise _null("a string")
        return position

    def walk_old(view: memoryview, position: int, _: _Count) -> int:
        length, position = read_i16(view, position)
        if length != -1:
            return read_exact(view, position, length)[1]
        if not nullable:
            raise _null("a string")
        return position

    return walk_compact if flexible else walk_old


def _bytes(flexible: bool, nullable: bool) -> Walk:
    def walk(view: memoryview, position: int, count: _Count) -> int:
        value, position = read_nullable_bytes(view, position, flexible)
        if value is None and not nullable:
            raise _null("a run of bytes")
        return position

    return walk


def _array(element: Walk, flexible: bool, nullable: bool) -> Walk:
    def walk(view: memoryview, position: int, count: _Count) -> int:
        length, position = read_nullable_count(view, position, flexible)
        if length is None:
            if not nullable:
                raise _null("an array")
            return position
        count.left -= length
        if count.left < 0:
            raise _too_many()
        for _ in range(length):
            position = element(view, position, count)
        return position

    return walk


def _nullable_entity(entity: Walk) -> Walk:
    def walk(view: memoryview, position: int, count: _Count) -> int:
        marker, position = read_i8(view, position)
        return position if marker < 0 else entity(view, position, count)

    return walk
