"""A group member in a process of its own, to be killed: says on stdout what it is assigned, gives up and has read."""

import json
import signal
import sys
import time
from typing import Any

import confluent_kafka
from confluent_kafka import TopicPartition


def main() -> None:
    # Not a matter of course: what a shell starts in the background ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    settings: dict[str, Any] = json.loads(sys.argv[1])
    topic = sys.argv[2]

    def say(what: str, values: list[int]) -> None:
        # With the time, which is one for all processes: who reads this hears of several of them in any order.
        print(json.dumps([time.monotonic(), what, values]), flush=True)

    def told(what: str) -> Any:
        def tell(_consumer: object, partitions: list[TopicPartition]) -> None:
            say(what, [partition.partition for partition in partitions])

        return tell

    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([topic], on_assign=told("take"), on_revoke=told("give"), on_lost=told("give"))
    say("started", [])
    is_committed = True
    try:
        while True:
            messages = [each for each in consumer.consume(500, 0.05) if each.error() is None]
            if messages:
                # Said before it is committed: after a kill in between others read it again.
                say("read", [int(message.value()) for message in messages])
                is_committed = False
            if not is_committed:
                try:
                    consumer.commit(asynchronous=False)
                    is_committed = True
                except confluent_kafka.KafkaException as error:
                    # A rebalance came in between: what is still its own it commits later, the rest is read again.
                    is_committed = error.args[0].code() == confluent_kafka.KafkaError._NO_OFFSET
    except KeyboardInterrupt:
        consumer.close()
        say("left", [])


if __name__ == "__main__":
    main()
