"""Reading a topic to its end, and comparing it with what a `SteadyProducer` was told."""

import threading
from itertools import pairwise

import confluent_kafka
from tests.kafka.clients import CLIENTS, Record, SteadyProducer, number_of, numbers_by_partition


def read_all(bootstrap: str, topic: str, partition_count: int) -> list[Record]:
    """Everything up to the end of each partition."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    ends = [
        consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, number), timeout=60)[1]
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
    numbers = numbers_by_partition(found)
    for partition in range(min(partition_count, producer.sent_count)):
        there, sent = numbers[partition], list(range(partition, producer.sent_count, partition_count))
        missing, extra = sorted(set(sent) - set(there)), len(there) - len(set(there))
        turned = [(a, b) for a, b in pairwise(there) if b <= a]
        assert there == sent, f"{partition}: missing {missing[:5]}, {extra} twice, out of order {turned[:5]}"
    check_acknowledged(producer, found)


def check_acknowledged(producer: SteadyProducer, found: list[Record]) -> None:
    places = {(record.partition, record.offset): number_of(record) for record in found}
    numbers = set(places.values())
    for number, (partition, offset) in producer.acknowledged.items():
        # Where only a later batch was answered, librdkafka concludes that this one is there too, but not where.
        is_there = number in numbers if offset is None else places.get((partition, offset)) == number
        assert is_there, f"record {number} was acknowledged at {(partition, offset)}, and is not there"


class Tail:
    """A consumer in a thread of its own that follows a topic from its start, and keeps every place it saw."""

    def __init__(self, bootstrap: str, topic: str, partition_count: int) -> None:
        self.values: dict[tuple[int, int], bytes] = {}
        self.trouble: list[str] = []
        self._stop = threading.Event()
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
            }
        )
        self._consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(partition_count)])
        self._thread = threading.Thread(target=self._run, name=f"tail of {topic}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        following: dict[int, int] = {}
        while not self._stop.is_set():
            message = self._consumer.poll(0.1)
            if message is None:
                continue
            if message.error() is not None:
                if not message.error().retriable() and message.error().code() > 0:
                    self.trouble.append(str(message.error()))
                continue
            partition, offset = message.partition(), message.offset()
            if offset != following.get(partition, 0):
                self.trouble.append(f"offset {offset} of partition {partition}, not {following.get(partition, 0)}")
            following[partition] = offset + 1
            self.values[partition, offset] = message.value()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def check(self, found: list[Record]) -> None:
        """What it saw while processes were killed is what the log holds now."""
        assert not self.trouble, self.trouble
        final = {(record.partition, record.offset): record.value for record in found}
        changed = [place for place, value in self.values.items() if final.get(place) != value]
        assert not changed, f"{len(changed)} places changed after they were seen: {changed[:5]}"
