"""Where a consumer is: earliest, latest, timestamps, seeks, commits, waiting at the end."""

import asyncio
import json
import time
from collections.abc import Callable

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition
from tests.kafka.clients import CLIENTS, KcatClient, Record, has_kcat
from tests.kafka.topics import unique_name

import kafka

NewTopic = Callable[..., str]
START_MS = 1_700_000_000_000


@pytest.fixture
def filled(bootstrap: str, new_topic: NewTopic) -> str:
    """Record i at offset i, ten milliseconds after the one before; in two requests."""
    topic = new_topic(retention_ms=-1)
    records = [Record(b"%d" % i, timestamp_ms=START_MS + 10 * i) for i in range(100)]
    CLIENTS["confluent"].produce(bootstrap, topic, records[:50])
    CLIENTS["confluent"].produce(bootstrap, topic, records[50:])
    return topic


def consumer_of(bootstrap: str, **settings: object) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": unique_name("group"), "fetch.wait.max.ms": 100, **settings}
    )


def next_offset(consumer: confluent_kafka.Consumer, timeout_s: float = 60.0) -> int:
    message = consumer.poll(timeout_s)
    assert message is not None, "no record in time"
    assert message.error() is None, message.error()
    assert message.value() == b"%d" % message.offset()
    return int(message.offset())


def test_watermarks_times_and_seeks_of_confluent(bootstrap: str, filled: str) -> None:
    consumer = consumer_of(bootstrap)
    partition = TopicPartition(filled, 0)
    assert consumer.get_watermark_offsets(partition, timeout=60) == (0, 100)
    wanted = {START_MS: 0, START_MS + 1: 1, START_MS + 495: 50, START_MS + 990: 99, START_MS + 991: OFFSET_END}
    for timestamp_ms, offset in wanted.items():
        found = consumer.offsets_for_times([TopicPartition(filled, 0, timestamp_ms)], timeout=60)
        assert found[0].offset == offset, timestamp_ms - START_MS
    consumer.assign([TopicPartition(filled, 0, 42)])
    assert next_offset(consumer) == 42
    for target in (7, 99, 50):
        consumer.seek(TopicPartition(filled, 0, target))
        assert next_offset(consumer) == target
    consumer.seek(TopicPartition(filled, 0, OFFSET_BEGINNING))
    assert next_offset(consumer) == 0
    consumer.close()


def test_positions_of_kafka_python(bootstrap: str, filled: str) -> None:
    partition = kafka.TopicPartition(filled, 0)
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=unique_name("group"), enable_auto_commit=False)
    try:
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: 100}
        found = consumer.offsets_for_times({partition: START_MS + 495})[partition]
        assert (found.offset, found.timestamp) == (50, START_MS + 500)
        assert consumer.offsets_for_times({partition: START_MS + 991})[partition] is None
        consumer.assign([partition])
        consumer.seek(partition, 42)
        assert next(consumer).offset == 42
        consumer.seek_to_beginning(partition)
        assert next(consumer).offset == 0
        consumer.seek_to_end(partition)
        assert consumer.position(partition) == 100
        assert consumer.committed(partition) is None
        consumer.seek(partition, 10)
        next(consumer)
        consumer.commit()
        assert consumer.committed(partition) == 11
    finally:
        consumer.close()


async def test_positions_of_aiokafka(bootstrap: str, filled: str) -> None:
    partition = aiokafka.TopicPartition(filled, 0)
    group = unique_name("group")
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        assert await consumer.beginning_offsets([partition]) == {partition: 0}
        assert await consumer.end_offsets([partition]) == {partition: 100}
        found = (await consumer.offsets_for_times({partition: START_MS + 495}))[partition]
        assert (found.offset, found.timestamp) == (50, START_MS + 500)
        consumer.assign([partition])
        consumer.seek(partition, 42)
        assert (await consumer.getone()).offset == 42
        await consumer.seek_to_beginning(partition)
        assert (await consumer.getone()).offset == 0
        assert await consumer.committed(partition) is None
        await consumer.commit({partition: 17})
        assert await consumer.committed(partition) == 17
    finally:
        await consumer.stop()


@pytest.mark.skipif(not has_kcat(), reason="the program `kcat` is not installed (Debian package kcat)")
def test_positions_of_kcat(bootstrap: str, filled: str) -> None:
    kcat = KcatClient()
    answer = kcat.run(bootstrap, ["-Q", "-t", f"{filled}:0:{START_MS + 495}"]).decode()
    assert answer.strip().endswith("offset 50"), answer
    for start, first in (("-5", 95), ("30", 30), (f"s@{START_MS + 900}", 90)):
        lines = kcat.run(bootstrap, ["-C", "-t", filled, "-p", "0", "-o", start, "-e", "-J"]).splitlines()
        assert [json.loads(line)["offset"] for line in lines] == list(range(first, 100))


