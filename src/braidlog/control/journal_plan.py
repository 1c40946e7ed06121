"""What a group of objects would change about journals: slots that are sequenced, batches that wait or wait no longer.

A journaled batch is never refused: it is appended, proven to be a duplicate, or held until what its producer wrote
before it is there. What waits for a batch, whichever way that comes, is appended right behind its extent.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from braidlog.control.error_codes import ErrorCode
from braidlog.control.held import HeldBatch, HeldBatches, HeldKey, Waiting, delete_held, drop_held, write_held
from braidlog.control.interface import BatchVerdict, ExtentVerdict, IndexedExtent, StoredObject
from braidlog.control.metadata import Transaction
from braidlog.control.partitions import PartitionState
from braidlog.control.producer_partition import Judged, ProducerPartition, remembered
from braidlog.control.producers import AppendedBatch, Producer, ProducerPlan
from braidlog.control.sequences import SequenceKey, SequenceRecord, Sequences, write_sequences
from braidlog.objects.layout import BatchEntry, ExtentEntry
from braidlog.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT

_HELD = BatchVerdict(0, -1, held=True)
_INVALID = BatchVerdict(int(ErrorCode.INVALID_RECORD), -1)


@dataclass(slots=True)
class JournalCounts:
    """Since the control plane has started."""

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


@dataclass(slots=True)
class Appended:
    """What was appended on behalf of one object, in the order of the offsets of each partition."""

    extents: list[IndexedExtent] = field(default_factory=list)
    states: list[PartitionState] = field(default_factory=list)
    """The partition of each extent."""
    batches: list[AppendedBatch] = field(default_factory=list)
    """Of idempotent producers."""
    writers: list[ProducerPartition] = field(default_factory=list)
    """The producer of each of them."""
    others: dict[int, StoredObject] = field(default_factory=dict)
    """Older objects that some of the extents are of, by number."""


class JournalPlan:
    def __init__(self, sequences: Sequences, held: HeldBatches, changes: ProducerPlan, now_ms: int) -> None:
        self._sequences = sequences
        self._held = held
        self._changes = changes
        self._now_ms = now_ms
        self._records: dict[SequenceKey, SequenceRecord] = {}
        self._waiting: dict[HeldKey, Waiting] = {}
        """Of the producers that this plan is about, as it would leave them."""
        self._added: list[HeldBatch] = []
        self._released: list[HeldBatch] = []
        self._dropped: list[HeldBatch] = []
        self.counts = JournalCounts()

    def add_slot(self, key: SequenceKey, slot: int) -> None:
        """The file in this slot is sequenced with the plan."""
        record = self._records.get(key) or self._sequences.records.get(key)
        if record is None:
            record = SequenceRecord(*key, self._now_ms)
        self._records[key] = record.with_slots([slot])

    def waits_for(self, producer_id: int, partition_id: int) -> bool:
        """Whether any batch of the producer waits in the partition."""
        key = producer_id, partition_id
        if key in self._waiting:
            return bool(self._waiting[key])
        return key in self._held.by_key

    @property
    def may_wait(self) -> bool:
        """Cheap, for those who ask about every batch."""
        return bool(self._held.by_key) or bool(self._added)

    # ── batches of journals ───────────────────────────────────────────────────────────────────────────────────────

    def add_extent(
        self,
        stored: StoredObject,
        extent: ExtentEntry,
        state: PartitionState,
        producers: dict[int, Producer],
        appended: Appended,
    ) -> tuple[ExtentVerdict, int]:
        """Plan an extent of a journal. Returns what becomes of its batches, and how many of them wait."""
        verdicts: list[BatchVerdict] = []
        partition_id = state.partition_id
        run = _Run(stored.number, extent, state, appended)
        held_count = 0
        writers: dict[int, tuple[Producer, ProducerPartition]] = {}
        for batch in extent.batches:
            if _is_invalid(batch):
                verdict = _INVALID
            elif batch.producer_id < 0:
                verdict = BatchVerdict(0, run.offset)
            else:
                producer = producers[batch.producer_id]
                known = producer.partition(partition_id)
                verdict = self._judge(batch, producer, known, run.offset)
                if verdict.held and not self._hold(stored, run.position, extent, batch, known):
                    verdict = BatchVerdict(0, -1, True)
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
        judged = known.judge_journaled(epoch, first, count, offset, any_start=producer.may_start_anywhere)
        if judged is Judged.HELD:
            return _HELD
        self._count(judged)
        if judged is Judged.DUPLICATE:
            return BatchVerdict(0, known.offset_of(epoch, first, count), True)
        return BatchVerdict(0, offset)

    def _follows_an_epoch_that_waits(self, known: ProducerPartition, epoch: int) -> bool:
        """A producer that has begun a new epoch wrote the old one first."""
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
        """Whether the batch waits from now on; not where the same one waits already."""
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
        """`batch` as it is remembered."""
        appended.batches.append((known.producer_id, known.partition_id, epoch, batch))
        appended.writers.append(known)
        if not known.touched:
            self._changes.touch(producer, known)

    def _count(self, judged: Judged) -> None:
        if judged is Judged.DUPLICATE:
            self.counts.duplicate_batches += 1
        elif judged is Judged.LATE:
            self.counts.late_batches += 1
        elif judged is Judged.OLDER_EPOCH:
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
        """Append what of this producer waits in the partition and is in order now, or is given up.

        What waits in an epoch keeps the rest of it waiting, and every epoch that has not begun.
        """
        waiting = self._planned(known)
        in_order = sorted(waiting.values(), key=lambda held: (*known.order_of(held.epoch, held.first), held.count))
        # What comes before a batch that waits no longer does not wait either.
        forced_count = 0
        if given_up:
            forced_count = max((place for place, held in enumerate(in_order, 1) if held in given_up), default=0)
        waits: int | None = None
        for place, held in enumerate(in_order):
            if waits is not None and (held.epoch == waits or held.epoch > known.planned_epoch):
                continue
            offset = state.planned_next_offset
            judged = known.judge_journaled(
                held.epoch, held.first, held.count, offset, any_start=producer.may_start_anywhere
            )
            if judged is Judged.HELD:
                if place >= forced_count:
                    waits = held.epoch
                    continue
                judged = known.judge_journaled(
                    held.epoch, held.first, held.count, offset, any_start=producer.may_start_anywhere, force=True
                )
                self.counts.gaps_given_up += 1
            del waiting[held.name]
            self._count(judged)
            if judged is Judged.DUPLICATE:
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
        """Their topic is no more."""
        for batch in batches:
            self._dropped.append(batch)
            self.counts.dropped_batches += 1

    # ── the plan is durable, or not ───────────────────────────────────────────────────────────────────────────────

    def write(self, tx: Transaction) -> None:
        """Behind the rows of the objects."""
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


class _Run:
    """Batches of an extent that lie and are appended one behind the other: they make one extent of the index."""

    def __init__(self, object_number: int, extent: ExtentEntry, state: PartitionState, appended: Appended) -> None:
        self._object_number = object_number
        self._extent = extent
        self._state = state
        self.appended = appended
        self.offset = state.planned_next_offset
        self.position = extent.position
        self._start_offset, self._start_position = self.offset, self.position
        self._latest_ms = -1

    def pass_batch(self, batch: BatchEntry, *, is_appended: bool) -> None:
        if not is_appended:
            self.end()
            self.position += batch.length
            self._start_position = self.position
            return
        self.offset += batch.offset_count
        self.position += batch.length
        self._latest_ms = max(self._latest_ms, batch.timestamp_ms_max)

    def end(self) -> None:
        length = self.position - self._start_position
        if length:
            self.appended.extents.append(
                IndexedExtent(
                    self._state.partition_id,
                    self._start_offset,
                    self.offset,
                    self._object_number,
                    self._start_position,
                    length,
                    min(self._extent.timestamp_ms_min, self._latest_ms),
                    self._latest_ms,
                )
            )
            self.appended.states.append(self._state)
            self._state.planned_next_offset = self.offset
            self._state.planned_size_bytes += length
        self._start_offset, self._start_position, self._latest_ms = self.offset, self.position, -1


def _is_invalid(batch: BatchEntry) -> bool:
    """No agent journals such a batch, so nobody was told that it is there."""
    if batch.attributes & (CONTROL_BIT | TRANSACTIONAL_BIT):
        return True
    return batch.producer_id >= 0 and (batch.base_sequence < 0 or batch.producer_epoch < 0)
