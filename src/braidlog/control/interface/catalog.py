"""Topics, partitions and their settings."""

from typing import Protocol

import msgspec

from braidlog.control.interface.base import Message
from braidlog.control.interface.feed import TopicInfo


class NewTopic(Message, frozen=True):
    name: str
    partition_count: int
    """-1: the cluster's `num.partitions`."""
    replication_factor: int = -1
    configs: dict[str, str] = msgspec.field(default_factory=dict)


class CreateTopics(Message, frozen=True):
    topics: list[NewTopic]
    validate_only: bool = False


class TopicOutcome(Message, frozen=True):
    name: str
    error_code: int
    error_message: str = ""
    topic: TopicInfo | None = None


class TopicOutcomes(Message, frozen=True):
    outcomes: list[TopicOutcome]


class TopicRef(Message, frozen=True):
    """By name, or by id where the name is empty."""

    name: str
    topic_id: bytes = b""


class DeleteTopics(Message, frozen=True):
    topics: list[TopicRef]


class PartitionGrowth(Message, frozen=True):
    name: str
    partition_count: int
    """The new total."""


class CreatePartitions(Message, frozen=True):
    topics: list[PartitionGrowth]
    validate_only: bool = False


class ConfigChange(Message, frozen=True):
    """`value` None removes the setting (SET) or is not used (DELETE)."""

    name: str
    operation: int
    """Kafka's: 0 SET, 1 DELETE, 2 APPEND, 3 SUBTRACT."""
    value: str | None


class AlterConfigs(Message, frozen=True):
    """With `replace`, what is not named goes back to its default (Kafka's AlterConfigs)."""

    resource_type: int
    """Kafka's: 2 topic, 4 broker (the name is empty: the whole cluster)."""
    resource_name: str
    changes: list[ConfigChange]
    replace: bool = False
    validate_only: bool = False


class Outcome(Message, frozen=True):
    error_code: int
    error_message: str = ""


class CatalogPlane(Protocol):
    async def create_topics(self, request: CreateTopics, *, timeout_s: float | None = None) -> TopicOutcomes: ...
    async def delete_topics(self, request: DeleteTopics, *, timeout_s: float | None = None) -> TopicOutcomes: ...
    async def create_partitions(
        self, request: CreatePartitions, *, timeout_s: float | None = None
    ) -> TopicOutcomes: ...
    async def alter_configs(self, request: AlterConfigs, *, timeout_s: float | None = None) -> Outcome: ...
