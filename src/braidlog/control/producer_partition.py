"""One idempotent producer in one partition: what it has written there, and what may come next."""

import struct
from enum import Enum

import msgspec

from braidlog.control.error_codes import ErrorCode
from braidlog.control.gaps import (
    Gaps,
    Numbers,
    Standing,
    may_be_older,
    position_of,
    standing,
    start_anywhere,
    start_of_epoch,
    take,
    with_earlier,
)
from braidlog.objects.layout import SEQUENCE_END

BATCHES_REMEMBERED = 5
"""Clients keep at most five requests in flight per connection, so a retry is always among the last five."""

OUT_OF_ORDER = int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
_DUPLICATE = int(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
_INVALID_EPOCH = int(ErrorCode.INVALID_PRODUCER_EPOCH)
LATE = 1 << 16
"""No error code: the batch is accepted, though what follows it was before."""

REMEMBERED = struct.Struct(">iiq")
"""A batch as it is remembered: first sequence, last sequence, base offset. Persisted: keep it stable.

There may be a million states: as tuples they would take ten times the memory, and be encoded whenever they are written.
"""
_OTHERS_BYTES = (BATCHES_REMEMBERED - 1) * REMEMBERED.size

_remember = REMEMBERED.pack
_encode = msgspec.msgpack.Encoder().encode
_decode_gaps = msgspec.msgpack.Decoder(Gaps).decode


class Judged(Enum):
    """What becomes of a journaled batch. It is never refused."""

    APPENDED = "appended"
    LATE = "late"
    """Appended, though what follows it was before."""
    OLDER_EPOCH = "older epoch"
    """Appended, though batches of a later epoch were before."""
    DUPLICATE = "duplicate"
    HELD = "held"
    """Something before it is not there yet."""


class ProducerPartition:
    """One producer's state in one partition. No state: epoch -1.

    `batches` are the last ones of the newest epoch, back to back, the newest last. `planned_*` are what the plan in
    progress would make of it, and `planned_sequence` is the one that comes next. All before it were sequenced, but for
    what `gaps` say; None: nothing is missing, and nothing is known of earlier epochs.
    """

    __slots__ = (
        "batches",
        "epoch",
        "gaps",
        "partition_id",
        "planned_batches",
        "planned_epoch",
        "planned_gaps",
        "planned_sequence",
        "producer_id",
        "touched",
        "unsettled_from",
    )

    def __init__(
        self, producer_id: int, partition_id: int, epoch: int = -1, batches: bytes = b"", gaps: Gaps | None = None
    ) -> None:
        self.producer_id = producer_id
        self.partition_id = partition_id
        self.epoch = self.planned_epoch = epoch
        self.batches = self.planned_batches = batches
        self.gaps = self.planned_gaps = gaps
        self.planned_sequence = _sequence_after(batches)
        self.touched = False
        """Whether the plan in progress changes it."""
        self.unsettled_from = 0
        """The first object that its row in the metadata does not know of; 0: it knows all. Until the row is written,
        what it lacks is durable with the recent objects from there on."""

    def judge(self, epoch: int, first: int, count: int, offset: int, any_start: bool) -> int:
        """Plan the next batch, which would get `offset`.

        0 or `LATE` accept it; another positive number is the error code that refuses it; -1 - offset says that it is a
        duplicate of the batch at that offset. `any_start`: without state, accept any first sequence.
        """
        planned_epoch = self.planned_epoch
        last = first + count - 1
        if last >= SEQUENCE_END:
            last -= SEQUENCE_END
        if epoch == planned_epoch:
            batches = self.planned_batches
            if first == self.planned_sequence:
                self.planned_batches = batches[-_OTHERS_BYTES:] + _remember(first, last, offset)
                self.planned_sequence = last + 1 if last + 1 < SEQUENCE_END else 0
                return 0
            for known_first, known_last, known_offset in REMEMBERED.iter_unpack(batches):
                if known_first == first and known_last == last:
                    return -1 - int(known_offset)
            if self.planned_gaps is not None and self._take_missing(first, count):
                return LATE
            # Sequences wrap, so "before" means less than half the circle behind.
            behind_oldest = (REMEMBERED.unpack_from(batches)[0] - first) % SEQUENCE_END
            return _DUPLICATE if 0 < behind_oldest < SEQUENCE_END // 2 else OUT_OF_ORDER
        if epoch < planned_epoch:
            return _INVALID_EPOCH
        if first != 0 and not (any_start and planned_epoch < 0):
            return OUT_OF_ORDER
        self._begin(epoch, first, count, offset, any_start)
        return 0

    def _take_missing(self, first: int, count: int) -> bool:
        """Whether these numbers are known to be missing; from now on they are not."""
        numbers = self._numbers()
        start = position_of(numbers.next, first)
        end = start + count
        if standing(numbers, start, end) is not Standing.MISSING or may_be_older(numbers, start):
            return False
        self._set_numbers(take(numbers, start, end))
        return True

    def judge_journaled(
        self, epoch: int, first: int, count: int, offset: int, *, any_start: bool, force: bool = False
    ) -> Judged:
        """Plan a batch of a journal, which would get `offset`. `any_start`: without state, accept any first sequence.
        `force`: it has waited long enough."""
        planned_epoch = self.planned_epoch
        if epoch < planned_epoch:
            return self._judge_older(epoch, first, count, any_start=any_start, force=force)
        if epoch > planned_epoch:
            if first != 0 and not force and not (any_start and planned_epoch < 0):
                return Judged.HELD
            self._begin(epoch, first, count, offset, any_start)
            return Judged.APPENDED
        if first == self.planned_sequence:
            self._append(first, count, offset)
            return Judged.APPENDED
        numbers = self._numbers()
        start = position_of(numbers.next, first)
        end = start + count
        found = standing(numbers, start, end)
        if found is Standing.SEQUENCED:
            return Judged.DUPLICATE
        if found is Standing.AHEAD and not force:
            return Judged.HELD
        taken = take(numbers, start, end)
        if end > numbers.next:
            self._append(first, count, offset)
        self._set_numbers(taken)
        return Judged.APPENDED if found is Standing.AHEAD else Judged.LATE

    def _judge_older(self, epoch: int, first: int, count: int, *, any_start: bool, force: bool) -> Judged:
        """It comes behind a later epoch in any case. Within its own, the order is kept."""
        gaps = self.planned_gaps or Gaps(self.planned_sequence)
        numbers = next((each for each in gaps.earlier if each.epoch == epoch), None)
        if numbers is None:
            numbers = start_anywhere(epoch, first) if any_start else start_of_epoch(epoch)
        start = position_of(numbers.next, first)
        found = standing(numbers, start, start + count)
        if found is Standing.SEQUENCED:
            return Judged.DUPLICATE
        if found is Standing.AHEAD and not force:
            return Judged.HELD
        earlier = with_earlier(gaps.earlier, take(numbers, start, start + count))
        self.planned_gaps = Gaps(gaps.next, gaps.missing, earlier)
        return Judged.OLDER_EPOCH

    def replay(self, epoch: int, batch: bytes, any_start: bool) -> None:
        """Take in a batch that was appended. What the state knows already is taken in once more without effect."""
        first, last, offset = REMEMBERED.unpack(batch)
        if self.batches and offset <= _base_offset(self.batches):
            return
        count = (last - first) % SEQUENCE_END + 1
        self.judge_journaled(epoch, first, count, offset, any_start=any_start, force=True)
        self.apply_plan()

    def offset_of(self, epoch: int, first: int, count: int) -> int:
        """Where one of the last batches was appended; -1 where nobody knows any more."""
        if epoch == self.planned_epoch:
            last = (first + count - 1) % SEQUENCE_END
            for known_first, known_last, known_offset in REMEMBERED.iter_unpack(self.planned_batches):
                if known_first == first and known_last == last:
                    return int(known_offset)
        return -1

    def _append(self, first: int, count: int, offset: int) -> None:
        last = (first + count - 1) % SEQUENCE_END
        self.planned_batches = self.planned_batches[-_OTHERS_BYTES:] + _remember(first, last, offset)
        self.planned_sequence = (last + 1) % SEQUENCE_END

    def _begin(self, epoch: int, first: int, count: int, offset: int, any_start: bool) -> None:
        """The first batch of an epoch."""
        numbers = start_of_epoch(epoch)
        if any_start and self.planned_epoch < 0 and first != 0:
            numbers = start_anywhere(epoch, first)
        earlier: tuple[Numbers, ...] = ()
        if self.planned_epoch >= 0:
            known = self.planned_gaps.earlier if self.planned_gaps is not None else ()
            earlier = with_earlier(known, self._numbers())
        start = position_of(numbers.next, first)
        numbers = take(numbers, start, start + count)
        self.planned_epoch, self.planned_batches = epoch, b""
        self._append(first, count, offset)
        gaps = Gaps(numbers.next, numbers.missing, earlier)
        self.planned_gaps = None if gaps.is_trivial else gaps

    def _numbers(self) -> Numbers:
        """Of the current epoch."""
        gaps, sequence = self.planned_gaps, self.planned_sequence
        if gaps is None:
            return Numbers(self.planned_epoch, sequence)
        return Numbers(self.planned_epoch, gaps.next + (sequence - gaps.next) % SEQUENCE_END, gaps.missing)

    def _set_numbers(self, numbers: Numbers) -> None:
        gaps = Gaps(numbers.next, numbers.missing, self.planned_gaps.earlier if self.planned_gaps is not None else ())
        self.planned_gaps = None if gaps.is_trivial else gaps

    def order_of(self, epoch: int, first: int) -> tuple[int, int]:
        """Sorts batches of this producer in the order in which it has sent them."""
        if epoch == self.planned_epoch:
            return epoch, position_of(self._numbers().next, first)
        return epoch, position_of(0, first)

    def apply_plan(self) -> None:
        self.epoch, self.batches, self.gaps = self.planned_epoch, self.planned_batches, self.planned_gaps
        self.touched = False

    def discard_plan(self) -> None:
        self.planned_epoch, self.planned_batches, self.planned_gaps = self.epoch, self.batches, self.gaps
        self.planned_sequence = _sequence_after(self.batches)
        self.touched = False


def remembered(first: int, count: int, offset: int) -> bytes:
    return _remember(first, (first + count - 1) % SEQUENCE_END, offset)


def encode_gaps(gaps: Gaps | None) -> bytes | None:
    return _encode(gaps) if gaps is not None else None


def decode_gaps(data: bytes | None) -> Gaps | None:
    return _decode_gaps(data) if data is not None else None


def last_sequence(batches: bytes) -> int:
    return int(REMEMBERED.unpack_from(batches, len(batches) - REMEMBERED.size)[1])


def _sequence_after(batches: bytes) -> int:
    """What must follow the newest batch; -1 where there is none."""
    if not batches:
        return -1
    last = last_sequence(batches)
    return last + 1 if last + 1 < SEQUENCE_END else 0


def _base_offset(batches: bytes) -> int:
    """Of the newest batch."""
    return int(REMEMBERED.unpack_from(batches, len(batches) - REMEMBERED.size)[2])
