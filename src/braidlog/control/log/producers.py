"""Idempotent producers: the state of each in every partition.

It is loaded when it is needed, and forgotten when it expires.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from kio.schema.errors import ErrorCode

from braidlog.control.foundation import Foundation
from braidlog.control.interface import (
    ActiveProducer,
    InitProducerId,
    PartitionProducers,
    ProducerDescriptions,
    ProducerIdentity,
)
from braidlog.control.log.producer_partition import (
    REMEMBERED,
    Departed,
    ProducerPartition,
    decode_gaps,
    encode_gaps,
    last_sequence_number,
    next_sequence_number,
)
from braidlog.control.metadata.counters import NumberBlocks
from braidlog.control.metadata.store import Row, Transaction
from braidlog.runtime.limits import PRODUCER_IDS_OF_AGENTS_FROM

PRODUCER_EPOCH_MAX = (1 << 15) - 1

_PRODUCER_ID_BLOCK = 1_000
_EXPIRED_PER_TRANSACTION = 500
_ACTIVITY_FRACTION = 24
"""Activity is written once it is older than this fraction of the expiration, and not with every batch."""
_UNCOUNTED_FRACTION = 8

_INVALID_EPOCH = int(ErrorCode.invalid_producer_epoch)

AppendedBatch = tuple[int, int, int, bytes]
"""Producer id, partition id, producer epoch, and the remembered batch. Persisted: keep it stable."""

PartitionName = tuple[str, int]
"""Topic name and partition index: all that a topic shares with a later one of the same name."""

_encode = msgspec.msgpack.Encoder().encode
_decode_earlier = msgspec.msgpack.Decoder(list[tuple[int, int, int]]).decode
_remember = REMEMBERED.pack
_decode_batches = msgspec.msgpack.Decoder(list[AppendedBatch]).decode


def may_start_anywhere(producer_id: int, adopted: bool) -> bool:
    return adopted and producer_id < PRODUCER_IDS_OF_AGENTS_FROM


@dataclass(slots=True, eq=False)
class Producer:
    producer_id: int
    epoch: int = -1
    """The highest epoch seen or handed out; -1: the producer is unknown."""
    adopted: bool = True
    """It was unknown when it first wrote, so its sequence numbers may start anywhere."""
    active_ms: int = 0
    """When it was last active, as stored in the metadata."""
    partitions: dict[int, ProducerPartition] = field(default_factory=dict)
    departed: dict[PartitionName, Departed] = field(default_factory=dict)
    """Its state in partitions of deleted topics."""

    @property
    def may_start_anywhere(self) -> bool:
        """Whether the first journaled batch of the producer may not be its first.

        It is the first if an agent gave out the id: nobody has written under that before.
        """
        return may_start_anywhere(self.producer_id, self.adopted)

    def partition(self, partition_id: int, name: PartitionName) -> ProducerPartition:
        state = self.partitions.get(partition_id)
        if state is None:
            state = self.partitions[partition_id] = ProducerPartition(self.producer_id, partition_id)
            state.heir_of = self.departed.get(name)
        return state


class ProducerPlan:
    """The changes of one group of objects to producers.

    Applied or discarded as a whole.
    """

    def __init__(self, now_ms: int, activity_interval_ms: int) -> None:
        self._now_ms = now_ms
        self._activity_interval_ms = activity_interval_ms
        self._touched: list[ProducerPartition] = []
        self._producers: dict[int, tuple[Producer, int]] = {}

    def touch(self, producer: Producer, state: ProducerPartition) -> None:
        """Note a change. Call after the first appended batch of a producer in a partition."""
        state.touched = True
        self._touched.append(state)
        epoch = state.planned_epoch
        if epoch > producer.epoch or producer.active_ms + self._activity_interval_ms <= self._now_ms:
            known = self._producers.get(producer.producer_id)
            if known is None or known[1] < epoch:
                self._producers[producer.producer_id] = (producer, max(epoch, producer.epoch))

    def rows(self) -> list[Row]:
        """Return the rows of `producers`.

        The appended batches are written with each object.
        """
        return [(p.producer_id, epoch, int(p.adopted), self._now_ms) for p, epoch in self._producers.values()]

    def apply(self) -> None:
        for state in self._touched:
            state.apply_plan()
        for producer, epoch in self._producers.values():
            producer.epoch = epoch
            producer.active_ms = self._now_ms

    def discard(self) -> None:
        for state in self._touched:
            state.discard_plan()


def write_producers(tx: Transaction, rows: list[Row]) -> None:
    if rows:
        tx.executemany(
            "INSERT INTO producers (producer_id, producer_epoch, adopted, active_ms) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (producer_id) DO UPDATE SET producer_epoch = excluded.producer_epoch,"
            " adopted = excluded.adopted, active_ms = excluded.active_ms",
            rows,
        )


def encode_batches(batches: list[AppendedBatch]) -> bytes | None:
    """Encode the batches that an object appended.

    They are durable in this form until the states are written.
    """
    return _encode(batches) if batches else None


def decode_batches(data: bytes | None) -> list[AppendedBatch]:
    return _decode_batches(data) if data is not None else []


def write_producer_partitions(tx: Transaction, states: Iterable[ProducerPartition]) -> None:
    """Write states without the plan in progress.

    The caller holds the state lock, so that they cannot change meanwhile.
    """
    tx.executemany(
        "INSERT INTO producer_partitions (producer_id, partition_id, producer_epoch, batches, gaps)"
        " VALUES (?, ?, ?, ?, ?) ON CONFLICT (producer_id, partition_id) DO UPDATE SET"
        " producer_epoch = excluded.producer_epoch, batches = excluded.batches, gaps = excluded.gaps",
        ((each.producer_id, each.partition_id, each.epoch, each.batches, encode_gaps(each.gaps)) for each in states),
    )


def _stored_batches(data: bytes) -> bytes:
    """Decode the batches of a row.

    Rows from before the third migration are msgpack: no sequence number begins like that.
    """
    if data[0] < 0x80:
        return data
    return b"".join(_remember(*batch) for batch in _decode_earlier(data))


def read_producer_partition(tx: Transaction, producer_id: int, partition_id: int) -> ProducerPartition:
    rows = tx.query(
        "SELECT producer_epoch, batches, gaps FROM producer_partitions WHERE producer_id = ? AND partition_id = ?",
        (producer_id, partition_id),
    )
    if not rows:
        return ProducerPartition(producer_id, partition_id)
    epoch, batches, gaps = rows[0]
    return ProducerPartition(producer_id, partition_id, epoch, _stored_batches(batches), decode_gaps(gaps))


def read_may_start_anywhere(tx: Transaction, producer_id: int) -> bool:
    rows = tx.query("SELECT adopted FROM producers WHERE producer_id = ?", (producer_id,))
    return may_start_anywhere(producer_id, bool(rows[0][0]) if rows else True)


class ProducerRows(Protocol):
    async def settle(self) -> None:
        """Write every producer state that knows more than its row."""
        ...


class JournalProgress(Protocol):
    def sequenced_until_ms(self) -> int:
        """Return the time before which everything journaled is sequenced.

        Silent producers may have journaled later.
        """
        ...


class Producers:
    """Loads and keeps producer states.

    Call everything but `init`, `expire_once` and `describe` with the state lock held.
    """

    def __init__(
        self,
        foundation: Foundation,
        recent: ProducerRows,
        journals: JournalProgress,
        *,
        expiration_ms: int,
        states_max: int,
    ) -> None:
        self._metadata = foundation.metadata
        self._recent = recent
        self._journals = journals
        self._state_lock = foundation.state_lock
        self._clock = foundation.clock
        self._expiration_ms = expiration_ms
        self._states_max = states_max
        self._ids = NumberBlocks(foundation.metadata, "producer_id", _PRODUCER_ID_BLOCK)
        self._cache: dict[int, Producer] = {}
        """The loaded producers, the least recently used first."""
        self._uncounted = 0

    def start_plan(self) -> ProducerPlan:
        return ProducerPlan(self._clock.wall_ms(), self._expiration_ms // _ACTIVITY_FRACTION)

    async def load(self, producer_ids: Iterable[int]) -> dict[int, Producer]:
        """Return the producers, known or not. Those that have expired are forgotten first."""
        cache = self._cache
        wanted = dict.fromkeys(producer_ids)
        missing = [producer_id for producer_id in wanted if producer_id not in cache]
        if missing:
            cache.update(await self._metadata.read(lambda tx: _read_producers(tx, missing)))
        deadline_ms = self._expired_ms()
        expired = [pid for pid in wanted if cache[pid].epoch >= 0 and cache[pid].active_ms <= deadline_ms]
        if expired:
            await self._delete(expired)
            cache.update((producer_id, Producer(producer_id)) for producer_id in expired)
        for producer_id in wanted:
            cache[producer_id] = cache.pop(producer_id)
        self._evict(wanted, len(missing))
        return cache

    def _expired_ms(self) -> int:
        """Return the time since when a producer must have been active."""
        return min(self._clock.wall_ms(), self._journals.sequenced_until_ms()) - self._expiration_ms

    async def _delete(self, producer_ids: list[int]) -> None:
        if any(_is_unsettled(self._cache[each]) for each in producer_ids if each in self._cache):
            # Otherwise a restart would restore them from the recent objects.
            await self._recent.settle()
        await self._metadata.plan(lambda tx: _delete_producers(tx, producer_ids))

    def _evict(self, wanted: dict[int, None], loaded_count: int) -> None:
        """Keep the cache within its limit.

        Counting takes a while, so it is done only now and then.
        """
        self._uncounted += loaded_count + 1
        if self._uncounted * _UNCOUNTED_FRACTION < self._states_max:
            return
        self._uncounted = 0
        count = sum(len(producer.partitions) + 1 for producer in self._cache.values())
        for producer_id, producer in list(self._cache.items()):
            if count <= self._states_max or producer_id in wanted:
                return
            # An unsettled state cannot be read back from its row. There are few, and they settle soon.
            if not _is_unsettled(producer):
                del self._cache[producer_id]
                count -= len(producer.partitions) + 1

    async def reserve_ids(self, count: int) -> None:
        """Reserve so many ids for `take_id`. Call both with the state lock held."""
        await self._ids.reserve(count)

    def take_id(self) -> int:
        """Return an id that was never used."""
        return self._ids.take()

    async def init(self, request: InitProducerId) -> ProducerIdentity:
        """Give an identity to a producer without a transactional id."""
        async with self._state_lock:
            now_ms = self._clock.wall_ms()
            producer: Producer | None = None
            if request.producer_id >= 0:
                producer = (await self.load([request.producer_id]))[request.producer_id]
                if producer.epoch > request.producer_epoch >= 0:
                    return ProducerIdentity(_INVALID_EPOCH, -1, -1)
            epoch = max(producer.epoch, request.producer_epoch) + 1 if producer is not None else 0
            if producer is None or producer.epoch < 0 or epoch > PRODUCER_EPOCH_MAX:
                await self.reserve_ids(1)
                producer, epoch = Producer(self.take_id()), 0
            row = (producer.producer_id, epoch, 0, now_ms)
            await self._metadata.plan(lambda tx: write_producers(tx, [row]))
            producer.epoch, producer.adopted, producer.active_ms = epoch, False, now_ms
            self._cache[producer.producer_id] = producer
            return ProducerIdentity(0, producer.producer_id, epoch)

    async def expire_once(self) -> int:
        """Forget producers that were not active for the expiration time. Returns how many."""
        count = 0
        while True:
            async with self._state_lock:
                deadline_ms = self._expired_ms()
                rows = await self._metadata.read(
                    lambda tx, limit_ms=deadline_ms: tx.query(  # type: ignore[misc]  # bound now, not at the call
                        "SELECT producer_id FROM producers WHERE active_ms <= ? ORDER BY active_ms LIMIT ?",
                        (limit_ms, _EXPIRED_PER_TRANSACTION),
                    )
                )
                expired = [row[0] for row in rows]
                if expired:
                    await self._delete(expired)
                    for producer_id in expired:
                        self._cache.pop(producer_id, None)
            count += len(expired)
            if len(expired) < _EXPIRED_PER_TRANSACTION:
                return count

    async def describe(self, partition_ids: Iterable[int]) -> ProducerDescriptions:
        """Describe the producers of some partitions, without their transactions."""
        async with self._state_lock:
            # Afterwards the table knows as much as memory.
            await self._recent.settle()
            wanted = list(dict.fromkeys(partition_ids))
            return ProducerDescriptions(await self._metadata.read(lambda tx: _read_writers(tx, wanted)))

    def note_departed(self, partitions: Mapping[int, PartitionName]) -> None:
        """Remember the producers of deleted partitions. Their states are durable already."""
        for producer in self._cache.values():
            for partition_id, state in producer.partitions.items():
                name = partitions.get(partition_id)
                if name is not None and state.epoch >= 0:
                    producer.departed[name] = state.epoch, next_sequence_number(state.batches)

    def forget_partitions(self, partition_ids: Iterable[int]) -> None:
        """Forget the states of partitions that are gone for good."""
        gone = frozenset(partition_ids)
        for producer in self._cache.values():
            for partition_id in [known for known in producer.partitions if known in gone]:
                del producer.partitions[partition_id]


def _is_unsettled(producer: Producer) -> bool:
    return any(state.unsettled_from for state in producer.partitions.values())


def _read_producers(tx: Transaction, producer_ids: list[int]) -> dict[int, Producer]:
    found: dict[int, Producer] = {}
    for producer_id in producer_ids:
        producer = found[producer_id] = Producer(producer_id)
        rows = tx.query(
            "SELECT producer_epoch, adopted, active_ms FROM producers WHERE producer_id = ?", (producer_id,)
        )
        if not rows:
            continue
        producer.epoch, producer.adopted, producer.active_ms = rows[0][0], bool(rows[0][1]), rows[0][2]
        producer.departed = _read_departed(tx, producer_id)
        for partition_id, epoch, batches, gaps in tx.query(
            "SELECT partition_id, producer_epoch, batches, gaps FROM producer_partitions WHERE producer_id = ?",
            (producer_id,),
        ):
            producer.partitions[partition_id] = ProducerPartition(
                producer_id, partition_id, epoch, _stored_batches(batches), decode_gaps(gaps)
            )
    return found


def write_departed(tx: Transaction, topic_id: bytes, name: str) -> None:
    """Copy the states of the producers of a topic that this transaction deletes."""
    found = tx.query(
        "SELECT s.producer_id, p.partition_index, s.producer_epoch, s.batches FROM partitions p"
        " JOIN producer_partitions s ON s.partition_id = p.partition_id WHERE p.topic_id = ?",
        (topic_id,),
    )
    tx.executemany(
        "INSERT INTO departed_producers (producer_id, topic_name, partition_index, producer_epoch, next_sequence)"
        " VALUES (?, ?, ?, ?, ?) ON CONFLICT (producer_id, topic_name, partition_index) DO UPDATE SET"
        " producer_epoch = excluded.producer_epoch, next_sequence = excluded.next_sequence",
        [
            (producer_id, name, index, epoch, next_sequence_number(_stored_batches(batches)))
            for producer_id, index, epoch, batches in found
        ],
    )


def _read_departed(tx: Transaction, producer_id: int) -> dict[PartitionName, Departed]:
    rows = tx.query(
        "SELECT topic_name, partition_index, producer_epoch, next_sequence FROM departed_producers"
        " WHERE producer_id = ?",
        (producer_id,),
    )
    return {(name, index): (epoch, following) for name, index, epoch, following in rows}


def _read_writers(tx: Transaction, partition_ids: list[int]) -> list[PartitionProducers]:
    found: list[PartitionProducers] = []
    for partition_id in partition_ids:
        rows = tx.query(
            "SELECT s.producer_id, s.producer_epoch, s.batches, p.active_ms FROM producer_partitions s"
            " JOIN producers p ON p.producer_id = s.producer_id WHERE s.partition_id = ? ORDER BY s.producer_id",
            (partition_id,),
        )
        writers = [
            ActiveProducer(producer_id, epoch, last_sequence_number(_stored_batches(batches)), active_ms, -1)
            for producer_id, epoch, batches, active_ms in rows
        ]
        found.append(PartitionProducers(partition_id, writers))
    return found


def _delete_producers(tx: Transaction, producer_ids: list[int]) -> None:
    rows = [(producer_id,) for producer_id in producer_ids]
    tx.executemany("DELETE FROM producer_partitions WHERE producer_id = ?", rows)
    tx.executemany("DELETE FROM departed_producers WHERE producer_id = ?", rows)
    tx.executemany("DELETE FROM producers WHERE producer_id = ?", rows)
