"""The change feed: positions, events, and the state that they change."""

from typing import Protocol

import msgspec

from braidlog.control.interface.base import Message
from braidlog.records.leader_epochs import FIRST_EPOCH
from braidlog.security.acls import Acl


class FeedPosition(Message, frozen=True, gc=False):
    """A position in the change feed.

    A new fencing epoch restarts the revisions: readers then reload the snapshot.
    """

    fencing_epoch: int
    revision: int


class AgentInfo(Message, frozen=True):
    node_id: int
    incarnation: str
    host: str
    """The host and port that clients connect to."""
    port: int
    zone: str
    """The zone, which clients match with their `client.rack`."""
    cache_address: str = ""
    """Where other agents of its zone read its cache; empty: they do not."""
    listeners: dict[str, tuple[str, int]] = msgspec.field(default_factory=dict)
    """The host and port of each listener, by name. `host` and `port` are those of the first."""

    def address_for(self, listener: str) -> tuple[str, int]:
        """The host and port for clients of a listener."""
        return self.listeners.get(listener) or (self.host, self.port)


class TopicInfo(Message, frozen=True):
    topic_id: bytes
    name: str
    partition_ids: list[int]
    """The internal number of each partition, by partition index. Never reused, so a recreated topic cannot be
    confused."""
    configs: dict[str, str]
    """Only the configs that were set on the topic. `configs.topic` applies the defaults."""
    replication_factor: int
    """The number its creator asked for. The store provides durability; this is kept because clients ask for it."""
    created_ms: int
    assignments: dict[int, list[int]] = msgspec.field(default_factory=dict)
    """Replicas that were assigned by hand, by partition index. Any agent serves any partition all the same."""
    leader_epoch: int = 0
    """The cluster's leader epoch, in which new partitions begin."""


class PartitionBounds(Message, frozen=True, gc=False):
    """Offsets [log_start_offset, high_watermark) of a partition can be read."""

    partition_id: int
    log_start_offset: int
    high_watermark: int
    size_bytes: int
    first_unstable_offset: int = -1
    """The first offset of the oldest open transaction; -1: there is none, and all up to the high watermark is
    stable."""
    aborted_end_offset: int = 0
    """The offset after the newest marker of an aborted transaction: no aborted records follow."""
    leader_epochs: tuple[tuple[int, int], ...] = FIRST_EPOCH
    """Each leader epoch, and the offset at which it starts."""


class IndexedExtent(Message, frozen=True, gc=False):
    """Where the offsets [base_offset, end_offset) of a partition lie."""

    partition_id: int
    base_offset: int
    end_offset: int
    object_number: int
    position: int
    length: int
    timestamp_ms_min: int
    timestamp_ms_max: int
    inline: bytes | None = None
    """The batch itself, if it is in no object: the marker that ends a transaction. `position` then means nothing."""


class StoredObject(Message, frozen=True, gc=False):
    number: int
    """The internal number of the object, never reused."""
    key: str
    size: int


class ObjectSequenced(Message, frozen=True, tag="object"):
    """An object was sequenced: its extents are readable from now on."""

    object: StoredObject
    extents: list[IndexedExtent]
    opened: list[tuple[int, int]] = msgspec.field(default_factory=list)
    """Partitions that now have an open transaction and had none, with its first offset."""


class AbortedRange(Message, frozen=True, gc=False):
    """Batches of a producer in a partition that belong to an aborted transaction.

    They are those in [first_offset, marker_offset).
    """

    partition_id: int
    producer_id: int
    first_offset: int
    marker_offset: int


class TransactionsEnded(Message, frozen=True, tag="transactions-ended"):
    """Transactions were committed or aborted.

    Their markers are readable from now on, in all partitions at once.
    """

    number: int
    """A number in the order of the objects."""
    extents: list[IndexedExtent]
    unstable: list[tuple[int, int]]
    """Partitions with a marker, and the first offset of their oldest open transaction; -1: there is none left."""
    aborted: list[AbortedRange]


