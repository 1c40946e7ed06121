"""Rows become objects by the rules of their topic, and the footer says what an object holds."""

from dataclasses import replace

import pyarrow as pa
import pytest

from braidlog.configs.topic import effective_settings
from braidlog.objects.format import decode_object_tail
from braidlog.records.batch import TimestampType, scan_batches
from braidlog.records.record import decode_batch
from braidlog.spark.errors import JobError
from braidlog.spark.sink.packing import encode_rows, group_extents, pack_object
from braidlog.spark.sink.routing import Topic

NOW_MS = 1_700_000_000_000


def topic_with(name: str = "t", partitions: int = 4, **configs: str) -> Topic:
    named = {key.replace("_", "."): value for key, value in configs.items()}
    return Topic(name, name.encode().ljust(16, b"-"), partitions, effective_settings(named, {}))


def test_an_object_says_what_it_holds() -> None:
    topic = topic_with(partitions=4)
    rows = pa.table(
        {
            "key": ["a", None],
            "value": pa.array([b"1", None], pa.binary()),
            "headers": pa.array(
                [[("h", b"x")], None], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
            ),
            "timestamp": pa.array([NOW_MS * 1000, None], pa.timestamp("us", tz="UTC")),
        }
    )
    extents = [encode_rows(topic, partition, rows, compression="", now_ms=NOW_MS + 5) for partition in (2, 0)]
    packed = pack_object(extents, nonce=b"n" * 16, write_epoch=7, incarnation="i", created_ms=NOW_MS)
    footer = decode_object_tail(packed.data, len(packed.data))
    assert (footer.write_epoch, footer.incarnation, footer.nonce) == (7, "i", b"n" * 16)
    assert [(extent.partition, extent.record_count) for extent in footer.extents] == [(0, 2), (2, 2)]
    assert packed.record_count == 4
    extent = footer.extents[1]
    assert (extent.timestamp_ms_min, extent.timestamp_ms_max) == (NOW_MS, NOW_MS + 5)
    data = memoryview(packed.data)[extent.position : extent.position + extent.length]
    records = decode_batch(data, bytes_max=1 << 20)
    assert [(record.key, record.value, record.headers) for record in records] == [
        (b"a", b"1", (("h", b"x"),)),
        (None, None, ()),
    ]
    assert [record.timestamp_ms for record in records] == [NOW_MS, NOW_MS + 5]


def test_the_topics_compression_wins_over_the_writers() -> None:
    rows = pa.table({"value": ["again and again " * 20] * 50})
    for configs, option, codec in [({}, "", 0), ({}, "lz4", 3), ({"compression_type": "zstd"}, "lz4", 4)]:
        extent = encode_rows(topic_with(**configs), 0, rows, compression=option, now_ms=NOW_MS)
        assert {header.codec for _, header in scan_batches(memoryview(extent.encoded.data))} == {codec}


def test_the_topics_level_is_used() -> None:
    rows = pa.table({"value": [f"{number * number % 9973}" for number in range(20_000)]})
    low, high = (
        encode_rows(
            topic_with(compression_type="zstd", compression_zstd_level=level), 0, rows, compression="", now_ms=NOW_MS
        )
        for level in ("1", "19")
    )
    assert len(high.encoded.data) < len(low.encoded.data)


def test_the_logs_own_time() -> None:
    rows = pa.table({"value": ["v"], "timestamp": pa.array([5], pa.timestamp("ms", tz="UTC"))})
    topic = topic_with(message_timestamp_type="LogAppendTime")
    extent = encode_rows(topic, 0, rows, compression="", now_ms=NOW_MS)
    (_, header), *_ = scan_batches(memoryview(extent.encoded.data))
    assert header.timestamp_type is TimestampType.LOG_APPEND
    assert header.timestamp_ms_max == NOW_MS


def test_what_a_topic_does_not_take() -> None:
    rows = pa.table({"value": ["v"], "key": pa.array([None], pa.string())})
    with pytest.raises(JobError, match="compacted"):
        encode_rows(topic_with(cleanup_policy="compact"), 0, rows, compression="", now_ms=NOW_MS)
    with pytest.raises(JobError, match="compacted"):
        encode_rows(topic_with(cleanup_policy="compact"), 0, rows.select(["value"]), compression="", now_ms=NOW_MS)
    old = pa.table({"value": ["v"], "timestamp": pa.array([NOW_MS - 10_000], pa.timestamp("ms", tz="UTC"))})
    with pytest.raises(JobError, match="timestamp"):
        encode_rows(topic_with(message_timestamp_before_max_ms="5000"), 0, old, compression="", now_ms=NOW_MS)


def test_records_over_the_limit() -> None:
    topic = topic_with(max_message_bytes="2000")
    small, large = "x" * 100, "y" * 3000
    with pytest.raises(JobError, match="bytes of 2000"):
        encode_rows(topic, 0, pa.table({"value": [small, large]}), compression="", now_ms=NOW_MS)
    # Compressed it is below the limit, and that is what counts.
    extent = encode_rows(topic, 0, pa.table({"value": [small, large] * 50}), compression="gzip", now_ms=NOW_MS)
    assert extent.encoded.record_count == 100
    assert max(batch.length for batch in extent.encoded.batches) <= 2000
    # A topic that takes larger records than usual batches are.
    big = topic_with(max_message_bytes=str(8 << 20))
    extent = encode_rows(big, 0, pa.table({"value": ["z" * (3 << 20), "small"]}), compression="", now_ms=NOW_MS)
    assert extent.encoded.record_count == 2


def test_objects_stay_within_what_the_format_allows() -> None:
    topic = topic_with()
    extent = encode_rows(topic, 0, pa.table({"value": ["x" * 1000] * 100}), compression="", now_ms=NOW_MS)
    huge = replace(extent, encoded=replace(extent.encoded, batches=extent.encoded.batches * 200_000))
    assert [len(group) for group in group_extents([extent, extent, huge, huge, extent])] == [3, 2]
    assert group_extents([]) == []
