"""Record batches by their headers: views over bytes.

Nothing is copied, and no record is decoded.

The layout of a batch, big endian:

    base offset           int64   outside the CRC, assigned when the batch is served
    batch length          int32   of all that follows this field
    leader epoch          int32   outside the CRC
    magic                 int8    2
    crc                   uint32  CRC32C of all that follows this field
    attributes            int16   bits 0-2 codec, 3 timestamp type, 4 transactional, 5 control, 6 delete horizon
    last offset delta     int32
    base timestamp        int64
    max timestamp         int64
    producer id           int64
    producer epoch        int16
    base sequence         int32
    record count          int32
    records, compressed as one block
"""

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from fastcrc.crc32 import iscsi as crc32c
from kio.schema.errors import ErrorCode

from braidlog.records.codec import CODEC_MAX, Codec
from braidlog.records.errors import InvalidBatch

HEADER_BYTES = 61
"""From the base offset up to the first record."""
PREFIX_BYTES = 12
"""Base offset and batch length: what the batch length does not count."""
CRC_START = 21
"""The start of the bytes that the CRC covers."""
MAGIC = 2
RECORD_BYTES_MIN = 7
"""A record with null key, null value and no headers."""
_HEADER_REST_BYTES = HEADER_BYTES - PREFIX_BYTES
"""The part of the header that the batch length counts."""
RECORD_COUNT_MAX = 16_777_216

CODEC_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40
_CLIENT_BITS = CODEC_MASK | TRANSACTIONAL_BIT

_HEADER = Struct(">qiibIhiqqqhii")
_HEAD = Struct(">qii")
_CRC = Struct(">I")
_STAMPED = Struct(">hiqq")
"""Attributes, last offset delta, base and max timestamp."""
_CRC_POSITION = 17


class TimestampType(IntEnum):
    """The origin of a batch's timestamps: the producer, or the log.

    The log sets them when it accepts the batch.
    """

    CREATE = 0
    LOG_APPEND = 1


class BatchProducer(NamedTuple):
    """The producer in a batch's header, and its first record's sequence number."""

    producer_id: int = -1
    epoch: int = -1
    base_sequence: int = -1


NO_PRODUCER = BatchProducer()
"""The producer of batches that are neither idempotent nor transactional."""


class BatchHeader(NamedTuple):
    """The fixed fields of one batch, in the order of the wire."""

    base_offset: int
    batch_length: int
    """The length on the wire, without the base offset and this field itself. See `total_bytes`."""
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    timestamp_ms_base: int
    timestamp_ms_max: int
    """The value that the producer wrote. Some clients leave it at -1; see `timestamp_ms_highest`."""
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def total_bytes(self) -> int:
        return self.batch_length + PREFIX_BYTES

    @property
    def offset_count(self) -> int:
        """The number of offsets that the batch takes.

        A compacted batch takes more offsets than it has records.
        """
        return self.last_offset_delta + 1

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        return Codec(self.attributes & CODEC_MASK)

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType.LOG_APPEND if self.attributes & TIMESTAMP_TYPE_BIT else TimestampType.CREATE

    @property
    def timestamp_ms_highest(self) -> int:
        """The highest timestamp of the batch's records.

        The base timestamp belongs to no record if the log stamped the batch, or if compaction keeps a horizon there."""
        if self.attributes & (TIMESTAMP_TYPE_BIT | DELETE_HORIZON_BIT):
            return self.timestamp_ms_max
        return max(self.timestamp_ms_base, self.timestamp_ms_max)

    @property
    def timestamp_ms_lowest(self) -> int:
        """The lowest timestamp that footers record for the batch.

        Where the base timestamp belongs to no record, the highest timestamp is the best that is known."""
        if self.attributes & (TIMESTAMP_TYPE_BIT | DELETE_HORIZON_BIT):
            return self.timestamp_ms_max
        return self.timestamp_ms_base

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_BIT != 0

    @property
    def has_delete_horizon(self) -> bool:
        """Whether the base timestamp is the delete horizon, not a record's time.

        Tombstones may go from that time on.
        """
        return self.attributes & DELETE_HORIZON_BIT != 0


_make_header = BatchHeader._make
_unpack_header = _HEADER.unpack_from


def read_header(view: memoryview, position: int = 0) -> BatchHeader:
    """Read the header at `position`. Only its length is checked."""
    if position < 0 or position + HEADER_BYTES > len(view):
        raise InvalidBatch(ErrorCode.corrupt_message, "fewer bytes than a batch header has")
    return _make_header(_unpack_header(view, position))


