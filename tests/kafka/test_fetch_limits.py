"""Responses keep to the consumer's limits where records have to be read from the store, too."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from kio.schema.errors import ErrorCode as E
from tests.kafka.conformance.records import batch
from tests.kafka.conformance.test_records import fetch, now_ms, produce, told
from tests.kafka.conformance.wire import Wire
from tests.kafka.in_process import InProcessBraidlog
from tests.kafka.topics import create_topic

from braidlog.agent.connections.response_memory import ResponseMemory

VALUE_BYTES = 40_000
BATCH_BYTES = len(batch(bytes(VALUE_BYTES), timestamp_ms=0))


@pytest.fixture
def braidlog(tmp_path: Path) -> Iterator[InProcessBraidlog]:
    with InProcessBraidlog(tmp_path) as running:
        yield running


def stored_files(folder: Path) -> set[Path]:
    return {path for path in (folder / "store" / "data").rglob("*") if path.is_file()}


def fill(braidlog: InProcessBraidlog, partitions: int, tmp_path: Path) -> tuple[str, list[set[Path]]]:
    """A topic with a large batch in each partition, none of it in memory, and the files of each."""
    topic = create_topic(braidlog.bootstrap, partitions)
    files: list[set[Path]] = []
    with Wire(braidlog.bootstrap) as wire:
        for index in range(partitions):
            before = stored_files(tmp_path)
            data = batch(bytes(VALUE_BYTES), timestamp_ms=now_ms())
            assert produce(wire, topic, data, index=index).error_code == E.none
            files.append(stored_files(tmp_path) - before)
    braidlog.restart_agent()
    return topic, files


def sizes(bootstrap: str, topic: str, partitions: int, **limits: int) -> list[int]:
    with Wire(bootstrap) as wire:
        found = told(fetch(wire, {topic: dict.fromkeys(range(partitions), 0)}, **limits))
    return [len(found[index].records or b"") for index in range(partitions)]


def test_what_is_read_from_the_store_keeps_to_the_limits(braidlog: InProcessBraidlog, tmp_path: Path) -> None:
    topic, _ = fill(braidlog, 4, tmp_path)
    limits = {"bytes_max": 2 * BATCH_BYTES + 100, "partition_bytes_max": BATCH_BYTES}
    assert sizes(braidlog.bootstrap, topic, 4, **limits) == [BATCH_BYTES, BATCH_BYTES, 0, 0]
    braidlog.restart_agent()
    assert sizes(braidlog.bootstrap, topic, 4, partition_bytes_max=100) == [BATCH_BYTES, 0, 0, 0]
    assert braidlog.agent.connections.response_memory.used_bytes == 0


@pytest.mark.parametrize("limits", [{"bytes_max": 1}, {"partition_bytes_max": 1}])
def test_room_is_taken_for_a_first_batch_that_exceeds_the_limits(
    braidlog: InProcessBraidlog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int]
) -> None:
    """Before it is read: many such fetches at once would take all memory otherwise."""
    taken: list[int] = []
    try_acquire = ResponseMemory.try_acquire

    def noted(self: ResponseMemory, size_bytes: int) -> bool:
        taken.append(size_bytes)
        return try_acquire(self, size_bytes)

    topic, _ = fill(braidlog, 2, tmp_path)
    monkeypatch.setattr(ResponseMemory, "try_acquire", noted)
    for _ in range(2):  # from the store, and from memory
        taken.clear()
        assert sizes(braidlog.bootstrap, topic, 2, **limits) == [BATCH_BYTES, 0]
        assert min(taken) >= BATCH_BYTES


def test_what_fits_behind_what_does_not_is_sent(braidlog: InProcessBraidlog) -> None:
    topic = create_topic(braidlog.bootstrap, 3)
    large, small = (batch(value, timestamp_ms=now_ms()) for value in (bytes(VALUE_BYTES), b"small"))
    with Wire(braidlog.bootstrap) as wire:
        for index, data in enumerate((large, large, small)):
            assert produce(wire, topic, data, index=index).error_code == E.none
    found = sizes(braidlog.bootstrap, topic, 3, bytes_max=BATCH_BYTES + 1_000)
    assert found == [BATCH_BYTES, 0, len(small)]


def test_a_partition_that_cannot_be_read_does_not_keep_large_batches_from_others(
    braidlog: InProcessBraidlog, tmp_path: Path
) -> None:
    topic, files = fill(braidlog, 3, tmp_path)
    for path in files[0]:
        path.unlink()
    assert sizes(braidlog.bootstrap, topic, 3, bytes_max=1) == [0, BATCH_BYTES, 0]


def test_a_consumer_reads_partitions_that_together_are_far_over_its_limits(braidlog: InProcessBraidlog) -> None:
    """Its client takes an answer that is over its limit as damaged, and asks again for ever."""
    partitions, value = 20, bytes(400_000)
    topic = create_topic(braidlog.bootstrap, partitions)
    producer = Producer({"bootstrap.servers": braidlog.bootstrap, "linger.ms": 0})
    for index in range(partitions):
        producer.produce(topic, value, partition=index)
    assert producer.flush(60) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": braidlog.bootstrap,
            "group.id": "reader",
            "auto.offset.reset": "earliest",
            "fetch.max.bytes": 1_000_000,
            "receive.message.max.bytes": 1_001_000,
            "max.partition.fetch.bytes": 100_000,
        }
    )
    consumer.subscribe([topic])
    try:
        read = {message.partition() for message in consumer.consume(partitions, 60) if message.error() is None}
    finally:
        consumer.close()
    assert read == set(range(partitions))
