"""Records and codecs: round trips, hostile bytes, and what other clients write and read."""

import random
import struct
import tracemalloc
import warnings

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from braidlog.records.batch import CONTROL_BIT, TIMESTAMP_TYPE_BIT, read_header, validate_batches
from braidlog.records.codec import CODEC_NAMES, Codec, compress, decompress, decompressed_bytes_bound
from braidlog.records.errors import InvalidBatch, RecordsTooLarge
from braidlog.records.marker import Marker, MarkerType, decode_marker, encode_marker
from braidlog.records.preparation import LogRules, prepare_batch
from braidlog.records.record import Record, decode_batch, encode_batch, read_batch
from braidlog.records.record_checks import Times

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas in a way that is going away
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

NOW_MS = 1_700_000_000_000
BYTES_MAX = 1_000_000
blobs = st.none() | st.binary(max_size=30) | st.just(bytes(300))
record_parts = st.tuples(
    st.integers(0, 1 << 45), blobs, blobs, st.lists(st.tuples(st.text(max_size=5), blobs), max_size=2).map(tuple)
)
codecs = pytest.mark.parametrize("codec", Codec)
LEVELS = {Codec.GZIP: (1, 9), Codec.LZ4: (1, 12), Codec.ZSTD: (1, 19)}
"""A low one and a high one, of the codecs that have levels."""


def recompress(
    batch: memoryview, codec: Codec, *, level: int | None = None, batch_bytes_max: int, bytes_max: int
) -> bytes:
    rules = LogRules(batch_bytes_max, codec, level)
    return bytes(prepare_batch(batch, read_batch(batch), rules, Times(), expanded_bytes_max=bytes_max)[0])


def decode(batch: bytes, bytes_max: int = BYTES_MAX) -> list[Record]:
    return decode_batch(memoryview(batch), bytes_max=bytes_max)


@codecs
@settings(max_examples=25, deadline=None)
@given(parts=st.lists(record_parts, min_size=1, max_size=6), base_offset=st.integers(0, 1 << 60))
def test_what_is_encoded_is_decoded(codec: Codec, parts: list[tuple], base_offset: int) -> None:
    records = [Record(base_offset + index, *part) for index, part in enumerate(parts)]
    batch = encode_batch(records, codec=codec, base_offset=base_offset)
    assert decode(batch) == records
    for other in Codec:
        again = recompress(memoryview(batch), other, batch_bytes_max=BYTES_MAX, bytes_max=BYTES_MAX)
        assert read_header(memoryview(again)).codec is other
        assert decode(again) == records


RECORDS = [Record(index, NOW_MS + index, b"key-%d" % index, b"value " * 50, (("h", b"x"),)) for index in range(200)]


@codecs
@pytest.mark.parametrize("builder", [AiokafkaBuilder, KafkaPythonBuilder])
def test_batches_of_other_clients_are_read(codec: Codec, builder: type) -> None:
    made = builder(2, int(codec), False, -1, -1, -1, 1 << 20)
    for record in RECORDS:
        made.append(record.offset, record.timestamp_ms, record.key, record.value, list(record.headers))
    batch = bytes(made.build())
    assert validate_batches(memoryview(batch), batch_bytes_max=BYTES_MAX)[0].codec is codec
    assert decode(batch) == RECORDS


@codecs
@pytest.mark.parametrize("reader", [AiokafkaBatch, KafkaPythonBatch])
def test_other_clients_read_our_batches(codec: Codec, reader: type) -> None:
    batch = reader(bytearray(encode_batch(RECORDS, codec=codec)))
    assert batch.validate_crc()
    read = [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch]
    assert read == RECORDS


def test_lz4_frames_have_independent_blocks_as_java_demands() -> None:
    frame = compress(Codec.LZ4, bytes(200_000))
    assert frame[:4] == b"\x04\x22\x4d\x18"
    assert frame[4] & 0x20


def test_raw_snappy_is_read_too() -> None:
    import snappy

    assert decompress(Codec.SNAPPY, snappy.compress(b"abc" * 100), bytes_max=1000) == b"abc" * 100


@codecs
@pytest.mark.parametrize("data", [b"", b"x", b"abc" * 100_000, bytes(range(256)) * 300])
def test_codecs_round_trip(codec: Codec, data: bytes) -> None:
    assert decompress(codec, compress(codec, data), bytes_max=len(data)) == data
    assert CODEC_NAMES[codec.name.lower()] is codec


@codecs
def test_decompression_stops_at_the_limit(codec: Codec) -> None:
    bomb = compress(codec, bytes(1_000_000))
    with pytest.raises(RecordsTooLarge, match="decompress to more than") as caught:
        decompress(codec, bomb, bytes_max=999_999)
    assert caught.value.error_code is ErrorCode.message_too_large
    with pytest.raises(InvalidBatch):
        decode(encode_batch([Record(0, 0, None, bytes(1_000_000))], codec=codec), bytes_max=10_000)


