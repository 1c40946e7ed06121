"""Columns against plain Python: what is decoded, what is encoded, and what damage does."""

import struct

import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from tests.records.arrow_reference import Row, rows_in, rows_of
from tests.records.run_summary import summarize_run

from braidlog.records.arrow import (
    COLUMNS,
    HEADERS_TYPE,
    SCHEMA,
    AbortedTransaction,
    EncodedBatches,
    ExtentBytes,
    PartitionRange,
    decode_extents,
    encode_batches,
    iter_decoded,
)
from braidlog.records.batch import (
    CONTROL_BIT,
    HEADER_BYTES,
    NO_PRODUCER,
    TRANSACTIONAL_BIT,
    BatchProducer,
    TimestampType,
    read_header,
    scan_batches,
    stamp_log_append_time,
)
from braidlog.records.codec import Codec
from braidlog.records.errors import InvalidBatch
from braidlog.records.marker import Marker, MarkerType, encode_marker
from braidlog.records.record import Record, decode_batch, encode_batch
from braidlog.records.summary import summarize_batch

NOW_MS = 1_700_000_000_000
WHOLE = PartitionRange("t", 0)
codecs = pytest.mark.parametrize("codec", Codec)

blobs = st.none() | st.binary(max_size=12) | st.sampled_from([b"", bytes(63), bytes(64), bytes(200)])
headers = st.lists(st.tuples(st.text(max_size=4), blobs), max_size=3).map(tuple)
times = st.sampled_from([-1, 0, NOW_MS, NOW_MS - 70, NOW_MS + 100_000]) | st.integers(-(2**40), 2**45)


@st.composite
def batches(draw: st.DrawFn, codec: Codec | None = None) -> bytes:
    """A batch such as could be stored: as it was produced, or compacted, or with the log's own time."""
    base_offset = draw(st.sampled_from([0, 0, 0, 1_000, 5_000]))
    offset = base_offset
    records = []
    for _ in range(draw(st.integers(0, 5))):
        offset += draw(st.sampled_from([0, 0, 0, 1, 200]))
        records.append(Record(offset, draw(times), draw(blobs), draw(blobs), draw(headers)))
        offset += 1
    has_producer = draw(st.booleans())
    batch = encode_batch(
        records,
        codec=draw(st.sampled_from(Codec)) if codec is None else codec,
        base_offset=base_offset,
        last_offset_delta=max(0, offset - base_offset - 1) + draw(st.sampled_from([0, 0, 3])),
        producer=BatchProducer(77, 3, 9) if has_producer else NO_PRODUCER,
        flags=(draw(st.sampled_from([0, TRANSACTIONAL_BIT])) if has_producer else 0)
        | draw(st.sampled_from([0, 0, 0, CONTROL_BIT])),
        delete_horizon_ms=draw(st.sampled_from([None, None, NOW_MS])),
    )
    if draw(st.sampled_from([False, False, True])):
        batch = stamp_log_append_time(memoryview(batch), read_header(memoryview(batch)), NOW_MS + 5)
    return batch


extents_of_batches = st.lists(st.lists(batches(), min_size=1, max_size=4), max_size=3)


def extents_from(groups: list[list[bytes]]) -> list[ExtentBytes]:
    extents = []
    base_offset = 100
    for group in groups:
        data = b"".join(group)
        end_offset = base_offset
        for header in (header for _, header in scan_batches(memoryview(data))):
            end_offset = max(end_offset, header.base_offset) + header.offset_count
        extents.append(ExtentBytes(base_offset, data, end_offset))
        base_offset = end_offset
    return extents


def decode(extents: list[ExtentBytes], wanted: PartitionRange = WHOLE, **options: object) -> list[Row]:
    options = {"include_headers": True, "include_control": True, **options}
    return rows_in(decode_extents(extents, wanted, **options))


@settings(max_examples=150, deadline=None)
@given(extents_of_batches, st.integers(0, 6_000), st.integers(0, 6_000))
def test_columns_are_what_plain_python_reads(groups: list[list[bytes]], start: int, length: int) -> None:
    extents = extents_from(groups)
    everything = rows_of(extents)
    assert decode(extents) == everything
    # However it is cut, and from whatever memory.
    views = [extent._replace(data=memoryview(bytearray(extent.data))) for extent in extents]
    pieces = iter_decoded(views, WHOLE, include_headers=True, include_control=True, opened_bytes_target=100)
    assert [row for piece in pieces for row in rows_in(pa.Table.from_batches([piece]))] == everything
    assert decode(extents, PartitionRange("t", 0, start, start + length)) == [
        row for row in everything if start <= row["offset"] < start + length
    ]
    assert decode(extents, include_control=False) == [row for row in everything if not row["is_control"]]
    assert decode(extents, columns=["offset", "value"]) == [
        {"offset": row["offset"], "value": row["value"]} for row in everything
    ]


