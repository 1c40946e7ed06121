"""Batches by their headers: what is accepted from producers, and what it takes to serve them."""

import struct

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from tests.records.run_summary import summarize_run

from braidlog.records.batch import (
    DELETE_HORIZON_BIT,
    HEAD_BYTES,
    HEADER_BYTES,
    TRANSACTIONAL_BIT,
    BatchHeader,
    BatchProducer,
    TimestampType,
    has_valid_crc,
    offset_head,
    read_header,
    scan_batches,
    stamp_log_append_time,
    validate_batches,
)
from braidlog.records.codec import Codec
from braidlog.records.errors import InvalidBatch
from braidlog.records.record import Record, decode_batch, encode_batch

BYTES_MAX = 1_048_588
NOW_MS = 1_700_000_000_000
GOOD = encode_batch([Record(index, NOW_MS + index, b"key", b"value") for index in range(3)])


def validate(records: bytes, **limits: int) -> list[BatchHeader]:
    return validate_batches(memoryview(records), **{"batch_bytes_max": BYTES_MAX, **limits})


def changed(batch: bytes, position: int, layout: str, *values: int, fix_crc: bool = True) -> bytes:
    """The batch with a field overwritten, and its CRC made right."""
    patched = bytearray(batch)
    struct.pack_into(layout, patched, position, *values)
    if fix_crc:
        struct.pack_into(">I", patched, 17, crc32c(bytes(patched[21:])))
    return bytes(patched)


def test_a_good_batch() -> None:
    (header,) = validate(GOOD)
    assert header.total_bytes == len(GOOD)
    assert header.record_count == header.offset_count == 3
    assert (header.timestamp_ms_base, header.timestamp_ms_max) == (NOW_MS, NOW_MS + 2)
    assert header.codec is Codec.NONE
    assert header.timestamp_type is TimestampType.CREATE
    assert not any((header.is_transactional, header.is_control, header.has_delete_horizon))
    assert header.producer_id == -1


def test_batches_back_to_back() -> None:
    producer = encode_batch([Record(0, NOW_MS, b"k", None)], producer=BatchProducer(7, 0, 12), flags=TRANSACTIONAL_BIT)
    headers = validate(GOOD + producer + GOOD)
    assert [header.producer_id for header in headers] == [-1, 7, -1]
    assert headers[1].is_transactional
    scanned = list(scan_batches(memoryview(GOOD + producer + GOOD)))
    assert [position for position, _ in scanned] == [0, len(GOOD), len(GOOD) + len(producer)]
    assert [header for _, header in scanned] == headers
    assert [position for position, _ in scan_batches(memoryview(GOOD * 3), len(GOOD), 2 * len(GOOD))] == [len(GOOD)]


@pytest.mark.parametrize("max_ms", [-1, 0, NOW_MS - 1])
def test_a_max_timestamp_that_a_client_forgot_is_no_error(max_ms: int) -> None:
    (header,) = validate(changed(GOOD, 35, ">q", max_ms))
    assert header.timestamp_ms_highest == NOW_MS


def test_without_a_producer_the_sequence_number_means_nothing() -> None:
    assert validate(changed(GOOD, 53, ">i", 0))


IDEMPOTENT = encode_batch([Record(0, NOW_MS, b"k", b"v")], producer=BatchProducer(7, 0, 0))


@pytest.mark.parametrize(
    ("records", "code", "message"),
    [
        (b"", ErrorCode.invalid_record, "no record batch"),
        (GOOD[:10], ErrorCode.corrupt_message, "10 bytes are no record batch"),
        (GOOD[:60], ErrorCode.corrupt_message, "60 bytes are no record batch"),
        (GOOD[:-1], ErrorCode.corrupt_message, "does not fit"),
        (GOOD + b"x", ErrorCode.corrupt_message, "1 bytes are no record batch"),
        (GOOD + GOOD[:70], ErrorCode.corrupt_message, "does not fit"),
        (changed(GOOD, 8, ">i", 10), ErrorCode.corrupt_message, "batch length 10"),
        (changed(GOOD, 8, ">i", -1), ErrorCode.corrupt_message, "batch length -1"),
        (changed(GOOD, 8, ">i", 2**31 - 1), ErrorCode.corrupt_message, "does not fit"),
        (changed(GOOD, 16, ">b", 1), ErrorCode.invalid_record, "magic 2, not 1"),
        (changed(GOOD, 16, ">b", 0)[:34], ErrorCode.invalid_record, "magic 2, not 0"),
        (changed(GOOD, 65, ">b", 99, fix_crc=False), ErrorCode.corrupt_message, "CRC"),
        (changed(GOOD, 17, ">I", 0, fix_crc=False), ErrorCode.corrupt_message, "CRC"),
        (changed(GOOD, 0, ">q", 5), ErrorCode.invalid_record, "base offset"),
        (changed(GOOD, 21, ">h", 5), ErrorCode.unsupported_compression_type, "codec 5"),
        (changed(GOOD, 21, ">h", 0x08), ErrorCode.invalid_timestamp, "log append time"),
        (changed(GOOD, 21, ">h", 0x20), ErrorCode.invalid_record, "control"),
        (changed(GOOD, 21, ">h", 0x40), ErrorCode.invalid_record, "reserved"),
        (changed(GOOD, 21, ">h", -(2**15)), ErrorCode.invalid_record, "reserved"),
        (changed(GOOD, 21, ">h", 0x10), ErrorCode.invalid_record, "transactional batch without"),
        (changed(GOOD, 23, ">i", 3), ErrorCode.invalid_record, "last offset delta of 3"),
        (changed(GOOD, 57, ">i", 0), ErrorCode.invalid_record, "batch of 0 records"),
        (changed(GOOD, 57, ">i", -1), ErrorCode.invalid_record, "batch of -1 records"),
        (changed(changed(GOOD, 57, ">i", 100), 23, ">i", 99), ErrorCode.invalid_record, "100 records do not fit"),
        (changed(GOOD, 27, ">q", -2), ErrorCode.invalid_timestamp, "timestamps -2"),
        (changed(GOOD, 35, ">q", -2), ErrorCode.invalid_timestamp, "and -2"),
        (changed(GOOD, 43, ">q", -2), ErrorCode.invalid_record, "producer id -2"),
        (changed(IDEMPOTENT, 53, ">i", -1), ErrorCode.invalid_record, "sequence number -1"),
        (changed(IDEMPOTENT, 51, ">h", -1), ErrorCode.invalid_record, "epoch -1"),
        (GOOD + changed(GOOD, 57, ">i", 0), ErrorCode.invalid_record, "batch of 0 records"),
    ],
)
def test_refused_batches(records: bytes, code: ErrorCode, message: str) -> None:
    with pytest.raises(InvalidBatch, match=message) as caught:
        validate(records)
    assert caught.value.error_code is code


