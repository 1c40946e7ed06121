"""Compiled loops over the bytes of batches and records.

Every read is preceded by a check, as in `record_kernel`.
"""

from enum import IntEnum

from braidlog.records.batch import CODEC_MASK, HEADER_BYTES, MAGIC, PREFIX_BYTES, TIMESTAMP_TYPE_BIT
from braidlog.records.codec import CODEC_MAX
from braidlog.records.compiled import (
    I32_IN,
    I32_OUT,
    I64,
    I64_OUT,
    TABLE_IN,
    TABLE_OUT,
    U8_IN,
    U8_OUT,
    Bytes,
    Numbers,
    SmallNumbers,
    compiled,
    copy_bytes,
    i64,
    inlined,
    types,
    u8,
    u64,
)
from braidlog.records.problems import Problem
from braidlog.records.record_kernel import read_field, read_record_start, read_varint, skip_headers, sum_overflows


class Field(IntEnum):
    """Columns of a table of batches: one row of 64-bit numbers for each batch."""

    POSITION = 0
    """Where the batch begins in the bytes of its extent."""
    LENGTH = 1
    OFFSET = 2
    """The offset of the batch's first original record, as placed in the log."""
    LAST_OFFSET_DELTA = 3
    ATTRIBUTES = 4
    TIMESTAMP_MS_BASE = 5
    TIMESTAMP_MS_MAX = 6
    PRODUCER_ID = 7
    PRODUCER_EPOCH = 8
    BASE_SEQUENCE = 9
    RECORD_COUNT = 10
    CRC = 11
    PAYLOAD_START = 12
    """Where the decompressed records begin in the opened bytes."""
    PAYLOAD_END = 13


FIELD_COUNT = len(Field)


# The compiler takes plain numbers as constants, but not members of an enumeration.
_POSITION, _LENGTH, _OFFSET, _LAST_OFFSET_DELTA, _ATTRIBUTES = (int(field) for field in list(Field)[:5])
_BASE_MS, _MAX_MS, _PRODUCER_ID, _PRODUCER_EPOCH, _SEQUENCE = (int(field) for field in list(Field)[5:10])
_RECORD_COUNT, _CRC, _PAYLOAD_START, _PAYLOAD_END = (int(field) for field in list(Field)[10:])
_OK = int(Problem.NONE)
_TRAILING_BYTES, _BAD_BATCH_LENGTH, _BAD_MAGIC, _BAD_CODEC, _BAD_OFFSETS, _BAD_RECORD_COUNT = range(1, 7)
_BAD_TIMESTAMP, _BYTES_BEHIND = 13, 14
_HEADER_BYTES, _PREFIX_BYTES, _MAGIC, _CODEC_MASK, _CODEC_MAX = HEADER_BYTES, PREFIX_BYTES, MAGIC, CODEC_MASK, CODEC_MAX
_TIMESTAMP_TYPE_BIT = TIMESTAMP_TYPE_BIT


@inlined
def _big_endian(data: Bytes, position: int, size: int) -> int:
    """Read a signed big-endian number of `size` bytes."""
    value = u64(0)
    for index in range(size):
        value = (value << u64(8)) | u64(data[position + index])
    spare = i64(64 - 8 * size)
    return (i64(value) << spare) >> spare


@compiled(types.UniTuple(I64, 3), U8_IN, I64, I64, TABLE_OUT)
def walk_batches(data: Bytes, base_offset: int, end_offset: int, table: Numbers) -> tuple[int, int, int]:
    """Place the batches of an extent [base_offset, end_offset).

    Returns their number, a problem and where it is.

    A batch lies at its own base offset or right behind the one before it, whichever is higher. Rows are written as far
    as the table has any; a table without rows only counts.
    """
    size = len(data)
    capacity = len(table)
    position = i64(0)
    count = i64(0)
    offset = base_offset
    while position < size:
        if size - position < _HEADER_BYTES:
            return count, _TRAILING_BYTES, position
        length = _big_endian(data, position + 8, 4) + _PREFIX_BYTES
        if length < _HEADER_BYTES or length > size - position:
            return count, _BAD_BATCH_LENGTH, position
        if data[position + 16] != _MAGIC:
            return count, _BAD_MAGIC, position
        attributes = _big_endian(data, position + 21, 2)
        if attributes & _CODEC_MASK > _CODEC_MAX:
            return count, _BAD_CODEC, position
        offset = max(offset, _big_endian(data, position, 8))
        last_offset_delta = _big_endian(data, position + 23, 4)
        if last_offset_delta < 0 or offset < 0 or offset > end_offset - 1 - last_offset_delta:
            return count, _BAD_OFFSETS, position
        record_count = _big_endian(data, position + 57, 4)
        if record_count < 0:
            return count, _BAD_RECORD_COUNT, position
        if count < capacity:
            table[count, _POSITION] = position
            table[count, _LENGTH] = length
            table[count, _OFFSET] = offset
            table[count, _LAST_OFFSET_DELTA] = last_offset_delta
            table[count, _ATTRIBUTES] = attributes
            table[count, _BASE_MS] = _big_endian(data, position + 27, 8)
            table[count, _MAX_MS] = _big_endian(data, position + 35, 8)
            table[count, _PRODUCER_ID] = _big_endian(data, position + 43, 8)
            table[count, _PRODUCER_EPOCH] = _big_endian(data, position + 51, 2)
            table[count, _SEQUENCE] = _big_endian(data, position + 53, 4)
            table[count, _RECORD_COUNT] = record_count
            table[count, _CRC] = _big_endian(data, position + 17, 4) & 0xFFFFFFFF
            table[count, _PAYLOAD_START] = position + _HEADER_BYTES
            table[count, _PAYLOAD_END] = position + length
        count += 1
        position += length
        offset += last_offset_delta + 1
    return count, _OK, position


