"""Compiled loops that turn columns into the bytes of records."""

from braidlog.records.batch import HEADER_BYTES, RECORD_COUNT_MAX
from braidlog.records.compiled import (
    I32_IN,
    I32_OUT,
    I64,
    I64_IN,
    I64_OUT,
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

_HEADER_BYTES = HEADER_BYTES


@inlined
def _zigzag(value: int) -> int:
    return u64((value << i64(1)) ^ (value >> i64(63)))


@inlined
def varint_bytes(value: int) -> int:
    """Return the size of a number as a varint."""
    rest = _zigzag(value)
    if rest < u64(0x80):
        return i64(1)
    if rest < u64(0x4000):
        return i64(2)
    rest >>= u64(14)
    size = i64(2)
    while rest != u64(0):
        rest >>= u64(7)
        size += 1
    return size


@inlined
def write_varint(out: Bytes, position: int, value: int) -> int:
    """Write a number as a varint, and return the position behind it."""
    rest = _zigzag(value)
    while rest >= u64(0x80):
        out[position] = u8(rest & u64(0x7F)) | u8(0x80)
        rest >>= u64(7)
        position += 1
    out[position] = u8(rest)
    return position + 1


@inlined
def _field_length(offsets: SmallNumbers, validity: Bytes, index: int) -> int:
    """Return the length of a binary column's entry, -1 for null.

    Without a validity column nothing is null.
    """
    if len(validity) and validity[index] == 0:
        return i64(-1)
    return i64(offsets[index + 1]) - i64(offsets[index])


@inlined
def _write_field(out: Bytes, position: int, data: Bytes, offsets: SmallNumbers, validity: Bytes, index: int) -> int:
    length = _field_length(offsets, validity, index)
    position = write_varint(out, position, length)
    if length > 0:
        copy_bytes(out, position, data, i64(offsets[index]), length)
        position += length
    return position


@compiled(
    types.UniTuple(I64, 2),
    I64_IN,
    I32_IN,
    U8_IN,
    I32_IN,
    U8_IN,
    I32_IN,
    I32_IN,
    U8_IN,
    I32_IN,
    U8_IN,
    I64,
    I64_OUT,
    I32_OUT,
)
def plan_batches(
    timestamps_ms: Numbers,
    key_offsets: SmallNumbers,
    key_validity: Bytes,
    value_offsets: SmallNumbers,
    value_validity: Bytes,
    list_offsets: SmallNumbers,
    name_offsets: SmallNumbers,
    name_validity: Bytes,
    content_offsets: SmallNumbers,
    content_validity: Bytes,
    batch_bytes_max: int,
    batch_ends: Numbers,
    body_bytes: SmallNumbers,
) -> tuple[int, int]:
    """Cut records into batches.

    Returns their number and total size, or -1 and the record that fits in no batch.

    `batch_ends` gets two numbers for each batch, the record behind its last one and its bytes with the header;
    `body_bytes` each record's length field.
    """
    batch_count = i64(0)
    total = i64(0)
    size = i64(_HEADER_BYTES)
    start = i64(0)
    for index in range(len(timestamps_ms)):
        fixed = i64(1)
        length = _field_length(key_offsets, key_validity, index)
        fixed += varint_bytes(length) + max(length, 0)
        length = _field_length(value_offsets, value_validity, index)
        fixed += varint_bytes(length) + max(length, 0)
        if len(list_offsets):
            first, last = i64(list_offsets[index]), i64(list_offsets[index + 1])
            fixed += varint_bytes(last - first)
            for header in range(first, last):
                length = _field_length(name_offsets, name_validity, header)
                fixed += varint_bytes(length) + length
                length = _field_length(content_offsets, content_validity, header)
                fixed += varint_bytes(length) + max(length, 0)
        else:
            fixed += 1
        body = fixed + varint_bytes(timestamps_ms[index] - timestamps_ms[start]) + varint_bytes(index - start)
        if index > start and (size + varint_bytes(body) + body > batch_bytes_max or index - start >= RECORD_COUNT_MAX):
            batch_ends[2 * batch_count] = index
            batch_ends[2 * batch_count + 1] = size
            batch_count += 1
            total += size
            size = i64(_HEADER_BYTES)
            start = index
            body = fixed + 2
        record = varint_bytes(body) + body
        if size + record > batch_bytes_max:
            return -1, index
        size += record
        body_bytes[index] = body
    if len(timestamps_ms):
        batch_ends[2 * batch_count] = len(timestamps_ms)
        batch_ends[2 * batch_count + 1] = size
        batch_count += 1
        total += size
    return batch_count, total


@compiled(
    types.void,
    I64_IN,
    U8_IN,
    I32_IN,
    U8_IN,
    U8_IN,
    I32_IN,
    U8_IN,
    I32_IN,
    U8_IN,
    I32_IN,
    U8_IN,
    I32_IN,
    U8_IN,
    I64_IN,
    I32_IN,
    U8_OUT,
    I64_OUT,
)
def write_records(
    timestamps_ms: Numbers,
    key_data: Bytes,
    key_offsets: SmallNumbers,
    key_validity: Bytes,
    value_data: Bytes,
    value_offsets: SmallNumbers,
    value_validity: Bytes,
    list_offsets: SmallNumbers,
    name_data: Bytes,
    name_offsets: SmallNumbers,
    content_data: Bytes,
    content_offsets: SmallNumbers,
    content_validity: Bytes,
    batch_ends: Numbers,
    body_bytes: SmallNumbers,
    out: Bytes,
    highest_ms: Numbers,
) -> None:
    """Write the records of every batch that `plan_batches` has cut.

    Room for its header is left before them.

    `highest_ms` gets two numbers for each batch: the lowest and the highest timestamp.
    """
    all_valid = key_validity[:0]
    position = i64(0)
    start = i64(0)
    for batch in range(len(batch_ends) // 2):
        position += _HEADER_BYTES
        end = batch_ends[2 * batch]
        base_ms = timestamps_ms[start]
        lowest, highest = base_ms, base_ms
        for index in range(start, end):
            position = write_varint(out, position, i64(body_bytes[index]))
            out[position] = 0
            timestamp_ms = timestamps_ms[index]
            lowest, highest = min(lowest, timestamp_ms), max(highest, timestamp_ms)
            position = write_varint(out, position + 1, timestamp_ms - base_ms)
            position = write_varint(out, position, index - start)
            position = _write_field(out, position, key_data, key_offsets, key_validity, index)
            position = _write_field(out, position, value_data, value_offsets, value_validity, index)
            if len(list_offsets):
                first, last = i64(list_offsets[index]), i64(list_offsets[index + 1])
                position = write_varint(out, position, last - first)
                for header in range(first, last):
                    position = _write_field(out, position, name_data, name_offsets, all_valid, header)
                    position = _write_field(out, position, content_data, content_offsets, content_validity, header)
            else:
                out[position] = 0
                position += 1
        highest_ms[2 * batch] = lowest
        highest_ms[2 * batch + 1] = highest
        start = end