def test_columns_and_their_types() -> None:
    extent = ExtentBytes(0, encode_batch([Record(0, NOW_MS, b"k", b"v")]))
    assert decode_extents([extent], PartitionRange("t", 3), include_headers=True).schema == SCHEMA
    assert "headers" not in decode_extents([extent], PartitionRange("t", 3)).column_names
    empty = decode_extents([], PartitionRange("t", 3), include_headers=True)
    assert (empty.num_rows, empty.schema) == (0, SCHEMA)
    with pytest.raises(KeyError):
        decode_extents([extent], PartitionRange("t", 3), columns=["nothing"])
    for name in COLUMNS:
        assert decode_extents([extent], PartitionRange("t", 3), columns=[name]).column_names == [name]


def test_aborted_transactions_are_not_seen() -> None:
    def batch(producer_id: int, *values: bytes, is_transactional: bool = True) -> bytes:
        return encode_batch(
            [Record(at, NOW_MS, b"k", value) for at, value in enumerate(values)],
            producer=BatchProducer(producer_id, 0, 0),
            flags=TRANSACTIONAL_BIT if is_transactional else 0,
        )

    marker = encode_marker(Marker(MarkerType.ABORT, 0, NOW_MS, 1, 0, 0))
    log = batch(1, b"gone", b"gone") + batch(2, b"stays") + batch(1, b"gone") + marker + batch(1, b"later")
    log += batch(1, b"plain", is_transactional=False)
    extent = ExtentBytes(10, log)
    aborted = [AbortedTransaction(1, 10, 14)]
    rows = decode([extent], aborted=aborted, include_control=False)
    assert [(row["offset"], row["value"]) for row in rows] == [(12, b"stays"), (15, b"later"), (16, b"plain")]
    assert [row["offset"] for row in decode([extent], aborted=aborted)] == list(range(10, 17))


# ── damage ──


def repaired(batch: bytearray) -> bytes:
    """The batch with a length and a CRC that fit its bytes, so that only its records are damaged."""
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


def outcome(data: bytes) -> list[Row] | None:
    try:
        return rows_of([ExtentBytes(0, data)], bytes_max=5_000)
    except InvalidBatch:
        return None


def decoded_outcome(data: bytes) -> list[Row] | None:
    try:
        return decode([ExtentBytes(0, data)], decompressed_bytes_max=5_000)
    except InvalidBatch:
        return None


@settings(max_examples=400, deadline=None)
@given(
    st.one_of(batches(codec=Codec.NONE), batches()),
    st.lists(st.tuples(st.integers(HEADER_BYTES, 400), st.integers(0, 7)), max_size=4),
    st.binary(max_size=20),
    st.integers(0, 400),
)
def test_damaged_records_are_found_out_just_as_in_plain_python(
    batch: bytes, flips: list[tuple[int, int]], noise: bytes, cut: int
) -> None:
    damaged = bytearray(batch[: max(HEADER_BYTES, len(batch) - cut)] if cut < 60 else batch)
    for position, bit in flips:
        if position < len(damaged):
            damaged[position] ^= 1 << bit
    for data in (repaired(damaged), repaired(damaged + noise), repaired(damaged[:HEADER_BYTES] + noise)):
        assert decoded_outcome(data) == outcome(data)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(batches(), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=3),
    st.booleans(),
    st.integers(0, 300),
)
def test_damaged_headers_raise_or_change_nothing(
    group: list[bytes], changes: list[tuple[int, int]], fix_crc: bool, cut: int
) -> None:
    data = bytearray(b"".join(group))
    for position, byte in changes:
        data[position % min(len(data), 2 * HEADER_BYTES)] = byte
    if cut < 100:
        del data[len(data) - cut :]
    if fix_crc and len(data) >= HEADER_BYTES:
        data = bytearray(repaired(data))
    found = decoded_outcome(bytes(data))
    if found is not None:
        assert found == outcome(bytes(data))


