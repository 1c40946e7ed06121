"""Byte rates that real clients are held to."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import confluent_kafka
from confluent_kafka import TopicPartition
from tests.kafka.conformance.wire import Wire, part
from tests.kafka.topics import unique_name

ALTER_QUOTAS = 49
RATE = 200_000
VALUE = b"x" * 10_000
RECORDS = 60

NewTopic = Callable[..., str]


@contextmanager
def limited(bootstrap: str, client_id: str, key: str) -> Iterator[None]:
    def alter(value: float | None) -> None:
        entity = [part("EntityData", entity_type="client-id", entity_name=client_id)]
        ops = [part("OpData", key=key, value=value or 0.0, remove=value is None)]
        entry = part("EntryData", entity=entity, ops=ops)
        with Wire(bootstrap) as wire:
            answer = wire.call(ALTER_QUOTAS, part("AlterClientQuotasRequest", entries=[entry], validate_only=False))
        assert answer.entries[0].error_code == 0

    alter(RATE)
    try:
        yield
    finally:
        alter(None)


def produce_s(bootstrap: str, topic: str, client_id: str) -> tuple[float, int]:
    """How long it took, and the longest time that the producer was told to wait."""
    throttles: list[int] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "batch.size": 20_000,
            "linger.ms": 1,
            "throttle_cb": lambda event: throttles.append(round(event.throttle_time * 1000)),
        }
    )
    began_s = time.monotonic()
    for _ in range(RECORDS):
        producer.produce(topic, VALUE, partition=0)
    assert producer.flush(60) == 0
    took_s = time.monotonic() - began_s
    producer.poll(0.2)
    return took_s, max(throttles, default=0)


def test_a_producer_is_held_to_its_rate(bootstrap: str, new_topic: NewTopic) -> None:
    topic, client_id = new_topic(), unique_name("client")
    least_s = (RECORDS * len(VALUE) - RATE) / RATE  # a second's worth is free at first
    with limited(bootstrap, client_id, "producer_byte_rate"):
        took_s, told_ms = produce_s(bootstrap, topic, client_id)
        assert took_s > least_s * 0.8
        assert told_ms > 0
        assert produce_s(bootstrap, topic, unique_name("another"))[1] == 0, "others are not limited"
    assert produce_s(bootstrap, topic, client_id)[1] == 0, "the limit is gone"


def test_a_consumer_is_held_to_its_rate(bootstrap: str, new_topic: NewTopic) -> None:
    topic, client_id = new_topic(), unique_name("client")
    produce_s(bootstrap, topic, unique_name("writer"))

    def read_s() -> float:
        settings = {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "group.id": unique_name("group"),
            "fetch.message.max.bytes": 50_000,
            "queued.max.messages.kbytes": 64,
        }
        consumer = confluent_kafka.Consumer(settings)
        consumer.assign([TopicPartition(topic, 0, 0)])
        began_s = time.monotonic()
        count = 0
        while count < RECORDS:
            message = consumer.poll(30)
            assert message is not None
            assert message.error() is None
            count += 1
        took_s = time.monotonic() - began_s
        consumer.close()
        return took_s

    with limited(bootstrap, client_id, "consumer_byte_rate"):
        assert read_s() > (RECORDS * len(VALUE) - RATE) / RATE * 0.6
