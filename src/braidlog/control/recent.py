"""What the newest objects changed: durable by object, and moved to where it is found by partition, many at a time.

Without this, every object would touch as many places of several tables as it has partitions.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import msgspec

from braidlog.control.interface import IndexedExtent, ObjectSequenced, StoredObject
from braidlog.control.metadata import MetadataStore, Row, Transaction
from braidlog.control.partitions import PartitionState
from braidlog.control.producer_partition import ProducerPartition
from braidlog.control.producers import (
    decode_batches,
    read_may_start_anywhere,
    read_producer_partition,
    write_producer_partitions,
)

_INSERT = (
    "INSERT INTO extents (partition_id, base_offset, end_offset, object_number, position, length,"
    " timestamp_ms_min, timestamp_ms_max, inline_bytes) VALUES "
)
_INSERT_ROW = "(?, ?, ?, ?, ?, ?, ?, ?, ?)"
_ROWS_PER_INSERT = 64
_INSERT_ONE = _INSERT + _INSERT_ROW
_INSERT_MANY = _INSERT + ", ".join([_INSERT_ROW] * _ROWS_PER_INSERT)
_SETTLED_PER_INCOMING = 2

EXTENTS_PER_STEP = 500
"""Of a move that need not be all at once. They take some milliseconds, in which nothing is sequenced."""

_decode = msgspec.msgpack.Decoder(list[IndexedExtent]).decode


@dataclass(slots=True, eq=False)
class _RecentObject:
    stored: StoredObject
    states: list[PartitionState]
    """Of the partitions that it has extents of."""
    producers: list[ProducerPartition]
    """That it has batches of."""
    others: Sequence[StoredObject]
    """Whose extents are among its own: they had waited."""


@dataclass(slots=True, eq=False)
class Settling:
    """Partitions whose recent extents move into the table, and producers whose state is written."""

    states: dict[int, PartitionState] = field(default_factory=dict)
    extent_rows: list[Row] = field(default_factory=list)
    partition_rows: list[Row] = field(default_factory=list)
    producers: dict[ProducerPartition, None] = field(default_factory=dict)
    done_number: int = 0
    """Objects up to here have nothing left that is not elsewhere."""

    def add(self, state: PartitionState) -> None:
        if state.recent and state.partition_id not in self.states:
            self.states[state.partition_id] = state
            self.extent_rows.extend(map(msgspec.structs.astuple, state.recent))
            next_offset = state.next_offset
            self.partition_rows.append((next_offset, state.size_bytes, next_offset, state.partition_id))

    def finish(self, recent: _RecentObject) -> None:
        """All extents of the object move, or have moved: its row can go, once its producers are written."""
        producers = self.producers
        number = recent.stored.number
        for producer in recent.producers:
            if 0 < producer.unsettled_from <= number:
                producers[producer] = None
        self.done_number = number

    def write(self, tx: Transaction) -> None:
        if self.partition_rows:
            _insert_extents(tx, self.extent_rows)
            _update_partitions(tx, self.partition_rows)
        write_producer_partitions(tx, self.producers)
        if self.done_number:
            tx.execute("DELETE FROM recent_objects WHERE number <= ?", (self.done_number,))


class RecentExtents:
    """Called by who holds the turn."""

    def __init__(self, metadata: MetadataStore, *, extents_max: int) -> None:
        """`extents_max` also limits the batches of idempotent producers."""
        self._metadata = metadata
        self._extents_max = extents_max
        self._objects: deque[_RecentObject] = deque()
        self._states: dict[int, PartitionState] = {}
        """Those that have recent extents, by partition id; also of topics deleted meanwhile."""
        self._count = 0
        self._batch_count = 0
        self.stored: dict[int, StoredObject] = {}
        """The objects of all recent extents, by number."""
        self._needed_until: dict[int, int] = {}
        """Objects that had extents waiting, and the newest object among whose extents some of theirs are."""

    async def recover(self) -> None:
        """At the start: settle what an earlier run left."""
        await self._metadata.transact(_recover)

    def add(
        self,
        event: ObjectSequenced,
        states: list[PartitionState],
        producers: list[ProducerPartition],
        others: Sequence[StoredObject] = (),
    ) -> None:
        """Take in an object whose extents are durable. `states` are their partitions, one by one.

        Some of the extents may be of `others`, which are older.
        """
        for extent, state in zip(event.extents, states, strict=True):
            if not state.recent:
                self._states[state.partition_id] = state
            state.recent.append(extent)
        number = event.object.number
        for producer in producers:
            if not producer.unsettled_from:
                producer.unsettled_from = number
        self.stored[number] = event.object
        for other in others:
            self.stored[other.number] = other
            self._needed_until[other.number] = number
        self._objects.append(_RecentObject(event.object, states, producers, others))
        self._count += len(states)
        self._batch_count += len(producers)

    def make_room(self, extent_count: int, batch_count: int) -> Settling:
        """What should settle along with so many new ones: the partitions with the oldest extents first.

        From half the limit on, twice as many go as come, so that no single commit has to wait for a great many. The
        last partition to settle may finish many objects at once: their producers are written over several commits.
        """
        settling = Settling()
        excess = self._count + extent_count - self._extents_max
        wanted = max(_SETTLED_PER_INCOMING * extent_count, excess) if excess > -(self._extents_max // 2) else 0
        batches_excess = self._batch_count + batch_count - self._extents_max
        producers_max = _SETTLED_PER_INCOMING * batch_count
        for recent in self._objects:
            number = recent.stored.number
            rows_count = len(settling.extent_rows)
            if len(settling.producers) > producers_max and rows_count >= excess and batches_excess <= 0:
                return settling
            for state in recent.states:
                if len(settling.extent_rows) >= wanted and batches_excess <= 0:
                    return settling
                if state.recent and state.recent[0].object_number <= number:
                    settling.add(state)
            settling.finish(recent)
            batches_excess -= len(recent.producers)
        return settling

    def settled(self, settling: Settling) -> None:
        """The move is durable."""
        for state in settling.states.values():
            state.recent = []
            del self._states[state.partition_id]
        for producer in settling.producers:
            producer.unsettled_from = 0
        self._count -= len(settling.extent_rows)
        while self._objects and self._objects[0].stored.number <= settling.done_number:
            recent = self._objects.popleft()
            self._batch_count -= len(recent.producers)
            number = recent.stored.number
            if self._needed_until:
                for stored in (recent.stored, *recent.others):
                    if self._needed_until.get(stored.number, 0) <= number:
                        self._needed_until.pop(stored.number, None)
                        self.stored.pop(stored.number, None)
            else:
                del self.stored[number]

    async def settle_in_turns(self, turn: asyncio.Lock, *, extents_per_step: int = EXTENTS_PER_STEP) -> None:
        """Move all that is recent now, and write what producers did, in steps that hold up nobody for long. Called by
        who does not hold the turn."""
        async with turn:
            newest = self._objects[-1].stored.number if self._objects else 0
        while True:
            async with turn:
                settling = self._oldest(newest, extents_per_step)
                if not settling.done_number:
                    return
                await self._write(settling)

    def _oldest(self, newest: int, extents_target: int) -> Settling:
        """The oldest objects, of those up to `newest`, that together make about so many rows."""
        settling = Settling()
        for recent in self._objects:
            rows_count = max(len(settling.extent_rows), len(settling.producers))
            if recent.stored.number > newest or rows_count >= extents_target:
                break
            for state in recent.states:
                settling.add(state)
            settling.finish(recent)
        return settling

    async def settle(self, partition_ids: Iterable[int] | None = None) -> None:
        """Move all recent extents of these partitions. None: of all, and write what producers did."""
        settling = Settling()
        for partition_id in self._states if partition_ids is None else partition_ids:
            state = self._states.get(partition_id)
            if state is not None:
                settling.add(state)
        if partition_ids is None:
            for recent in self._objects:
                settling.finish(recent)
        if settling.states or settling.done_number:
            await self._write(settling)

    async def _write(self, settling: Settling) -> None:
        await self._metadata.transact(settling.write)
        self.settled(settling)


def _insert_extents(tx: Transaction, rows: list[Row]) -> None:
    """Many rows to a statement: each step of a statement costs as much as some rows do, and a turn of Python's lock."""
    single_start = len(rows) - len(rows) % _ROWS_PER_INSERT
    for start in range(0, single_start, _ROWS_PER_INSERT):
        tx.execute(_INSERT_MANY, tuple(chain.from_iterable(rows[start : start + _ROWS_PER_INSERT])))
    tx.executemany(_INSERT_ONE, rows[single_start:])


