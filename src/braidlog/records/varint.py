"""Zigzag varints, as in records."""

from kio.schema.errors import ErrorCode

from braidlog.records.errors import InvalidBatch


def read_varint(view: bytes | memoryview, position: int) -> tuple[int, int]:
    """Read a signed number of up to 64 bits.

    Returns it and the position behind it. Raises `IndexError` at the end.
    """
    byte = view[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    value, position = read_uvarint(view, position)
    return (value >> 1) ^ -(value & 1), position


def read_uvarint(view: bytes | memoryview, position: int) -> tuple[int, int]:
    """Read a number without decoding the sign in its lowest bit."""
    value = shift = 0
    while True:
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position
        shift += 7
        if shift > 63:
            raise InvalidBatch(ErrorCode.invalid_record, "a varint of more than ten bytes")


def add_varint(buffer: bytearray, value: int) -> None:
    value = (value << 1) ^ (value >> 63)
    while value >= 0x80:
        buffer.append(value & 0x7F | 0x80)
        value >>= 7
    buffer.append(value)
