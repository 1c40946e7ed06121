"""Rows published through the store, and subscribers told over a topic."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from tests.fakes import FakeClock
from tests.spark.log_driver import Braid

from braidlog.cache.layers import StoreLayer
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.objects.store import Bytes, StoreUnavailable
from braidlog.runtime.entropy import SeededEntropy
from braidlog.sim.virtual.loop import VirtualLoop
from braidlog.spark.errors import DataLoss, JobError
from braidlog.spark.shuffle import BatcherSettings, Publisher, Subscriber
from braidlog.spark.shuffle.notification import Notification
from braidlog.spark.shuffle.pubsub import decode_notification, encode_notification

PARTITIONS = 4


class Topic:
    """Messages by partition, after a while."""

    def __init__(self) -> None:
        self.messages: dict[int, list[bytes]] = {}
        self.failure: Exception | None = None

    async def send(self, partition: int, message: bytes) -> None:
        await asyncio.sleep(0.01)
        if self.failure is not None:
            raise self.failure
        self.messages.setdefault(partition, []).append(message)


def layer() -> StoreLayer:
    return StoreLayer(MemoryStore(MemoryBucket(), url="memory://", clock=FakeClock()))


def publisher_of(store: Any, send: Any, **changes: Any) -> Publisher:
    settings = BatcherSettings(**{"job": "publishing", "batch_bytes": 4096, "interval_s": 2.0, **changes})
    return Publisher(store, settings, PARTITIONS, send, clock=FakeClock(), entropy=SeededEntropy(1), zones=("a", "b"))


def rows_of(ids: range) -> tuple[pa.RecordBatch, Any]:
    return pa.record_batch({"id": pa.array(ids, pa.int64())}), np.array(ids, dtype=np.int32) % PARTITIONS


async def received(store: StoreLayer, messages: list[bytes]) -> list[int]:
    return sorted([row async for rows in Subscriber(store).rows(messages) for row in rows.column("id").to_pylist()])


def in_virtual_time(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualLoop(SeededEntropy(1))
    try:
        loop.run_until_complete(work())
    finally:
        loop.close()


def test_subscribers_get_each_row_of_their_partition_once() -> None:
    async def run() -> None:
        store, topic = layer(), Topic()
        publisher = publisher_of(store, topic.send)
        for start in range(0, 5000, 500):
            await publisher.publish(*rows_of(range(start, start + 500)))
        await publisher.flush()
        for partition in range(PARTITIONS):
            assert await received(store, topic.messages[partition]) == list(range(partition, 5000, PARTITIONS))
        await publisher.close()

    in_virtual_time(run)


async def test_a_store_by_its_url(tmp_path: Path) -> None:
    topic = Topic()
    publisher = Publisher.at(f"file://{tmp_path}", BatcherSettings("publishing"), PARTITIONS, topic.send)
    await publisher.publish(*rows_of(range(100)))
    await publisher.flush()
    await publisher.close()
    subscriber = Subscriber.at(f"file://{tmp_path}")
    messages = [message for each in topic.messages.values() for message in each]
    found = [row async for rows in subscriber.rows(messages) for row in rows.column("id").to_pylist()]
    await subscriber.close()
    assert sorted(found) == list(range(100))


def test_nobody_need_flush_for_rows_to_arrive() -> None:
    async def run() -> None:
        store, topic = layer(), Topic()
        publisher = publisher_of(store, topic.send)
        await publisher.publish(*rows_of(range(8)))
        await asyncio.sleep(1.9)
        assert topic.messages == {}
        await asyncio.sleep(0.2)
        assert await received(store, [each for found in topic.messages.values() for each in found]) == list(range(8))
        await publisher.close()

    in_virtual_time(run)


def test_a_commit_fails_where_anything_did() -> None:
    class Broken:
        async def put(self, key: str, data: Bytes) -> None:
            raise StoreUnavailable("away")

    async def run() -> None:
        topic = Topic()
        publisher = publisher_of(Broken(), topic.send)
        await publisher.publish(*rows_of(range(8)))
        with pytest.raises(JobError, match="away"):
            await publisher.flush()
        assert topic.messages == {}
        await publisher.close()
        topic.failure = RuntimeError("no broker")
        publisher = publisher_of(layer(), topic.send)
        await publisher.publish(*rows_of(range(8)))
        with pytest.raises(JobError, match="no broker"):
            await publisher.flush()
        with pytest.raises(JobError, match="no broker"):
            await publisher.publish(*rows_of(range(8)))
        await publisher.close()

    in_virtual_time(run)


def test_messages() -> None:
    notification = Notification(3, "shuffle/job/0/a-0000000001", 5, 6, 7, 2**32 - 1, 9, "zone")
    message = encode_notification(notification)
    assert decode_notification(message) == notification
    for wrong in (b"", b"hello", message[:-3], b"\x80"):
        with pytest.raises(DataLoss):
            decode_notification(wrong)


async def test_over_a_real_topic(braid: Braid) -> None:
    bootstrap = braid.bootstrap
    topic = braid.new_topic(PARTITIONS)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
    loop = asyncio.get_running_loop()

    async def send(partition: int, message: bytes) -> None:
        safe: asyncio.Future[None] = loop.create_future()

        def told(error: object, _: object) -> None:
            if error is None:
                loop.call_soon_threadsafe(safe.set_result, None)
            else:
                loop.call_soon_threadsafe(safe.set_exception, RuntimeError(str(error)))

        producer.produce(topic, message, partition=partition, on_delivery=told)
        await loop.run_in_executor(None, producer.flush, 30)
        await safe

    store = layer()
    publisher = publisher_of(store, send)
    await publisher.publish(*rows_of(range(2000)))
    await publisher.flush()
    await publisher.close()
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers", "enable.partition.eof": True})
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
        messages: list[bytes] = []
        ended = 0
        while ended < PARTITIONS:
            message = consumer.poll(30)
            assert message is not None
            if message.error() is not None:
                ended += 1
            else:
                messages.append(message.value())
    finally:
        consumer.close()
    assert await received(store, messages) == list(range(2000))