@pytest.mark.parametrize(("reset", "first"), [("earliest", 0), ("latest", 100)])
def test_a_group_without_commits_starts_where_it_is_told(reset: str, first: int, bootstrap: str, filled: str) -> None:
    consumer = consumer_of(bootstrap, **{"auto.offset.reset": reset, "enable.partition.eof": True})
    consumer.subscribe([filled])
    if reset == "latest":
        at_end = consumer.poll(60)  # before it has found the end, what is written now would be before it
        assert at_end.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
        assert at_end.offset() == first
        CLIENTS["confluent"].produce(bootstrap, filled, [Record(b"100")])
    assert next_offset(consumer) == first
    consumer.close()


def test_an_offset_beyond_the_log_resets(bootstrap: str, filled: str) -> None:
    consumer = consumer_of(bootstrap, **{"auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(filled, 0, 5_000)])
    assert next_offset(consumer) == 0
    consumer.close()
    strict = consumer_of(bootstrap, **{"auto.offset.reset": "error"})
    strict.assign([TopicPartition(filled, 0, 5_000)])
    message = strict.poll(60)
    assert message is not None
    assert message.error() is not None
    assert message.error().code() in (confluent_kafka.KafkaError._AUTO_OFFSET_RESET, 1)
    strict.close()


def test_commits_are_kept_with_their_metadata(bootstrap: str, filled: str) -> None:
    group = unique_name("group")
    consumer = consumer_of(bootstrap, **{"group.id": group, "enable.auto.commit": False})
    assert consumer.committed([TopicPartition(filled, 0)], timeout=60)[0].offset == confluent_kafka.OFFSET_INVALID
    consumer.commit(offsets=[TopicPartition(filled, 0, 33, "a note")], asynchronous=False)
    consumer.close()
    again = consumer_of(bootstrap, **{"group.id": group})
    committed = again.committed([TopicPartition(filled, 0)], timeout=60)[0]
    assert (committed.offset, committed.metadata) == (33, "a note")
    again.subscribe([filled])
    assert next_offset(again) == 33
    again.close()


def test_empty_polls_and_then_records(bootstrap: str, new_topic: NewTopic) -> None:
    """A consumer waits at the end of an empty partition, and hears of a record soon after it was written."""
    topic = new_topic()
    consumer = consumer_of(bootstrap, **{"fetch.wait.max.ms": 240_000, "socket.timeout.ms": 280_000})
    consumer.assign([TopicPartition(topic, 0, 0)])
    for number in range(3):
        assert consumer.poll(0.3) is None
        start_s = time.monotonic()
        CLIENTS["confluent"].produce(bootstrap, topic, [Record(b"%d" % number)])
        assert next_offset(consumer) == number
        assert time.monotonic() - start_s < 120, "a waiting fetch was not woken"
    consumer.close()


def test_pause_and_resume(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=2)
    consumer = consumer_of(bootstrap)
    both = [TopicPartition(topic, 0, 0), TopicPartition(topic, 1, 0)]
    consumer.assign(both)
    consumer.pause([both[0]])
    records = [Record(b"%d" % (i // 2), partition=i % 2) for i in range(20)]
    CLIENTS["confluent"].produce(bootstrap, topic, records)
    assert {(m.partition(), m.offset()) for m in consumer.consume(10, 60)} == {(1, i) for i in range(10)}
    assert consumer.poll(0.3) is None
    consumer.resume([both[0]])
    assert [m.offset() for m in consumer.consume(10, 60)] == list(range(10))
    consumer.close()


async def test_many_waiting_consumers_are_all_woken(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    consumers = [
        aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=60_000,
            request_timeout_ms=90_000,
        )
        for _ in range(10)
    ]
    try:
        for consumer in consumers:
            await consumer.start()
            consumer.assign([aiokafka.TopicPartition(topic, 0)])
        waiting = [asyncio.ensure_future(consumer.getone()) for consumer in consumers]
        await asyncio.sleep(0.5)  # until the fetches are under way
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap)
        await producer.start()
        await producer.send_and_wait(topic, b"for all")
        await producer.stop()
        async with asyncio.timeout(60):
            assert [(await future).value for future in waiting] == [b"for all"] * 10
    finally:
        for consumer in consumers:
            await consumer.stop()
