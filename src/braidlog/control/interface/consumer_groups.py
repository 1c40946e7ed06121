"""Consumer groups whose partitions the coordinator assigns (KIP-848)."""

from typing import Protocol

import msgspec

from braidlog.control.interface.base import Message

TopicPartitions = list[tuple[bytes, list[int]]]
"""Topic ids with partition indexes."""


class ConsumerHeartbeat(Message, frozen=True):
    """A member's heartbeat: it joins, reports, asks and leaves.

    None means unchanged since the last one.
    """

    group_id: str
    member_id: str
    member_epoch: int
    """0 joins, -1 leaves, -2 leaves for a moment (static members only)."""
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int
    """-1: unchanged since the last heartbeat."""
    topic_names: list[str] | None
    topic_regex: str | None
    server_assignor: str | None
    owned: TopicPartitions | None
    client_id: str
    client_host: str
    member_id_required: bool = True
    """Whether the member must name itself: from version 1 on."""


class ConsumerHeartbeatAnswer(Message, frozen=True):
    error_code: int
    error_message: str = ""
    member_id: str = ""
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assigned: TopicPartitions | None = None
    """None: unchanged since the last answer."""


class DescribeConsumerGroups(Message, frozen=True):
    group_ids: list[str]


class ConsumerMemberDescription(Message, frozen=True):
    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    topic_names: list[str]
    topic_regex: str
    assigned: TopicPartitions
    target: TopicPartitions
    is_classic: bool


class ConsumerGroupDescription(Message, frozen=True):
    error_code: int
    group_id: str
    error_message: str = ""
    state: str = ""
    """Kafka's names: Empty, Assigning, Reconciling, Stable, Dead."""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: list[ConsumerMemberDescription] = msgspec.field(default_factory=list)


class ConsumerGroupDescriptions(Message, frozen=True):
    groups: list[ConsumerGroupDescription]


class ConsumerGroupPlane(Protocol):
    async def heartbeat_consumer(
        self, request: ConsumerHeartbeat, *, timeout_s: float | None = None
    ) -> ConsumerHeartbeatAnswer: ...
    async def describe_consumer_groups(
        self, request: DescribeConsumerGroups, *, timeout_s: float | None = None
    ) -> ConsumerGroupDescriptions: ...
