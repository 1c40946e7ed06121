"""The changes that a group of objects makes.

They are planned in memory, written in one transaction, and then applied or discarded.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from kio.schema.errors import ErrorCode

from braidlog.control.catalog import Catalog
from braidlog.control.interface import (
    BatchVerdict,
    CommitObject,
    ExtentVerdict,
    IndexedExtent,
    ObjectSequenced,
    ObjectVerdict,
    StoredObject,
)
from braidlog.control.journals.backlog import JournalBacklog
from braidlog.control.journals.held_batches import HeldBatch
from braidlog.control.journals.plan import JournalPlan
from braidlog.control.journals.sequences import JournalSequenceKey
from braidlog.control.log.appended import Appended, Run
from braidlog.control.log.judgement import APPENDED, APPENDED_LATE, Judgement, duplicate_offset, is_duplicate
from braidlog.control.log.producer_partition import OUT_OF_ORDER, REMEMBERED, ProducerPartition, remembered
from braidlog.control.log.producers import Producer, ProducerPlan, encode_batches, write_producers
from braidlog.control.log.recent import RecentExtents, Settling
from braidlog.control.metadata.store import Row, Transaction
from braidlog.control.partitions import PartitionState, TopicState
from braidlog.control.transactions.plans import AppendPlan
from braidlog.objects.layout import KAFKA_BATCHES, BatchEntry, ExtentEntry, Footer
from braidlog.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT

_REMEMBERED_BYTES = REMEMBERED.size
_UNKNOWN_PARTITION = int(ErrorCode.unknown_topic_or_partition)
_UNKNOWN_TOPIC = int(ErrorCode.unknown_topic_id)
_INVALID_RECORD = int(ErrorCode.invalid_record)
_NOT_YET = int(ErrorCode.not_enough_replicas)
_TRANSACTIONAL_OR_CONTROL = TRANSACTIONAL_BIT | CONTROL_BIT

_FENCE = ObjectVerdict(0, [])

_encode = msgspec.msgpack.Encoder().encode


@dataclass(slots=True, eq=False)
class Pending:
    """An object that waits for its verdict."""

    request: CommitObject
    footer: Footer
    done: asyncio.Future[ObjectVerdict]
    journal: JournalSequenceKey | None = None
    """The journal sequence and the slot of a journal file; None: the object is not journaled."""
    slot: int = -1


class SequencingPlan:
    """The changes of one group of objects.

    Only touches the `planned_*` side of the state.
    """

    def __init__(
        self,
        catalog: Catalog,
        producers: dict[int, Producer],
        changes: ProducerPlan,
        transactions: AppendPlan,
        journal: JournalPlan,
        backlog: JournalBacklog,
        now_ms: int,
    ) -> None:
        self._topics = catalog.topics
        self._producers = producers
        self._changes = changes
        self.transactions = transactions
        self.journal = journal
        self._backlog = backlog
        self._is_behind = backlog.is_behind()
        self._now_ms = now_ms
        self._waits_for: Callable[[int, int], bool] | None = None
        """Whether a producer has held batches in a partition; None: no producer has any."""
        self._awaited: dict[ProducerPartition, Producer] = {}
        """Producers of the extent being planned whose held batches may now be in order."""
        self._partitions: dict[int, PartitionState] = {}
        self._object_rows: list[Row] = []
        self._recent_rows: list[Row] = []
        self._producer_rows: list[Row] = []
        self._recent: list[tuple[ObjectSequenced, Appended]] = []
        self._settling: Settling | None = None
        self.verdicts: list[tuple[Pending, ObjectVerdict, bytes]] = []
        self.events: list[ObjectSequenced] = []
        self.extent_count = 0
        self.batch_count = 0
        """How many batches of idempotent producers were appended."""

    def add(self, pending: Pending, number: int) -> None:
        """Plan one object."""
        if pending.journal is not None:
            self._add_journaled(pending, pending.journal, number)
            return
        answers: list[ExtentVerdict] = []
        appended = Appended()
        topics = self._topics
        self._waits_for = self.journal.waits_for if self.journal.may_wait else None
        for extent in pending.footer.extents:
            topic = topics.get(extent.topic_id)
            if topic is None or extent.partition >= len(topic.partitions) or extent.payload != KAFKA_BATCHES:
                answers.append(_refuse(extent, topic))
            else:
                answers.append(self._add_extent(extent, topic, number, appended))
        request, indexed = pending.request, appended.extents
        own_count = len(indexed)
        if appended.others:
            own_count = sum(each.object_number == number for each in indexed)
        self._add_object(pending, number, ObjectVerdict(0, answers), own_count)
        if indexed:
            self._add_appended(StoredObject(number, request.key, request.size), appended)

    def _add_extent(self, extent: ExtentEntry, topic: TopicState, number: int, appended: Appended) -> ExtentVerdict:
        """Plan one extent of a classic topic.

        This runs for every extent that the cluster writes: keep it short.
        """
        state = topic.partitions[extent.partition]
        start_offset = offset = state.planned_next_offset
        length = 0
        is_whole = True
        verdicts: list[BatchVerdict] = []
        for batch in extent.batches:
            if batch.producer_id >= 0:
                judgement = self._judge(batch, state, offset, appended)
            else:
                judgement = _INVALID_RECORD if batch.attributes & _TRANSACTIONAL_OR_CONTROL else APPENDED
            if judgement == APPENDED:
                verdicts.append(BatchVerdict(0, offset))
                offset += batch.offset_count
                length += batch.length
            else:
                verdicts.append(_verdict(judgement))
                is_whole = False
        if length:
            partition_id = state.partition_id
            self._partitions[partition_id] = state
            if is_whole:
                appended.extents.append(
                    IndexedExtent(
                        partition_id,
                        start_offset,
                        offset,
                        number,
                        extent.position,
                        length,
                        extent.timestamp_ms_min,
                        extent.timestamp_ms_max,
                    )
                )
                appended.states.append(state)
                state.planned_next_offset = offset
                state.planned_size_bytes += length
            else:
                _index_runs(Run(number, extent, state, appended), extent, verdicts)
        if self._awaited:
            self._release_awaited(state, appended)
        return ExtentVerdict(state.log_start_offset, verdicts)

    def _judge(self, batch: BatchEntry, state: PartitionState, offset: int, appended: Appended) -> Judgement:
        """Judge a batch of an idempotent producer, and note it if it is appended.

        `offset` is where it would be appended.
        """
        attributes = batch.attributes
        if attributes & CONTROL_BIT:
            return _INVALID_RECORD
        producer_id = batch.producer_id
        partition_id = state.partition_id
        first, epoch = batch.base_sequence, batch.producer_epoch
        producer = self._producers[producer_id]
        known = producer.partitions.get(partition_id) or self._begin_partition(producer, state)
        transactions, waits_for = self.transactions, self._waits_for
        code = 0
        if attributes & TRANSACTIONAL_BIT or state.open_transactions or transactions.firsts:
            code = transactions.admit(batch, state)
        if first < 0 or epoch < 0:
            return _INVALID_RECORD
        if waits_for is not None and epoch > known.planned_epoch and waits_for(producer_id, partition_id):
            return _NOT_YET  # or it would overtake held batches of an older epoch
        if code:
            return code
        judgement = known.judge(epoch, first, batch.offset_count, offset, producer.adopted and not self._is_behind)
        if judgement == APPENDED:
            appended.batches.append((producer_id, partition_id, epoch, known.planned_batches[-_REMEMBERED_BYTES:]))
            appended.writers.append(known)
            if not known.touched:
                self._changes.touch(producer, known)
            if attributes & TRANSACTIONAL_BIT:
                transactions.append(batch, state, offset)
                known.planned_gaps = None  # no journal has batches of transactions
            elif waits_for is not None and waits_for(producer_id, partition_id):
                self._awaited[known] = producer
        elif judgement == APPENDED_LATE:
            self.journal.note_appended(producer, known, epoch, remembered(first, batch.offset_count, offset), appended)
            self.journal.counts.late_batches += 1
            return APPENDED
        elif judgement == OUT_OF_ORDER and self._may_be_in_journals(batch, partition_id):
            return _NOT_YET
        return judgement

    def _begin_partition(self, producer: Producer, state: PartitionState) -> ProducerPartition:
        """Return the state of a producer in a partition that may be new to it."""
        return producer.partition(state.partition_id, (self._topics[state.topic_id].info.name, state.index))

    def _release_awaited(self, state: PartitionState, appended: Appended) -> None:
        """Append the held batches that the extent just planned has put in order."""
        awaited, self._awaited = self._awaited, {}
        for known, producer in awaited.items():
            self.journal.release(producer, known, state, appended)

    def _may_be_in_journals(self, batch: BatchEntry, partition_id: int) -> bool:
        """Whether the batches before this one may just not be sequenced yet.

        Then its producer must send it again.
        """
        return (
            self._is_behind
            or self.journal.waits_for(batch.producer_id, partition_id)
            or self._backlog.asks_for_scan((batch.producer_id, batch.producer_epoch, partition_id, batch.base_sequence))
        )

    def _add_journaled(self, pending: Pending, journal: JournalSequenceKey, number: int) -> None:
        request = pending.request
        if pending.slot >= 0:
            self.journal.add_slot(journal, pending.slot)
        if not pending.footer.extents:
            # A fence has no batches, and stays as long as its journal sequence does.
            self.verdicts.append((pending, _FENCE, _encode(_FENCE)))
            return
        stored = StoredObject(number, request.key, request.size)
        answers: list[ExtentVerdict] = []
        appended = Appended()
        held_count = 0
        for extent in pending.footer.extents:
            topic = self._topics.get(extent.topic_id)
            if topic is None or extent.partition >= len(topic.partitions) or extent.payload != KAFKA_BATCHES:
                answers.append(_refuse(extent, topic))
                self.journal.counts.dropped_batches += len(extent.batches)
                continue
            state = topic.partitions[extent.partition]
            self._partitions[state.partition_id] = state
            answer, held = self.journal.add_extent(stored, extent, topic, self._producers, appended)
            answers.append(answer)
            held_count += held
        if request.replayed:
            self.journal.counts.slow_files += 1
        else:
            self.journal.counts.fast_files += 1
        own_count = sum(each.object_number == number for each in appended.extents)
        self._add_object(pending, number, ObjectVerdict(0, answers), own_count + held_count)
        if appended.extents:
            self._add_appended(stored, appended)

    def give_up(self, batches: list[HeldBatch], partitions: dict[int, PartitionState], number: int) -> None:
        """Append held batches that have waited long enough.

        `number` is an object number that stands for this change.
        """
        appended = Appended()
        given_up = frozenset(batches)
        for producer_id, partition_id in dict.fromkeys(batch.key for batch in batches):
            state = partitions.get(partition_id)
            if state is None:
                self.journal.drop(batch for batch in batches if batch.key == (producer_id, partition_id))
                continue
            self._partitions[partition_id] = state
            producer = self._producers[producer_id]
            known = self._begin_partition(producer, state)
            self.journal.release(producer, known, state, appended, given_up=given_up)
        if appended.extents:
            self._add_appended(StoredObject(number, "", 0), appended)

    def _add_appended(self, stored: StoredObject, appended: Appended) -> None:
        """Note what one object makes readable, including older objects' held batches."""
        event = ObjectSequenced(stored, appended.extents, self.transactions.take_opened())
        if appended.others:
            self.events.extend(_by_object(event, {**appended.others, stored.number: stored}))
        else:
            self.events.append(event)
        self.extent_count += len(appended.extents)
        self.batch_count += len(appended.batches)
        self._recent_rows.append((stored.number, _encode(appended.extents), encode_batches(appended.batches)))
        self._recent.append((event, appended))

    def _add_object(self, pending: Pending, number: int, verdict: ObjectVerdict, live_count: int) -> None:
        request, footer = pending.request, pending.footer
        encoded = _encode(verdict)
        self._object_rows.append(
            (
                number,
                footer.nonce,
                request.key,
                request.size,
                footer.write_epoch,
                self._now_ms,
                live_count,
                None if live_count else self._now_ms,
                encoded,
            )
        )
        self.verdicts.append((pending, verdict, encoded))

    def prepare(self, settling: Settling) -> None:
        """Turn the plan into rows.

        So the writing thread touches nothing that the event loop uses.
        """
        self._settling = settling
        self._producer_rows = self._changes.rows()

    def write(self, tx: Transaction) -> dict[bytes, bytes | None]:
        """Write everything, or nothing if objects were sequenced before.

        Then it returns the verdicts of those objects, by nonce.
        """
        repeated: dict[bytes, bytes | None] = {}
        for row in self._object_rows:
            repeated.update(tx.query("SELECT nonce, verdict FROM objects WHERE nonce = ?", (row[1],)))
        if repeated:
            return repeated
        tx.executemany(
            "INSERT INTO objects (number, nonce, object_key, size_bytes, write_epoch, committed_ms, live_count,"
            " unreferenced_ms, verdict) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            self._object_rows,
        )
        tx.executemany(
            "INSERT INTO recent_objects (number, extents, producer_batches) VALUES (?, ?, ?)", self._recent_rows
        )
        write_producers(tx, self._producer_rows)
        self.transactions.write(tx)
        self.journal.write(tx)
        if self._settling is not None:
            self._settling.write(tx)
        return repeated

    def apply(self, recent: RecentExtents) -> None:
        for state in self._partitions.values():
            state.apply_plan()
        self._changes.apply()
        if self._settling is not None:
            recent.settled(self._settling)
        for event, appended in self._recent:
            recent.add(event, appended.states, appended.writers, tuple(appended.others.values()))

    def discard(self) -> None:
        for state in self._partitions.values():
            state.discard_plan()
        self._changes.discard()