class TopicChanged(Message, frozen=True, tag="topic"):
    """A topic was created, or its partitions or configs changed."""

    topic: TopicInfo


class TopicRemoved(Message, frozen=True, tag="topic-removed"):
    topic_id: bytes


class BoundsChanged(Message, frozen=True, tag="bounds"):
    """Records were removed from the front of a partition (retention, DeleteRecords)."""

    bounds: PartitionBounds


class ExtentsReplaced(Message, frozen=True, tag="extents-replaced"):
    """Extents below `end_offset` were merged or compacted.

    Readers of the old extents may go on for the grace period, in which their objects stay. The index has better ones.
    """

    partition_id: int
    end_offset: int


class AgentChanged(Message, frozen=True, tag="agent"):
    agent: AgentInfo


class AgentRemoved(Message, frozen=True, tag="agent-removed"):
    node_id: int


class ClusterConfigChanged(Message, frozen=True, tag="cluster-config"):
    configs: dict[str, str]


class ClientQuota(Message, frozen=True):
    """The limits of a user or a client, or the defaults for all others."""

    entity: list[tuple[str, str | None]]
    """Kafka's entity types (user, client-id), each with a name or None for the default; ordered by type."""
    values: dict[str, float]


class ClientQuotasChanged(Message, frozen=True, tag="client-quotas"):
    """The quotas have changed. These are all of them."""

    quotas: list[ClientQuota]


class AclsChanged(Message, frozen=True, tag="acls"):
    """ACLs were created or deleted."""

    added: list[Acl]
    removed: list[Acl]


class ScramCredential(Message, frozen=True):
    """What proves a user's password without being one (RFC 5802)."""

    user: str
    mechanism: int
    """Kafka's number: 1 for SCRAM-SHA-256, 2 for SCRAM-SHA-512."""
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return f"ScramCredential({self.user!r}, {self.mechanism}, …)"  # keys must not get into logs


class CredentialsChanged(Message, frozen=True, tag="credentials"):
    """Credentials were removed, by user and mechanism, then others set."""

    removed: list[tuple[str, int]]
    changed: list[ScramCredential]


FeedEvent = (
    ObjectSequenced
    | TransactionsEnded
    | TopicChanged
    | TopicRemoved
    | BoundsChanged
    | ExtentsReplaced
    | AgentChanged
    | AgentRemoved
    | ClusterConfigChanged
    | ClientQuotasChanged
    | AclsChanged
    | CredentialsChanged
)


class SnapshotRequest(Message, frozen=True):
    pass


class Snapshot(Message, frozen=True):
    """Everything that an agent must know to serve clients.

    From its position on, the agent follows the feed.
    """

    position: FeedPosition
    cluster_id: str
    topics: list[TopicInfo]
    bounds: list[PartitionBounds]
    agents: list[AgentInfo]
    cluster_configs: dict[str, str]
    store_url: str = ""
    """The URL of the object store, without credentials."""
    client_quotas: list[ClientQuota] = msgspec.field(default_factory=list)
    acls: list[Acl] | None = None
    """None if nobody knows them: then everything that an ACL could allow is denied."""
    credentials: list[ScramCredential] = msgspec.field(default_factory=list)


class FeedRequest(Message, frozen=True):
    after: FeedPosition
    wait_ms: int
    incarnation: str = ""
    """The agent that asks; empty: another reader, whose lag nobody watches."""


class FeedPage(Message, frozen=True):
    """The durable changes in (request.after, position].

    `reload`: the reader has missed some, and needs a new snapshot.
    """

    position: FeedPosition
    events: list[FeedEvent]
    reload: bool = False


class FeedPlane(Protocol):
    async def snapshot(self, request: SnapshotRequest, *, timeout_s: float | None = None) -> Snapshot: ...
    async def read_feed(self, request: FeedRequest, *, timeout_s: float | None = None) -> FeedPage: ...
