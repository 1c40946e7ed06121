"""Write records with an idempotent producer, and read them back in a consumer group.

    braid up &
    python examples/produce_and_consume.py

Any Kafka client works. This one is confluent-kafka; nothing here is special to Braidlog.
"""

import argparse

from confluent_kafka import Consumer, Producer

COUNT = 1000


def produce(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(COUNT):
        producer.produce(topic, key=f"user-{number % 10}", value=f"event {number}")
    unsent = producer.flush(60)
    if unsent:
        raise TimeoutError(f"{unsent} records were not acknowledged in a minute")


def consume(bootstrap: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values = set()
    while len(values) < COUNT:
        message = consumer.poll(60)
        if message is None:
            raise TimeoutError("no record arrived for a minute")
        if message.error() is None:
            values.add(message.value())
    consumer.close()  # commits what was read, and leaves the group
    return len(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--topic", default="events")
    options = parser.parse_args()
    produce(options.bootstrap, options.topic)
    print(f"read {consume(options.bootstrap, options.topic)} records")


if __name__ == "__main__":
    main()
