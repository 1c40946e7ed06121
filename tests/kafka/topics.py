"""Topics with names of their own, and what confluent-kafka's admin client is asked in many tests."""

from itertools import count
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

_numbers = count(1)


def unique_name(prefix: str) -> str:
    """A name that no other test of this run uses."""
    return f"{prefix}-{next(_numbers)}"


def create_topic(bootstrap: str, partitions: int = 1, **configs: object) -> str:
    name = unique_name("topic")
    settings = {setting.replace("_", "."): str(value) for setting, value in configs.items()}
    admin = admin_client(bootstrap)  # its answers come only while it is held
    admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(60)
    return name


def admin_client(bootstrap: str, **settings: Any) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "socket.timeout.ms": 60_000, **settings})


def error_name(error: BaseException) -> str:
    """The name of the Kafka error behind a confluent exception."""
    assert isinstance(error, confluent_kafka.KafkaException), error
    return str(error.args[0].name())
