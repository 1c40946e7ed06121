"""The control plane's interface: the same types whether it is embedded or another process.

Every call takes one struct and returns one struct, so that RPC is a table and nothing else. A call either takes effect
as a whole, durably, before it returns, or raises. Error codes are Kafka's where an answer goes to a Kafka client.
"""

from typing import Protocol

import msgspec


class Message(msgspec.Struct, frozen=True, array_like=True):
    """Base of all requests, answers and events. Fields are only ever added at the end."""


# ── positions and what the change feed carries ────────────────────────────────────────────────────────────────────


class FeedPosition(Message, frozen=True, gc=False):
    """A place in the change feed. A new fencing epoch restarts the revisions: a reader then reloads the snapshot."""

    fencing_epoch: int
    revision: int


class AgentInfo(Message, frozen=True):
    node_id: int
    incarnation: str
    host: str
    """Where clients reach it."""
    port: int
    zone: str
    """Clients' `client.rack` is compared with it."""


class TopicInfo(Message, frozen=True):
    topic_id: bytes
    name: str
    partition_ids: list[int]
    """Internal number of each partition, by partition index. Never reused, so a recreated topic cannot be confused."""
    configs: dict[str, str]
    """Only what was set on the topic; defaults are applied by `control.topic_config`."""
    replication_factor: int
    """What its creator asked for. Durability is the store's; the number is kept because clients ask for it back."""
    created_ms: int


class PartitionBounds(Message, frozen=True, gc=False):
    """Offsets [log_start_offset, high_watermark) of a partition can be read."""

    partition_id: int
    log_start_offset: int
    high_watermark: int
    size_bytes: int


class IndexedExtent(Message, frozen=True, gc=False):
    """Where a run of offsets [base_offset, end_offset) of a partition lies."""

    partition_id: int
    base_offset: int
    end_offset: int
    object_number: int
    position: int
    length: int
    timestamp_ms_min: int
    timestamp_ms_max: int


class StoredObject(Message, frozen=True, gc=False):
    number: int
    """Short internal number, never reused."""
    key: str
    size: int


class ObjectSequenced(Message, frozen=True, tag="object"):
    """An object was sequenced: its extents are readable from now on."""

    object: StoredObject
    extents: list[IndexedExtent]


class TopicChanged(Message, frozen=True, tag="topic"):
    """A topic was created, got partitions or got other configs."""

    topic: TopicInfo


class TopicRemoved(Message, frozen=True, tag="topic-removed"):
    topic_id: bytes


class BoundsChanged(Message, frozen=True, tag="bounds"):
    """Records were removed from the front of a partition (retention, DeleteRecords)."""

    bounds: PartitionBounds


class AgentChanged(Message, frozen=True, tag="agent"):
    agent: AgentInfo


class AgentRemoved(Message, frozen=True, tag="agent-removed"):
    node_id: int


class ClusterConfigChanged(Message, frozen=True, tag="cluster-config"):
    configs: dict[str, str]


FeedEvent = (
    ObjectSequenced | TopicChanged | TopicRemoved | BoundsChanged | AgentChanged | AgentRemoved | ClusterConfigChanged
)


class SnapshotRequest(Message, frozen=True):
    pass


class Snapshot(Message, frozen=True):
    """Everything an agent must know to serve; from here on it follows the feed."""

    position: FeedPosition
    cluster_id: str
    topics: list[TopicInfo]
    bounds: list[PartitionBounds]
    agents: list[AgentInfo]
    cluster_configs: dict[str, str]


class FeedRequest(Message, frozen=True):
    after: FeedPosition
    wait_ms: int


class FeedPage(Message, frozen=True):
    """Durable changes in (request.after, position]. With `reload` the reader has missed some: take a new snapshot."""

    position: FeedPosition
    events: list[FeedEvent]
    reload: bool = False


# ── agents ────────────────────────────────────────────────────────────────────────────────────────────────────────


class RegisterAgent(Message, frozen=True):
    incarnation: str
    host: str
    port: int
    zone: str
    node_id: int = -1
    """-1: the node id that this address had last, or the next free one."""


class Registered(Message, frozen=True):
    node_id: int
    cluster_id: str
    write_epoch: int
    fencing_epoch: int
    heartbeat_interval_ms: int


class AgentHeartbeat(Message, frozen=True):
    incarnation: str


class HeartbeatAnswer(Message, frozen=True):
    known: bool
    """False: register again."""
    write_epoch: int
    """Objects that are named from now on carry this epoch."""
    fencing_epoch: int


class AgentLeave(Message, frozen=True):
    incarnation: str


class Done(Message, frozen=True):
    pass


# ── catalog ───────────────────────────────────────────────────────────────────────────────────────────────────────


class NewTopic(Message, frozen=True):
    name: str
    partition_count: int
    """-1: the cluster's `num.partitions`."""
    replication_factor: int = -1
    configs: dict[str, str] = {}


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


# ── sequencer and index ───────────────────────────────────────────────────────────────────────────────────────────


class CommitObject(Message, frozen=True):
    """Sequence an uploaded object. Idempotent by the nonce in its footer."""

    key: str
    size: int
    footer: bytes
    """The footer's msgpack bytes, as they stand in the object (no trailer)."""


