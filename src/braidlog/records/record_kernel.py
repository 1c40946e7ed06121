"""Compiled steps over the bytes of a record, for other modules' loops.

Compiled code checks no bounds of its own, so every read here is preceded by a check, and bytes that make no sense end
in one of the `Problem` codes. `records.record` does the same in plain Python, and tests compare the two.
"""

from braidlog.records.batch import RECORD_BYTES_MIN
from braidlog.records.compiled import I64, U8_IN, Bytes, compiled, i64, inlined, load_word, types, u64
from braidlog.records.problems import Problem

# The compiler takes plain numbers as constants, but not members of an enumeration.
_OK = int(Problem.NONE)
_BAD_RECORD_LENGTH, _CUT_OFF, _BAD_OFFSET_DELTA, _BAD_FIELD_LENGTH = range(7, 11)
_BAD_HEADER_COUNT, _BAD_HEADER_NAME = 11, 12
_RECORD_BYTES_MIN = RECORD_BYTES_MIN
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


@inlined
def read_varint(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """Read a zigzag number.

    Returns it and the position behind it, or -1 if the number does not end before `end`.
    """
    if position < end and data[position] < 0x80:
        byte = u64(data[position])
        return i64(byte >> u64(1)) ^ -i64(byte & u64(1)), position + 1
    value = u64(0)
    shift = u64(0)
    while position < end:
        byte = u64(data[position])
        position += 1
        value |= (byte & u64(0x7F)) << shift
        if byte < u64(0x80):
            return i64(value >> u64(1)) ^ -i64(value & u64(1)), position
        shift += u64(7)
        if shift > u64(63):
            break
    return i64(0), i64(-1)


@inlined
def sum_overflows(base: int, delta: int) -> bool:
    """Whether a sum overflows 64 bits.

    To be asked before adding: compiled code assumes that sums never overflow.
    """
    if base >= 0:
        return delta > _INT64_MAX - base
    return delta < _INT64_MIN - base


@inlined
def read_field(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """Return length and position of a key, value or header; length -1 is null.

    With a problem the position is -1 and the length is the problem's code.
    """
    length, position = read_varint(data, position, end)
    if position < 0:
        return _CUT_OFF, -1
    if length < 0:
        return -1, position
    if length > end - position:
        return _BAD_FIELD_LENGTH, -1
    return length, position


@compiled(types.UniTuple(I64, 5), U8_IN, I64, I64, I64)
def _read_long_start(data: Bytes, position: int, end: int, last_offset_delta: int) -> tuple[int, int, int, int, int]:
    """Like `read_record_start`, for records of any kind."""
    length, position = read_varint(data, position, end)
    if position < 0:
        return 0, 0, 0, _CUT_OFF, -1
    if length < _RECORD_BYTES_MIN - 1 or length > end - position:
        return 0, 0, 0, _BAD_RECORD_LENGTH, -1
    record_end = position + length
    timestamp_delta_ms, position = read_varint(data, position + 1, record_end)
    if position < 0:
        return 0, 0, 0, _CUT_OFF, -1
    offset_delta, position = read_varint(data, position, record_end)
    if position < 0:
        return 0, 0, 0, _CUT_OFF, -1
    if offset_delta < 0 or offset_delta > last_offset_delta:
        return 0, 0, 0, _BAD_OFFSET_DELTA, -1
    key_length, position = read_field(data, position, record_end)
    if position < 0:
        return 0, 0, 0, key_length, -1
    return timestamp_delta_ms, offset_delta, key_length, position, record_end


@inlined
def _short_varint(word: int) -> tuple[int, int]:
    """Decode the number at the start of a word, and its size.

    It must have at most three bytes.
    """
    if word & u64(0x80) == u64(0):
        value, size = word & u64(0x7F), i64(1)
    elif word & u64(0x8000) == u64(0):
        value, size = (word & u64(0x7F)) | ((word >> u64(1)) & u64(0x3F80)), i64(2)
    else:
        value = (word & u64(0x7F)) | ((word >> u64(1)) & u64(0x3F80)) | ((word >> u64(2)) & u64(0x1FC000))
        size = i64(3)
    return i64(value >> u64(1)) ^ -i64(value & u64(1)), size


@inlined
def read_record_start(data: Bytes, position: int, end: int, last_offset_delta: int) -> tuple[int, int, int, int, int]:
    """Read a record's start.

    Returns (timestamp delta, offset delta, key's length or less than 0, key's position, its end).

    With a problem the record's end is -1 and the position of the key is the problem's code. Nearly always the four
    numbers at a record's start are short. Then two words hold them all, and taking them out of words is twice as fast
    as byte by byte, where each number must wait for the one before it.
    """
    if end - position >= 16:
        word = load_word(data, position)
        length, size = _short_varint(word)
        start = position + size
        if word & u64(0x808080) != u64(0x808080) and 9 <= length <= end - start:
            word = load_word(data, start + 1)
            timestamp_delta_ms, first = _short_varint(word)
            offset_delta, second = _short_varint(word >> u64(8 * first))
            key_length, third = _short_varint(word >> u64(8 * (first + second)))
            used = first + second + third
            # Each number's last byte says that there are no more, unless the number is longer than three.
            last_bytes = (word >> u64(8 * (first - 1))) | (word >> u64(8 * (first + second - 1)))
            last_bytes |= word >> (u64(8 * (used - 1)) & u64(63))
            key_position = start + 1 + used
            record_end = start + length
            if (
                used <= 8
                and last_bytes & u64(0x80) == u64(0)
                and 0 <= offset_delta <= last_offset_delta
                and key_length <= record_end - key_position
            ):
                return timestamp_delta_ms, offset_delta, key_length, key_position, record_end
    return _read_long_start(data, position, end, last_offset_delta)


@compiled(types.UniTuple(I64, 2), U8_IN, I64, I64)
def skip_headers(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """Check the headers at `position`, which must end at `end`.

    Returns their number, or -1 and a problem.
    """
    count, position = read_varint(data, position, end)
    if position < 0:
        return -1, _CUT_OFF
    if count < 0 or count > end - position:
        return -1, _BAD_HEADER_COUNT
    for _ in range(count):
        length, position = read_field(data, position, end)
        if position < 0:
            return -1, length
        if length < 0:
            return -1, _BAD_HEADER_NAME
        length, position = read_field(data, position + length, end)
        if position < 0:
            return -1, length
        position += max(length, 0)
    if position != end:
        return -1, _BAD_FIELD_LENGTH
    return count, _OK
