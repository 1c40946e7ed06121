"""What an agent believes of the cluster: the catalog, the agents, each partition's bounds and the tail of its index.

It follows the control plane's change feed. Pure state: `follower` moves it forward.
"""

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from braidlog.agent.quotas import QuotaBook
from braidlog.control.interface import (
    AbortedRange,
    AgentChanged,
    AgentInfo,
    AgentRemoved,
    BoundsChanged,
    ClientQuotasChanged,
    ClusterConfigChanged,
    ExtentsReplaced,
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
    TransactionsEnded,
)
from braidlog.control.topic_config import TopicSettings, effective_settings

ABORTED_MAX = 64
"""Aborted transactions kept per partition. Of older ones the control plane is asked."""
TAIL_EXTENTS_MAX = 64
"""Extents kept per partition. What is older is asked of the control plane, which a lagging consumer does anyway."""


class Waiter(Protocol):
    """A future, or what can be woken like one."""

    def done(self) -> bool: ...

    def set_result(self, result: None, /) -> None: ...


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
    """The newest extents, contiguous, the last one ending at the high watermark."""
    waiters: "dict[Waiter, None]" = field(default_factory=dict)
    """Fetches that wait for this partition to change."""
    first_unstable_offset: int = -1
    """Where the oldest open transaction begins; -1: there is none."""
    aborted: deque[AbortedRange] = field(default_factory=deque)
    """The newest aborted transactions, in the order of their markers."""
    aborted_known_from: int = 0
    """All aborted transactions with a marker at or behind this offset are in `aborted`."""

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided."""
        return self.high_watermark if self.first_unstable_offset < 0 else self.first_unstable_offset

    def aborted_within(self, start_offset: int, end_offset: int) -> list[tuple[int, int]] | None:
        """Producer and first offset of aborted transactions with records in the range, or None where older ones than
        those at hand may have some."""
        if start_offset < self.aborted_known_from:
            return None
        return [
            (each.producer_id, each.first_offset)
            for each in self.aborted
            if each.marker_offset >= start_offset and each.first_offset < end_offset
        ]

    def wake(self) -> None:
        waiters, self.waiters = self.waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def tail_from(self, offset: int, bytes_max: int) -> list[tuple[IndexedExtent, StoredObject]] | None:
        """The extents from the one that holds `offset` on, with at least `bytes_max` behind the first of them if there
        are so many; or None where the tail does not reach back so far."""
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
        self.changes = 0
        """Grows with everything that is taken in: while it stays the same, so does all else here."""
        self.cluster_id = ""
        self.cluster_configs: dict[str, str] = {}
        self.agents: dict[int, AgentInfo] = {}
        self.topics_by_name: dict[str, TopicView] = {}
        self.topics_by_id: dict[bytes, TopicView] = {}
        self.partitions: dict[int, PartitionView] = {}
        self.quotas = QuotaBook()
        self._changed: dict[asyncio.Future[None], None] = {}

    @property
    def controller_id(self) -> int:
        """The agent that clients should send administrative requests to. Any would do."""
        return min(self.agents, default=-1)

    def load(self, snapshot: Snapshot) -> None:
        self.changes += 1
        self.cluster_id = snapshot.cluster_id
        self.cluster_configs = dict(snapshot.cluster_configs)
        self.quotas.load(snapshot.client_quotas)
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
                partition.first_unstable_offset = bound.first_unstable_offset
                partition.aborted_known_from = bound.aborted_end_offset

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
                    self.agents[agent.node_id] = agent
                    catalog_changed = True
                case AgentRemoved(node_id):
                    self.agents.pop(node_id, None)
                    catalog_changed = True
                case ClientQuotasChanged(quotas):
                    self.quotas.load(quotas)
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
        """What others than the control plane say of the agents. It has the last word: whoever goes on along its feed
        from here is told to load everything again."""
        self.changes += 1
        self.agents = {agent.node_id: agent for agent in agents}
        self.doubt()
        self._wake_changed()

    def doubt(self) -> None:
        """What is here may be half of the truth: at this position the feed sends nothing but the advice to reload."""
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
                partition.wake()

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
        partition.wake()

    def _forget_replaced(self, partition_id: int, end_offset: int) -> None:
        """What is left of the tail is whole; the rest is asked of the control plane, which knows the new extents."""
        partition = self.partitions.get(partition_id)
        while partition is not None and partition.tail and partition.tail[0][0].base_offset < end_offset:
            partition.tail.popleft()

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
