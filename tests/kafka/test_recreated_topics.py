"""A topic is deleted and created again under idempotent producers that live on: they go on, too."""

import asyncio
from collections.abc import Callable

import confluent_kafka
import pytest
from aiokafka import AIOKafkaProducer
from tests.kafka.clients import CLIENTS
from tests.kafka.topics import admin_client, create_topic

COUNT = 20
WAIT_S_MAX = 120

Recreate = Callable[[], None]


def with_confluent(bootstrap: str, topic: str, recreate: Recreate) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0, "batch.num.messages": 3}
    )
    failed: list[confluent_kafka.KafkaError] = []
    for part in (0, 1):
        for number in range(COUNT):
            producer.produce(
                topic,
                b"%d %d" % (part, number),
                partition=0,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
        assert producer.flush(WAIT_S_MAX) == 0
        assert not failed
        if part == 0:
            recreate()


def with_aiokafka(bootstrap: str, topic: str, recreate: Recreate) -> None:
    async def run() -> None:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:
            for part in (0, 1):
                for number in range(COUNT):
                    await asyncio.wait_for(
                        producer.send_and_wait(topic, b"%d %d" % (part, number), partition=0), WAIT_S_MAX
                    )
                if part == 0:
                    await asyncio.to_thread(recreate)

    asyncio.run(run())


@pytest.mark.parametrize("topic_type", ["classic", "lightning"])
@pytest.mark.parametrize("produce", [with_confluent, with_aiokafka], ids=["confluent", "aiokafka"])
def test_an_idempotent_producer_goes_on_with_a_topic_that_was_created_again(
    bootstrap: str, produce: Callable[[str, str, Recreate], None], topic_type: str
) -> None:
    configs = {"braidlog.topic.type": topic_type}
    topic = create_topic(bootstrap, 1, **configs)

    def recreate() -> None:
        admin = admin_client(bootstrap)
        admin.delete_topics([topic])[topic].result(60)
        created = admin.create_topics([confluent_kafka.admin.NewTopic(topic, 1, 1, config=configs)])
        created[topic].result(60)

    produce(bootstrap, topic, recreate)
    found = [record.value for record in CLIENTS["confluent"].consume(bootstrap, topic, COUNT)]
    assert found == [b"1 %d" % number for number in range(COUNT)]
