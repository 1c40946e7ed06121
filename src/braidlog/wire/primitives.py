"""Kafka's primitive types, read from views and written as bytes.

A reader takes a view and a position and returns the value and the position behind it. Reading past the end, or
anything that the type forbids, is `MalformedRequest`. Topic ids are their 16 bytes.
"""

import struct
from collections.abc import Callable, Sequence
from struct import Struct
from typing import TypeVar

from braidlog.wire.errors import MalformedRequest

Bytes = bytes | bytearray | memoryview
"""Anything that can be written to a socket."""

UVARINT_MAX = (1 << 31) - 1
UUID_BYTES = 16
TAGS_MAX = 1000
"""Tagged fields of one entity. No message has more than a few."""
ELEMENTS_MAX = 200_000
"""Elements of all arrays of a request, except Produce and Fetch. Each costs the agent ten microseconds or more."""
NO_TOPIC_ID = bytes(UUID_BYTES)

_I8 = Struct(">b")
_I16 = Struct(">h")
_I32 = Struct(">i")
_I64 = Struct(">q")
pack_i16 = _I16.pack
pack_i32 = _I32.pack
pack_i64 = _I64.pack

T = TypeVar("T")
Read = tuple[T, int]


def truncated() -> MalformedRequest:
    return MalformedRequest("the message ends too early")


def read_i8(view: memoryview, position: int) -> Read[int]:
    return _read_number(_I8, view, position)


def read_i16(view: memoryview, position: int) -> Read[int]:
    return _read_number(_I16, view, position)


def read_i32(view: memoryview, position: int) -> Read[int]:
    return _read_number(_I32, view, position)


def _read_number(number: Struct, view: memoryview, position: int) -> Read[int]:
    try:
        return number.unpack_from(view, position)[0], position + number.size
    except struct.error:
        raise truncated() from None


def read_bool(view: memoryview, position: int) -> Read[bool]:
    try:
        return view[position] != 0, position + 1
    except IndexError:
        raise truncated() from None


def read_uvarint(view: memoryview, position: int) -> Read[int]:
    try:
        byte = view[position]
        if byte < 0x80:
            return byte, position + 1
        value = byte & 0x7F
        shift = 7
        while True:
            position += 1
            byte = view[position]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 28:
                raise MalformedRequest("a varint of more than five bytes")
    except IndexError:
        raise truncated() from None
    if value > UVARINT_MAX:
        raise MalformedRequest(f"the length {value} is out of range")
    return value, position + 1


def read_exact(view: memoryview, position: int, length: int) -> Read[memoryview]:
    """Read `length` bytes, without a copy."""
    end = position + length
    if length < 0 or end > len(view):
        raise truncated()
    return view[position:end], end


def read_uuid(view: memoryview, position: int) -> Read[bytes]:
    end = position + UUID_BYTES
    if end > len(view):
        raise truncated()
    return bytes(view[position:end]), end


def _decode(view: memoryview, position: int, length: int) -> Read[str]:
    value, end = read_exact(view, position, length)
    try:
        return str(value, "utf-8"), end
    except UnicodeDecodeError as error:
        raise MalformedRequest(f"a string that is not UTF-8: {error.reason}") from None


def read_nullable_string(view: memoryview, position: int, flexible: bool) -> Read[str | None]:
    if flexible:
        length, position = read_uvarint(view, position)
        length -= 1
    else:
        length, position = read_i16(view, position)
    if length >= 0:
        return _decode(view, position, length)
    if length != -1:
        raise MalformedRequest(f"a string of {length} bytes")
    return None, position


def read_string(view: memoryview, position: int, flexible: bool) -> Read[str]:
    value, position = read_nullable_string(view, position, flexible)
    if value is None:
        raise MalformedRequest("null where a string must be")
    return value, position


def read_nullable_bytes(view: memoryview, position: int, flexible: bool) -> Read[memoryview | None]:
    if flexible:
        length, position = read_uvarint(view, position)
        length -= 1
    else:
        length, position = read_i32(view, position)
    if length >= 0:
        return read_exact(view, position, length)
    if length != -1:
        raise MalformedRequest(f"{length} bytes")
    return None, position


def read_nullable_count(view: memoryview, position: int, flexible: bool) -> Read[int | None]:
    """Read an array's length. It cannot be trusted: reserve no memory for it."""
    if flexible:
        count, position = read_uvarint(view, position)
        count -= 1
    else:
        count, position = read_i32(view, position)
    if count >= 0:
        # No element of any array is empty, so a count above the bytes that are left is false.
        if count > len(view) - position:
            raise truncated()
        return count, position
    if count != -1:
        raise MalformedRequest(f"an array of {count} elements")
    return None, position


def read_count(view: memoryview, position: int, flexible: bool) -> Read[int]:
    # Nearly all arrays are short, and their length one byte.
    if flexible and position < len(view) and 0 < (byte := view[position]) < 0x80 and position + byte <= len(view):
        return byte - 1, position + 1
    count, position = read_nullable_count(view, position, flexible)
    if count is None:
        raise MalformedRequest("null where an array must be")
    return count, position


def read_i32_array(view: memoryview, position: int, flexible: bool) -> Read[list[int]]:
    count, position = read_count(view, position, flexible)
    value, end = read_exact(view, position, 4 * count)
    return list(Struct(f">{count}i").unpack(value)), end


def read_tags(view: memoryview, position: int, take: Callable[[int, memoryview], None] | None = None) -> int:
    """Skip tagged fields, and give each tag and its bytes to `take`.

    Returns the position behind them.
    """
    count, position = read_uvarint(view, position)
    if count > TAGS_MAX:
        raise MalformedRequest(f"{count} tagged fields")
    for _ in range(count):
        tag, position = read_uvarint(view, position)
        length, position = read_uvarint(view, position)
        value, position = read_exact(view, position, length)
        if take is not None:
            take(tag, value)
    return position


def uvarint(value: int) -> bytes:
    if value < 0x80:
        return _SMALL_UVARINTS[value]
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


_SMALL_UVARINTS = [bytes([value]) for value in range(0x80)]


def string(value: str, flexible: bool) -> bytes:
    encoded = value.encode()
    return (uvarint(len(encoded) + 1) if flexible else pack_i16(len(encoded))) + encoded


def nullable_string(value: str | None, flexible: bool) -> bytes:
    if value is None:
        return b"\x00" if flexible else b"\xff\xff"
    return string(value, flexible)


def count_of(value: int, flexible: bool) -> bytes:
    """Write an array's length."""
    return uvarint(value + 1) if flexible else pack_i32(value)


def i32_array(values: Sequence[int], flexible: bool) -> bytes:
    return count_of(len(values), flexible) + Struct(f">{len(values)}i").pack(*values)


def tags(fields: Sequence[tuple[int, bytes]]) -> bytes:
    """Write tagged fields, which must come in the order of their tags."""
    parts = [uvarint(len(fields))]
    for tag, value in fields:
        parts += (uvarint(tag), uvarint(len(value)), value)
    return b"".join(parts)
