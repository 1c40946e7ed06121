"""Reading a topic to its end, and comparing it with what a `SteadyProducer` was told."""

import confluent_kafka
from tests.kafka.clients import CLIENTS, Record, SteadyProducer, number_of, numbers_by_partition


def read_all(bootstrap: str, topic: str, partition_count: int) -> list[Record]:
    """Everything up to the end of each partition."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    ends = [
        consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, number), timeout=20)[1]
        for number in range(partition_count)
    ]
    consumer.close()
    found = CLIENTS["confluent"].consume(bootstrap, topic, sum(ends), partitions=range(partition_count))
    assert len(found) == sum(ends), "records that the log counts were not served"
    return found


def check_idempotent(producer: SteadyProducer, found: list[Record], partition_count: int) -> None:
    """Everything sent is there exactly once, in order, and where the acknowledgement said."""
    assert not producer.failed, dict(list(producer.failed.items())[:5])
    assert len(producer.acknowledged) == producer.sent_count
    assert numbers_by_partition(found) == {
        partition: list(range(partition, producer.sent_count, partition_count))
        for partition in range(min(partition_count, producer.sent_count))
    }
    check_acknowledged(producer, found)


def check_acknowledged(producer: SteadyProducer, found: list[Record]) -> None:
    places = {(record.partition, record.offset): number_of(record) for record in found}
    numbers = set(places.values())
    for number, (partition, offset) in producer.acknowledged.items():
        # Where only a later batch was answered, librdkafka concludes that this one is there too, but not where.
        is_there = number in numbers if offset is None else places.get((partition, offset)) == number
        assert is_there, f"record {number} was acknowledged at {(partition, offset)}, and is not there"