def scan_batches(view: memoryview, position: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """Yield every batch in `[position, end)` with its position.

    The bytes were validated when they were stored.

    Lengths are still checked, so that damage ends in an error and never in a loop; CRCs are not.
    """
    if end is None:
        end = len(view)
    while position < end:
        if position + HEADER_BYTES > end:
            raise InvalidBatch(ErrorCode.corrupt_message, f"{end - position} bytes behind the last batch")
        header = _make_header(_unpack_header(view, position))
        next_position = position + header[1] + PREFIX_BYTES
        if next_position < position + HEADER_BYTES or next_position > end:
            raise InvalidBatch(ErrorCode.corrupt_message, f"batch length {header[1]} at {position} does not fit")
        yield position, header
        position = next_position


def validate_batches(
    records: memoryview,
    *,
    batch_bytes_max: int,
    record_count_max: int = RECORD_COUNT_MAX,
    zstd_allowed: bool = True,
) -> list[BatchHeader]:
    """Check a producer's batches for one partition: one or more, back to back.

    There must be nothing else.

    `zstd_allowed` is false for Produce before version 7. Raises `InvalidBatch`; nothing of a refused run may be stored.
    The records themselves are not checked here: `records.preparation` does that.
    """
    end = len(records)
    position = 0
    headers: list[BatchHeader] = []
    while True:
        if end - position < HEADER_BYTES:
            raise _truncated(records, position)
        fields = _unpack_header(records, position)
        (
            base_offset,
            batch_length,
            _,
            magic,
            crc,
            attributes,
            last_offset_delta,
            base_ms,
            max_ms,
            producer_id,
            producer_epoch,
            base_sequence,
            record_count,
        ) = fields
        batch_end = position + batch_length + PREFIX_BYTES
        # One test that nearly every batch passes; `_refusal` finds out what is wrong with the others.
        if (
            magic != MAGIC
            or batch_end - position < HEADER_BYTES
            or batch_end > end
            or batch_end - position > batch_bytes_max
            or attributes & ~_CLIENT_BITS
            or attributes & CODEC_MASK > (CODEC_MAX if zstd_allowed else CODEC_MAX - 1)
            or base_offset
            or record_count != last_offset_delta + 1
            or not 0 < record_count <= record_count_max
            or (not attributes & CODEC_MASK and record_count * RECORD_BYTES_MIN > batch_length - _HEADER_REST_BYTES)
            or base_ms < -1
            or max_ms < -1
            or (producer_id < 0 and (producer_id != -1 or attributes & TRANSACTIONAL_BIT))
            or (producer_id >= 0 and (base_sequence < 0 or producer_epoch < 0))
            or crc32c(records[position + CRC_START : batch_end]) != crc
        ):
            raise _refusal(
                records,
                position,
                batch_bytes_max=batch_bytes_max,
                record_count_max=record_count_max,
                zstd_allowed=zstd_allowed,
            )
        headers.append(_make_header(fields))
        if batch_end == end:
            return headers
        position = batch_end


def _truncated(records: memoryview, position: int) -> InvalidBatch:
    if len(records) == 0:
        return InvalidBatch(ErrorCode.invalid_record, "no record batch")
    # Before version 2 headers were shorter, so the magic byte must be looked at even in a short batch.
    if len(records) - position > 16 and records[position + 16] != MAGIC:
        return _wrong_magic(records[position + 16])
    return InvalidBatch(ErrorCode.corrupt_message, f"{len(records) - position} bytes are no record batch")


def _wrong_magic(magic: int) -> InvalidBatch:
    return InvalidBatch(ErrorCode.invalid_record, f"record batches must have magic 2, not {magic}")


def _refusal(
    records: memoryview,
    position: int,
    *,
    batch_bytes_max: int,
    record_count_max: int,
    zstd_allowed: bool,
) -> InvalidBatch:
    """Return the error for a bad batch, checking in the same order as Kafka."""
    header = read_header(records, position)
    attributes = header.attributes
    if header.magic != MAGIC:
        return _wrong_magic(header.magic)
    if header.total_bytes < HEADER_BYTES or position + header.total_bytes > len(records):
        at_hand = len(records) - position
        return InvalidBatch(
            ErrorCode.corrupt_message, f"batch length {header.batch_length} does not fit the {at_hand} bytes at hand"
        )
    if attributes & CODEC_MASK == Codec.ZSTD and not zstd_allowed:
        return InvalidBatch(ErrorCode.unsupported_compression_type, "zstd needs Produce version 7 or later")
    if header.total_bytes > batch_bytes_max:
        return InvalidBatch(
            ErrorCode.message_too_large, f"batch of {header.total_bytes} bytes is over the limit of {batch_bytes_max}"
        )
    if crc32c(records[position + CRC_START : position + header.total_bytes]) != header.crc:
        return InvalidBatch(ErrorCode.corrupt_message, "CRC does not match")
    if attributes & CODEC_MASK > CODEC_MAX:
        return InvalidBatch(
            ErrorCode.unsupported_compression_type, f"unknown compression codec {attributes & CODEC_MASK}"
        )
    if header.base_offset != 0:
        return InvalidBatch(ErrorCode.invalid_record, f"base offset must be 0, not {header.base_offset}")
    if header.record_count <= 0 or header.last_offset_delta < 0:
        return InvalidBatch(ErrorCode.invalid_record, f"batch of {header.record_count} records")
    if header.record_count != header.last_offset_delta + 1:
        return InvalidBatch(
            ErrorCode.invalid_record,
            f"{header.record_count} records but a last offset delta of {header.last_offset_delta}",
        )
    if header.record_count > record_count_max:
        return InvalidBatch(
            ErrorCode.invalid_record, f"{header.record_count} records are over the limit of {record_count_max}"
        )
    records_bytes = header.batch_length - _HEADER_REST_BYTES
    if not attributes & CODEC_MASK and header.record_count * RECORD_BYTES_MIN > records_bytes:
        return InvalidBatch(
            ErrorCode.invalid_record, f"{header.record_count} records do not fit in {header.batch_length} bytes"
        )
    if header.is_control:
        return InvalidBatch(ErrorCode.invalid_record, "clients may not write control batches")
    if attributes & TIMESTAMP_TYPE_BIT:
        return InvalidBatch(ErrorCode.invalid_timestamp, "producers may not set the timestamp type to log append time")
    if attributes & ~_CLIENT_BITS:
        return InvalidBatch(ErrorCode.invalid_record, f"reserved attribute bits are set: {attributes & 0xFFFF:#06x}")
    if (problem := _producer_problem(header)) is not None:
        return InvalidBatch(ErrorCode.invalid_record, problem)
    return InvalidBatch(
        ErrorCode.invalid_timestamp,
        f"timestamps {header.timestamp_ms_base} and {header.timestamp_ms_max}: below -1, which stands for none",
    )


def _producer_problem(header: BatchHeader) -> str | None:
    if header.producer_id >= 0:
        if header.base_sequence < 0:
            return f"producer {header.producer_id} sent the sequence number {header.base_sequence}"
        if header.producer_epoch < 0:
            return f"producer {header.producer_id} sent the epoch {header.producer_epoch}"
        return None
    if header.producer_id != -1:
        return f"producer id {header.producer_id}"
    # The sequence number has no meaning here: aiokafka sends 0.
    if header.is_transactional:
        return "a transactional batch without a producer id"
    return None


def offset_head(base_offset: int, batch_length: int, leader_epoch: int) -> bytes:
    """Return the first 16 bytes of a batch as it is served.

    Only these change, and the CRC covers none of them.
    """
    return _HEAD.pack(base_offset, batch_length, leader_epoch)


HEAD_BYTES = _HEAD.size
"""The number of bytes that `offset_head` replaces."""


def has_valid_crc(batch: memoryview, header: BatchHeader) -> bool:
    """Whether the CRC of `batch`, which begins with `header`, is right."""
    return len(batch) >= header.total_bytes and crc32c(batch[CRC_START : header.total_bytes]) == header.crc


def stamp_log_append_time(batch: memoryview, header: BatchHeader, timestamp_ms: int) -> bytes:
    """Return the batch with the log's own time.

    This sets timestamp type, max timestamp and CRC.
    """
    attributes = header.attributes | TIMESTAMP_TYPE_BIT
    return _rewrite(batch, header, attributes, timestamp_ms)


def with_timestamp_ms_max(batch: memoryview, header: BatchHeader) -> bytes:
    """Return the batch with the max timestamp of `header`, and a CRC to match."""
    return _rewrite(batch, header, header.attributes, header.timestamp_ms_max)


def _rewrite(batch: memoryview, header: BatchHeader, attributes: int, timestamp_ms_max: int) -> bytes:
    patched = bytearray(batch[: header.total_bytes])
    _STAMPED.pack_into(
        patched, CRC_START, attributes, header.last_offset_delta, header.timestamp_ms_base, timestamp_ms_max
    )
    with memoryview(patched) as view:
        crc = crc32c(view[CRC_START:])
    _CRC.pack_into(patched, _CRC_POSITION, crc)
    return bytes(patched)
