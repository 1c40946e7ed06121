"""The newest extents: stored by object, then moved to the index.

Many are moved at a time, by partition.

Otherwise every object would write to as many places of several tables as it has partitions.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import msgspec

from braidlog.control.interface import IndexedExtent, ObjectSequenced, StoredObject
from braidlog.control.log.producer_partition import ProducerPartition
from braidlog.control.log.producers import (
    decode_batches,
    read_may_start_anywhere,
    read_producer_partition,
    write_producer_partitions,
)
from braidlog.control.metadata.store import MetadataStore, Row, Transaction
from braidlog.control.partitions import PartitionState

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
"""How many extents to move in one step. It takes some milliseconds, in which nothing is sequenced."""

_decode = msgspec.msgpack.Decoder(list[IndexedExtent]).decode


@dataclass(slots=True, eq=False)
class _RecentObject:
    stored: StoredObject
    states: list[PartitionState]
    """The partition of each of its extents."""
    producers: list[ProducerPartition]
    """The producer of each of its batches."""
    others: Sequence[StoredObject]
    """Older objects that some of its extents lie in: held batches that it has released."""


@dataclass(slots=True, eq=False)
class Settling:
    """A move of recent extents into the table, with the producer states to write."""

    states: dict[int, PartitionState] = field(default_factory=dict)
    extent_rows: list[Row] = field(default_factory=list)
    partition_rows: list[Row] = field(default_factory=list)
    producers: dict[ProducerPartition, None] = field(default_factory=dict)
    done_number: int = 0
    """Every object up to this number has settled completely."""

    def add(self, state: PartitionState) -> None:
        if state.recent and state.partition_id not in self.states:
            self.states[state.partition_id] = state
            self.extent_rows.extend(map(msgspec.structs.astuple, state.recent))
            next_offset = state.next_offset
            self.partition_rows.append((next_offset, state.size_bytes, next_offset, state.partition_id))

    def finish(self, recent: _RecentObject) -> None:
        """Note that all extents of an object settle.

        Its row can go once its producers are written.
        """
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
    """Keeps the recent extents.

    Call with the state lock held, except `settle_in_steps`.
    """

    def __init__(self, metadata: MetadataStore, *, extents_max: int) -> None:
        """`extents_max` limits the batches of idempotent producers, too."""
        self._metadata = metadata
        self._extents_max = extents_max
        self._objects: deque[_RecentObject] = deque()
        self._states: dict[int, PartitionState] = {}
        """The partitions with recent extents, by id, also of topics deleted meanwhile."""
        self._count = 0
        self._batch_count = 0
        self.stored: dict[int, StoredObject] = {}
        """The objects of all recent extents, by number."""
        self._needed_until: dict[int, int] = {}
        """Objects with held batches, and the newest object that released some of them."""

    async def recover(self) -> None:
        """Settle what an earlier run left. Call at the start."""
        await self._metadata.plan(_recover)

    def add(
        self,
        event: ObjectSequenced,
        states: list[PartitionState],
        producers: list[ProducerPartition],
        others: Sequence[StoredObject] = (),
    ) -> None:
        """Add an object whose extents are durable.

        `states` is the partition of each extent. Some extents may lie in `others`, which are older.
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
        """Choose what settles along with so many new extents.

        The partitions with the oldest extents come first. From half the limit on, twice as many settle as arrive, so
        that no single commit has to wait for a great many. The last partition to settle may complete many objects at
        once: their producers are written over several commits.
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
        """Apply a move that is durable."""
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

    async def settle_in_steps(self, state_lock: asyncio.Lock, *, extents_per_step: int = EXTENTS_PER_STEP) -> None:
        """Settle everything that is recent now, in steps that hold up nobody for long.

        Call without the state lock.
        """
        async with state_lock:
            newest = self._objects[-1].stored.number if self._objects else 0
        while True:
            async with state_lock:
                settling = self._oldest(newest, extents_per_step)
                if not settling.done_number:
                    return
                await self._write(settling)

    def _oldest(self, newest: int, extents_target: int) -> Settling:
        """Choose the oldest objects up to `newest` that together make about so many rows."""
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
        """Settle all recent extents of these partitions.

        None: of all, and write the producer states.
        """
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
        await self._metadata.plan(settling.write)
        self.settled(settling)


def _insert_extents(tx: Transaction, rows: list[Row]) -> None:
    """Insert many rows per statement.

    A statement costs as much as some rows, and a switch of Python's lock.
    """
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
            # An earlier release counted extents in `partitions` before they moved.
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
