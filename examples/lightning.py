"""Write to a Lightning topic, which acknowledges a record as soon as it is stored, and read the records back.

    braid up &
    python examples/lightning.py

The acknowledgement comes before the offset is known, so it names none. A moment later the records are readable, each
of them once and in the order of their producer.
"""

import argparse

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

TOPIC = "clicks"
COUNT = 500


def create_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(TOPIC, 1, config={"braidlog.topic.type": "lightning"})
    try:
        admin.create_topics([topic])[TOPIC].result(60)
    except KafkaException as error:
        if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
            raise


def produce(bootstrap: str) -> float:
    """Gives the median time to an acknowledgement, in seconds."""
    latencies_s: list[float] = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(COUNT):
        producer.produce(TOPIC, value=str(number), on_delivery=lambda _, message: latencies_s.append(message.latency()))
    producer.flush(60)
    return sorted(latencies_s)[len(latencies_s) // 2]


def consume(bootstrap: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    numbers: list[int] = []
    while len(numbers) < COUNT:
        message = consumer.poll(60)
        if message is None:
            raise TimeoutError("no record arrived for a minute")
        if message.error() is None:
            numbers.append(int(message.value()))
    consumer.close()
    return numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    options = parser.parse_args()
    create_topic(options.bootstrap)
    latency_s = produce(options.bootstrap)
    numbers = consume(options.bootstrap)
    in_order = "in order" if numbers == list(range(COUNT)) else "out of order"
    print(f"{len(numbers)} records {in_order}, acknowledged after {latency_s * 1000:.0f} ms at the median")


if __name__ == "__main__":
    main()
