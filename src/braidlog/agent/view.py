"""What an agent believes of the cluster: the catalog, the agents, each partition's bounds and the tail of its index.

It follows the control plane's change feed. Pure state: `follower` moves it forward.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from braidlog.control.interface import (
    AgentChanged,
    AgentInfo,
    AgentRemoved,
    BoundsChanged,
    ClusterConfigChanged,
    FeedEvent,
    FeedPosition,
    IndexedExtent,
    ObjectSequenced,
    PartitionBounds,
    Snapshot,
    StoredObject,
    TopicChanged,
    TopicInfo,
    TopicRemoved,
)
from braidlog.control.topic_config import TopicSettings, effective_settings

TAIL_EXTENTS_MAX = 64
"""Extents kept per partition. What is older is asked of the control plane, which a lagging consumer does anyway."""


@dataclass(slots=True)
class PartitionView:
    partition_id: int
    topic_id: bytes
    index: int
    log_start_offset: int = 0
    high_watermark: int = 0
    size_bytes: int = 0
    tail: deque[tuple[IndexedExtent, StoredObject]] = field(default_factory=lambda: deque(maxlen=TAIL_EXTENTS_MAX))
    """The newest extents, contiguous, the last one ending at the high watermark."""
    waiters: dict[asyncio.Future[None], None] = field(default_factory=dict)
    """Fetches that wait for this partition to change."""

    def wake(self) -> None:
        waiters, self.waiters = self.waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def tail_from(self, offset: int) -> list[tuple[IndexedExtent, StoredObject]] | None:
        """The extents from the one that holds `offset` on, or None where the tail does not reach back so far."""
        if not self.tail or self.tail[0][0].base_offset > offset:
            return None
        found: list[tuple[IndexedExtent, StoredObject]] = []
        for pair in reversed(self.tail):
            if pair[0].end_offset <= offset:
                break
            found.append(pair)
        found.reverse()
        return found


@dataclass(slots=True)
class TopicView:
    info: TopicInfo
    settings: TopicSettings
    partitions: list[PartitionView]
    takes_batches_as_sent: bool = field(init=False)
    """Whether batches are stored without a look inside: nearly always, and known here because Produce asks often."""

    def __post_init__(self) -> None:
        settings = self.settings
        self.takes_batches_as_sent = (
            settings.compression_type == "producer" and not settings.log_append_time and not settings.compacted
        )


class ClusterView:
    """Built from a snapshot, then moved along by feed events."""

    def __init__(self) -> None:
        self.position = FeedPosition(-1, -1)
        self.cluster_id = ""
        self.cluster_configs: dict[str, str] = {}
        self.agents: dict[int, AgentInfo] = {}
        self.topics_by_name: dict[str, TopicView] = {}
        self.topics_by_id: dict[bytes, TopicView] = {}
        self.partitions: dict[int, PartitionView] = {}
        self._changed: dict[asyncio.Future[None], None] = {}

    @property
    def controller_id(self) -> int:
        """The agent that clients should send administrative requests to. Any would do."""
        return min(self.agents, default=-1)

    def load(self, snapshot: Snapshot) -> None:
        self.cluster_id = snapshot.cluster_id
        self.cluster_configs = dict(snapshot.cluster_configs)
        self.agents = {agent.node_id: agent for agent in snapshot.agents}
        stale = self.partitions
        self.topics_by_name, self.topics_by_id, self.partitions = {}, {}, {}
        for topic in snapshot.topics:
            self._put_topic(topic)
        self._load_bounds(snapshot.bounds)
        self.position = snapshot.position
        for partition in stale.values():
            partition.wake()
        self._wake_changed()

    def _load_bounds(self, bounds: Iterable[PartitionBounds]) -> None:
        for bound in bounds:
            if (partition := self.partitions.get(bound.partition_id)) is not None:
                partition.log_start_offset = bound.log_start_offset
                partition.high_watermark = bound.high_watermark
                partition.size_bytes = bound.size_bytes

    def apply(self, events: Iterable[FeedEvent], position: FeedPosition) -> None:
        catalog_changed = False
        for event in events:
            match event:
                case ObjectSequenced(stored, extents):
                    self._append(stored, extents)
                case BoundsChanged(bounds):
                    self._change_bounds(bounds)
                case TopicChanged(topic):
                    self._put_topic(topic)
                    catalog_changed = True
                case TopicRemoved(topic_id):
                    self._remove_topic(topic_id)
                    catalog_changed = True
                case AgentChanged(agent):
                    self.agents[agent.node_id] = agent
                    catalog_changed = True
                case AgentRemoved(node_id):
                    self.agents.pop(node_id, None)
                    catalog_changed = True
                case ClusterConfigChanged(configs):
                    self.cluster_configs = dict(configs)
                    for topic_view in list(self.topics_by_id.values()):
                        self._put_topic(topic_view.info)
                    catalog_changed = True
        self.position = position
        if catalog_changed:
            self._wake_changed()

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
                partition.wake()

    def _change_bounds(self, bounds: PartitionBounds) -> None:
        partition = self.partitions.get(bounds.partition_id)
        if partition is None:
            return
        partition.log_start_offset = bounds.log_start_offset
        partition.size_bytes = bounds.size_bytes
        if bounds.high_watermark != partition.high_watermark:
            partition.high_watermark = bounds.high_watermark
            partition.tail.clear()
        partition.wake()

    def _put_topic(self, topic: TopicInfo) -> None:
        known = self.topics_by_id.get(topic.topic_id)
        partitions = known.partitions if known is not None else []
        for index in range(len(partitions), len(topic.partition_ids)):
            partition = PartitionView(topic.partition_ids[index], topic.topic_id, index)
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
            partition.wake()

    def partition(self, topic_name: str, index: int) -> PartitionView | None:
        topic = self.topics_by_name.get(topic_name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    async def wait_catalog_change(self) -> None:
        """Return after the next change of topics, agents or configs."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changed[waiter] = None
        try:
            await waiter
        finally:
            self._changed.pop(waiter, None)

    def _wake_changed(self) -> None:
        waiters, self._changed = self._changed, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
