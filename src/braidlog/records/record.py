"""Decodes single records from a batch, and encodes them into one."""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from fastcrc.crc32 import iscsi as crc32c
from kio.schema.errors import ErrorCode

from braidlog.records.batch import (
    CODEC_MASK,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    MAGIC,
    NO_PRODUCER,
    PREFIX_BYTES,
    RECORD_BYTES_MIN,
    BatchHeader,
    BatchProducer,
    TimestampType,
    has_valid_crc,
    read_header,
)
from braidlog.records.codec import CODEC_MAX, Codec, compress, decompress
from braidlog.records.errors import InvalidBatch
from braidlog.records.varint import add_varint, read_varint

_INT64_MIN = -(1 << 63)
_INT64_MAX = (1 << 63) - 1
_INT32_MAX = (1 << 31) - 1

_BEFORE_CRC = Struct(">qiibI")
_AFTER_CRC = Struct(">hiqqqhii")


class Record(NamedTuple):
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def read_batch(view: memoryview) -> BatchHeader:
    """Read the header of the batch that `view` begins with, and check it.

    The check covers length, magic, codec and CRC.
    """
    header = read_header(view)
    if header.magic != MAGIC:
        raise InvalidBatch(ErrorCode.invalid_record, f"record batches must have magic 2, not {header.magic}")
    if header.total_bytes < HEADER_BYTES or header.total_bytes > len(view):
        raise InvalidBatch(ErrorCode.corrupt_message, f"batch length {header.batch_length} does not fit")
    if not has_valid_crc(view, header):
        raise InvalidBatch(ErrorCode.corrupt_message, "CRC does not match")
    if header.attributes & CODEC_MASK > CODEC_MAX:
        raise InvalidBatch(
            ErrorCode.unsupported_compression_type, f"unknown compression codec {header.attributes & CODEC_MASK}"
        )
    return header


def read_payload(view: memoryview, header: BatchHeader, *, bytes_max: int) -> memoryview:
    """Return the records' bytes, decompressed, after a check of the record count."""
    payload = decompress(header.codec, view[HEADER_BYTES : header.total_bytes], bytes_max=bytes_max)
    if not 0 <= header.record_count * RECORD_BYTES_MIN <= len(payload):
        raise _invalid(f"{header.record_count} records do not fit in {len(payload)} bytes")
    return payload


def decode_batch(view: memoryview, *, bytes_max: int) -> list[Record]:
    """Decode all records of the batch that `view` begins with.

    They may decompress to at most `bytes_max`.
    """
    return list(iter_records(view, bytes_max=bytes_max))


def iter_records(view: memoryview, *, bytes_max: int) -> Iterator[Record]:
    """Like `decode_batch`, but one by one.

    A small batch may decompress to millions of records.
    """
    header = read_batch(view)
    payload = read_payload(view, header, bytes_max=bytes_max)
    log_append_ms = header.timestamp_ms_max if header.timestamp_type is TimestampType.LOG_APPEND else None
    position = 0
    try:
        for _ in range(header.record_count):
            record, position = _decode_record(payload, position, header, log_append_ms)
            yield record
    except IndexError:
        raise _invalid("the last record is cut off") from None
    if position != len(payload):
        raise _invalid(f"{len(payload) - position} bytes behind the last record")


def _invalid(message: str) -> InvalidBatch:
    return InvalidBatch(ErrorCode.invalid_record, message)


def _decode_record(
    payload: memoryview, position: int, header: BatchHeader, log_append_ms: int | None
) -> tuple[Record, int]:
    end, position = _record_end(payload, position)
    timestamp_delta_ms, position = read_varint(payload, position + 1)
    offset_delta, position = read_varint(payload, position)
    if not 0 <= offset_delta <= header.last_offset_delta:
        raise _invalid(f"offset delta {offset_delta} is not within 0 and {header.last_offset_delta}")
    key, position = _read_bytes(payload, position, end)
    value, position = _read_bytes(payload, position, end)
    header_count, position = read_varint(payload, position)
    if not 0 <= header_count <= end - position:
        raise _invalid(f"a record of {header_count} headers")
    headers: tuple[tuple[str, bytes | None], ...] = ()
    if header_count:
        found: list[tuple[str, bytes | None]] = []
        for _ in range(header_count):
            name, position = _read_bytes(payload, position, end)
            if name is None:
                raise _invalid("a record header without a name")
            content, position = _read_bytes(payload, position, end)
            try:
                found.append((name.decode(), content))
            except UnicodeDecodeError:
                raise _invalid("a record header's name is not UTF-8") from None
        headers = tuple(found)
    if position != end:
        raise _invalid("a record's length is not that of its fields")
    if log_append_ms is None:
        timestamp_ms = header.timestamp_ms_base + timestamp_delta_ms
        if not _INT64_MIN <= timestamp_ms <= _INT64_MAX:
            raise _invalid(f"timestamp delta {timestamp_delta_ms}")
    else:
        timestamp_ms = log_append_ms
    return Record(header.base_offset + offset_delta, timestamp_ms, key, value, headers), end