@codecs
def test_compression_stops_at_the_limit(codec: Codec) -> None:
    data = random.Random(1).randbytes(1_000_000)
    with pytest.raises(RecordsTooLarge, match="more than 400000 bytes"):
        compress(codec, data, bytes_max=400_000)
    packed = compress(codec, data)
    assert compress(codec, data, bytes_max=len(packed)) == packed
    with pytest.raises(RecordsTooLarge):
        compress(codec, data, bytes_max=len(packed) - 1)


@codecs
def test_no_data_is_compressed_better_than_its_bound(codec: Codec) -> None:
    for length in (1, 1_000, 10_000_000):
        for level in (None, *LEVELS.get(codec, ())):
            packed = compress(codec, bytes(length), level=level)
            assert length <= decompressed_bytes_bound(codec, len(packed))


@pytest.mark.parametrize("codec", LEVELS)
def test_higher_levels_compress_better(codec: Codec) -> None:
    source = random.Random(1)
    data = b" ".join(b"%d" % source.randrange(3000) ** 2 for _ in range(40_000))
    low, high = (compress(codec, data, level=level) for level in LEVELS[codec])
    assert len(high) < 0.95 * len(low)
    for packed in (low, high):
        assert decompress(codec, packed, bytes_max=len(data)) == data
    default_level = {Codec.GZIP: 6, Codec.LZ4: 9, Codec.ZSTD: 3}[codec]
    assert compress(codec, data, level=default_level) == compress(codec, data)
    for reader in (AiokafkaBatch, KafkaPythonBatch):
        sent = memoryview(encode_batch(RECORDS))
        batch = recompress(sent, codec, level=LEVELS[codec][1], batch_bytes_max=BYTES_MAX, bytes_max=BYTES_MAX)
        assert [record.value for record in reader(bytearray(batch))] == [record.value for record in RECORDS]


@codecs
def test_a_recompressed_batch_is_within_the_limit_or_refused(codec: Codec) -> None:
    source = Codec.GZIP if codec is not Codec.GZIP else Codec.LZ4
    batch = memoryview(encode_batch(RECORDS, codec=source))
    again = recompress(batch, codec, batch_bytes_max=BYTES_MAX, bytes_max=BYTES_MAX)
    assert recompress(batch, codec, batch_bytes_max=len(again), bytes_max=BYTES_MAX) == again
    with pytest.raises(InvalidBatch, match=f"is over the limit of {len(again) - 1}") as caught:
        recompress(batch, codec, batch_bytes_max=len(again) - 1, bytes_max=BYTES_MAX)
    assert caught.value.error_code is ErrorCode.message_too_large
    with pytest.raises(RecordsTooLarge, match="decompress to more than 10000 bytes") as caught:
        recompress(batch, codec, batch_bytes_max=BYTES_MAX, bytes_max=10_000)
    assert caught.value.error_code is ErrorCode.message_too_large


@pytest.mark.parametrize(("codec", "taken_bytes_max"), [(Codec.NONE, 1_000_000), (Codec.SNAPPY, 5_000_000)])
def test_what_cannot_come_out_within_the_limit_is_not_decompressed(codec: Codec, taken_bytes_max: int) -> None:
    bomb = memoryview(encode_batch([Record(0, 0, None, bytes(50_000_000))], codec=Codec.ZSTD))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidBatch, match="is over the limit of 100000"):
            recompress(bomb, codec, batch_bytes_max=100_000, bytes_max=1 << 28)
        assert tracemalloc.get_traced_memory()[1] < taken_bytes_max
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_damage_is_found_without_larger_and_larger_buffers(codec: Codec) -> None:
    cut_off = compress(codec, b"some text, " * 20)[:-5]
    tracemalloc.start()
    try:
        with pytest.raises(InvalidBatch, match="cannot be decompressed"):
            decompress(codec, cut_off, bytes_max=50_000_000)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", list(Codec)[1:])
@settings(max_examples=60, deadline=None)
@given(noise=st.binary(max_size=60), cut=st.integers(0, 60), bit=st.integers(0, 500))
def test_damaged_blocks_are_invalid_or_harmless(codec: Codec, noise: bytes, cut: int, bit: int) -> None:
    good = bytearray(compress(codec, b"some text, " * 20))
    good[bit // 8 % len(good)] ^= 1 << bit % 8
    for block in (noise, good[:cut] + noise, good):
        try:
            assert len(decompress(codec, bytes(block), bytes_max=5000)) <= 5000
        except InvalidBatch:
            pass


@pytest.mark.parametrize(
    "block",
    [
        b"\x82SNAPPY\x00" + bytes(8) + b"\x00\x00",
        b"\x82SNAPPY\x00" + bytes(8) + b"\x00\x00\x00\x05ab",
        b"\x82SNAPPY\x00" + bytes(8) + b"\xff\xff\xff\xff",
        b"\xff\xff\xff\xff\x0f",
    ],
)
def test_bad_snappy(block: bytes) -> None:
    with pytest.raises(InvalidBatch):
        decompress(Codec.SNAPPY, block, bytes_max=5000)


def with_payload(payload: bytes, count: int = 1) -> bytes:
    """A batch with a right CRC over whatever records."""
    batch = bytearray(encode_batch([Record(0, 0, b"", b"")])[:61] + payload)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">i", batch, 57, count)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