@compiled(I64, U8_IN, TABLE_IN, I64, I64, I64_OUT, I64_OUT, I32_OUT, U8_OUT, U8_OUT, I32_OUT, I32_OUT, I64_OUT, I64_OUT)
def scan_records(
    data: Bytes,
    table: Numbers,
    start_offset: int,
    end_offset: int,
    offsets: Numbers,
    timestamps_ms: Numbers,
    spans: SmallNumbers,
    key_validity: Bytes,
    value_validity: Bytes,
    header_counts: SmallNumbers,
    header_positions: SmallNumbers,
    row_counts: Numbers,
    totals: Numbers,
) -> int:
    """Find the records of a table's batches that lie in [start_offset, end_offset).

    Returns a problem, or 0.

    `spans` gets four numbers for each: start and end of its key and of its value. Validity is in Arrow's bits, which
    must be 1 before. `header_positions` are those of the number of headers; both arrays about headers may be empty if
    nobody asks. `row_counts` gets the number of records of each batch. `totals` gets how many records there are, the
    bytes of their keys and of their values, how many keys and how many values are null, how many headers they have, and
    the row of the batch with the problem. Every array must have room for all records that the table counts.
    """
    count = i64(0)
    key_bytes = i64(0)
    value_bytes = i64(0)
    null_keys = i64(0)
    null_values = i64(0)
    header_count = i64(0)
    wants_headers = len(header_counts) > 0
    for row in range(len(table)):
        totals[6] = row
        first = count
        position = table[row, _PAYLOAD_START]
        end = table[row, _PAYLOAD_END]
        base_offset = table[row, _OFFSET]
        last_offset_delta = table[row, _LAST_OFFSET_DELTA]
        base_ms = table[row, _BASE_MS]
        append_ms = table[row, _MAX_MS]
        is_append_time = table[row, _ATTRIBUTES] & _TIMESTAMP_TYPE_BIT != 0
        for _ in range(table[row, _RECORD_COUNT]):
            delta_ms, offset_delta, key_length, key_start, record_end = read_record_start(
                data, position, end, last_offset_delta
            )
            if record_end < 0:
                return key_start
            key_end = key_start + max(key_length, 0)
            value_length, value_start = read_field(data, key_end, record_end)
            if value_start < 0:
                return value_length
            value_end = value_start + max(value_length, 0)
            headers = i64(0)
            if value_end + 1 != record_end or data[value_end] != 0:
                headers, problem = skip_headers(data, value_end, record_end)
                if headers < 0:
                    return problem
            timestamp_ms = append_ms
            if not is_append_time:
                if sum_overflows(base_ms, delta_ms):
                    return i64(_BAD_TIMESTAMP)
                timestamp_ms = base_ms + delta_ms
            position = record_end
            offset = base_offset + offset_delta
            if offset < start_offset or offset >= end_offset:
                continue
            offsets[count] = offset
            timestamps_ms[count] = timestamp_ms
            spans[4 * count] = key_start
            spans[4 * count + 1] = key_end
            spans[4 * count + 2] = value_start
            spans[4 * count + 3] = value_end
            if key_length < 0:
                key_validity[count >> 3] &= ~u8(1 << (count & 7))
                null_keys += 1
            if value_length < 0:
                value_validity[count >> 3] &= ~u8(1 << (count & 7))
                null_values += 1
            key_bytes += key_end - key_start
            value_bytes += value_end - value_start
            if wants_headers:
                header_counts[count] = headers
                header_positions[count] = value_end
                header_count += headers
            count += 1
        if position != end:
            return i64(_BYTES_BEHIND)
        row_counts[row] = count - first
    totals[0] = count
    totals[1] = key_bytes
    totals[2] = value_bytes
    totals[3] = null_keys
    totals[4] = null_values
    totals[5] = header_count
    return i64(_OK)


