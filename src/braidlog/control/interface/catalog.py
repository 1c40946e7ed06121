"""Topics, partitions and configs."""

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
    assignments: list[list[int]] = msgspec.field(default_factory=list)
    """The replicas of each partition, if the creator names them. They are checked against the known agents."""


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
    """A topic by its name, or by its id if the name is empty."""

    name: str
    topic_id: bytes = b""


class DeleteTopics(Message, frozen=True):
    topics: list[TopicRef]


class PartitionGrowth(Message, frozen=True):
    name: str
    partition_count: int
    """The new total number of partitions."""
    assignments: list[list[int]] | None = None
    """The replicas of each new partition, as in `NewTopic`; None: not named."""


class CreatePartitions(Message, frozen=True):
    topics: list[PartitionGrowth]
    validate_only: bool = False


class ReplicaAssignment(Message, frozen=True):
    topic_id: bytes
    partition: int
    replicas: list[int]


class AssignReplicas(Message, frozen=True):
    """Report these replicas from now on. Nothing moves, because agents hold no data."""

    assignments: list[ReplicaAssignment]


class ConfigChange(Message, frozen=True):
    """`value` None removes the setting (SET) or is not used (DELETE)."""

    name: str
    operation: int
    """Kafka's: 0 SET, 1 DELETE, 2 APPEND, 3 SUBTRACT."""
    value: str | None


class AlterConfigs(Message, frozen=True):
    """Change configs.

    `replace` resets those that are not named to their defaults (Kafka's AlterConfigs).
    """

    resource_type: int
    """Kafka's: 2 topic, 4 broker (the name is empty: the whole cluster), 16 client metrics, 32 group."""
    resource_name: str
    changes: list[ConfigChange]
    replace: bool = False
    validate_only: bool = False


class DescribeConfigs(Message, frozen=True):
    """Ask for the configs of a group, of client metrics, or of the control plane.

    Their types are 32, 16 and 4.
    """

    resource_type: int
    resource_name: str = ""


class DescribedConfigs(Message, frozen=True):
    configs: dict[str, str]
    """The configs that were set."""
    defaults: dict[str, str] = msgspec.field(default_factory=dict)
    """The values of configs that were not set, if the control plane decides them."""


class ListConfigResources(Message, frozen=True):
    resource_type: int


class ConfigResources(Message, frozen=True):
    names: list[str]


class Outcome(Message, frozen=True):
    error_code: int
    error_message: str = ""


class CatalogPlane(Protocol):
    async def create_topics(self, request: CreateTopics, *, timeout_s: float | None = None) -> TopicOutcomes: ...
    async def delete_topics(self, request: DeleteTopics, *, timeout_s: float | None = None) -> TopicOutcomes: ...
    async def create_partitions(
        self, request: CreatePartitions, *, timeout_s: float | None = None
    ) -> TopicOutcomes: ...
    async def assign_replicas(self, request: AssignReplicas, *, timeout_s: float | None = None) -> Outcome: ...
    async def describe_configs(
        self, request: DescribeConfigs, *, timeout_s: float | None = None
    ) -> DescribedConfigs: ...
    async def list_config_resources(
        self, request: ListConfigResources, *, timeout_s: float | None = None
    ) -> ConfigResources: ...
    async def alter_configs(self, request: AlterConfigs, *, timeout_s: float | None = None) -> Outcome: ...
