"""Journaled batches that wait for what their producer wrote before them: durable, and bounded in number."""

from collections import Counter
from collections.abc import Iterable

import msgspec

from braidlog.control.extent_index import unreference
from braidlog.control.interface import IndexedExtent, StoredObject
from braidlog.control.metadata import MetadataStore, Transaction

HeldKey = tuple[int, int]
"""Producer id and partition id."""
HeldName = tuple[int, int, int]
"""Epoch, base sequence and count: of a producer's batches in a partition, this one."""
Waiting = dict[HeldName, "HeldBatch"]
"""What of one producer waits in one partition."""


class HeldBatch(msgspec.Struct, frozen=True, gc=False):
    object: StoredObject
    position: int
    length: int
    partition_id: int
    producer_id: int
    epoch: int
    first: int
    """Its base sequence."""
    count: int
    timestamp_ms_min: int
    timestamp_ms_max: int
    held_ms: int

    @property
    def key(self) -> HeldKey:
        return self.producer_id, self.partition_id

    @property
    def name(self) -> HeldName:
        return self.epoch, self.first, self.count

    def extent(self, offset: int) -> IndexedExtent:
        return IndexedExtent(
            self.partition_id,
            offset,
            offset + self.count,
            self.object.number,
            self.position,
            self.length,
            self.timestamp_ms_min,
            self.timestamp_ms_max,
        )


class HeldBatches:
    """Called by who holds the turn."""

    def __init__(self) -> None:
        self.by_key: dict[HeldKey, Waiting] = {}
        self.count = 0

    async def load(self, metadata: MetadataStore) -> None:
        self.add(await metadata.read(_read_held))

    def add(self, batches: Iterable[HeldBatch]) -> None:
        for batch in batches:
            self.by_key.setdefault(batch.key, {})[batch.name] = batch
            self.count += 1

    def remove(self, batches: Iterable[HeldBatch]) -> None:
        for batch in batches:
            waiting = self.by_key[batch.key]
            del waiting[batch.name]
            if not waiting:
                del self.by_key[batch.key]
            self.count -= 1

    @property
    def oldest_ms(self) -> int:
        """Since when the one that waits longest does; -1: none waits."""
        return min((batch.held_ms for waiting in self.by_key.values() for batch in waiting.values()), default=-1)

    def oldest(self, count: int) -> list[HeldBatch]:
        """So many of those that have waited longest."""
        batches = [batch for waiting in self.by_key.values() for batch in waiting.values()]
        batches.sort(key=lambda batch: (batch.held_ms, batch.object.number, batch.position))
        return batches[:count]


def write_held(tx: Transaction, batches: list[HeldBatch]) -> None:
    tx.executemany(
        "INSERT INTO held_batches (object_number, position, length, partition_id, producer_id, producer_epoch,"
        " base_sequence, offset_count, timestamp_ms_min, timestamp_ms_max, held_ms)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [(each.object.number, *msgspec.structs.astuple(each)[1:]) for each in batches],
    )


def delete_held(tx: Transaction, batches: Iterable[HeldBatch]) -> None:
    """They have become extents, and count as those from now on."""
    tx.executemany(
        "DELETE FROM held_batches WHERE object_number = ? AND position = ?",
        [(each.object.number, each.position) for each in batches],
    )


def drop_held(tx: Transaction, batches: Iterable[HeldBatch], now_ms: int) -> None:
    """They will never be extents: they are duplicates, or their topic is no more."""
    batches = list(batches)
    delete_held(tx, batches)
    unreference(tx, Counter(each.object.number for each in batches), now_ms)


def _read_held(tx: Transaction) -> list[HeldBatch]:
    stored: dict[int, StoredObject] = {}
    found: list[HeldBatch] = []
    for number, key, size, *rest in tx.query(
        "SELECT h.object_number, o.object_key, o.size_bytes, h.position, h.length, h.partition_id, h.producer_id,"
        " h.producer_epoch, h.base_sequence, h.offset_count, h.timestamp_ms_min, h.timestamp_ms_max, h.held_ms"
        " FROM held_batches h JOIN objects o ON o.number = h.object_number ORDER BY h.object_number, h.position"
    ):
        if number not in stored:
            stored[number] = StoredObject(number, key, size)
        found.append(HeldBatch(stored[number], *rest))
    return found
