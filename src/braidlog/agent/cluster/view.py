"""An agent's view of the cluster.

It has the catalog, the agents, each partition's bounds and the tail of its index.

It is pure state. `follower` updates it from the control plane's change feed.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from braidlog.agent.connections.quotas import QuotaBook
from braidlog.configs.names import INTERNAL_TOPICS
from braidlog.configs.topic import TopicSettings, effective_settings
from braidlog.control.interface import (
    AbortedRange,
    AclsChanged,
    AgentChanged,
    AgentInfo,
    AgentRemoved,
    BoundsChanged,
    ClientQuotasChanged,
    ClusterConfigChanged,
    CredentialsChanged,
    ExtentsReplaced,
    FeedEvent,
    FeedPosition,
    IndexedExtent,
    ObjectSequenced,
    PartitionBounds,
    ScramCredential,
    Snapshot,
    StoredObject,
    TopicChanged,
    TopicInfo,
    TopicRemoved,
    TransactionsEnded,
)
from braidlog.records.codec import CODEC_NAMES
from braidlog.records.leader_epochs import FIRST_EPOCH, LeaderEpochs, current_epoch
from braidlog.records.preparation import LogRules
from braidlog.runtime.waiters import Waiters
from braidlog.security.decisions import AclBook

ABORTED_MAX = 64
"""Aborted transactions kept per partition. For older ones the agent asks the control plane."""
TAIL_EXTENTS_MAX = 64
"""Extents kept per partition. For older ones, which only a lagging consumer needs, the agent asks the control plane."""


def _end_offset(pair: tuple[IndexedExtent, StoredObject]) -> int:
    return pair[0].end_offset


@dataclass(slots=True)
class PartitionView:
    partition_id: int
    topic_id: bytes
    index: int
    log_start_offset: int = 0
    high_watermark: int = 0
    size_bytes: int = 0
    tail: deque[tuple[IndexedExtent, StoredObject]] = field(default_factory=lambda: deque(maxlen=TAIL_EXTENTS_MAX))
    """The newest extents, without gaps. The last one ends at the high watermark."""
    waiters: Waiters = field(default_factory=Waiters)
    """Fetches that wait for this partition to change."""
    first_unstable_offset: int = -1
    """The offset at which the oldest open transaction begins; -1 if there is none."""
    aborted: deque[AbortedRange] = field(default_factory=deque)
    """The newest aborted transactions, in the order of their markers."""
    aborted_known_from: int = 0
    """All aborted transactions with a marker at or after this offset are in `aborted`."""
    leader_epochs: LeaderEpochs = FIRST_EPOCH

    @property
    def leader_epoch(self) -> int:
        return current_epoch(self.leader_epochs)

    @property
    def last_stable_offset(self) -> int:
        """The offset below which every transaction is decided."""
        return self.high_watermark if self.first_unstable_offset < 0 else self.first_unstable_offset

    def aborted_within(self, start_offset: int, end_offset: int) -> list[tuple[int, int]] | None:
        """The producer and first offset of each aborted transaction in the range.

        Returns None if transactions that are older than those kept here may have some.
        """
        if start_offset < self.aborted_known_from:
            return None
        return [
            (each.producer_id, each.first_offset)
            for each in self.aborted
            if each.marker_offset >= start_offset and each.first_offset < end_offset
        ]

    def tail_from(self, offset: int, bytes_max: int) -> list[tuple[IndexedExtent, StoredObject]] | None:
        """The extents from the one that holds `offset` on.

        They have at least `bytes_max` after the first extent, if there are that many. Returns None if the tail does not
        reach back to the offset.
        """
        tail = self.tail
        if not tail or tail[0][0].base_offset > offset:
            return None
        first = bisect_right(tail, offset, key=_end_offset)
        found: list[tuple[IndexedExtent, StoredObject]] = []
        behind_bytes = 0
        for pair in islice(tail, first, None):
            if behind_bytes >= bytes_max:
                break
            if found:
                behind_bytes += pair[0].length
            found.append(pair)
        return found


class Place(NamedTuple):
    """The agents that clients are told about for a partition, in Kafka's words."""

    leader: int
    """-1 if there is no agent."""
    replicas: tuple[int, ...]
    live: tuple[int, ...]
    offline: tuple[int, ...] = ()


