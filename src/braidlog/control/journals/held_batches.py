"""Held batches: journaled, waiting for earlier batches of their producer.

They are durable, and bounded in number.
"""

from collections import Counter
from collections.abc import Iterable

import msgspec

from braidlog.control.interface import IndexedExtent, StoredObject
from braidlog.control.log.index import unreference
from braidlog.control.metadata.store import MetadataStore, Transaction

HeldKey = tuple[int, int]
"""Producer id and partition id."""
HeldName = tuple[int, int, int]
"""Producer epoch, first sequence number and record count: identifies a batch of a producer in a partition."""
Waiting = dict[HeldName, "HeldBatch"]
"""The held batches of one producer in one partition."""


class HeldBatch(msgspec.Struct, frozen=True, gc=False):
    object: StoredObject
    position: int
    length: int
    partition_id: int
    producer_id: int
    epoch: int
    first: int
    """Its first sequence number."""
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
    """All held batches, in memory. Change it only with the state lock held."""

    def __init__(self, batches_max: int) -> None:
        self._batches_max = batches_max
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
    def excess_count(self) -> int:
        """How many batches to give up because there are too many; 0: there are not.

        That is some more than necessary, so that not every commit has to look for the oldest.
        """
        excess = self.count - self._batches_max
        return excess + self._batches_max // 10 if excess > 0 else 0

    @property
    def oldest_ms(self) -> int:
        """Since when the oldest held batch waits, in milliseconds; -1: none is held."""
        return min((batch.held_ms for waiting in self.by_key.values() for batch in waiting.values()), default=-1)

    def oldest(self, count: int) -> list[HeldBatch]:
        """Return so many of the batches that have waited longest."""
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
    """Delete batches that have become extents.

    The extents hold the references to the objects now.
    """
    tx.executemany(
        "DELETE FROM held_batches WHERE object_number = ? AND position = ?",
        [(each.object.number, each.position) for each in batches],
    )


def drop_held(tx: Transaction, batches: Iterable[HeldBatch], now_ms: int) -> None:
    """Delete batches that will never be extents.

    They are duplicates, or their topic is deleted.
    """
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
