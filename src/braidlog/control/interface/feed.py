"""What the change feed carries: positions, events, and the state that they change."""

from typing import Protocol

import msgspec

from braidlog.control.interface.base import Message


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
    cache_address: str = ""
    """Where other agents of its zone read what it has in its cache; empty: they do not."""


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
    first_unstable_offset: int = -1
    """Of the oldest open transaction; -1: there is none, and everything up to the high watermark is decided."""
    aborted_end_offset: int = 0
    """Behind the newest marker of an aborted transaction: from here on there are no aborted records."""


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
    inline: bytes | None = None
    """The batch itself, where no object holds it: the marker that ends a transaction. `position` means nothing then."""


class StoredObject(Message, frozen=True, gc=False):
    number: int
    """Short internal number, never reused."""
    key: str
    size: int


class ObjectSequenced(Message, frozen=True, tag="object"):
    """An object was sequenced: its extents are readable from now on."""

    object: StoredObject
    extents: list[IndexedExtent]
    opened: list[tuple[int, int]] = msgspec.field(default_factory=list)
    """Partitions that now have an open transaction and had none, with the offset at which it begins."""


class AbortedRange(Message, frozen=True, gc=False):
    """The producer's batches in [first_offset, marker_offset) of the partition belong to an aborted transaction."""

    partition_id: int
    producer_id: int
    first_offset: int
    marker_offset: int


class TransactionsEnded(Message, frozen=True, tag="transactions-ended"):
    """Transactions were committed or aborted: their markers are readable from now on, in all partitions at once."""

    number: int
    """As an object's, in whose place it stands."""
    extents: list[IndexedExtent]
    unstable: list[tuple[int, int]]
    """Per partition with a marker, where its oldest open transaction now begins; -1: it has none left."""
    aborted: list[AbortedRange]


class TopicChanged(Message, frozen=True, tag="topic"):
    """A topic was created, got partitions or got other configs."""

    topic: TopicInfo


class TopicRemoved(Message, frozen=True, tag="topic-removed"):
    topic_id: bytes


class BoundsChanged(Message, frozen=True, tag="bounds"):
    """Records were removed from the front of a partition (retention, DeleteRecords)."""

    bounds: PartitionBounds


class ExtentsReplaced(Message, frozen=True, tag="extents-replaced"):
    """Extents below `end_offset` were merged or compacted. Who has read them from the index goes on for the grace
    period, in which their objects stay; whoever looks again finds better ones."""

    partition_id: int
    end_offset: int


class AgentChanged(Message, frozen=True, tag="agent"):
    agent: AgentInfo


class AgentRemoved(Message, frozen=True, tag="agent-removed"):
    node_id: int


class ClusterConfigChanged(Message, frozen=True, tag="cluster-config"):
    configs: dict[str, str]


class ClientQuota(Message, frozen=True):
    """What limits a user, a client, or every one of them that has no limit of its own."""

    entity: list[tuple[str, str | None]]
    """Kafka's entity types (user, client-id) with a name, or None for the default; ordered by type."""
    values: dict[str, float]


class ClientQuotasChanged(Message, frozen=True, tag="client-quotas"):
    """All that there are now."""

    quotas: list[ClientQuota]


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
    store_url: str = ""
    """Where the control plane keeps the objects, without credentials."""
    client_quotas: list[ClientQuota] = msgspec.field(default_factory=list)


class FeedRequest(Message, frozen=True):
    after: FeedPosition
    wait_ms: int


class FeedPage(Message, frozen=True):
    """Durable changes in (request.after, position]. With `reload` the reader has missed some: take a new snapshot."""

    position: FeedPosition
    events: list[FeedEvent]
    reload: bool = False


class FeedPlane(Protocol):
    async def snapshot(self, request: SnapshotRequest, *, timeout_s: float | None = None) -> Snapshot: ...
    async def read_feed(self, request: FeedRequest, *, timeout_s: float | None = None) -> FeedPage: ...
