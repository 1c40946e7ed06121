"""Reading what transactions wrote, and a worker that consumes, transforms and produces in them.

`python -m tests.kafka.transactional BOOTSTRAP SOURCE SINK GROUP TRANSACTIONAL_ID` runs one until it is killed.
"""

import sys
import time
from collections.abc import Sequence

import confluent_kafka
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

TIMEOUT_S = 60.0
RECORDS_PER_TRANSACTION_MAX = 200


def transactional_producer(bootstrap: str, transactional_id: str, **settings: object) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "linger.ms": 1,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "retry.backoff.ms": 20,
            # Otherwise librdkafka takes an agent that starts again for another one, and `send_offsets_to_transaction`
            # waits for the first until its time is over.
            "metadata.recovery.strategy": "none",
            "log_level": 0,
            **settings,
        }
    )


def write(producer: Producer, topic: str, values: Sequence[str], *, partitions: int = 1) -> None:
    """Into the ongoing transaction, and wait until all of it is acknowledged."""
    errors: list[object] = []
    for number, value in enumerate(values):
        producer.produce(
            topic,
            value.encode(),
            partition=number % partitions,
            on_delivery=lambda error, _: errors.append(error) if error is not None else None,
        )
    assert producer.flush(TIMEOUT_S) == 0
    assert not errors, errors


def read_topic(bootstrap: str, topic: str, partitions: int = 1, *, committed: bool = True) -> list[Message]:
    """All of a topic up to its present end (as this isolation level sees it), in the order of arrival."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
            "log_level": 0,
        }
    )
    try:
        places = [TopicPartition(topic, number, 0) for number in range(partitions)]
        # An agent may hear of a transaction's end a moment after it: what it calls the end before that is none.
        ends = [consumer.get_watermark_offsets(place, timeout=TIMEOUT_S)[1] for place in places]
        consumer.assign(places)
        found: list[Message] = []
        ended: set[int] = set()
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(ended) < partitions:
            assert time.monotonic() < deadline_s, f"{topic}: only partitions {ended} came to an end"
            for message in consumer.consume(10_000, 0.2):
                error = message.error()
                if error is None:
                    found.append(message)
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    if message.offset() >= ends[message.partition()]:
                        ended.add(message.partition())
                elif not error.retriable() and error.code() > 0:
                    raise KafkaException(error)
        return found
    finally:
        consumer.close()


def values(messages: Sequence[Message]) -> list[str]:
    return [message.value().decode() for message in messages]


class Worker:
    """Everything that it reads goes to the sink, with the place where it was found, and the offsets go with it."""

    def __init__(self, bootstrap: str, source: str, sink: str, group: str, transactional_id: str) -> None:
        self._bootstrap = bootstrap
        self._source = source
        self._sink = sink
        self._group = group
        self._transactional_id = transactional_id

    def run(self) -> None:
        while True:
            try:
                self._run()
            except KafkaException:
                time.sleep(0.05)  # the process that was killed is being started again

    def _run(self) -> None:
        producer = transactional_producer(
            self._bootstrap, self._transactional_id, **{"transaction.timeout.ms": 10_000, "linger.ms": 0}
        )
        producer.init_transactions(TIMEOUT_S)
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": self._group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": 3_000,
                "heartbeat.interval.ms": 300,
                "fetch.wait.max.ms": 50,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        try:
            consumer.subscribe([self._source])
            while True:
                messages = [each for each in consumer.consume(RECORDS_PER_TRANSACTION_MAX, 0.1) if not each.error()]
                if messages:
                    self._transform(producer, consumer, messages)
        finally:
            consumer.close()

    def _transform(self, producer: Producer, consumer: Consumer, messages: list[Message]) -> None:
        producer.begin_transaction()
        try:
            for message in messages:
                place = f"{message.partition()}:{message.offset()}:{message.value().decode()}"
                producer.produce(self._sink, place.encode(), partition=message.partition())
            behind: dict[int, int] = {}
            for message in messages:
                behind[message.partition()] = message.offset() + 1
            offsets = [TopicPartition(self._source, partition, offset) for partition, offset in behind.items()]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), TIMEOUT_S)
            producer.commit_transaction(TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].txn_requires_abort():
                producer.abort_transaction(TIMEOUT_S)
            raise  # what was read is not done: start over from what is committed


if __name__ == "__main__":
    Worker(*sys.argv[1:]).run()
