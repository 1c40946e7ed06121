"""Zigzag varints, as records have them."""

from kio.schema.errors import ErrorCode

from braidlog.records.errors import InvalidBatch


def read_varint(view: memoryview, position: int) -> tuple[int, int]:
    """A signed number of up to 64 bits, and the position behind it. An `IndexError` where the bytes end too early."""
    byte = view[position]
    position += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position
    value = byte & 0x7F
    shift = 7
    while True:
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise InvalidBatch(ErrorCode.invalid_record, "a varint of more than ten bytes")
    value &= 0xFFFF_FFFF_FFFF_FFFF
    return (value >> 1) ^ -(value & 1), position


def add_varint(buffer: bytearray, value: int) -> None:
    value = (value << 1) ^ (value >> 63)
    while value >= 0x80:
        buffer.append(value & 0x7F | 0x80)
        value >>= 7
    buffer.append(value)