@dataclass(slots=True)
class TopicView:
    info: TopicInfo
    settings: TopicSettings
    partitions: list[PartitionView]
    places: dict[str, tuple[int, list[Place]]] = field(default_factory=dict)
    """For `placement`: by zone, the `agents_revision` and the place of each partition in it."""
    rules: LogRules = field(init=False)
    takes_batches_as_sent: bool = field(init=False)
    """Whether batches are stored exactly as producers sent them, as nearly all are. Kept because Produce asks often."""
    is_internal: bool = field(init=False)
    """Whether this is one of Kafka's own topics, which clients cannot write to."""

    def __post_init__(self) -> None:
        settings = self.settings
        codec_name = settings.compression_type
        self.rules = LogRules(
            settings.max_message_bytes,
            None if codec_name == "producer" else CODEC_NAMES[codec_name.replace("uncompressed", "none")],
            settings.compression_level,
            settings.compacted,
        )
        self.is_internal = self.info.name in INTERNAL_TOPICS
        self.takes_batches_as_sent = (
            settings.compression_type == "producer"
            and not settings.log_append_time
            and not settings.compacted
            and not self.is_internal
        )


class ClusterView:
    """Loaded from a snapshot, then changed by the events of the feed."""

    def __init__(self) -> None:
        self.position = FeedPosition(-1, -1)
        self.changes = 0
        """Grows with every change of the view. As long as it stays the same, so does everything else here."""
        self.catalog_changes = 0
        """Grows with changes of topics, agents, configs and quotas only."""
        self.cluster_id = ""
        self.cluster_configs: dict[str, str] = {}
        self.agents: dict[int, AgentInfo] = {}
        self.agents_revision = 0
        """Grows whenever `agents` change."""
        self.topics_by_name: dict[str, TopicView] = {}
        self.topics_by_id: dict[bytes, TopicView] = {}
        self.partitions: dict[int, PartitionView] = {}
        self.quotas = QuotaBook()
        self.acls = AclBook()
        self.credentials: dict[tuple[str, int], ScramCredential] = {}
        """Credentials by user and mechanism."""
        self._changed = Waiters()

    @property
    def controller_id(self) -> int:
        """The agent that clients are told to send administrative requests to.

        Any agent would do.
        """
        return min(self.agents, default=-1)

    def load(self, snapshot: Snapshot) -> None:
        self.changes += 1
        self.cluster_id = snapshot.cluster_id
        self.cluster_configs = dict(snapshot.cluster_configs)
        self.quotas.load(snapshot.client_quotas)
        if snapshot.acls is not None:
            self.acls.load(snapshot.acls)
        self.credentials = {(each.user, each.mechanism): each for each in snapshot.credentials}
        self._set_agents(snapshot.agents)
        stale = self.partitions
        self.topics_by_name, self.topics_by_id, self.partitions = {}, {}, {}
        for topic in snapshot.topics:
            self._put_topic(topic)
        self._load_bounds(snapshot.bounds)
        self.position = snapshot.position
        for partition in stale.values():
            partition.waiters.wake_all()
        self._wake_changed()

    def _load_bounds(self, bounds: Iterable[PartitionBounds]) -> None:
        for bound in bounds:
            if (partition := self.partitions.get(bound.partition_id)) is not None:
                partition.log_start_offset = bound.log_start_offset
                partition.high_watermark = bound.high_watermark
                partition.size_bytes = bound.size_bytes
                partition.first_unstable_offset = bound.first_unstable_offset
                partition.aborted_known_from = bound.aborted_end_offset
                partition.leader_epochs = bound.leader_epochs

    def apply(self, events: Iterable[FeedEvent], position: FeedPosition) -> None:
        catalog_changed = False
        for event in events:
            self.changes += 1
            match event:
                case ObjectSequenced(stored, extents):
                    self._append(stored, extents)
                    if event.opened:
                        self._set_unstable(event.opened)
                case TransactionsEnded(number, extents, unstable, aborted):
                    self._append(StoredObject(number, "", 0), extents)
                    self._set_unstable(unstable)
                    self._add_aborted(aborted)
                case BoundsChanged(bounds):
                    self._change_bounds(bounds)
                case ExtentsReplaced(partition_id, end_offset):
                    self._forget_replaced(partition_id, end_offset)
                case TopicChanged(topic):
                    self._put_topic(topic)
                    catalog_changed = True
                case TopicRemoved(topic_id):
                    self._remove_topic(topic_id)
                    catalog_changed = True
                case AgentChanged(agent):
                    self._set_agents([*self.agents.values(), agent])
                    catalog_changed = True
                case AgentRemoved(node_id):
                    self._set_agents(info for info in self.agents.values() if info.node_id != node_id)
                    catalog_changed = True
                case ClientQuotasChanged(quotas):
                    self.quotas.load(quotas)
                    catalog_changed = True
                case AclsChanged(added, removed):
                    self.acls.change(added, removed)
                    self.wake_fetches()  # some may wait for records that their client may read no more
                    catalog_changed = True
                case CredentialsChanged(gone, changed):
                    self._change_credentials(gone, changed)
                    catalog_changed = True
                case ClusterConfigChanged(configs):
                    self.cluster_configs = dict(configs)
                    for topic_view in list(self.topics_by_id.values()):
                        self._put_topic(topic_view.info)
                    catalog_changed = True
        self.position = position
        if catalog_changed:
            self._wake_changed()

    def replace_agents(self, agents: Iterable[AgentInfo]) -> None:
        """Take the list of agents from another source than the control plane.

        The control plane has the last word: the follower will be told to load everything again.
        """
        self.changes += 1
        self._set_agents(agents)
        self.doubt()
        self._wake_changed()

    def _set_agents(self, agents: Iterable[AgentInfo]) -> None:
        self.agents = {agent.node_id: agent for agent in agents}
        self.agents_revision += 1

    def doubt(self) -> None:
        """Treat the view as unreliable.

        From the position set here, the feed only tells the follower to reload.
        """
        self.position = FeedPosition(-1, -1)

    def _append(self, stored: StoredObject, extents: list[IndexedExtent]) -> None:
        for extent in extents:
            partition = self.partitions.get(extent.partition_id)
            if partition is None:
                continue
            if extent.base_offset != partition.high_watermark:
                partition.tail.clear()
            partition.tail.append((extent, stored))
            partition.high_watermark = extent.end_offset
            partition.size_bytes += extent.length
            if partition.waiters:
                partition.waiters.wake_all()

    def _set_unstable(self, offsets: list[tuple[int, int]]) -> None:
        for partition_id, offset in offsets:
            if (partition := self.partitions.get(partition_id)) is not None:
                partition.first_unstable_offset = offset

    def _add_aborted(self, aborted: list[AbortedRange]) -> None:
        for each in aborted:
            if (partition := self.partitions.get(each.partition_id)) is not None:
                partition.aborted.append(each)
                if len(partition.aborted) > ABORTED_MAX:
                    partition.aborted_known_from = partition.aborted.popleft().marker_offset + 1

    def _change_bounds(self, bounds: PartitionBounds) -> None:
        partition = self.partitions.get(bounds.partition_id)
        if partition is None:
            return
        partition.log_start_offset = bounds.log_start_offset
        partition.size_bytes = bounds.size_bytes
        partition.first_unstable_offset = bounds.first_unstable_offset
        if bounds.high_watermark != partition.high_watermark:
            partition.high_watermark = bounds.high_watermark
            partition.tail.clear()
        partition.waiters.wake_all()

    def _forget_replaced(self, partition_id: int, end_offset: int) -> None:
        """Drop replaced extents from the tail. The control plane knows the new ones."""
        partition = self.partitions.get(partition_id)
        while partition is not None and partition.tail and partition.tail[0][0].base_offset < end_offset:
            partition.tail.popleft()

    def _put_topic(self, topic: TopicInfo) -> None:
        known = self.topics_by_id.get(topic.topic_id)
        partitions = known.partitions if known is not None else []
        for index in range(len(partitions), len(topic.partition_ids)):
            partition = PartitionView(topic.partition_ids[index], topic.topic_id, index)
            partition.leader_epochs = ((topic.leader_epoch, 0),)
            partitions.append(partition)
            self.partitions[partition.partition_id] = partition
        view = TopicView(topic, effective_settings(topic.configs, self.cluster_configs), partitions)
        self.topics_by_id[topic.topic_id] = view
        self.topics_by_name[topic.name] = view

    def _remove_topic(self, topic_id: bytes) -> None:
        topic = self.topics_by_id.pop(topic_id, None)
        if topic is None:
            return
        if self.topics_by_name.get(topic.info.name) is topic:
            del self.topics_by_name[topic.info.name]
        for partition in topic.partitions:
            del self.partitions[partition.partition_id]
            partition.waiters.wake_all()

    def _change_credentials(self, gone: list[tuple[str, int]], changed: list[ScramCredential]) -> None:
        for key in gone:
            self.credentials.pop(key, None)
        self.credentials |= {(each.user, each.mechanism): each for each in changed}

    def is_journaled(self, topic_id: bytes) -> bool:
        """Whether writes to a topic go to the journal.

        They are acknowledged when they are stored, and sequenced after that.
        """
        topic = self.topics_by_id.get(topic_id)
        return topic is not None and topic.settings.is_lightning

    def topic_name(self, topic_id: bytes) -> str:
        """The name of a topic, or its id in hexadecimal where it is not known."""
        topic = self.topics_by_id.get(topic_id)
        return topic.info.name if topic is not None else topic_id.hex()

    def wake_fetches(self) -> None:
        """Let every fetch that waits for records go on."""
        for partition in self.partitions.values():
            partition.waiters.wake_all()

    def partition(self, topic_name: str, index: int) -> PartitionView | None:
        topic = self.topics_by_name.get(topic_name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    async def wait_catalog_change(self) -> None:
        """Return after the next change of topics, agents or configs."""
        await self._changed.wait()

    def _wake_changed(self) -> None:
        self.catalog_changes += 1
        self._changed.wake_all()