def test_limits() -> None:
    assert validate(GOOD, batch_bytes_max=len(GOOD))
    with pytest.raises(InvalidBatch, match="over the limit") as caught:
        validate(GOOD, batch_bytes_max=len(GOOD) - 1)
    assert caught.value.error_code is ErrorCode.message_too_large
    with pytest.raises(InvalidBatch, match="3 records are over the limit of 2"):
        validate(GOOD, record_count_max=2)
    zstd = encode_batch([Record(0, NOW_MS, b"k", b"v")], codec=Codec.ZSTD)
    assert validate(zstd)
    with pytest.raises(InvalidBatch, match="version 7") as caught:
        validate(zstd, zstd_allowed=False)
    assert caught.value.error_code is ErrorCode.unsupported_compression_type


def test_every_flipped_bit_behind_the_leader_epoch_is_noticed() -> None:
    for bit in range(8 * 16, 8 * len(GOOD)):
        flipped = bytearray(GOOD)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(InvalidBatch):
            validate(bytes(flipped))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.integers(0, len(GOOD)), st.booleans())
def test_random_bytes_raise_nothing_but_invalid_batch(noise: bytes, cut: int, fix_crc: bool) -> None:
    records = bytearray(GOOD[:cut] + noise)
    if fix_crc and len(records) >= HEADER_BYTES:
        struct.pack_into(">i", records, 8, len(records) - 12)
        struct.pack_into(">I", records, 17, crc32c(bytes(records[21:])))
    for attempt in (
        lambda: validate(bytes(records)),
        lambda: list(scan_batches(memoryview(records))),
        lambda: decode_batch(memoryview(records), bytes_max=10_000),
    ):
        try:
            attempt()
        except InvalidBatch:
            pass


def test_damaged_stored_batches_end_in_an_error_and_not_in_a_loop() -> None:
    for damaged in (GOOD + b"xx", GOOD[:-1], changed(GOOD, 8, ">i", -12), changed(GOOD, 8, ">i", -13)):
        with pytest.raises(InvalidBatch):
            list(scan_batches(memoryview(damaged)))
    with pytest.raises(InvalidBatch):
        read_header(memoryview(GOOD), len(GOOD) - 10)


def test_a_patched_head_leaves_the_crc_right() -> None:
    (header,) = validate(GOOD)
    served = offset_head(1_000_000, header.batch_length, 4) + GOOD[HEAD_BYTES:]
    patched = read_header(memoryview(served))
    assert (patched.base_offset, patched.end_offset, patched.partition_leader_epoch) == (1_000_000, 1_000_003, 4)
    assert has_valid_crc(memoryview(served), patched)
    assert [record.offset for record in decode_batch(memoryview(served), bytes_max=1000)] == [
        10**6,
        10**6 + 1,
        10**6 + 2,
    ]


def test_stamping_sets_every_records_time() -> None:
    view = memoryview(GOOD + b"behind")
    stamped = stamp_log_append_time(view, read_header(view), 42)
    header = read_header(memoryview(stamped))
    assert len(stamped) == len(GOOD)
    assert header.timestamp_type is TimestampType.LOG_APPEND
    assert (header.timestamp_ms_base, header.timestamp_ms_max) == (NOW_MS, 42)
    assert {record.timestamp_ms for record in decode_batch(memoryview(stamped), bytes_max=1000)} == {42}


@pytest.mark.parametrize("stamped_ms", [NOW_MS - 5, NOW_MS + 5])
def test_a_stamped_batch_is_as_old_as_its_stamp_whatever_its_producer_wrote(stamped_ms: int) -> None:
    view = memoryview(GOOD)
    stamped = memoryview(stamp_log_append_time(view, read_header(view), stamped_ms))
    assert read_header(stamped).timestamp_ms_highest == stamped_ms
    summary = summarize_run([stamped])
    assert (summary.timestamp_ms_min, summary.timestamp_ms_max) == (stamped_ms, stamped_ms)


def test_the_lowest_timestamp_is_the_base_unless_that_is_a_horizon() -> None:
    header = read_header(memoryview(GOOD))._replace(timestamp_ms_base=5, timestamp_ms_max=9)
    assert header.timestamp_ms_lowest == 5
    assert header._replace(attributes=DELETE_HORIZON_BIT).timestamp_ms_lowest == 9
