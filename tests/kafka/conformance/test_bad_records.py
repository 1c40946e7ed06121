"""Batches whose header and checksum are right and whose records are not: none of them gets into the log."""

import gzip

import pytest
from kio.schema.errors import ErrorCode as E
from tests.kafka.conformance.records import raw_batch, record
from tests.kafka.conformance.test_records import NewTopic, now_ms, produce
from tests.kafka.conformance.wire import Wire

GZIP = 1
TWO = record(0, b"a") + record(1, b"b")

REFUSED = {
    "zeros": (bytes(60), 3),
    "a million that hold one": (record(0, b"a"), 1_000_000),
    "one less than claimed": (TWO, 3),
    "one more than claimed": (TWO, 1),
    "bytes behind the last record": (TWO + b"\0\0", 2),
    "a record that is too long": (b"\xe8\x07" + record(0, b"a")[1:], 1),
}


@pytest.mark.parametrize("what", sorted(REFUSED))
def test_bad_records_are_refused(wire: Wire, new_topic: NewTopic, what: str) -> None:
    payload, count = REFUSED[what]
    topic = new_topic()
    assert produce(wire, topic, raw_batch(payload, count, timestamp_ms=now_ms())).error_code == E.invalid_record
    good = raw_batch(TWO, 2, timestamp_ms=now_ms())
    assert produce(wire, topic, good).base_offset == 0, "no offset is used up"


@pytest.mark.parametrize("what", sorted(set(REFUSED) - {"a record that is too long"}))
def test_bad_records_are_found_where_they_are_compressed(wire: Wire, new_topic: NewTopic, what: str) -> None:
    payload, count = REFUSED[what]
    data = raw_batch(gzip.compress(payload), count, attributes=GZIP, timestamp_ms=now_ms())
    assert produce(wire, new_topic(), data).error_code == E.invalid_record


@pytest.mark.parametrize(
    "payload",
    [TWO, b"\xde\xad\xbe\xef" * 20, gzip.compress(TWO, mtime=0)[:-12]],
    ids=["not compressed", "garbage", "cut off"],
)
def test_what_is_not_compressed_as_it_says_is_refused(wire: Wire, new_topic: NewTopic, payload: bytes) -> None:
    topic = new_topic()
    refused = produce(wire, topic, raw_batch(payload, 2, attributes=GZIP, timestamp_ms=now_ms()))
    # Apache Kafka fails over it, and says that it does not know why.
    assert refused.error_code in {E.invalid_record, E.unknown_server_error}
    assert produce(wire, topic, raw_batch(TWO, 2, timestamp_ms=now_ms())).base_offset == 0


@pytest.mark.parametrize("codec", [0, GZIP])
def test_a_compacted_topic_names_every_record_without_a_key(wire: Wire, new_topic: NewTopic, codec: int) -> None:
    payload = b"".join(record(at, b"v", key) for at, key in enumerate([None, b"k", None, None]))
    packed = gzip.compress(payload) if codec else payload
    refused = produce(
        wire, new_topic(cleanup_policy="compact"), raw_batch(packed, 4, attributes=codec, timestamp_ms=now_ms())
    )
    assert refused.error_code == E.invalid_record
    assert [each.batch_index for each in refused.record_errors] == [0, 2, 3]
    assert all(each.batch_index_error_message for each in refused.record_errors)
    assert refused.error_message


def test_a_record_whose_time_is_out_of_bounds_is_named(wire: Wire, new_topic: NewTopic) -> None:
    ahead_ms = 10 * 86_400_000
    payload = record(0, b"now") + record(1, b"later", delta_ms=ahead_ms)
    refused = produce(wire, new_topic(), raw_batch(payload, 2, timestamp_ms=now_ms()))
    assert refused.error_code == E.invalid_timestamp
    assert [each.batch_index for each in refused.record_errors] == [1]