class BatchVerdict(Message, frozen=True, gc=False):
    """What became of a batch: appended at `base_offset`, a duplicate of one already there, or refused."""

    error_code: int
    base_offset: int
    duplicate: bool = False


class ExtentVerdict(Message, frozen=True):
    log_start_offset: int
    verdicts: list[BatchVerdict]


class ObjectVerdict(Message, frozen=True):
    """By extent, in the footer's order. An `error_code` other than 0 refuses the object as a whole (a stale epoch)."""

    error_code: int
    extents: list[ExtentVerdict]
    error_message: str = ""


class FindExtents(Message, frozen=True):
    """The extents that hold `offset` and what follows, at least one, up to about `bytes_max`."""

    partition_id: int
    offset: int
    bytes_max: int
    extents_max: int = 1000


class FoundExtents(Message, frozen=True):
    bounds: PartitionBounds
    """Of the same moment as the extents."""
    extents: list[IndexedExtent]
    objects: list[StoredObject]
    known: bool = True
    """False: there is no such partition (any more)."""


class FindTimestamp(Message, frozen=True):
    """The first extent that may hold a record with this timestamp or a later one; with -1, the one with the highest."""

    partition_id: int
    timestamp_ms: int


class DeleteRecords(Message, frozen=True):
    partition_id: int
    before_offset: int
    """-1: the high watermark."""


class DeletedRecords(Message, frozen=True):
    error_code: int
    log_start_offset: int


class BoundsRequest(Message, frozen=True):
    """The bounds as they are now, not as the feed last told: what ListOffsets and external consistency need."""

    partition_ids: list[int]


class BoundsAnswer(Message, frozen=True):
    """In the order asked for; a partition that is gone is missing."""

    bounds: list[PartitionBounds]


# ── producers ─────────────────────────────────────────────────────────────────────────────────────────────────────


class InitProducerId(Message, frozen=True):
    transactional_id: str | None
    transaction_timeout_ms: int
    producer_id: int = -1
    producer_epoch: int = -1


class ProducerIdentity(Message, frozen=True):
    error_code: int
    producer_id: int
    producer_epoch: int


# ── consumer groups (the classic protocol) ────────────────────────────────────────────────────────────────────────


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
    """For the leader only."""
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
    """`generation_id` -1 and an empty member id: a consumer outside any group (`assign()`) or an admin client."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    offsets: list[OffsetToCommit]


class CommitOffsetsAnswer(Message, frozen=True):
    """One code per offset, in order."""

    error_codes: list[int]


class FetchOffsets(Message, frozen=True):
    """`partitions` None asks for all that the group has."""

    group_id: str
    partitions: list[tuple[bytes, int]] | None


class CommittedOffset(Message, frozen=True):
    topic_id: bytes
    partition: int
    offset: int
    """-1: nothing was committed."""
    leader_epoch: int
    metadata: str


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

    states: list[str] = []
    types: list[str] = []


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
    """One code per group, in order."""

    error_codes: list[int]


class ControlPlane(Protocol):
    """All calls. `timeout_s` is a deadline for the answer: `DeadlineExceeded` after it, `ControlUnavailable` where the
    call did not get there at all. Embedded, the deadline holds too."""

    # the change feed
    async def snapshot(self, request: SnapshotRequest, *, timeout_s: float | None = None) -> Snapshot: ...
    async def read_feed(self, request: FeedRequest, *, timeout_s: float | None = None) -> FeedPage: ...

    # agents
    async def register_agent(self, request: RegisterAgent, *, timeout_s: float | None = None) -> Registered: ...
    async def heartbeat_agent(self, request: AgentHeartbeat, *, timeout_s: float | None = None) -> HeartbeatAnswer: ...
    async def leave_agent(self, request: AgentLeave, *, timeout_s: float | None = None) -> Done: ...

    # catalog
    async def create_topics(self, request: CreateTopics, *, timeout_s: float | None = None) -> TopicOutcomes: ...
    async def delete_topics(self, request: DeleteTopics, *, timeout_s: float | None = None) -> TopicOutcomes: ...
    async def create_partitions(
        self, request: CreatePartitions, *, timeout_s: float | None = None
    ) -> TopicOutcomes: ...
    async def alter_configs(self, request: AlterConfigs, *, timeout_s: float | None = None) -> Outcome: ...

    # sequencer and index
    async def commit_object(self, request: CommitObject, *, timeout_s: float | None = None) -> ObjectVerdict: ...
    async def find_extents(self, request: FindExtents, *, timeout_s: float | None = None) -> FoundExtents: ...
    async def find_timestamp(self, request: FindTimestamp, *, timeout_s: float | None = None) -> FoundExtents: ...
    async def current_bounds(self, request: BoundsRequest, *, timeout_s: float | None = None) -> BoundsAnswer: ...
    async def delete_records(self, request: DeleteRecords, *, timeout_s: float | None = None) -> DeletedRecords: ...

    # producers
    async def init_producer_id(
        self, request: InitProducerId, *, timeout_s: float | None = None
    ) -> ProducerIdentity: ...

    # consumer groups
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

    async def close(self) -> None: ...
