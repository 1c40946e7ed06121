"""Idempotent producers: what each has written, partition by partition, and what may come next."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from braidlog.control.counters import NumberBlocks
from braidlog.control.error_codes import ErrorCode
from braidlog.control.interface import (
    ActiveProducer,
    InitProducerId,
    PartitionProducers,
    ProducerDescriptions,
    ProducerIdentity,
)
from braidlog.control.metadata import MetadataStore, Row, Transaction
from braidlog.control.producer_partition import (
    REMEMBERED,
    ProducerPartition,
    decode_gaps,
    encode_gaps,
    last_sequence,
)
from braidlog.runtime.clock import Clock
from braidlog.runtime.limits import PRODUCER_IDS_OF_AGENTS_FROM

PRODUCER_EPOCH_MAX = (1 << 15) - 1

_PRODUCER_ID_BLOCK = 1_000
_EXPIRED_PER_TRANSACTION = 500
_ACTIVITY_FRACTION = 24
"""Activity is written when it is older than this fraction of the expiration, not with every batch."""
_UNCOUNTED_FRACTION = 8

_INVALID_EPOCH = int(ErrorCode.INVALID_PRODUCER_EPOCH)

AppendedBatch = tuple[int, int, int, bytes]
"""Producer id, partition id, producer epoch, and the batch as it is remembered. Persisted: keep it stable."""

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
    """The highest seen or handed out; -1: the producer is not known."""
    adopted: bool = True
    """It was not known when it first wrote, so its sequences may start anywhere."""
    active_ms: int = 0
    """As it stands in the metadata."""
    partitions: dict[int, ProducerPartition] = field(default_factory=dict)

    @property
    def may_start_anywhere(self) -> bool:
        """Whether the first batch that a journal has of it may not be its first. An agent that gave out its id was not
        asked by anybody who had written before."""
        return may_start_anywhere(self.producer_id, self.adopted)

    def partition(self, partition_id: int) -> ProducerPartition:
        state = self.partitions.get(partition_id)
        if state is None:
            state = self.partitions[partition_id] = ProducerPartition(self.producer_id, partition_id)
        return state


class ProducerPlan:
    """The changes that one group of objects makes to producers. Either applied as a whole or discarded."""

    def __init__(self, now_ms: int, activity_interval_ms: int) -> None:
        self._now_ms = now_ms
        self._activity_interval_ms = activity_interval_ms
        self._touched: list[ProducerPartition] = []
        self._producers: dict[int, tuple[Producer, int]] = {}

    def touch(self, producer: Producer, state: ProducerPartition) -> None:
        """Call after the first accepted batch of a producer in a partition."""
        state.touched = True
        self._touched.append(state)
        epoch = state.planned_epoch
        if epoch > producer.epoch or producer.active_ms + self._activity_interval_ms <= self._now_ms:
            known = self._producers.get(producer.producer_id)
            if known is None or known[1] < epoch:
                self._producers[producer.producer_id] = (producer, max(epoch, producer.epoch))

    def rows(self) -> list[Row]:
        """Of `producers`. What was appended is written with each object."""
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
    """What an object appended for idempotent producers: durable in this form until their states are written."""
    return _encode(batches) if batches else None


def decode_batches(data: bytes | None) -> list[AppendedBatch]:
    return _decode_batches(data) if data is not None else []


def write_producer_partitions(tx: Transaction, states: Iterable[ProducerPartition]) -> None:
    """As they are without the plan in progress. Who holds the turn waits for this, so they cannot change meanwhile."""
    tx.executemany(
        "INSERT INTO producer_partitions (producer_id, partition_id, producer_epoch, batches, gaps)"
        " VALUES (?, ?, ?, ?, ?) ON CONFLICT (producer_id, partition_id) DO UPDATE SET"
        " producer_epoch = excluded.producer_epoch, batches = excluded.batches, gaps = excluded.gaps",
        ((each.producer_id, each.partition_id, each.epoch, each.batches, encode_gaps(each.gaps)) for each in states),
    )


def _stored_batches(data: bytes) -> bytes:
    """From a row, also of before the third migration: those are msgpack arrays, and no sequence begins as they do."""
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


class Producers:
    """Producer states, loaded when needed. Everything but `init` is called by who holds the turn."""

    def __init__(
        self,
        metadata: MetadataStore,
        turn: asyncio.Lock,
        clock: Clock,
        settle: Callable[[], Awaitable[None]],
        *,
        expiration_ms: int,
        states_max: int,
    ) -> None:
        """`settle` writes every state that knows more than its row."""
        self._metadata = metadata
        self._settle = settle
        self._turn = turn
        self._clock = clock
        self._expiration_ms = expiration_ms
        self._states_max = states_max
        self._ids = NumberBlocks(metadata, "producer_id", _PRODUCER_ID_BLOCK)
        self._cache: dict[int, Producer] = {}
        """In the order of last use."""
        self.sequenced_until_ms: Callable[[], int] = clock.wall_ms
        """What was journaled before this time is sequenced. What is not may be of producers that look silent."""
        self._uncounted = 0

    def start_plan(self) -> ProducerPlan:
        return ProducerPlan(self._clock.wall_ms(), self._expiration_ms // _ACTIVITY_FRACTION)

    async def load(self, producer_ids: Iterable[int]) -> dict[int, Producer]:
        """The producers, whether known or not. Those that have expired are forgotten first."""
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
        """Who was not active since then is forgotten."""
        return min(self._clock.wall_ms(), self.sequenced_until_ms()) - self._expiration_ms

    async def _delete(self, producer_ids: list[int]) -> None:
        if any(_is_unsettled(self._cache[each]) for each in producer_ids if each in self._cache):
            # Or a restart would bring back what recent objects still tell of them.
            await self._settle()
        await self._metadata.transact(lambda tx: _delete_producers(tx, producer_ids))

    def _evict(self, wanted: dict[int, None], loaded_count: int) -> None:
        """Keep the cache within its limit. Counting it takes a while, so that is done only now and then."""
        self._uncounted += loaded_count + 1
        if self._uncounted * _UNCOUNTED_FRACTION < self._states_max:
            return
        self._uncounted = 0
        count = sum(len(producer.partitions) + 1 for producer in self._cache.values())
        for producer_id, producer in list(self._cache.items()):
            if count <= self._states_max or producer_id in wanted:
                return
            # What is unsettled could not be read back. It is bounded, and settles soon.
            if not _is_unsettled(producer):
                del self._cache[producer_id]
                count -= len(producer.partitions) + 1

    async def reserve_ids(self, count: int) -> None:
        """See to it that so many calls of `take_id` can be served. Called by who holds the turn, as is that."""
        await self._ids.reserve(count)

    def take_id(self) -> int:
        """An id that nobody has had."""
        return self._ids.take()

    async def init(self, request: InitProducerId) -> ProducerIdentity:
        """For a producer without a transactional id."""
        async with self._turn:
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
            await self._metadata.transact(lambda tx: write_producers(tx, [row]))
            producer.epoch, producer.adopted, producer.active_ms = epoch, False, now_ms
            self._cache[producer.producer_id] = producer
            return ProducerIdentity(0, producer.producer_id, epoch)

    async def expire_once(self) -> int:
        """Forget producers that were not active for the expiration time. Returns how many."""
        count = 0
        while True:
            async with self._turn:
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
        """What is known of the producers of some partitions, their transactions apart."""
        async with self._turn:
            # Then the table knows all that memory does.
            await self._settle()
            wanted = list(dict.fromkeys(partition_ids))
            return ProducerDescriptions(await self._metadata.read(lambda tx: _read_writers(tx, wanted)))

    def forget_partitions(self, partition_ids: Iterable[int]) -> None:
        """Partitions are gone for good."""
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
        for partition_id, epoch, batches, gaps in tx.query(
            "SELECT partition_id, producer_epoch, batches, gaps FROM producer_partitions WHERE producer_id = ?",
            (producer_id,),
        ):
            producer.partitions[partition_id] = ProducerPartition(
                producer_id, partition_id, epoch, _stored_batches(batches), decode_gaps(gaps)
            )
    return found


def _read_writers(tx: Transaction, partition_ids: list[int]) -> list[PartitionProducers]:
    found: list[PartitionProducers] = []
    for partition_id in partition_ids:
        rows = tx.query(
            "SELECT s.producer_id, s.producer_epoch, s.batches, p.active_ms FROM producer_partitions s"
            " JOIN producers p ON p.producer_id = s.producer_id WHERE s.partition_id = ? ORDER BY s.producer_id",
            (partition_id,),
        )
        writers = [
            ActiveProducer(producer_id, epoch, last_sequence(_stored_batches(batches)), active_ms, -1)
            for producer_id, epoch, batches, active_ms in rows
        ]
        found.append(PartitionProducers(partition_id, writers))
    return found


def _delete_producers(tx: Transaction, producer_ids: list[int]) -> None:
    rows = [(producer_id,) for producer_id in producer_ids]
    tx.executemany("DELETE FROM producer_partitions WHERE producer_id = ?", rows)
    tx.executemany("DELETE FROM producers WHERE producer_id = ?", rows)