def test_every_cut_and_every_flipped_bit_is_noticed() -> None:
    batch = encode_batch([Record(0, NOW_MS, b"key", b"value", (("h", b"x"),)), Record(1, NOW_MS, None, None)])
    for end in range(1, len(batch)):
        with pytest.raises(InvalidBatch):
            decode([ExtentBytes(0, batch[:end])])
    for bit in range(8 * 16, 8 * len(batch)):
        flipped = bytearray(batch)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(InvalidBatch):
            decode([ExtentBytes(0, bytes(flipped))])


def test_offsets_outside_of_the_extent_are_damage() -> None:
    batch = bytearray(encode_batch([Record(0, NOW_MS, b"k", b"v")] * 1))
    decode([ExtentBytes(7, bytes(batch), 8)])
    for stored in (9, 2**63 - 1):
        struct.pack_into(">q", batch, 0, stored)
        with pytest.raises(InvalidBatch) as caught:
            decode([ExtentBytes(7, bytes(batch), 8)])
        assert caught.value.error_code is ErrorCode.corrupt_message
    with pytest.raises(InvalidBatch):
        decode([ExtentBytes(7, bytes(batch))])


def test_a_batch_that_swells_too_much_is_refused() -> None:
    bomb = encode_batch([Record(0, NOW_MS, b"k", bytes(1_000_000))], codec=Codec.ZSTD)
    with pytest.raises(InvalidBatch, match="more than 1000 bytes"):
        decode([ExtentBytes(0, bomb)], decompressed_bytes_max=1_000)


# ── encoding ──


