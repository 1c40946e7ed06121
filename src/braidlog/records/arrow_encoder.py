"""Encodes Arrow columns into record batches, at compiled speed."""

from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]
from fastcrc.crc32 import iscsi as crc32c
from kio.schema.errors import ErrorCode

from braidlog.records.batch import (
    CRC_START,
    HEADER_BYTES,
    MAGIC,
    NO_PRODUCER,
    PREFIX_BYTES,
    TIMESTAMP_TYPE_BIT,
    BatchProducer,
    TimestampType,
)
from braidlog.records.codec import Codec, compress
from braidlog.records.compiled import Bytes, Numbers, SmallNumbers
from braidlog.records.encode_kernel import plan_batches, write_records
from braidlog.records.errors import InvalidBatch
from braidlog.records.summary import BatchSummary

_HEADER = Struct(">qiibIhiqqqhii")
_CRC = Struct(">I")
_CRC_POSITION = 17
_SEQUENCE_COUNT = 1 << 31
_COLUMN_BYTES_MAX = (1 << 31) - 1

_NO_BYTES: Bytes = np.empty(0, dtype=np.uint8)
_NO_NUMBERS: SmallNumbers = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class EncodedBatches:
    """Batches back to back, ready to be an extent, and their description.

    The description is for an object's footer.
    """

    data: memoryview
    record_count: int
    timestamp_ms_min: int
    timestamp_ms_max: int
    batches: list[BatchSummary]


class _Binary(NamedTuple):
    """A binary column as compiled code takes it.

    An empty validity means that nothing is null.
    """

    data: Bytes
    offsets: SmallNumbers
    validity: Bytes


class _Headers(NamedTuple):
    """Record headers as compiled code takes them.

    Empty list offsets mean that no record has any.
    """

    list_offsets: SmallNumbers
    names: _Binary
    contents: _Binary


class _Columns(NamedTuple):
    """The columns of some records as compiled code takes them."""

    timestamps_ms: Numbers
    keys: _Binary
    values: _Binary
    headers: _Headers


class _Unsealed(NamedTuple):
    """Batches back to back, with room for the headers that are still to be written."""

    data: memoryview
    ends: Numbers
    """Two numbers for each batch: the row behind its last record, and its size in bytes."""
    bounds_ms: Numbers
    """Two numbers for each batch: its lowest and its highest timestamp."""


