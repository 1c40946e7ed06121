"""Read orders, write one receipt for each, and commit both in one transaction.

    braid up &
    python examples/exactly_once.py

Either the receipts of a batch and the group's new offsets are all there, or none of them is. Stop the program at any
moment and start it again: every order has exactly one receipt.
"""

import argparse

from confluent_kafka import Consumer, Producer

COUNT = 200


def write_orders(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(COUNT):
        producer.produce("orders", value=f"order {number}")
    producer.flush(60)


def write_receipts(bootstrap: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "cashier",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,  # the transaction commits the offsets
            "isolation.level": "read_committed",
        }
    )
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "cashier-1"})
    producer.init_transactions(60)  # ends what an earlier run of this program left open
    consumer.subscribe(["orders"])
    done = 0
    while done < COUNT:
        orders = [message for message in consumer.consume(50, timeout=5) if message.error() is None]
        if not orders:
            continue
        producer.begin_transaction()
        for order in orders:
            producer.produce("receipts", value=b"receipt for " + order.value())
        offsets = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 60)
        producer.commit_transaction(60)
        done += len(orders)
    consumer.close()


def count_receipts(bootstrap: str) -> int:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "auditor",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe(["receipts"])
    receipts: list[bytes] = []
    while len(receipts) < COUNT:
        message = consumer.poll(60)
        if message is None:
            raise TimeoutError("no receipt arrived for a minute")
        if message.error() is None:
            receipts.append(message.value())
    consumer.close()
    if len(set(receipts)) != len(receipts):
        raise AssertionError("an order has two receipts")
    return len(receipts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    options = parser.parse_args()
    write_orders(options.bootstrap)
    write_receipts(options.bootstrap)
    print(f"{count_receipts(options.bootstrap)} orders have one receipt each")


if __name__ == "__main__":
    main()
