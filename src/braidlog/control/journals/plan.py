"""The changes of a group of objects to journals.

They are sequenced slots, and batches that are held or released.

A journaled batch is never refused: it is appended, proven to be a duplicate, or held until the earlier batches of its
producer have arrived. Batches that wait for a batch are appended right behind its extent.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from braidlog.control.interface import BatchVerdict, ExtentVerdict, StoredObject
from braidlog.control.journals.held_batches import (
    HeldBatch,
    HeldBatches,
    HeldKey,
    Waiting,
    delete_held,
    drop_held,
    write_held,
)
from braidlog.control.journals.sequences import (
    JournalSequenceKey,
    JournalSequenceRecord,
    JournalSequences,
    write_sequences,
)
from braidlog.control.log.appended import Appended, Run
from braidlog.control.log.judgement import (
    APPENDED_BEHIND,
    APPENDED_LATE,
    HELD,
    OFFSET_UNKNOWN,
    Judgement,
    duplicate_offset,
    is_duplicate,
)
from braidlog.control.log.producer_partition import ProducerPartition, remembered
from braidlog.control.log.producers import Producer, ProducerPlan
from braidlog.control.metadata.store import Transaction
from braidlog.control.partitions import PartitionState, TopicState
from braidlog.objects.layout import BatchEntry, ExtentEntry
from braidlog.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT

_HELD = BatchVerdict(0, OFFSET_UNKNOWN, held=True)
_INVALID = BatchVerdict(int(ErrorCode.invalid_record), OFFSET_UNKNOWN)
_DUPLICATE_OF_HELD = BatchVerdict(0, OFFSET_UNKNOWN, True)


@dataclass(slots=True)
class JournalCounts:
    """Counts since the control plane has started."""

    fast_files: int = 0
    slow_files: int = 0
    duplicate_batches: int = 0
    late_batches: int = 0
    older_epoch_batches: int = 0
    dropped_batches: int = 0
    gaps_given_up: int = 0

    def add(self, other: "JournalCounts") -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class JournalPlan:
    def __init__(self, sequences: JournalSequences, held: HeldBatches, changes: ProducerPlan, now_ms: int) -> None:
        self._sequences = sequences
        self._held = held
        self._changes = changes
        self._now_ms = now_ms
        self._records: dict[JournalSequenceKey, JournalSequenceRecord] = {}
        self._waiting: dict[HeldKey, Waiting] = {}
        """The held batches of the producers in this plan, as it would leave them."""
        self._added: list[HeldBatch] = []
        self._released: list[HeldBatch] = []
        self._dropped: list[HeldBatch] = []
        self.counts = JournalCounts()

    def add_slot(self, key: JournalSequenceKey, slot: int) -> None:
        """Note that the file in this slot is sequenced with the plan."""
        record = self._records.get(key) or self._sequences.records.get(key)
        if record is None:
            record = JournalSequenceRecord(*key, self._now_ms)
        self._records[key] = record.with_slots([slot])

    def waits_for(self, producer_id: int, partition_id: int) -> bool:
        """Whether any batch of the producer is held in the partition."""
        key = producer_id, partition_id
        if key in self._waiting:
            return bool(self._waiting[key])
        return key in self._held.by_key

    @property
    def may_wait(self) -> bool:
        """Whether any batch at all is held. It is cheap, and is asked before every object."""
        return bool(self._held.by_key) or bool(self._added)

    # ── batches of journals ───────────────────────────────────────────────────────────────────────────────────────

    def add_extent(
        self,
        stored: StoredObject,
        extent: ExtentEntry,
        topic: TopicState,
        producers: dict[int, Producer],
        appended: Appended,
    ) -> tuple[ExtentVerdict, int]:
        """Plan an extent of a journal file.

        Returns the verdicts of its batches, and how many are held.
        """
        verdicts: list[BatchVerdict] = []
        state = topic.partitions[extent.partition]
        partition_id = state.partition_id
        run = Run(stored.number, extent, state, appended)
        held_count = 0
        writers: dict[int, tuple[Producer, ProducerPartition]] = {}
        for batch in extent.batches:
            if _is_invalid(batch):
                verdict = _INVALID
            elif batch.producer_id < 0:
                verdict = BatchVerdict(0, run.offset)
            else:
                producer = producers[batch.producer_id]
                known = producer.partition(partition_id, (topic.info.name, extent.partition))
                verdict = self._judge(batch, producer, known, run.offset)
                if verdict.held and not self._hold(stored, run.position, extent, batch, known):
                    verdict = _DUPLICATE_OF_HELD
                    self.counts.duplicate_batches += 1
                held_count += verdict.held
                if verdict.base_offset == run.offset:
                    noted = remembered(batch.base_sequence, batch.offset_count, run.offset)
                    self.note_appended(producer, known, batch.producer_epoch, noted, appended)
                    writers[batch.producer_id] = producer, known
            verdicts.append(verdict)
            run.pass_batch(batch, is_appended=verdict.base_offset == run.offset)
        run.end()
        for producer, known in writers.values():
            if self.waits_for(producer.producer_id, partition_id):
                self.release(producer, known, state, appended)
        return ExtentVerdict(state.log_start_offset, verdicts), held_count

    def _judge(self, batch: BatchEntry, producer: Producer, known: ProducerPartition, offset: int) -> BatchVerdict:
        epoch, first, count = batch.producer_epoch, batch.base_sequence, batch.offset_count
        if self._follows_an_epoch_that_waits(known, epoch):
            return _HELD
        judgement = known.judge_journaled(epoch, first, count, offset, any_start=producer.may_start_anywhere)
        if judgement == HELD:
            return _HELD
        self._count(judgement)
        if is_duplicate(judgement):
            return BatchVerdict(0, duplicate_offset(judgement), True)
        return BatchVerdict(0, offset)

    def _follows_an_epoch_that_waits(self, known: ProducerPartition, epoch: int) -> bool:
        """Whether batches of an older epoch are held: the producer wrote those first."""
        if epoch <= known.planned_epoch or not self.waits_for(known.producer_id, known.partition_id):
            return False
        return any(held.epoch < epoch for held in self._planned(known).values())

    def _planned(self, known: ProducerPartition) -> Waiting:
        key = known.producer_id, known.partition_id
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = dict(self._held.by_key.get(key, {}))
        return waiting

    def _hold(
        self, stored: StoredObject, position: int, extent: ExtentEntry, batch: BatchEntry, known: ProducerPartition
    ) -> bool:
        """Hold a batch. Returns False if the same batch is held already."""
        waiting = self._planned(known)
        name = batch.producer_epoch, batch.base_sequence, batch.offset_count
        if name in waiting:
            return False
        held = HeldBatch(
            stored,
            position,
            batch.length,
            known.partition_id,
            known.producer_id,
            *name,
            min(extent.timestamp_ms_min, batch.timestamp_ms_max),
            batch.timestamp_ms_max,
            self._now_ms,
        )
        waiting[name] = held
        self._added.append(held)
        return True

    def note_appended(
        self, producer: Producer, known: ProducerPartition, epoch: int, batch: bytes, appended: Appended
    ) -> None:
        """Note an appended batch, in its remembered form."""
        appended.batches.append((known.producer_id, known.partition_id, epoch, batch))
        appended.writers.append(known)
        if not known.touched:
            self._changes.touch(producer, known)

    def _count(self, judgement: Judgement) -> None:
        if is_duplicate(judgement):
            self.counts.duplicate_batches += 1
        elif judgement == APPENDED_LATE:
            self.counts.late_batches += 1
        elif judgement == APPENDED_BEHIND:
            self.counts.older_epoch_batches += 1

    # ── batches that have waited ──────────────────────────────────────────────────────────────────────────────────

    def release(
        self,
        producer: Producer,
        known: ProducerPartition,
        state: PartitionState,
        appended: Appended,
        *,
        given_up: frozenset[HeldBatch] = frozenset(),
    ) -> None:
        """Append the held batches of a producer that are in order now, or are given up.

        All are of one partition.

        A batch that stays held also holds the rest of its epoch, and every epoch that has not begun.
        """
        waiting = self._planned(known)
        in_order = sorted(waiting.values(), key=lambda held: (*known.order_of(held.epoch, held.first), held.count))
        # Batches before one that is given up are given up, too.
        forced_count = 0
        if given_up:
            forced_count = max((place for place, held in enumerate(in_order, 1) if held in given_up), default=0)
        waits: int | None = None
        for place, held in enumerate(in_order):
            if waits is not None and (held.epoch == waits or held.epoch > known.planned_epoch):
                continue
            offset = state.planned_next_offset
            judgement = known.judge_journaled(
                held.epoch, held.first, held.count, offset, any_start=producer.may_start_anywhere
            )
            if judgement == HELD:
                if place >= forced_count:
                    waits = held.epoch
                    continue
                judgement = known.judge_journaled(
                    held.epoch, held.first, held.count, offset, any_start=producer.may_start_anywhere, force=True
                )
                self.counts.gaps_given_up += 1
            del waiting[held.name]
            self._count(judgement)
            if is_duplicate(judgement):
                self._dropped.append(held)
                continue
            self._released.append(held)
            self.note_appended(producer, known, held.epoch, remembered(held.first, held.count, offset), appended)
            appended.extents.append(held.extent(offset))
            appended.states.append(state)
            appended.others[held.object.number] = held.object
            state.planned_next_offset = offset + held.count
            state.planned_size_bytes += held.length

    def drop(self, batches: Iterable[HeldBatch]) -> None:
        """Drop held batches whose topic is deleted."""
        for batch in batches:
            self._dropped.append(batch)
            self.counts.dropped_batches += 1

    # ── the plan is durable, or not ───────────────────────────────────────────────────────────────────────────────

    def write(self, tx: Transaction) -> None:
        """Write the changes, after the rows of the objects."""
        if self._records:
            write_sequences(tx, self._records.values())
        if self._added:
            write_held(tx, self._added)
        if self._released:
            delete_held(tx, self._released)
        if self._dropped:
            drop_held(tx, self._dropped, self._now_ms)

    def apply(self, counts: JournalCounts) -> None:
        if self._records:
            self._sequences.put(self._records.values())
        if self._added:
            self._held.add(self._added)
        if self._released or self._dropped:
            self._held.remove(self._released)
            self._held.remove(self._dropped)
        counts.add(self.counts)


def _is_invalid(batch: BatchEntry) -> bool:
    """Whether no agent journals such a batch.

    Then nobody was told that it is written.
    """
    if batch.attributes & (CONTROL_BIT | TRANSACTIONAL_BIT):
        return True
    return batch.producer_id >= 0 and (batch.base_sequence < 0 or batch.producer_epoch < 0)