def encode_batches(
    records: pa.RecordBatch | pa.Table,
    *,
    batch_bytes_max: int,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    timestamp_ms_default: int = -1,
    timestamp_type: TimestampType = TimestampType.CREATE,
    producer: BatchProducer = NO_PRODUCER,
) -> EncodedBatches:
    """Encode rows, in order, into batches of up to `batch_bytes_max`.

    The limit counts bytes before compression.

    Columns, all optional and others ignored: `key` and `value` (binary or string; a null value is a tombstone),
    `timestamp` (Arrow's timestamps, or milliseconds as int64; null is `timestamp_ms_default`) and `headers` (a list of
    structs of a name and a value). With `LOG_APPEND` every record has `timestamp_ms_default`. Base offsets are 0, as
    batches are stored. A record that fits in no batch is `InvalidBatch` with Kafka's code for it.
    """
    columns = _columns(records, timestamp_ms_default, timestamp_type)
    unsealed = _write_batches(columns, batch_bytes_max)
    type_bit = TIMESTAMP_TYPE_BIT if timestamp_type is TimestampType.LOG_APPEND else 0
    bounds_ms = unsealed.bounds_ms
    parts: list[bytes | memoryview] = []
    batches: list[BatchSummary] = []
    position = start = 0
    for index in range(len(unsealed.ends) // 2):
        end, size = int(unsealed.ends[2 * index]), int(unsealed.ends[2 * index + 1])
        batch = unsealed.data[position : position + size]
        packed = _packed(batch, codec, level)
        attributes = type_bit if packed is None else codec | type_bit
        first = producer.base_sequence
        summary = BatchSummary(
            size if packed is None else HEADER_BYTES + len(packed),
            end - start,
            attributes,
            int(bounds_ms[2 * index + 1]),
            producer.producer_id,
            producer.epoch,
            first if first < 0 else (first + start) % _SEQUENCE_COUNT,
        )
        _write_header(batch, summary, int(columns.timestamps_ms[start]), packed)
        batches.append(summary)
        if codec is not Codec.NONE:
            parts += (batch,) if packed is None else (batch[:HEADER_BYTES], packed)
        position += size
        start = end
    return EncodedBatches(
        unsealed.data if codec is Codec.NONE else memoryview(b"".join(parts)),
        records.num_rows,
        int(bounds_ms[::2].min()) if batches else -1,
        int(bounds_ms[1::2].max()) if batches else -1,
        batches,
    )


def _columns(records: pa.RecordBatch | pa.Table, timestamp_ms_default: int, timestamp_type: TimestampType) -> _Columns:
    count = records.num_rows
    if timestamp_type is TimestampType.LOG_APPEND:
        timestamps_ms: Numbers = np.full(count, timestamp_ms_default, dtype=np.int64)
    else:
        timestamps_ms = _timestamps(_column(records, "timestamp"), count, timestamp_ms_default)
    return _Columns(
        timestamps_ms,
        _binary(_column(records, "key"), count),
        _binary(_column(records, "value"), count),
        _headers(_column(records, "headers"), count),
    )


def _write_batches(columns: _Columns, batch_bytes_max: int) -> _Unsealed:
    """Cut the records into batches, and write them without the batches' headers."""
    timestamps_ms, keys, values, headers = columns
    count = len(timestamps_ms)
    ends: Numbers = np.empty(2 * max(1, count), dtype=np.int64)
    body_bytes: SmallNumbers = np.empty(count, dtype=np.int32)
    batch_count, total = plan_batches(
        timestamps_ms,
        keys.offsets,
        keys.validity,
        values.offsets,
        values.validity,
        headers.list_offsets,
        headers.names.offsets,
        headers.names.validity,
        headers.contents.offsets,
        headers.contents.validity,
        min(batch_bytes_max, _COLUMN_BYTES_MAX),
        ends,
        body_bytes,
    )
    if batch_count < 0:
        raise InvalidBatch(
            ErrorCode.message_too_large, f"the record in row {total} is over the limit of {batch_bytes_max} bytes"
        )
    ends = ends[: 2 * batch_count]
    out: Bytes = np.frombuffer(pa.allocate_buffer(total), dtype=np.uint8)
    bounds_ms: Numbers = np.empty(2 * batch_count, dtype=np.int64)
    write_records(
        timestamps_ms,
        keys.data,
        keys.offsets,
        keys.validity,
        values.data,
        values.offsets,
        values.validity,
        headers.list_offsets,
        headers.names.data,
        headers.names.offsets,
        headers.contents.data,
        headers.contents.offsets,
        headers.contents.validity,
        ends,
        body_bytes,
        out,
        bounds_ms,
    )
    return _Unsealed(out.data, ends, bounds_ms)


def _packed(batch: memoryview, codec: Codec, level: int | None) -> bytes | None:
    """Compress the records of a batch. None if that does not make them smaller."""
    if codec is Codec.NONE:
        return None
    packed = compress(codec, batch[HEADER_BYTES:], level=level)
    return packed if len(packed) < len(batch) - HEADER_BYTES else None


def _write_header(batch: memoryview, summary: BatchSummary, timestamp_ms_base: int, packed: bytes | None) -> None:
    _HEADER.pack_into(
        batch,
        0,
        0,
        summary.length - PREFIX_BYTES,
        -1,
        MAGIC,
        0,
        summary.attributes,
        summary.offset_count - 1,
        timestamp_ms_base,
        summary.timestamp_ms_max,
        summary.producer_id,
        summary.producer_epoch,
        summary.base_sequence,
        summary.offset_count,
    )
    crc = crc32c(batch[CRC_START:]) if packed is None else crc32c(packed, crc32c(batch[CRC_START:HEADER_BYTES]))
    _CRC.pack_into(batch, _CRC_POSITION, crc)


# ── columns as compiled code takes them ──


def _column(records: pa.RecordBatch | pa.Table, name: str) -> pa.Array | None:
    if name not in records.schema.names:
        return None
    column = records.column(name)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = column.chunk(0) if column.num_chunks else pa.array([], column.type)
    return column


def _binary(column: pa.Array | None, count: int) -> _Binary:
    if column is None:
        return _Binary(_NO_BYTES, np.zeros(count + 1, dtype=np.int32), np.zeros(count, dtype=np.uint8))
    if column.type != pa.binary():
        if pa.types.is_null(column.type):
            return _binary(None, count)
        column = column.cast(pa.binary())
    _, offsets, data = column.buffers()
    validity = _validity(column)
    if offsets is None or len(column) == 0:
        return _Binary(_NO_BYTES, np.zeros(count + 1, dtype=np.int32), validity)
    return _Binary(
        _NO_BYTES if data is None else np.frombuffer(data, dtype=np.uint8),
        np.frombuffer(offsets, dtype=np.int32)[column.offset : column.offset + len(column) + 1],
        validity,
    )


def _validity(column: pa.Array) -> Bytes:
    if not column.null_count:
        return _NO_BYTES
    valid: Bytes = np.asarray(column.is_valid().cast(pa.uint8()))
    return valid


def _headers(column: pa.Array | None, count: int) -> _Headers:
    nothing = _Binary(_NO_BYTES, _NO_NUMBERS, _NO_BYTES)
    if column is None or pa.types.is_null(column.type):
        return _Headers(_NO_NUMBERS, nothing, nothing)
    if pa.types.is_large_list(column.type):
        column = column.cast(pa.list_(column.type.value_field))
    if not pa.types.is_list(column.type) or not pa.types.is_struct(column.type.value_type):
        raise ValueError(f"headers must be a list of structs of a name and a value, not {column.type}")
    if column.type.value_type.num_fields != 2:
        raise ValueError(f"a header must have two fields, a name and a value, not {column.type.value_type}")
    pairs = column.flatten()  # only headers of these rows, and none of a null list
    lengths = column.value_lengths().fill_null(0)
    list_offsets: SmallNumbers = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(np.asarray(lengths), out=list_offsets[1:])
    if pairs.null_count:
        raise InvalidBatch(ErrorCode.invalid_record, "a record header that is null")
    names, contents = pairs.flatten()
    if names.null_count:
        raise InvalidBatch(ErrorCode.invalid_record, "a record header without a name")
    return _Headers(list_offsets, _binary(names, len(pairs)), _binary(contents, len(pairs)))


def _timestamps(column: pa.Array | None, count: int, default_ms: int) -> Numbers:
    if column is None or pa.types.is_null(column.type):
        return np.full(count, default_ms, dtype=np.int64)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False)
    column = column.cast(pa.int64())
    if column.null_count:
        column = column.fill_null(default_ms)
    numbers: Numbers = np.ascontiguousarray(column.to_numpy(zero_copy_only=False), dtype=np.int64)
    return numbers
