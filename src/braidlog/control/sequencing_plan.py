"""What a group of objects would change: planned against memory, written in one transaction, applied or discarded."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from braidlog.control.catalog import Catalog
from braidlog.control.error_codes import ErrorCode
from braidlog.control.held import HeldBatch
from braidlog.control.interface import (
    BatchVerdict,
    CommitObject,
    ExtentVerdict,
    IndexedExtent,
    ObjectSequenced,
    ObjectVerdict,
    StoredObject,
)
from braidlog.control.journal_plan import Appended, JournalPlan
from braidlog.control.metadata import Row, Transaction
from braidlog.control.partitions import PartitionState, TopicState
from braidlog.control.producer_partition import LATE, OUT_OF_ORDER, REMEMBERED, ProducerPartition, remembered
from braidlog.control.producers import Producer, ProducerPlan, encode_batches, write_producers
from braidlog.control.recent import RecentExtents, Settling
from braidlog.control.sequences import SequenceKey
from braidlog.control.transaction_plans import AppendPlan
from braidlog.objects.layout import KAFKA_BATCHES, BatchEntry, ExtentEntry, Footer
from braidlog.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT

_REMEMBERED_BYTES = REMEMBERED.size
_UNKNOWN_PARTITION = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
_UNKNOWN_TOPIC = int(ErrorCode.UNKNOWN_TOPIC_ID)
_INVALID_RECORD = int(ErrorCode.INVALID_RECORD)
_NOT_YET = int(ErrorCode.NOT_ENOUGH_REPLICAS)

ClassicGap: TypeAlias = tuple[int, int, int, int]
"""Producer, epoch, partition, and the number of the batch before which others are missing."""
AsksForScan: TypeAlias = Callable[[ClassicGap], bool]

_FENCE = ObjectVerdict(0, [])

_encode = msgspec.msgpack.Encoder().encode


@dataclass(slots=True, eq=False)
class Pending:
    """An object that waits for its verdict."""

    request: CommitObject
    footer: Footer
    done: asyncio.Future[ObjectVerdict]
    journal: SequenceKey | None = None
    """The sequence that it is a file of, and its place there."""
    slot: int = -1


class SequencingPlan:
    """What one group of objects would change. Touches only the `planned` side of the state."""

    def __init__(
        self,
        catalog: Catalog,
        producers: dict[int, Producer],
        changes: ProducerPlan,
        transactions: AppendPlan,
        journal: JournalPlan,
        now_ms: int,
        *,
        is_behind: bool,
        asks_for_scan: AsksForScan,
    ) -> None:
        """`is_behind`: journals that were written while nobody could be asked are not sequenced yet. `asks_for_scan`:
        whether they must be looked for first, before a gap is told to a producer."""
        self._topics = catalog.topics
        self._producers = producers
        self._changes = changes
        self.transactions = transactions
        self.journal = journal
        self._is_behind = is_behind
        self._asks_for_scan = asks_for_scan
        self._now_ms = now_ms
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
        """Of idempotent producers."""

    def add(self, pending: Pending, number: int) -> None:
        if pending.journal is not None:
            self._add_journaled(pending, pending.journal, number)
            return
        # This runs for every extent, and its inner loop for every batch, that the whole cluster writes: so it is one
        # function, and what is looked up often is looked up once.
        topics, partitions, producers, changes = self._topics, self._partitions, self._producers, self._changes
        transactions = self.transactions
        answers: list[ExtentVerdict] = []
        appended = Appended()
        indexed, states, batches, writers = appended.extents, appended.states, appended.batches, appended.writers
        waits_for = self.journal.waits_for if self.journal.may_wait else None
        adopts = not self._is_behind
        for extent in pending.footer.extents:
            topic = topics.get(extent.topic_id)
            index = extent.partition
            if topic is None or index >= len(topic.partitions) or extent.payload != KAFKA_BATCHES:
                answers.append(_refuse(extent, topic))
                continue
            state = topic.partitions[index]
            partition_id = state.partition_id
            verdicts: list[BatchVerdict] = []
            offset = run_offset = state.planned_next_offset
            position = run_position = extent.position
            run_timestamp_ms = -1
            accepted_bytes = 0
            awaited: dict[ProducerPartition, Producer] | None = None
            for batch in extent.batches:
                code = 0
                if batch.attributes & CONTROL_BIT:
                    code = _INVALID_RECORD
                elif (producer_id := batch.producer_id) >= 0:
                    sequence, epoch = batch.base_sequence, batch.producer_epoch
                    producer = producers[producer_id]
                    known = producer.partitions.get(partition_id) or producer.partition(partition_id)
                    if batch.attributes & TRANSACTIONAL_BIT or state.open_transactions or transactions.firsts:
                        code = transactions.admit(batch, state)
                    if sequence < 0 or epoch < 0:
                        code = _INVALID_RECORD
                    elif waits_for is not None and epoch > known.planned_epoch and waits_for(producer_id, partition_id):
                        code = _NOT_YET  # or it would overtake what waits of an older epoch
                    elif code == 0:
                        code = known.judge(epoch, sequence, batch.offset_count, offset, producer.adopted and adopts)
                    if code == 0:
                        batches.append((producer_id, partition_id, epoch, known.planned_batches[-_REMEMBERED_BYTES:]))
                        writers.append(known)
                        if not known.touched:
                            changes.touch(producer, known)
                        if batch.attributes & TRANSACTIONAL_BIT:
                            transactions.append(batch, state, offset)
                            known.planned_gaps = None  # no journal has batches of transactions
                        elif waits_for is not None and waits_for(producer_id, partition_id):
                            awaited = awaited or {}
                            awaited[known] = producer
                    elif code == LATE:
                        code = 0
                        noted = remembered(sequence, batch.offset_count, offset)
                        self.journal.note_appended(producer, known, epoch, noted, appended)
                        self.journal.counts.late_batches += 1
                    elif code == OUT_OF_ORDER and self._may_be_in_journals(batch, partition_id):
                        code = _NOT_YET
                elif batch.attributes & TRANSACTIONAL_BIT:
                    code = _INVALID_RECORD
                if code == 0:
                    verdicts.append(BatchVerdict(0, offset))
                    offset += batch.offset_count
                    position += batch.length
                    if batch.timestamp_ms_max > run_timestamp_ms:  # noqa: PLR1730 - a call per batch would be felt
                        run_timestamp_ms = batch.timestamp_ms_max
                    continue
                verdicts.append(BatchVerdict(code, -1) if code > 0 else BatchVerdict(0, -1 - code, True))
                if position > run_position:
                    length = position - run_position
                    earliest_ms = min(extent.timestamp_ms_min, run_timestamp_ms)
                    indexed.append(
                        IndexedExtent(
                            partition_id,
                            run_offset,
                            offset,
                            number,
                            run_position,
                            length,
                            earliest_ms,
                            run_timestamp_ms,
                        )
                    )
                    states.append(state)
                    accepted_bytes += length
                position += batch.length
                run_position, run_offset, run_timestamp_ms = position, offset, -1
            if position > run_position:
                length = position - run_position
                earliest_ms, latest_ms = extent.timestamp_ms_min, extent.timestamp_ms_max
                if run_position != extent.position:
                    earliest_ms, latest_ms = min(earliest_ms, run_timestamp_ms), run_timestamp_ms
                indexed.append(
                    IndexedExtent(
                        partition_id, run_offset, offset, number, run_position, length, earliest_ms, latest_ms
                    )
                )
                states.append(state)
                accepted_bytes += length
            if accepted_bytes:
                state.planned_next_offset = offset
                state.planned_size_bytes += accepted_bytes
                partitions[partition_id] = state
            if awaited is not None:
                for known, producer in awaited.items():
                    self.journal.release(producer, known, state, appended)
            answers.append(ExtentVerdict(state.log_start_offset, verdicts))
        request = pending.request
        own_count = len(indexed)
        if appended.others:
            own_count = sum(each.object_number == number for each in indexed)
        self._add_object(pending, number, ObjectVerdict(0, answers), own_count)
        if indexed:
            self._add_appended(StoredObject(number, request.key, request.size), appended)

    def _may_be_in_journals(self, batch: BatchEntry, partition_id: int) -> bool:
        """Whether what comes before a batch may just not be sequenced yet: then its producer is to send it again."""
        return (
            self._is_behind
            or self.journal.waits_for(batch.producer_id, partition_id)
            or self._asks_for_scan((batch.producer_id, batch.producer_epoch, partition_id, batch.base_sequence))
        )

    def _add_journaled(self, pending: Pending, journal: SequenceKey, number: int) -> None:
        request = pending.request
        self.journal.add_slot(journal, pending.slot)
        if not pending.footer.extents:
            # A fence: it has nothing to read, and stays as long as its sequence does.
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
            answer, held = self.journal.add_extent(stored, extent, state, self._producers, appended)
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
        """These have waited long enough. `number` is as of an object, in whose place this stands."""
        appended = Appended()
        given_up = frozenset(batches)
        for producer_id, partition_id in dict.fromkeys(batch.key for batch in batches):
            state = partitions.get(partition_id)
            if state is None:
                self.journal.drop(batch for batch in batches if batch.key == (producer_id, partition_id))
                continue
            self._partitions[partition_id] = state
            producer = self._producers[producer_id]
            self.journal.release(producer, producer.partition(partition_id), state, appended, given_up=given_up)
        if appended.extents:
            self._add_appended(StoredObject(number, "", 0), appended)

    def _add_appended(self, stored: StoredObject, appended: Appended) -> None:
        """What becomes readable on behalf of one object, whichever objects it lies in."""
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
        """Turn the plan into rows, so that the writing thread need not touch what the event loop uses."""
        self._settling = settling
        self._producer_rows = self._changes.rows()

    def write(self, tx: Transaction) -> dict[bytes, bytes | None]:
        """Write everything, or nothing and return the verdicts of objects that were sequenced before, by nonce."""
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
    """The same as events of one object each, in the same order."""
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