def _record_end(payload: memoryview, position: int) -> tuple[int, int]:
    """Return where the record at `position` ends, and where its fields begin."""
    length, position = read_varint(payload, position)
    end = position + length
    if length < RECORD_BYTES_MIN - 1 or end > len(payload):
        raise _invalid(f"a record of {length} bytes")
    return end, position


def _read_bytes(payload: memoryview, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(payload, position)
    if length < 0:
        return None, position
    if position + length > end:
        raise _invalid(f"a field of {length} bytes is longer than its record")
    return bytes(payload[position : position + length]), position + length


def encode_batch(
    records: Sequence[Record],
    *,
    codec: Codec = Codec.NONE,
    base_offset: int = 0,
    last_offset_delta: int | None = None,
    partition_leader_epoch: int = -1,
    producer: BatchProducer = NO_PRODUCER,
    flags: int = 0,
    delete_horizon_ms: int | None = None,
) -> bytes:
    """Encode one batch.

    The records' offsets are absolute, ascending and not below `base_offset`.

    `flags` are attribute bits: `TRANSACTIONAL_BIT`, `CONTROL_BIT`, `TIMESTAMP_TYPE_BIT`, with which all records get the
    time of the latest one. The rest is for compacted batches: `last_offset_delta`, because their last records may be
    gone, and `delete_horizon_ms`, the time from which their tombstones may go.
    """
    end_offset = base_offset
    for record in records:
        if record.offset < end_offset:
            raise ValueError(f"offset {record.offset} is below {end_offset}")
        end_offset = record.offset + 1
    if last_offset_delta is None:
        last_offset_delta = end_offset - base_offset - 1
    if not max(0, end_offset - base_offset - 1) <= last_offset_delta <= _INT32_MAX:
        raise ValueError(f"last offset delta {last_offset_delta} does not fit the records")
    base_ms = records[0].timestamp_ms if records else -1
    max_ms = max((record.timestamp_ms for record in records), default=-1)
    attributes = codec | flags
    if delete_horizon_ms is not None:
        attributes |= DELETE_HORIZON_BIT
        base_ms = delete_horizon_ms
    payload = bytearray()
    for record in records:
        _add_record(payload, record, base_offset, base_ms)
    return _assemble(
        BatchHeader(
            base_offset,
            0,
            partition_leader_epoch,
            MAGIC,
            0,
            attributes,
            last_offset_delta,
            base_ms,
            max_ms,
            producer.producer_id,
            producer.epoch,
            producer.base_sequence,
            len(records),
        ),
        compress(codec, payload),
    )


def _add_record(payload: bytearray, record: Record, base_offset: int, base_ms: int) -> None:
    fields = bytearray(1)
    add_varint(fields, record.timestamp_ms - base_ms)
    add_varint(fields, record.offset - base_offset)
    _add_bytes(fields, record.key)
    _add_bytes(fields, record.value)
    add_varint(fields, len(record.headers))
    for name, content in record.headers:
        _add_bytes(fields, name.encode())
        _add_bytes(fields, content)
    add_varint(payload, len(fields))
    payload += fields


def _add_bytes(buffer: bytearray, value: bytes | None) -> None:
    if value is None:
        buffer.append(1)
    else:
        add_varint(buffer, len(value))
        buffer += value


def _assemble(header: BatchHeader, payload: bytes | memoryview) -> bytes:
    """Return a batch of these fields and records, with matching length and CRC."""
    after_crc = _AFTER_CRC.pack(*header[5:])
    crc = crc32c(payload, crc32c(after_crc))
    batch_length = HEADER_BYTES - PREFIX_BYTES + len(payload)
    before_crc = _BEFORE_CRC.pack(header.base_offset, batch_length, header.partition_leader_epoch, MAGIC, crc)
    return b"".join((before_crc, after_crc, payload))


def assemble_batch(header: BatchHeader, codec: Codec, packed: bytes | memoryview) -> bytes:
    """Return a batch of these fields and records, compressed with `codec`."""
    return _assemble(header._replace(attributes=header.attributes & ~CODEC_MASK | codec), packed)
