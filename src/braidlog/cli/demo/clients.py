"""The demo's producer and consumers, and where they found each record."""

from array import array
from typing import Any

from braidlog.clients.errors import CommandError
from braidlog.runtime.clock import Clock

TOPICS = ("demo-orders", "demo-clicks")
PARTITIONS = 2
"""Per topic. An idempotent client has five requests in flight, each for one partition. With more partitions than
that, requests would wait in the client, and the latency shown would be the client's."""
GROUP = "demo"
PADDING = b"." * 188


class Ledger:
    """Remembers where each record was found.

    A record's number is the start of its value.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._places = array("q", [-1]) * count
        self.found = 0
        self.duplicates = 0

    def read(self, topic: str, partition: int, offset: int, value: bytes) -> None:
        number = int(value[:12])
        place = (offset * PARTITIONS + partition) * len(TOPICS) + TOPICS.index(topic)
        known = self._places[number]
        if known == -1:
            self._places[number] = place
            self.found += 1
        elif (
            known != place
        ):  # the same offset again means that the consumer has reread it, not that the log has it twice
            self.duplicates += 1

    @property
    def missing(self) -> int:
        return self.count - self.found


class Clients:
    """One idempotent producer and a group of two consumers, all driven by one thread."""

    def __init__(self, bootstrap: str, ledger: Ledger, clock: Clock) -> None:
        from confluent_kafka import Consumer, Producer

        common = {"bootstrap.servers": bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 500}
        self.ledger = ledger
        self._clock = clock
        self.latencies_s = array("d")
        self.delivered_s = array("d")
        self.refused: Any = None
        self.producer: Producer = Producer(
            {**common, "enable.idempotence": True, "linger.ms": 5, "batch.size": 1_000_000, "statistics.interval.ms": 0}
        )
        self.consumers: list[Consumer] = [
            Consumer({**common, "group.id": GROUP, "auto.offset.reset": "earliest", "client.id": f"demo-{number}"})
            for number in range(2)
        ]
        for consumer in self.consumers:
            consumer.subscribe(list(TOPICS))

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.refused = self.refused or error
        else:
            self.latencies_s.append(message.latency())
            self.delivered_s.append(self._clock.monotonic_s())

    def produce(self, number: int) -> None:
        topic = TOPICS[number % len(TOPICS)]
        value = b"%012d" % number + PADDING
        while True:
            try:
                self.producer.produce(topic, value, key=b"%d" % (number % 1000), on_delivery=self._delivered)
                return
            except BufferError:
                self.producer.poll(0.1)

    def consume(self, wait_s: float = 0.0) -> None:
        self.producer.poll(0)
        for consumer in self.consumers:
            for message in consumer.consume(5_000, wait_s):
                if message.error() is None:
                    self.ledger.read(message.topic(), message.partition(), message.offset(), message.value())
                elif message.error().fatal():
                    raise CommandError(f"a consumer failed: {message.error().str()}", help="See the agent's log.")

    @property
    def assigned(self) -> bool:
        return all(consumer.assignment() for consumer in self.consumers)

    def close(self) -> None:
        for consumer in self.consumers:
            consumer.close()