@compiled(I64, U8_IN, I32_IN, I64, I64, I32_OUT, U8_OUT)
def gather(data: Bytes, spans: SmallNumbers, first: int, stride: int, offsets: SmallNumbers, out: Bytes) -> int:
    """Copy every span at `first`, `first + stride`, … one behind the other.

    It also writes where each begins.
    """
    at = i64(0)
    offsets[0] = 0
    for index in range(len(offsets) - 1):
        start = i64(spans[first + stride * index])
        length = i64(spans[first + stride * index + 1]) - start
        copy_bytes(out, at, data, start, length)
        at += length
        offsets[index + 1] = at
    return at


@compiled(types.UniTuple(I64, 2), U8_IN, I32_IN, I32_IN, I32_OUT, U8_OUT)
def scan_headers(
    data: Bytes, header_counts: SmallNumbers, header_positions: SmallNumbers, spans: SmallNumbers, validity: Bytes
) -> tuple[int, int]:
    """Find the spans of name and value of every header.

    `scan_records` has checked the headers. Returns the bytes of names and of values.
    """
    name_bytes = i64(0)
    value_bytes = i64(0)
    found = i64(0)
    size = i64(len(data))
    for index in range(len(header_counts)):
        if header_counts[index] == 0:
            continue
        _, position = read_varint(data, i64(header_positions[index]), size)
        for _ in range(header_counts[index]):
            length, position = read_field(data, position, size)
            spans[4 * found] = position
            position += length
            spans[4 * found + 1] = position
            name_bytes += length
            length, position = read_field(data, position, size)
            spans[4 * found + 2] = position
            if length >= 0:
                validity[found >> 3] |= u8(1 << (found & 7))
                position += length
                value_bytes += length
            spans[4 * found + 3] = position
            found += 1
    return name_bytes, value_bytes


@compiled(I64, U8_IN, TABLE_IN, I64_OUT, I64_OUT, I32_OUT, U8_OUT, I32_OUT, I32_OUT)
def index_records(
    data: Bytes,
    table: Numbers,
    offsets: Numbers,
    timestamps_ms: Numbers,
    places: SmallNumbers,
    is_null: Bytes,
    row_starts: SmallNumbers,
    problems: SmallNumbers,
) -> int:
    """Find the records of all batches, as far as copying needs.

    This means their bounds, offsets, times and keys.

    Returns how many there are. `places` gets four numbers for each: where the record begins and ends, where its key
    begins, and how long the key is, -1 for null; `is_null` whether its value is. `row_starts` gets the first record of
    each batch and the end of the last. A batch that cannot be read has no records here but its problem in `problems`.
    """
    count = i64(0)
    for row in range(len(table)):
        row_starts[row] = count
        first = count
        problem = i64(_OK)
        position = table[row, _PAYLOAD_START]
        end = table[row, _PAYLOAD_END]
        last_offset_delta = table[row, _LAST_OFFSET_DELTA]
        base_ms = table[row, _BASE_MS]
        is_append_time = table[row, _ATTRIBUTES] & _TIMESTAMP_TYPE_BIT != 0
        for _ in range(table[row, _RECORD_COUNT]):
            record_start = position
            delta_ms, offset_delta, key_length, key_start, record_end = read_record_start(
                data, position, end, last_offset_delta
            )
            if record_end < 0:
                problem = key_start
                break
            value_length, value_start = read_field(data, key_start + max(key_length, 0), record_end)
            if value_start < 0:
                problem = value_length
                break
            if not is_append_time and sum_overflows(base_ms, delta_ms):
                problem = i64(_BAD_TIMESTAMP)
                break
            timestamp_ms = base_ms + delta_ms
            offsets[count] = table[row, _OFFSET] + offset_delta
            timestamps_ms[count] = table[row, _MAX_MS] if is_append_time else timestamp_ms
            places[4 * count] = record_start
            places[4 * count + 1] = record_end
            places[4 * count + 2] = key_start
            places[4 * count + 3] = max(key_length, -1)
            is_null[count] = value_length < 0
            position = record_end
            count += 1
        if table[row, _RECORD_COUNT] < 0:
            problem = i64(_BAD_RECORD_COUNT)
        elif problem == _OK and position != end:
            problem = i64(_BYTES_BEHIND)
        if problem != _OK:
            count = first
        problems[row] = problem
    row_starts[len(table)] = count
    return count