def table_of(records: list[Record], *, chunks: int = 1) -> pa.Table:
    schema = pa.schema(
        [("key", pa.binary()), ("value", pa.binary()), ("timestamp", pa.int64()), ("headers", HEADERS_TYPE)]
    )
    rows = [
        {
            "key": record.key,
            "value": record.value,
            "timestamp": record.timestamp_ms,
            "headers": [{"key": name, "value": content} for name, content in record.headers],
        }
        for record in records
    ]
    size = -(-len(rows) // chunks) or 1
    parts = [rows[start : start + size] for start in range(0, len(rows), size)]
    return pa.Table.from_batches([pa.RecordBatch.from_pylist(part, schema=schema) for part in parts], schema=schema)


def decoded(encoded: EncodedBatches) -> list[Record]:
    """The records again, by plain Python, with the offsets that they would get."""
    found: list[Record] = []
    for position, header in scan_batches(encoded.data):
        batch = encoded.data[position : position + header.total_bytes]
        found += [
            record._replace(offset=len(found) + at)
            for at, record in enumerate(decode_batch(batch, bytes_max=10_000_000))
        ]
    return found


record_parts = st.tuples(times, blobs, blobs, headers)


@codecs
@settings(max_examples=60, deadline=None)
@given(st.lists(record_parts, max_size=12), st.integers(1, 3), st.integers(300, 2_000), st.integers(0, 3))
def test_what_is_encoded_is_what_plain_python_reads(
    codec: Codec, parts: list[tuple], chunks: int, batch_bytes_max: int, skipped: int
) -> None:
    records = [Record(index, *part) for index, part in enumerate(parts)]
    table = table_of(records, chunks=chunks).slice(skipped)
    records = [record._replace(offset=index) for index, record in enumerate(records[skipped:])]
    if any(len(encode_batch([record])) > batch_bytes_max for record in records):
        with pytest.raises(InvalidBatch, match="over the limit") as caught:
            encode_batches(table, batch_bytes_max=batch_bytes_max)
        assert caught.value.error_code is ErrorCode.message_too_large
        return
    encoded = encode_batches(table, batch_bytes_max=batch_bytes_max, codec=codec)
    assert decoded(encoded) == records
    assert encoded.record_count == len(records)
    found = summarize_run([encoded.data])
    assert encoded.batches == found.batches
    times_ms = [record.timestamp_ms for record in records]
    assert (encoded.timestamp_ms_min, encoded.timestamp_ms_max) == (
        (min(times_ms), max(times_ms)) if times_ms else (-1, -1)
    )
    start = 0
    for batch in encode_batches(table, batch_bytes_max=batch_bytes_max).batches:
        assert batch.length <= batch_bytes_max
        end = start + batch.offset_count
        if end < len(records):
            # One more record would not have fitted.
            more = [record._replace(offset=at) for at, record in enumerate(records[start : end + 1])]
            assert len(encode_batch(more)) > batch_bytes_max
        start = end


def test_without_compression_the_bytes_are_those_of_plain_python() -> None:
    records = [
        Record(
            index, NOW_MS + index * 37 % 11, b"k%d" % index, None if index % 5 == 0 else bytes(index), (("h", b"x"),)
        )
        for index in range(300)
    ]
    producer = BatchProducer(5, 2, 8)
    encoded = encode_batches(table_of(records), batch_bytes_max=1_000_000, producer=producer)
    assert bytes(encoded.data) == encode_batch(records, producer=producer)


def test_sequences_go_on_from_batch_to_batch_and_wrap() -> None:
    table = pa.table({"value": pa.array([bytes(100)] * 4, pa.binary())})
    encoded = encode_batches(table, batch_bytes_max=200, producer=BatchProducer(1, 0, 2**31 - 2))
    assert [batch.base_sequence for batch in encoded.batches] == [2**31 - 2, 2**31 - 1, 0, 1]
    assert [summarize_batch(header) for _, header in scan_batches(encoded.data)] == encoded.batches


def test_columns_of_other_types() -> None:
    table = pa.table(
        {
            "key": pa.array(["ä", None]),
            "value": pa.array([b"x", b"yy"], pa.large_binary()),
            "timestamp": pa.array([NOW_MS * 1000 + 999, None], pa.timestamp("us", tz="UTC")),
            "headers": pa.array(
                [None, [("a", None)]], pa.large_list(pa.struct([("k", pa.string()), ("v", pa.binary())]))
            ),
            "other": pa.array([1, 2]),
        }
    )
    encoded = encode_batches(table, batch_bytes_max=1_000, timestamp_ms_default=5)
    assert decoded(encoded) == [
        Record(0, NOW_MS, "ä".encode(), b"x"),
        Record(1, 5, None, b"yy", (("a", None),)),
    ]
    nothing = pa.table({"key": pa.nulls(2), "timestamp": pa.nulls(2), "headers": pa.nulls(2)})
    assert decoded(encode_batches(nothing, batch_bytes_max=1_000, timestamp_ms_default=7)) == [
        Record(0, 7, None, None),
        Record(1, 7, None, None),
    ]


def test_log_append_time_is_everyones_time() -> None:
    table = pa.table({"value": pa.array([b"x", b"y"]), "timestamp": pa.array([1, 2])})
    encoded = encode_batches(
        table, batch_bytes_max=1_000, timestamp_type=TimestampType.LOG_APPEND, timestamp_ms_default=NOW_MS
    )
    assert [record.timestamp_ms for record in decoded(encoded)] == [NOW_MS, NOW_MS]
    assert read_header(encoded.data).timestamp_type is TimestampType.LOG_APPEND


@pytest.mark.parametrize(
    "wrong",
    [
        pa.array([[{"key": None, "value": b"x"}]], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        pa.array([[None]], HEADERS_TYPE),
    ],
)
def test_headers_that_kafka_does_not_know(wrong: pa.Array) -> None:
    with pytest.raises(InvalidBatch):
        encode_batches(pa.table({"headers": wrong}), batch_bytes_max=1_000)


def test_headers_of_another_shape() -> None:
    for wrong in (pa.array([1]), pa.array([["a"]]), pa.array([[{"key": "a"}]])):
        with pytest.raises(ValueError, match="header"):
            encode_batches(pa.table({"headers": wrong}), batch_bytes_max=1_000)


@codecs
def test_aiokafka_reads_what_is_encoded(codec: Codec) -> None:
    records = [Record(index, NOW_MS + index, b"k%d" % index, b"value " * 20, (("h", b"x"),)) for index in range(200)]
    encoded = encode_batches(table_of(records), batch_bytes_max=100_000, codec=codec)
    batch = AiokafkaBatch(bytearray(encoded.data))
    assert batch.validate_crc()
    assert [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch] == records


def test_what_does_not_compress_is_stored_as_it_is() -> None:
    table = pa.table({"value": pa.array([b"x"])})
    for codec in Codec:
        assert read_header(encode_batches(table, batch_bytes_max=1_000, codec=codec).data).codec is Codec.NONE


def test_columns_go_round() -> None:
    records = [Record(index, NOW_MS + index, b"k", bytes(index), (("h", None),)) for index in range(50)]
    extent = ExtentBytes(0, encode_batch(records))
    table = decode_extents([extent], WHOLE, include_headers=True)
    assert bytes(encode_batches(table, batch_bytes_max=100_000).data) == extent.data