def _by_object(event: ObjectSequenced, stored: dict[int, StoredObject]) -> list[ObjectSequenced]:
    """Split an event into events of one object each, in the same order."""
    events: list[ObjectSequenced] = []
    for extent in event.extents:
        if events and events[-1].object.number == extent.object_number:
            events[-1].extents.append(extent)
        else:
            events.append(ObjectSequenced(stored[extent.object_number], [extent], [] if events else event.opened))
    return events


def _refuse(extent: ExtentEntry, topic: TopicState | None) -> ExtentVerdict:
    if topic is None:
        code = _UNKNOWN_TOPIC
    elif extent.partition >= len(topic.partitions):
        code = _UNKNOWN_PARTITION
    else:
        code = _INVALID_RECORD
    return ExtentVerdict(-1, [BatchVerdict(code, -1)] * len(extent.batches))


def _verdict(judgement: Judgement) -> BatchVerdict:
    """Translate the judgement of a batch that is not appended."""
    if is_duplicate(judgement):
        return BatchVerdict(0, duplicate_offset(judgement), True)
    return BatchVerdict(judgement, -1)


def _index_runs(run: Run, extent: ExtentEntry, verdicts: list[BatchVerdict]) -> None:
    """Index an extent with batches that are not appended.

    Each run of appended ones becomes an extent.
    """
    for batch, verdict in zip(extent.batches, verdicts, strict=True):
        run.pass_batch(batch, is_appended=verdict.base_offset == run.offset)
    run.end()
