"""What a cluster says of its topics: sizes, partitions, offsets, configs."""

from typing import TYPE_CHECKING, Any

from braidlog.clients.errors import CommandError
from braidlog.clients.kafka_call import call
from braidlog.clients.kafka_client import CALL_TIMEOUT_S, offset_bounds, result

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from braidlog.runtime.quantities import Address

DESCRIBE_LOG_DIRS, LOG_DIRS_VERSION = 35, 4


def topic_sizes(brokers: "list[Address]") -> dict[str, int]:
    """Sum the bytes of each topic. Every broker reports the partitions that it leads."""
    from braidlog.wire.calls import request_types

    request = request_types(DESCRIBE_LOG_DIRS, LOG_DIRS_VERSION).DescribeLogDirsRequest(topics=None)
    sizes: dict[str, int] = {}
    for broker in brokers:
        for folder in call(broker, DESCRIBE_LOG_DIRS, LOG_DIRS_VERSION, request).results:
            for topic in folder.topics:
                held = sum(partition.partition_size for partition in topic.partitions)
                sizes[topic.name] = sizes.get(topic.name, 0) + held
    return sizes


def partition_rows(client: "AdminClient", topic: str) -> list[dict[str, Any]]:
    """List a topic's partitions with their leaders and offsets."""
    from confluent_kafka import KafkaException, TopicPartition

    # A request by name would create a missing topic where auto creation is on.
    metadata = client.list_topics(timeout=CALL_TIMEOUT_S).topics.get(topic)
    if metadata is None:
        raise no_such_topic(topic)
    if metadata.error is not None:
        raise KafkaException(metadata.error)
    keys = [TopicPartition(topic, number) for number in sorted(metadata.partitions)]
    rows = []
    for key, (start, end) in zip(keys, offset_bounds(client, keys), strict=True):
        rows.append(
            {
                "partition": key.partition,
                "leader": metadata.partitions[key.partition].leader,
                "log_start_offset": start,
                "high_watermark": end,
                "records": end - start,
            }
        )
    return rows


def no_such_topic(topic: str) -> Exception:
    """Make the error for a topic that is not there."""
    return CommandError(
        f"there is no topic {topic!r}", help="`braid topic list` shows the topics; `braid topic create` makes one."
    )


def config_rows(client: "AdminClient", topic: str, all_configs: bool) -> list[dict[str, Any]]:
    """List a topic's configs with their source: those set for it, or all."""
    from confluent_kafka.admin import ConfigResource, ConfigSource

    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    entries = result(client.describe_configs([resource]), resource)
    return [
        {"config": name, "value": entry.value, "from": ConfigSource(entry.source).name.lower().replace("_", " ")}
        for name, entry in sorted(entries.items())
        if all_configs or entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    ]
