"""Consumer groups of the classic protocol, and committed offsets."""

from typing import Protocol

import msgspec

from braidlog.control.interface.base import Message
from braidlog.control.interface.catalog import Outcome


class JoinProtocol(Message, frozen=True):
    name: str
    metadata: bytes


class JoinGroup(Message, frozen=True):
    group_id: str
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: list[JoinProtocol]
    require_known_member_id: bool
    """JoinGroup 4 and later: a new member first gets its id with MEMBER_ID_REQUIRED, then joins with it."""
    reason: str = ""


class JoinMember(Message, frozen=True):
    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinAnswer(Message, frozen=True):
    error_code: int
    generation_id: int
    protocol_type: str | None
    protocol_name: str | None
    leader: str
    member_id: str
    members: list[JoinMember]
    """The members, for the leader only."""
    skip_assignment: bool = False


class SyncAssignment(Message, frozen=True):
    member_id: str
    assignment: bytes


class SyncGroup(Message, frozen=True):
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    assignments: list[SyncAssignment]


class SyncAnswer(Message, frozen=True):
    error_code: int
    protocol_type: str | None
    protocol_name: str | None
    assignment: bytes


class GroupHeartbeat(Message, frozen=True):
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None


class LeavingMember(Message, frozen=True):
    member_id: str
    group_instance_id: str | None
    reason: str = ""


class LeaveGroup(Message, frozen=True):
    group_id: str
    members: list[LeavingMember]


class LeaveAnswer(Message, frozen=True):
    error_code: int
    member_error_codes: list[int]


class OffsetToCommit(Message, frozen=True):
    topic_id: bytes
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


class CommitOffsets(Message, frozen=True):
    """Commit offsets for a group.

    A `generation_id` of -1 and an empty member id mean a consumer outside of any group (`assign()`) or an admin client.
    """

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    offsets: list[OffsetToCommit]
    knows_member_epochs: bool = True
    """True for OffsetCommit 9 and later. Earlier, `generation_id` cannot be meant as a member epoch."""


class CommitOffsetsAnswer(Message, frozen=True):
    """The error code of each offset, in order."""

    error_codes: list[int]


class FetchOffsets(Message, frozen=True):
    """Ask for committed offsets. `partitions` None asks for all of the group's."""

    group_id: str
    partitions: list[tuple[bytes, int]] | None
    require_stable: bool = False
    """Report an offset that an open transaction may replace as unstable, instead of its committed value."""
    member_id: str | None = None
    """OffsetFetch 9 and later: the member that asks, if the coordinator assigns its partitions."""
    member_epoch: int = -1


class CommittedOffset(Message, frozen=True):
    topic_id: bytes
    partition: int
    offset: int
    """-1: nothing was committed."""
    leader_epoch: int
    metadata: str
    error_code: int = 0


class FetchOffsetsAnswer(Message, frozen=True):
    error_code: int
    offsets: list[CommittedOffset]


class DeleteOffsets(Message, frozen=True):
    group_id: str
    partitions: list[tuple[bytes, int]]


class DeleteOffsetsAnswer(Message, frozen=True):
    error_code: int
    error_codes: list[int]


class ListGroups(Message, frozen=True):
    """Empty filters match everything."""

    states: list[str] = msgspec.field(default_factory=list)
    types: list[str] = msgspec.field(default_factory=list)


class GroupListing(Message, frozen=True):
    group_id: str
    protocol_type: str
    state: str
    """Kafka's names: Empty, PreparingRebalance, CompletingRebalance, Stable, Dead."""
    group_type: str = "classic"


class GroupListings(Message, frozen=True):
    groups: list[GroupListing]


class DescribeGroups(Message, frozen=True):
    group_ids: list[str]


class MemberDescription(Message, frozen=True):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupDescription(Message, frozen=True):
    error_code: int
    group_id: str
    state: str
    protocol_type: str
    protocol_name: str
    members: list[MemberDescription]


class GroupDescriptions(Message, frozen=True):
    groups: list[GroupDescription]


class DeleteGroups(Message, frozen=True):
    group_ids: list[str]


class GroupOutcomes(Message, frozen=True):
    """The error code of each group, in order."""

    error_codes: list[int]


class GroupPlane(Protocol):
    async def join_group(self, request: JoinGroup, *, timeout_s: float | None = None) -> JoinAnswer: ...
    async def sync_group(self, request: SyncGroup, *, timeout_s: float | None = None) -> SyncAnswer: ...
    async def heartbeat_group(self, request: GroupHeartbeat, *, timeout_s: float | None = None) -> Outcome: ...
    async def leave_group(self, request: LeaveGroup, *, timeout_s: float | None = None) -> LeaveAnswer: ...
    async def commit_offsets(
        self, request: CommitOffsets, *, timeout_s: float | None = None
    ) -> CommitOffsetsAnswer: ...
    async def fetch_offsets(self, request: FetchOffsets, *, timeout_s: float | None = None) -> FetchOffsetsAnswer: ...
    async def delete_offsets(
        self, request: DeleteOffsets, *, timeout_s: float | None = None
    ) -> DeleteOffsetsAnswer: ...
    async def list_groups(self, request: ListGroups, *, timeout_s: float | None = None) -> GroupListings: ...
    async def describe_groups(
        self, request: DescribeGroups, *, timeout_s: float | None = None
    ) -> GroupDescriptions: ...
    async def delete_groups(self, request: DeleteGroups, *, timeout_s: float | None = None) -> GroupOutcomes: ...
