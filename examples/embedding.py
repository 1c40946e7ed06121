"""Run a whole Braidlog inside this program, and use it with aiokafka.

    python examples/embedding.py

Nothing else has to run. Everything is in memory, and gone when the program ends: what a test wants.
"""

import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

import braidlog

SETTINGS = {
    "store_url": "memory://",
    "metadata_url": "sqlite://",  # in memory, too
    "listen": "127.0.0.1:0",  # any free port
    "metrics_listen": "off",
}


async def main() -> None:
    async with braidlog.serve(**SETTINGS) as log:
        address = str(log.kafka)
        async with AIOKafkaProducer(bootstrap_servers=address) as producer:
            for number in range(10):
                await producer.send_and_wait("greetings", b"hello %d" % number)
        async with AIOKafkaConsumer("greetings", bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
            values = [(await consumer.getone()).value for _ in range(10)]
    print(f"read {len(values)} records, the last of them {values[-1].decode()!r}")


if __name__ == "__main__":
    asyncio.run(main())
