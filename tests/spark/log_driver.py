"""Topics filled and read by confluent-kafka, which knows nothing of Spark."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from tests.cluster import Cluster, Process

_numbers = count(1)

QUICK_SETTINGS = {"upload_interval_ms": 20, "group_initial_rebalance_delay_ms": 50, "log_level": "info"}


@dataclass(frozen=True, order=True)
class Seen:
    """A record as a reader saw it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int = -1
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass
class Braid:
    """A running Braidlog: a control plane and an agent, each a process of its own."""

    cluster: Cluster
    control: Process
    agent: Process

    @classmethod
    def start(cls, cluster: Cluster, **settings: object) -> "Braid":
        control = cluster.control(**settings)
        return cls(cluster, control, cluster.agent(control=control))

    @property
    def bootstrap(self) -> str:
        return self.agent.address

    @property
    def options(self) -> dict[str, str]:
        """What a Spark job must be told."""
        return {"braidlog.control": self.control.address}

    def new_topic(self, partitions: int = 1, *, prefix: str = "topic", **configs: object) -> str:
        return self.create_topic(f"{prefix}-{next(_numbers)}", partitions, **configs)

    def create_topic(self, name: str, partitions: int, **configs: object) -> str:
        # Records of these tests are from years ago: with a limit, what a test reads would depend on how long it takes.
        settings = {"retention.ms": "-1"} | {key.replace("_", "."): str(value) for key, value in configs.items()}
        admin = self.admin()  # its answers come only while it is held
        admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(60)
        return name

    def add_partitions(self, name: str, total: int) -> None:
        admin = self.admin()
        admin.create_partitions([NewPartitions(name, total)])[name].result(60)

    def delete_topic(self, name: str) -> None:
        admin = self.admin()
        admin.delete_topics([name])[name].result(60)

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "socket.timeout.ms": 60_000})

    def delete_records(self, topic: str, partition: int, before_offset: int) -> None:
        admin = self.admin()
        wanted = [confluent_kafka.TopicPartition(topic, partition, before_offset)]
        for future in admin.delete_records(wanted).values():
            future.result(60)

    def produce(self, topic: str, records: Iterable[dict[str, Any]], **settings: Any) -> None:
        """Each record: the arguments of confluent's `produce`. All of them are acknowledged on return."""
        failures: list[object] = []
        producer = confluent_kafka.Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5, **settings})
        for record in records:
            producer.produce(
                topic, on_delivery=lambda error, _: failures.append(error) if error is not None else None, **record
            )
            producer.poll(0)
        assert producer.flush(120) == 0
        assert not failures, failures[:3]

    def read(self, topic: str, **settings: Any) -> list[Seen]:
        """All records of a topic, by partition and offset."""
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                **settings,
            }
        )
        partitions = consumer.list_topics(topic, timeout=60).topics[topic].partitions
        places = [confluent_kafka.TopicPartition(topic, number) for number in partitions]
        # The agent may hear of what others wrote a moment later: what it calls the end before that is none.
        ends = {place.partition: consumer.get_watermark_offsets(place, timeout=60)[1] for place in places}
        consumer.assign(
            [confluent_kafka.TopicPartition(topic, number, confluent_kafka.OFFSET_BEGINNING) for number in partitions]
        )
        found: list[Seen] = []
        unfinished = set(partitions)
        while unfinished:
            message = consumer.poll(60)
            assert message is not None, f"nothing came from partitions {unfinished} of {topic}"
            if message.error() is not None:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
                if message.offset() >= ends[message.partition()]:
                    unfinished.discard(message.partition())
                continue
            found.append(
                Seen(
                    topic,
                    message.partition(),
                    message.offset(),
                    message.key(),
                    message.value(),
                    message.timestamp()[1],
                    tuple(message.headers() or ()),
                )
            )
        consumer.close()
        return sorted(found, key=lambda seen: (seen.partition, seen.offset))


def seen_by_spark(rows: Iterable[Any]) -> list[Seen]:
    """Rows of the data source, as records; `headers` where they were asked for."""
    found = [
        Seen(
            row.topic,
            row.partition,
            row.offset,
            None if row.key is None else bytes(row.key),
            None if row.value is None else bytes(row.value),
            round(row.timestamp.timestamp() * 1000),
            tuple((header.key, None if header.value is None else bytes(header.value)) for header in row.headers)
            if "headers" in row.__fields__
            else (),
        )
        for row in rows
    ]
    return sorted(found, key=lambda seen: (seen.topic, seen.partition, seen.offset))