@pytest.mark.parametrize(
    ("payload", "count", "message"),
    [
        (b"", 1, "do not fit"),
        (bytes(7), -1, "do not fit"),
        (bytes(7), 2**31 - 1, "do not fit"),
        (b"\x0c\x00\x00\x00\x01\x01\x00x", 1, "1 bytes behind"),
        (b"\x0a\x00\x00\x00\x01\x01\x00", 1, "a record of 5 bytes"),
        (b"\x0e\x00\x00\x00\x01\x01\x00", 1, "a record of 7 bytes"),
        (b"\x01\x00\x00\x00\x01\x01\x00", 1, "a record of -1 bytes"),
        (b"\x0c\x00\x00\x02\x01\x01\x00", 1, "offset delta 1"),
        (b"\x0c\x00\x00\x01\x01\x01\x00", 1, "offset delta -1"),
        (b"\x0c\x00\x00\x00\x14\x01\x00", 1, "a field of 10 bytes"),
        (b"\x0c\x00\x00\x00\x01\x01\x02", 1, "a record of 1 headers"),
        (b"\x0c\x00\x00\x00\x01\x01\x01", 1, "a record of -1 headers"),
        (b"\x10\x00\x00\x00\x01\x01\x02\x01\x01", 1, "without a name"),
        (b"\x12\x00\x00\x00\x01\x01\x02\x02\xff\x01", 1, "not UTF-8"),
        (b"\x0e\x00\x00\x00\x01\x01\x00\x00", 1, "length is not that of its fields"),
        (b"\x18\x00" + b"\xff" * 10 + b"\x00", 1, "more than ten bytes"),
    ],
)
def test_malformed_records(payload: bytes, count: int, message: str) -> None:
    with pytest.raises(InvalidBatch, match=message) as caught:
        decode(with_payload(payload, count))
    assert caught.value.error_code is ErrorCode.invalid_record


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=12) | st.just(b"\x0c\x00\x00\x00\x01\x01\x00"), max_size=5), st.integers(0, 6))
def test_random_records_raise_nothing_but_invalid_batch(pieces: list[bytes], count: int) -> None:
    batch = memoryview(with_payload(b"".join(pieces), count))
    try:
        decode_batch(batch, bytes_max=1000)
    except InvalidBatch:
        pass


def test_log_append_time_and_compacted_batches() -> None:
    batch = encode_batch(
        [Record(12, 5, b"k", None), Record(17, 9, b"l", None)],
        base_offset=10,
        last_offset_delta=9,
        delete_horizon_ms=1234,
        flags=TIMESTAMP_TYPE_BIT,
    )
    header = read_header(memoryview(batch))
    assert header.has_delete_horizon
    assert (header.timestamp_ms_base, header.end_offset, header.record_count) == (1234, 20, 2)
    assert [(record.offset, record.timestamp_ms) for record in decode(batch)] == [(12, 9), (17, 9)]
    assert decode(encode_batch([], base_offset=3, last_offset_delta=4)) == []
    for records, options in (
        ([], {}),
        ([Record(5, 0, None, None)] * 2, {}),
        ([Record(5, 0, None, None)], {"base_offset": 6}),
    ):
        with pytest.raises(ValueError):
            encode_batch(records, **options)


@pytest.mark.parametrize("marker_type", MarkerType)
def test_markers(marker_type: MarkerType) -> None:
    marker = Marker(marker_type, 1000, NOW_MS, 7, 3, 21)
    batch = encode_marker(marker, partition_leader_epoch=2)
    header = read_header(memoryview(batch))
    assert header.is_control
    assert header.is_transactional
    assert decode_marker(memoryview(batch)) == marker
    reader = AiokafkaBatch(bytearray(batch))
    assert reader.is_control_batch
    with pytest.raises(InvalidBatch, match="control"):
        validate_batches(memoryview(encode_marker(marker._replace(offset=0))), batch_bytes_max=1000)


def test_other_control_records_are_passed_over_and_broken_ones_are_not() -> None:
    def control(key: bytes | None, value: bytes | None = b"\x00\x00\x00\x00\x00\x00") -> memoryview:
        return memoryview(encode_batch([Record(0, 0, key, value)], flags=CONTROL_BIT))

    assert decode_marker(control(b"\x00\x00\x00\x05")) is None
    for broken in (control(None), control(b"\x00"), control(b"\xff\xff\x00\x00"), control(b"\x00\x00\x00\x01", None)):
        with pytest.raises(InvalidBatch):
            decode_marker(broken)
    with pytest.raises(InvalidBatch, match="not a control batch"):
        decode_marker(memoryview(encode_batch([Record(0, 0, None, None)])))
