"""The newest extents: durable by object, and moved into the table of extents partition by partition, many at a time.

Without this, every object would touch as many places of the table as it has partitions.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from braidlog.control.interface import IndexedExtent, ObjectSequenced, StoredObject
from braidlog.control.metadata import MetadataStore, Row, Transaction
from braidlog.control.partitions import PartitionState

_INSERT = (
    "INSERT INTO extents (partition_id, base_offset, end_offset, object_number, position, length,"
    " timestamp_ms_min, timestamp_ms_max) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_SETTLED_PER_INCOMING = 2

_decode = msgspec.msgpack.Decoder(list[IndexedExtent]).decode


@dataclass(slots=True, eq=False)
class _RecentObject:
    stored: StoredObject
    states: list[PartitionState]
    """Of the partitions that it has extents of."""


@dataclass(slots=True, eq=False)
class Settling:
    """Partitions whose recent extents move into the table."""

    states: dict[int, PartitionState] = field(default_factory=dict)
    extent_rows: list[Row] = field(default_factory=list)
    settled_rows: list[Row] = field(default_factory=list)
    done_number: int = 0
    """Objects up to here have no recent extents left."""

    def add(self, state: PartitionState) -> None:
        if state.recent and state.partition_id not in self.states:
            self.states[state.partition_id] = state
            self.extent_rows.extend(map(msgspec.structs.astuple, state.recent))
            self.settled_rows.append((state.recent[-1].end_offset, state.partition_id))

    def write(self, tx: Transaction) -> None:
        if self.settled_rows:
            tx.executemany(_INSERT, self.extent_rows)
            tx.executemany("UPDATE partitions SET settled_offset = ? WHERE partition_id = ?", self.settled_rows)
        if self.done_number:
            tx.execute("DELETE FROM recent_objects WHERE number <= ?", (self.done_number,))


class RecentExtents:
    """Called by who holds the turn."""

    def __init__(self, metadata: MetadataStore, *, extents_max: int) -> None:
        self._metadata = metadata
        self._extents_max = extents_max
        self._objects: deque[_RecentObject] = deque()
        self._states: dict[int, PartitionState] = {}
        """Those that have recent extents, by partition id; also of topics deleted meanwhile."""
        self._count = 0
        self.stored: dict[int, StoredObject] = {}
        """The objects of all recent extents, by number."""

    async def recover(self) -> None:
        """At the start: settle what an earlier run left."""
        await self._metadata.transact(_recover)

    def add(self, event: ObjectSequenced, states: Mapping[int, PartitionState]) -> None:
        """Take in an object whose extents are durable."""
        touched: list[PartitionState] = []
        for extent in event.extents:
            state = states[extent.partition_id]
            if not state.recent:
                self._states[extent.partition_id] = state
            state.recent.append(extent)
            touched.append(state)
        self.stored[event.object.number] = event.object
        self._objects.append(_RecentObject(event.object, touched))
        self._count += len(event.extents)

    def make_room(self, extent_count: int) -> Settling:
        """What should settle along with so many new ones: the partitions with the oldest extents first.

        From half the limit on, twice as many go as come, so that no single commit has to wait for a great many.
        """
        settling = Settling()
        if self._count + extent_count <= self._extents_max // 2:
            return settling
        wanted = max(_SETTLED_PER_INCOMING * extent_count, self._count + extent_count - self._extents_max)
        for recent in self._objects:
            for state in recent.states:
                if len(settling.extent_rows) >= wanted:
                    return settling
                if state.recent and state.recent[0].object_number <= recent.stored.number:
                    settling.add(state)
            settling.done_number = recent.stored.number
        return settling

    def settled(self, settling: Settling) -> None:
        """The move is durable."""
        for state in settling.states.values():
            state.recent = []
            del self._states[state.partition_id]
        self._count -= len(settling.extent_rows)
        while self._objects and self._objects[0].stored.number <= settling.done_number:
            del self.stored[self._objects.popleft().stored.number]

    async def settle(self, partition_ids: Iterable[int] | None = None) -> None:
        """Move all recent extents of these partitions (None: of all)."""
        settling = Settling()
        for partition_id in self._states if partition_ids is None else partition_ids:
            state = self._states.get(partition_id)
            if state is not None:
                settling.add(state)
        if not settling.states:
            return
        if partition_ids is None:
            settling.done_number = self._objects[-1].stored.number
        await self._metadata.transact(settling.write)
        self.settled(settling)


def _recover(tx: Transaction) -> None:
    settled: dict[int, int] = dict(tx.query("SELECT partition_id, settled_offset FROM partitions"))
    rows: list[Row] = []
    ends: dict[int, int] = {}
    for (encoded,) in tx.query("SELECT extents FROM recent_objects ORDER BY number"):
        for extent in _decode(encoded):
            if extent.base_offset >= settled[extent.partition_id]:
                rows.append(msgspec.structs.astuple(extent))
                ends[extent.partition_id] = extent.end_offset
    tx.executemany(_INSERT, rows)
    tx.executemany(
        "UPDATE partitions SET settled_offset = ? WHERE partition_id = ?",
        [(end_offset, partition_id) for partition_id, end_offset in ends.items()],
    )
    tx.execute("DELETE FROM recent_objects")