def _update_partitions(tx: Transaction, rows: list[Row]) -> None:
    tx.executemany(
        "UPDATE partitions SET next_offset = ?, size_bytes = ?, settled_offset = ? WHERE partition_id = ?", rows
    )


def _recover(tx: Transaction) -> None:
    bounds: dict[int, list[int]] = {
        partition_id: [next_offset, size_bytes, settled_offset]
        for partition_id, next_offset, size_bytes, settled_offset in tx.query(
            "SELECT partition_id, next_offset, size_bytes, settled_offset FROM partitions"
        )
    }
    extent_rows: list[Row] = []
    changed: dict[int, list[int]] = {}
    producers: dict[tuple[int, int], ProducerPartition] = {}
    any_start: dict[int, bool] = {}
    for encoded, producer_batches in tx.query("SELECT extents, producer_batches FROM recent_objects ORDER BY number"):
        for extent in _decode(encoded):
            known = bounds[extent.partition_id]
            if extent.base_offset < known[2]:
                continue
            extent_rows.append(msgspec.structs.astuple(extent))
            changed[extent.partition_id] = known
            known[2] = extent.end_offset
            # An earlier release counted extents before they moved.
            if extent.base_offset >= known[0]:
                known[0] = extent.end_offset
                known[1] += extent.length
        for producer_id, partition_id, epoch, batch in decode_batches(producer_batches):
            state = producers.get((producer_id, partition_id))
            if state is None:
                state = read_producer_partition(tx, producer_id, partition_id)
                producers[producer_id, partition_id] = state
            if producer_id not in any_start:
                any_start[producer_id] = read_may_start_anywhere(tx, producer_id)
            state.replay(epoch, batch, any_start[producer_id])
    _insert_extents(tx, extent_rows)
    _update_partitions(tx, [(*known, partition_id) for partition_id, known in changed.items()])
    write_producer_partitions(tx, producers.values())
    tx.execute("DELETE FROM recent_objects")
