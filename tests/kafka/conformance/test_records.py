"""Records in and out by hand: what is taken, what is refused and how, and fetch sessions."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode as E
from tests.cluster import wait_until
from tests.kafka.conformance.records import batch
from tests.kafka.conformance.wire import Wire, ms, part

PRODUCE, FETCH, LIST_OFFSETS, INIT_PRODUCER = 0, 1, 2, 22
NAMES_PRODUCE, NAMES_FETCH = 9, 12
"""The newest versions that still call topics by their names."""

MAX_TIMESTAMP = -3
"""Asks ListOffsets for the record with the highest timestamp."""

NewTopic = Callable[..., str]


def now_ms() -> int:
    return int(time.time() * 1000)


def produce(wire: Wire, topic: str, data: bytes | None, *, acks: int = -1, index: int = 0, version: int = 9) -> Any:
    request = part(
        "ProduceRequest",
        transactional_id=None,
        acks=acks,
        timeout=ms(10_000),
        topic_data=[
            part(
                "TopicProduceData", name=topic, partition_data=[part("PartitionProduceData", index=index, records=data)]
            )
        ],
    )
    answer = wire.call(PRODUCE, request, version=version).responses[0].partition_responses[0]
    if answer.error_code == E.none:
        # A broker may serve what it has acknowledged a moment later.
        at = {topic: {index: answer.base_offset}}
        wait_until(lambda: told(fetch(wire, at, wait_ms=500))[index].records, what="what was acknowledged")
    return answer


def fetch(
    wire: Wire,
    topics: dict[str, dict[int, int]],
    *,
    session: tuple[int, int] = (0, -1),
    forgotten: dict[str, tuple[int, ...]] | None = None,
    wait_ms: int = 0,
    bytes_min: int = 1,
    bytes_max: int = 1 << 20,
    partition_bytes_max: int = 1 << 20,
) -> Any:
    """`topics`: offsets by topic and partition."""
    request = part(
        "FetchRequest",
        replica_id=-1,
        max_wait=ms(wait_ms),
        min_bytes=bytes_min,
        max_bytes=bytes_max,
        isolation_level=0,
        session_id=session[0],
        session_epoch=session[1],
        topics=[
            part(
                "FetchTopic",
                topic=name,
                partitions=[
                    part(
                        "FetchPartition",
                        partition=index,
                        current_leader_epoch=-1,
                        fetch_offset=offset,
                        last_fetched_epoch=-1,
                        log_start_offset=-1,
                        partition_max_bytes=partition_bytes_max,
                    )
                    for index, offset in partitions.items()
                ],
            )
            for name, partitions in topics.items()
        ],
        forgotten_topics_data=[
            part("ForgottenTopic", topic=name, partitions=indexes) for name, indexes in (forgotten or {}).items()
        ],
        rack_id="",
    )
    return wire.call(FETCH, request, version=NAMES_FETCH)


def told(answer: Any) -> dict[int, Any]:
    return {partition.partition_index: partition for topic in answer.responses for partition in topic.partitions}


def test_what_is_written_is_read_with_its_offsets(wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic()
    first = produce(wire, topic, batch(b"a", b"b", timestamp_ms=now_ms()))
    assert (first.error_code, first.base_offset, first.log_start_offset) == (E.none, 0, 0)
    assert produce(wire, topic, batch(b"the third", timestamp_ms=now_ms())).base_offset == 2
    partition = told(fetch(wire, {topic: {0: 0}}))[0]
    assert (partition.error_code, partition.high_watermark, partition.log_start_offset) == (E.none, 3, 0)
    assert partition.records.count(b"the third") == 1
    # Asked from the middle of a batch, the whole batch comes.
    assert told(fetch(wire, {topic: {0: 1}}))[0].records[:8] == bytes(8)
    # However little is asked for, at least one batch comes.
    assert len(told(fetch(wire, {topic: {0: 0}}, bytes_max=1))[0].records) > 1
    assert not told(fetch(wire, {topic: {0: 3}}))[0].records
    assert told(fetch(wire, {topic: {0: 4}}))[0].error_code == E.offset_out_of_range
    assert told(fetch(wire, {topic: {0: -1}}))[0].error_code == E.offset_out_of_range


REFUSED = {
    "a wrong checksum": (lambda: batch(b"x", timestamp_ms=now_ms(), bad_crc=True), E.corrupt_message),
    "a count that is too low": (lambda: batch(b"x", b"y", timestamp_ms=now_ms(), count=1), E.invalid_record),
    "a count that is too high": (lambda: batch(b"x", timestamp_ms=now_ms(), count=3, last_delta=2), E.invalid_record),
    "a last offset that does not fit": (lambda: batch(b"x", timestamp_ms=now_ms(), last_delta=5), E.invalid_record),
    "no records": (lambda: batch(timestamp_ms=now_ms()), E.invalid_record),
    "a control batch": (lambda: batch(b"x", timestamp_ms=now_ms(), attributes=0x20), E.invalid_record),
    "two batches": (lambda: batch(b"x", timestamp_ms=now_ms()) * 2, E.invalid_record),
    "more than a message may have": (lambda: batch(b"x" * 1_200_000, timestamp_ms=now_ms()), E.message_too_large),
    "a time far ahead": (lambda: batch(b"x", timestamp_ms=now_ms() + 10 * 86_400_000), E.invalid_timestamp),
}


@pytest.mark.parametrize("what", sorted(REFUSED))
def test_wrong_batches_are_refused(wire: Wire, new_topic: NewTopic, what: str) -> None:
    make, code = REFUSED[what]
    topic = new_topic()
    assert produce(wire, topic, make()).error_code == code
    assert produce(wire, topic, batch(b"good", timestamp_ms=now_ms())).base_offset == 0


def test_acknowledgements_that_do_not_exist(wire: Wire, new_topic: NewTopic) -> None:
    answer = produce(wire, new_topic(), batch(b"x", timestamp_ms=now_ms()), acks=2)
    assert answer.error_code == E.invalid_required_acks


def test_nowhere_to_write(wire: Wire, new_topic: NewTopic, unique: Callable[[str], str]) -> None:
    good = batch(b"x", timestamp_ms=now_ms())
    assert produce(wire, unique("nowhere"), good).error_code == E.unknown_topic_or_partition
    assert produce(wire, new_topic(), good, index=7).error_code == E.unknown_topic_or_partition


def test_a_compacted_topic_wants_keys(wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic(cleanup_policy="compact")
    refused = produce(wire, topic, batch(b"x", timestamp_ms=now_ms()))
    assert refused.error_code == E.invalid_record
    assert [each.batch_index for each in refused.record_errors] == [0]
    assert produce(wire, topic, batch(b"x", key=b"k", timestamp_ms=now_ms())).error_code == E.none


def offset_at(wire: Wire, topic: str, timestamp: int) -> Any:
    partition = part("ListOffsetsPartition", partition_index=0, current_leader_epoch=-1, timestamp=timestamp)
    request = part(
        "ListOffsetsRequest",
        replica_id=-1,
        isolation_level=0,
        topics=[part("ListOffsetsTopic", name=topic, partitions=[partition])],
        timeout=ms(10_000),
    )
    return wire.call(LIST_OFFSETS, request, version=7).topics[0].partitions[0]


def test_where_the_log_stamps_its_own_time_the_producers_is_found_nowhere(wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic(message_timestamp_type="LogAppendTime")
    begun_ms, future_ms = now_ms() - 60_000, now_ms() + 10 * 365 * 86_400_000
    produced = produce(wire, topic, batch(b"early", timestamp_ms=future_ms))
    assert produced.error_code == E.none
    found = offset_at(wire, topic, MAX_TIMESTAMP)
    assert (found.error_code, found.offset) == (E.none, 0)
    assert begun_ms <= found.timestamp < future_ms - 86_400_000
    assert offset_at(wire, topic, future_ms - 86_400_000).offset == -1
    assert offset_at(wire, topic, begun_ms).offset == 0


def test_an_idempotent_producer(wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic()
    request = part("InitProducerIdRequest", transactional_id=None, transaction_timeout=ms(1000))
    producer_id = 0
    while not producer_id:  # Kafka's very first one is not told from no producer everywhere
        producer_id = wire.call(INIT_PRODUCER, request, version=4).producer_id

    def write(value: bytes, sequence: int, epoch: int = 0) -> Any:
        return produce(wire, topic, batch(value, timestamp_ms=now_ms(), producer=(producer_id, epoch, sequence)))

    assert write(b"a", 0).base_offset == 0
    assert write(b"b", 1).base_offset == 1
    again = write(b"b", 1)
    assert (again.error_code, again.base_offset) == (E.none, 1)
    assert write(b"d", 3).error_code == E.out_of_order_sequence_number
    assert write(b"c", 2).base_offset == 2
    assert write(b"e", 0, epoch=1).base_offset == 3
    assert write(b"f", 3, epoch=0).error_code == E.invalid_producer_epoch


def test_a_session_tells_what_is_new(wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    opened = fetch(wire, {topic: {0: 0, 1: 0, 2: 0}}, session=(0, 0))
    session = opened.session_id
    assert opened.error_code == E.none
    assert session > 0
    assert sorted(told(opened)) == [0, 1, 2]
    epochs = iter(range(1, 100))

    def has_nothing_new() -> bool:
        answer = fetch(wire, {}, session=(session, next(epochs)))
        assert (answer.error_code, answer.session_id) == (E.none, session)
        assert not any(partition.records for partition in told(answer).values())
        return told(answer) == {}

    # A partition that is only just there may still have its bounds to tell.
    wait_until(has_nothing_new, what="an answer without news")
    produce(wire, topic, batch(b"x", timestamp_ms=now_ms()), index=1)

    def news() -> dict[int, Any]:
        return told(fetch(wire, {}, session=(session, next(epochs)), wait_ms=500))

    assert sorted(wait_until(news, what="the record")) == [1]
    epoch = next(epochs)
    moved = fetch(wire, {topic: {1: 1}}, session=(session, epoch), forgotten={topic: (0,)})
    assert not any(partition.records for partition in told(moved).values())
    produce(wire, topic, batch(b"x", timestamp_ms=now_ms()), index=0)
    assert told(fetch(wire, {}, session=(session, epoch + 1), wait_ms=200)) == {}


def test_sessions_that_are_not_there(wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic()
    assert fetch(wire, {topic: {0: 0}}, session=(123_456, 7)).error_code == E.fetch_session_id_not_found
    session = fetch(wire, {topic: {0: 0}}, session=(0, 0)).session_id
    assert fetch(wire, {}, session=(session, 5)).error_code == E.invalid_fetch_session_epoch
    assert fetch(wire, {}, session=(session, 1)).error_code == E.none
    closed = fetch(wire, {topic: {0: 0}}, session=(session, -1))
    assert (closed.error_code, closed.session_id) == (E.none, 0)
    assert fetch(wire, {}, session=(session, 2)).error_code == E.fetch_session_id_not_found


def test_an_unknown_partition_in_a_session_is_told_every_time(wire: Wire, new_topic: NewTopic) -> None:
    topic = new_topic()
    session = fetch(wire, {topic: {0: 0, 9: 0}}, session=(0, 0)).session_id
    for epoch in (1, 2):
        partitions = told(fetch(wire, {}, session=(session, epoch)))
        assert partitions[9].error_code == E.unknown_topic_or_partition


def test_internal_topics_are_read_and_not_written(wire: Wire, unique: Callable[[str], str]) -> None:
    unique("anything")  # whoever looks for a coordinator finds the topic there afterwards
    refused = produce(wire, "__consumer_offsets", batch(b"mine", timestamp_ms=now_ms()))
    assert refused.error_code == E.invalid_topic_exception
    found = fetch(wire, {"__consumer_offsets": {0: 0}}, wait_ms=0)
    assert told(found)[0].error_code in {E.none, E.not_leader_or_follower}
