"""A member of a group whose partitions the coordinator assigns (KIP-848)."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

import msgspec

from braidlog.control.groups.consumer.assignors import Partition
from braidlog.control.interface import JoinProtocol

Partitions = frozenset[Partition]
TopicPartitions = list[tuple[bytes, list[int]]]
"""Partition indexes by topic id, as in messages and saved members."""

STATIC_LEAVE_EPOCH = -2
"""The epoch of a static member that is away for a moment. Its partitions wait for it."""


class MemberState(IntEnum):
    """Persisted, keep stable."""

    STABLE = 0
    """It owns all that it should have at its epoch."""
    REVOKING = 1
    """It was told to give up partitions, and has not confirmed that yet."""
    WAITING = 2
    """Some of its partitions still belong to others."""


class SavedClassic(msgspec.Struct, frozen=True, array_like=True):
    """Persisted, keep stable: fields are only ever added at the end."""

    session_timeout_ms: int
    protocols: list[JoinProtocol]


class SavedConsumerMember(msgspec.Struct, frozen=True, array_like=True):
    """Persisted, keep stable: fields are only ever added at the end."""

    member_id: str
    joined_number: int
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    topic_names: list[str]
    topic_regex: str
    server_assignor: str | None
    member_epoch: int
    previous_epoch: int
    state: int
    assigned: TopicPartitions
    revoking: TopicPartitions
    target: TopicPartitions
    classic: SavedClassic | None


class SavedConsumerGroup(msgspec.Struct, frozen=True, array_like=True):
    """Persisted, keep stable: fields are only ever added at the end."""

    group_epoch: int
    assignment_epoch: int
    joined_count: int
    topics_digest: bytes
    """A digest of the subscribed topics and their partition counts, as of the last epoch that was raised for them."""


@dataclass(slots=True)
class ConsumerMember:
    member_id: str
    joined_number: int
    """Its place in the order of joining."""
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = 300_000
    topic_names: frozenset[str] = frozenset()
    topic_regex: str = ""
    server_assignor: str | None = None
    member_epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Partitions = frozenset()
    """The partitions that it may read."""
    revoking: Partitions = frozenset()
    """The partitions that it must give up, and may still be reading."""
    target: Partitions = frozenset()
    """Its part of the group's newest assignment."""
    classic: SavedClassic | None = None
    """Set if the member speaks the classic protocol, in a group that migrates from one protocol to the other."""
    session_deadline_s: float = field(default=0.0, compare=False)
    progress_deadline_s: float | None = field(default=None, compare=False)
    """The deadline for revoking partitions; with the classic protocol, for joining or syncing again."""

    @property
    def is_away(self) -> bool:
        return self.member_epoch == STATIC_LEAVE_EPOCH

    def saved(self) -> SavedConsumerMember:
        return SavedConsumerMember(
            self.member_id,
            self.joined_number,
            self.instance_id,
            self.rack_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            sorted(self.topic_names),
            self.topic_regex,
            self.server_assignor,
            self.member_epoch,
            self.previous_epoch,
            self.state,
            by_topic(self.assigned),
            by_topic(self.revoking),
            by_topic(self.target),
            self.classic,
        )


def member_from_saved(saved: SavedConsumerMember) -> ConsumerMember:
    return ConsumerMember(
        member_id=saved.member_id,
        joined_number=saved.joined_number,
        instance_id=saved.instance_id,
        rack_id=saved.rack_id,
        client_id=saved.client_id,
        client_host=saved.client_host,
        rebalance_timeout_ms=saved.rebalance_timeout_ms,
        topic_names=frozenset(saved.topic_names),
        topic_regex=saved.topic_regex,
        server_assignor=saved.server_assignor,
        member_epoch=saved.member_epoch,
        previous_epoch=saved.previous_epoch,
        state=MemberState(saved.state),
        assigned=flat(saved.assigned),
        revoking=flat(saved.revoking),
        target=flat(saved.target),
        classic=saved.classic,
    )


def by_topic(partitions: Iterable[Partition]) -> TopicPartitions:
    grouped: dict[bytes, list[int]] = {}
    for topic_id, index in sorted(partitions):
        grouped.setdefault(topic_id, []).append(index)
    return list(grouped.items())


def flat(partitions: Iterable[tuple[bytes, Iterable[int]]]) -> Partitions:
    return frozenset((topic_id, index) for topic_id, indexes in partitions for index in indexes)
